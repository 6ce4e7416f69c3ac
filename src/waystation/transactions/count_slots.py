"""Counts of longer times: sums of the five-second slots that scripts write.

A slot that is over does not change any more, so its sum is the same whoever makes it, and however
often. Whoever dies in the middle is finished by the next look of anybody.
"""

from __future__ import annotations

import msgspec

from waystation.store.client import Store
from waystation.transactions import names


class Series(msgspec.Struct, frozen=True):
    """Time slots of one length."""

    name: str
    seconds: int
    #: How long a slot is kept after its end.
    kept_seconds: int


FINE = Series("metric1H", 5, 300)
MEDIUM = Series("metric2H", 100, 7_200)
COARSE = Series("metric3H", 1_000, 86_400)
#: A script that was about to write when its slot ended has written by then.
_LATE_SECONDS = 2


class CountSlots:
    """Sums slots up, once each as far as this process knows."""

    def __init__(self, store: Store) -> None:
        self._store = store
        #: By cell and series, the newest slot that was summed up.
        self._summed: dict[tuple[int, str], int] = {}

    async def roll_up(self, cell: int, now_ms: int) -> None:
        """Sums up the newest slots that are over; coarse ones from medium ones."""
        now = now_ms // 1000 - _LATE_SECONDS
        await self._sum(cell, MEDIUM, FINE, now)
        await self._sum(cell, COARSE, MEDIUM, now)

    async def _sum(self, cell: int, whole: Series, part: Series, now: int) -> None:
        slot = now // whole.seconds * whole.seconds - whole.seconds
        if self._summed.get((cell, whole.name), 0) >= slot:
            return
        commands = [
            ("HGETALL", names.counts(cell, part.name, at))
            for at in range(slot, slot + whole.seconds, part.seconds)
        ]
        sums: dict[bytes, int] = {}
        for reply in await self._store.pipeline(commands, repeatable=True):
            if isinstance(reply, Exception):
                raise reply
            for name, count in zip(reply[::2], reply[1::2], strict=True):
                sums[name] = sums.get(name, 0) + int(count)
        if sums:
            key = names.counts(cell, whole.name, slot)
            words = [word for pair in sums.items() for word in pair]
            await self._store.call("HSET", key, *words, repeatable=True)
            kept = whole.seconds + whole.kept_seconds
            await self._store.call("EXPIRE", key, kept, repeatable=True)
        self._summed[cell, whole.name] = slot
