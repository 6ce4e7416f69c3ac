"""A lane at work: claims what is due, has it sent, and tells of what was given up.

Its endpoint's standing says when and how much; a lane whose endpoint hangs, is disabled or asked to
be left alone sleeps, and costs the others nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from waystation.delivery.attempts import Attempts
from waystation.delivery.claims import AWAY, Held
from waystation.delivery.endpoint import Endpoint
from waystation.delivery.items import Claim
from waystation.delivery.standing import Standing
from waystation.delivery.teller import Teller
from waystation.delivery.workshop import Workshop
from waystation.runtime.logging import logger
from waystation.runtime.service import Wakeup
from waystation.telemetry import metrics

_log = logger("delivery")

#: Items of one claim; more would sit claimed while others wait.
_CLAIM_MOST = 64
#: A store that is away is asked again after this.
_STORE_PAUSE_SECONDS = 0.5
#: A lane that may not send is looked at this often, to know what waits in it.
_COUNT_SECONDS = 10.0


class Lane:
    """The work of one process on one lane."""

    def __init__(
        self, name: str, endpoint: Endpoint, standing: Standing, workshop: Workshop
    ) -> None:
        self.name = name
        self._standing = standing
        self._shop = workshop
        self._teller = Teller(
            name,
            standing.target,
            outbox=workshop.outbox,
            states=workshop.states,
            notices=workshop.notices,
        )
        self._attempts = Attempts(
            name,
            endpoint,
            standing,
            workshop,
            self._teller,
            ended=self._note_room,
            due_again=self._note_due,
        )
        self._wake: Callable[[], None] = lambda: None
        #: Whether the process had no room for us at the last look.
        self._crowded = False
        self._idle_since: float | None = None
        self._looked_at = float("-inf")
        self._seen = Claim([], -1, 0, 0, 0, [])
        self._dropped_told: int | None = None

    async def work(self, waiter: Wakeup) -> None:
        """Delivers until the lane has been empty for long and is retired, or the process stops."""
        self._wake = waiter.set
        self._standing.join(self.name, waiter.set)
        try:
            while not self._shop.stopping:
                waiter.clear()
                try:
                    seconds = await self._look()
                    if self._seen.next_ms < 0 and await self._retire():
                        return
                except AWAY as error:
                    _log.warning("a lane cannot be read", lane=self.name, problem=str(error))
                    seconds = _STORE_PAUSE_SECONDS
                if pause := self._pause_seconds():
                    await asyncio.sleep(pause)
                if not self._shop.stopping:
                    await waiter.wait(seconds)
        finally:
            self._standing.leave(self.name)
            self._count_items(Claim([], -1, 0, 0, 0, []))

    async def _look(self) -> float:
        """Begins what may begin now; returns how long to sleep unless woken."""
        now = self._shop.clock.monotonic()
        room = min(_CLAIM_MOST, self._room())
        self._crowded = room <= 0
        reserved = None if self._crowded else self._standing.reserve(self.name, now, room)
        if reserved is None or not reserved.slots:
            if now - self._looked_at >= _COUNT_SECONDS:
                self._note(await self._claim(0, now), now)
            asleep = self._standing.wait_seconds(now) if reserved else 1.0
            return min(asleep, _COUNT_SECONDS)
        self._shop.under_way += reserved.slots
        begun: list[Held] = []
        try:
            claim = await self._claim(reserved.slots, now, fresh_first=reserved.probe)
            for each in claim.items:
                if held := self._shop.claims.hold(self.name, each, now):
                    begun.append(held)
        finally:
            unused = reserved.slots - len(begun)
            self._shop.under_way -= unused
            self._standing.give_back(reserved, unused)
        for held in begun:
            self._attempts.begin(held, probe=reserved.probe)
        self._note(claim, now)
        if len(claim.items) == reserved.slots:
            return 0.0  # There may be more: look again at once, or get in line.
        if claim.next_ms < 0:
            return min(self._shop.pauses.idle_seconds, self._shop.idle_seconds)
        return min(self._shop.pauses.idle_seconds, claim.next_ms / 1000)

    def _pause_seconds(self) -> float:
        """How long to sleep after a look, whatever comes meanwhile."""
        pauses = self._shop.pauses
        return pauses.busy_seconds if self._crowded else pauses.claim_seconds

    def _note_room(self) -> None:
        """An attempt has ended: the process may have room for us by now."""
        if self._crowded:
            self._wake()

    def _note_due(self) -> None:
        """Something is due again, at a time that we do not know yet."""
        self._wake()

    def _room(self) -> int:
        """How many attempts may begin: an endpoint with none gets one, whatever others hold."""
        left = self._shop.attempts_max - self._shop.under_way
        if left > 0 or self._standing.share.in_use or left <= -self._shop.attempts_max:
            return left
        return 1

    async def _claim(self, most: int, now: float, *, fresh_first: bool = False) -> Claim:
        self._looked_at = now
        return await self._shop.outbox.claim(
            self.name,
            most=most,
            claim_ms=self._shop.claims.claim_ms,
            token=self._shop.new_token(),
            fresh_first=fresh_first,
        )

    def _note(self, claim: Claim, now: float) -> None:
        """Takes notice of what a look showed."""
        self._count_items(claim)
        if claim.next_ms >= 0:
            self._idle_since = None
        for item_id in claim.untold:
            self._shop.begin(self._teller.tell(item_id))
        if self._dropped_told is not None and claim.dropped > self._dropped_told:
            more = claim.dropped - self._dropped_told
            metrics.delivery_dropped.inc(more)
            self._shop.begin(self._teller.tell_dropped(more, self._shop.clock.now_ms()))
        self._dropped_told = claim.dropped

    def _count_items(self, claim: Claim) -> None:
        metrics.delivery_waiting.inc(claim.waiting - self._seen.waiting)
        metrics.delivery_failed.inc(claim.failed - self._seen.failed)
        self._seen = claim

    async def _retire(self) -> bool:
        """Ends the work on a lane that has been empty for long, here or by another process."""
        now = self._shop.clock.monotonic()
        self._idle_since = now if self._idle_since is None else self._idle_since
        if (
            now - self._idle_since < self._shop.idle_seconds
            or self._attempts.count
            or self._seen.failed
        ):
            return False
        self._idle_since = now
        # Read before the gate is closed: who registers after this keeps the lane.
        registered = await self._shop.outbox.registration(self.name)
        return not registered or await self._shop.outbox.retire(self.name, registered)
