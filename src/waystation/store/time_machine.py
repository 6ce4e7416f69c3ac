"""The time machine of test mode: moves the time of the store and of all processes together.

`advance` shifts `now()` of all scripts and all TTLs in one script, then waits until every process
that follows has the new time, so that a test may rely on it everywhere. It works with the embedded
store only.
"""

from __future__ import annotations

import asyncio
import time

from waystation.errors import InvalidInputError, StoreUnavailableError
from waystation.runtime.clock import Clock
from waystation.runtime.ids import IdSource, RandomIds
from waystation.runtime.service import Service
from waystation.store import keys
from waystation.store.client import Store
from waystation.store.pubsub import PubSub
from waystation.store.scripts import script

_ADVANCE = script("waystation.store", "advance_time")

#: Real time without a beat after which a follower counts as crashed and is not waited for.
_FOLLOWER_SILENT_MS_MAX = 3000
_BEAT_S = 1.0
_ADVANCE_S_MAX = 10.0
#: Maximum length of one jump. A longer one is certainly a mistake.
_ADVANCE_DAYS_MAX = 3660


class TimeMachine(Service):
    """Moves the time of the store. The clock of this process follows it."""

    #: A beat may be cancelled at any point, because it only reads and registers.
    grace_s = 0.0

    def __init__(
        self, store: Store, pubsub: PubSub, clock: Clock, *, ids: IdSource | None = None
    ) -> None:
        super().__init__("time_machine", clock=clock)
        self._store = store
        self._pubsub = pubsub
        #: Name under which this process reports its shift to the store.
        self._follower = (ids or RandomIds()).token(8)

    async def on_start(self) -> None:
        """Adopt the current shift of the store. Raise StoreError if it cannot be read."""
        await self._follow_once()

    async def run(self) -> None:
        """Follow every jump until the service stops."""
        with self._pubsub.waiting(keys.TIME.encode()) as wakeup:
            await self.repeat(self._follow_once, every_s=_BEAT_S, wakeup=wakeup)

    async def on_stop(self) -> None:
        """Remove this process from the followers that `advance` waits for."""
        await self._store.call("HDEL", keys.TIME_FOLLOWERS, self._follower, repeatable=True)

    async def advance(self, seconds: float) -> int:
        """Move time forward; return the total shift in ms when every process has it.

        Raise StoreUnavailableError if a process does not follow within ten seconds.
        """
        if not 0 < seconds <= _ADVANCE_DAYS_MAX * 86400:
            raise InvalidInputError(
                "Time can be advanced by more than 0 seconds and at most ten years.",
                field="seconds",
            )
        # Not repeatable, because a second run would advance the time again.
        shift, generation = await self._store.run(_ADVANCE, [keys.TIME], [round(seconds * 1000)])
        await self._follow_once()
        until = time.monotonic() + _ADVANCE_S_MAX
        while not await self._all_have(int(generation)):
            if time.monotonic() > until:
                raise StoreUnavailableError(
                    "Not every process followed the jump of test time within ten seconds."
                )
            await asyncio.sleep(0.005)
        return int(shift)

    async def _all_have(self, generation: int) -> bool:
        pairs = await self._store.call("HGETALL", keys.TIME_FOLLOWERS, repeatable=True)
        now = _real_ms()
        for entry in pairs[1::2]:
            has, _, seen = entry.decode().partition(":")
            if int(has) < generation and now - int(seen) < _FOLLOWER_SILENT_MS_MAX:
                return False
        return True

    async def _follow_once(self) -> None:
        shift, generation = await self._store.call(
            "HMGET", keys.TIME, "shift_ms", "generation", repeatable=True
        )
        if int(shift or 0) != self.clock.shift_ms:
            self.clock.shift_to(int(shift or 0))
        beat = f"{int(generation or 0)}:{_real_ms()}"
        await self._store.call("HSET", keys.TIME_FOLLOWERS, self._follower, beat, repeatable=True)


def _real_ms() -> int:
    """Return wall time without the shift, because a process crashes in real time."""
    return time.time_ns() // 1_000_000
