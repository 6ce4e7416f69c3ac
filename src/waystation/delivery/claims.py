"""The claims of one process: short, and renewed for as long as their attempts are under way.

Short, so that what a process had under way when it was killed is soon taken by another. A claim
that is lost all the same, since the store was away or this process stood still, ends nothing: its
attempt goes on, and whether it still counts is decided when it is settled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from waystation.delivery.outbox import Claimed, Outbox
from waystation.errors import BusyError, StoreError
from waystation.runtime.clock import Clock
from waystation.runtime.logging import logger

_log = logger("delivery")

#: A store that cannot be asked now.
AWAY = (BusyError, StoreError)
#: So long after the last renewal another takes over.
CLAIM_SECONDS = 10.0
#: A claim is renewed after this share of its length, found by a look each tenth: a store that is
#: away for a moment costs no claim, and most attempts have ended before the first renewal.
_RENEWED_AFTER = 0.3
_LOOKED_AT_AFTER = 0.1


class Held:
    """A claim that an attempt of this process stands on."""

    __slots__ = ("claimed", "lane", "renewed_at")

    def __init__(self, lane: str, claimed: Claimed, now: float) -> None:
        self.lane = lane
        self.claimed = claimed
        self.renewed_at = now

    def __repr__(self) -> str:
        return f"<Held {self.lane} {self.claimed.id}, attempt {self.claimed.attempt}>"


class Claims:
    """All claims that a process holds."""

    def __init__(
        self, outbox: Outbox, clock: Clock, *, claim_seconds: float = CLAIM_SECONDS
    ) -> None:
        self._outbox = outbox
        self._clock = clock
        self._seconds = claim_seconds
        #: How long a claim is.
        self.claim_ms = round(claim_seconds * 1000)
        #: Lane → item → claim.
        self._held: dict[str, dict[str, Held]] = {}

    def __repr__(self) -> str:
        return f"<Claims [{sum(map(len, self._held.values()))} held]>"

    def hold(self, lane: str, claimed: Claimed, now: float) -> Held | None:
        """Keeps a claim from running out; None when the very attempt is under way here already.

        That one's claim had run out, and goes on under the new token.
        """
        held = self._held.setdefault(lane, {})
        before = held.get(claimed.id)
        if before is not None and before.claimed.attempt == claimed.attempt:
            before.claimed, before.renewed_at = claimed, now
            return None
        held[claimed.id] = Held(lane, claimed, now)
        return held[claimed.id]

    def drop(self, held: Held) -> None:
        """The attempt was settled, or nobody will settle it."""
        of_lane = self._held.get(held.lane, {})
        if of_lane.get(held.claimed.id) is held:
            del of_lane[held.claimed.id]
            if not of_lane:
                del self._held[held.lane]

    async def keep(self) -> None:
        """Renews, again and again."""
        while True:
            await asyncio.sleep(self._seconds * _LOOKED_AT_AFTER)
            now = self._clock.monotonic()
            before = now - self._seconds * _RENEWED_AFTER
            due = [
                [each for each in held.values() if each.renewed_at <= before]
                for held in self._held.values()
            ]
            await asyncio.gather(*(self._renew(each, now) for each in due if each))

    async def _renew(self, due: list[Held], now: float) -> None:
        """Renews claims of one lane, in one call."""
        lane, asked = due[0].lane, {each.claimed.id: each.claimed for each in due}
        try:
            lost = await self._outbox.renew(lane, asked.values(), claim_ms=self.claim_ms)
        except AWAY as error:
            _log.warning("claims could not be renewed", lane=lane, problem=str(error))
            return
        except Exception as error:
            # A defect of ours: the claims of other lanes are renewed all the same.
            _log.error("renewing claims broke", error=error, lane=lane)
            return
        for each in due:
            each.renewed_at = now
        self._give_up(lane, [asked[item_id] for item_id in lost])

    def _give_up(self, lane: str, lost: Iterable[Claimed]) -> None:
        for claimed in lost:
            held = self._held.get(lane, {}).get(claimed.id)
            # Unless it was settled, or came to us again, while we asked.
            if held is not None and held.claimed is claimed:
                _log.warning("a claim was lost", lane=lane, id=claimed.id)
                self.drop(held)
