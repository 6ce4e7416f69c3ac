"""The time machine of test mode: moves the time of the store and of every process with it.

`advance()` shifts the store's `now()` and all TTLs in one script, then waits until every process
that follows has the new time, so that a test may rely on it everywhere. Embedded stores only.
"""

from __future__ import annotations

import asyncio
import time

from waystation.errors import InvalidInputError, StoreError, StoreUnavailableError
from waystation.runtime.clock import Clock
from waystation.runtime.ids import IdSource, RandomIds
from waystation.store import keys
from waystation.store.client import Store
from waystation.store.pubsub import Wakeups
from waystation.store.scripts import script

_ADVANCE = script("waystation.store", "advance_time")

#: A follower that was not seen for so long (in real time) is dead and not waited for.
_FOLLOWER_DEAD_MS = 3000
_FOLLOWER_BEAT_SECONDS = 1.0
_ADVANCE_SECONDS_MAX = 10.0
#: A jump of more than this overflows nothing, but is surely a mistake.
_ADVANCE_DAYS_MAX = 3660


class TimeMachine:
    """Keeps one process's clock in step with the store's, and moves both."""

    def __init__(
        self, store: Store, wakeups: Wakeups, clock: Clock, *, identity: IdSource | None = None
    ) -> None:
        self._store = store
        self._wakeups = wakeups
        self._clock = clock
        self._name = (identity or RandomIds()).token(8)
        self._follower: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Takes over the store's present shift and follows from now on."""
        await self._follow_once()
        self._follower = asyncio.get_running_loop().create_task(self._follow())

    async def close(self) -> None:
        """Stops following; advancing no longer waits for this process."""
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.gather(self._follower, return_exceptions=True)
        try:
            await self._store.call("HDEL", keys.TIME_FOLLOWERS, self._name, repeatable=True)
        except StoreError:
            return  # The store is gone, and with it the list.

    async def advance(self, seconds: float) -> int:
        """Moves time forward; returns the total shift in ms once every process has it."""
        if not 0 < seconds <= _ADVANCE_DAYS_MAX * 86400:
            raise InvalidInputError(
                "Time can be advanced by more than 0 seconds and at most ten years.",
                field="seconds",
            )
        # Not repeatable: sent twice, it would advance twice.
        shift, generation = await self._store.run(_ADVANCE, [keys.TIME], [round(seconds * 1000)])
        await self._follow_once()
        until = time.monotonic() + _ADVANCE_SECONDS_MAX
        while not await self._all_have(int(generation)):
            if time.monotonic() > until:
                raise StoreUnavailableError("Not every process followed the jump in time.")
            await asyncio.sleep(0.005)
        return int(shift)

    async def _all_have(self, generation: int) -> bool:
        pairs = await self._store.call("HGETALL", keys.TIME_FOLLOWERS, repeatable=True)
        now = _real_ms()
        for entry in pairs[1::2]:
            has, _, seen = entry.decode().partition(":")
            if int(has) < generation and now - int(seen) < _FOLLOWER_DEAD_MS:
                return False
        return True

    async def _follow(self) -> None:
        with self._wakeups.waiting(keys.TIME.encode()) as waiter:
            while True:
                waiter.clear()
                try:
                    await self._follow_once()
                except StoreError:
                    await asyncio.sleep(_FOLLOWER_BEAT_SECONDS)
                await waiter.wait(_FOLLOWER_BEAT_SECONDS)

    async def _follow_once(self) -> None:
        shift, generation = await self._store.call(
            "HMGET", keys.TIME, "shift_ms", "generation", repeatable=True
        )
        if int(shift or 0) != self._clock.shift_ms:
            self._clock.shift_to(int(shift or 0))
        beat = f"{int(generation or 0)}:{_real_ms()}"
        await self._store.call("HSET", keys.TIME_FOLLOWERS, self._name, beat, repeatable=True)


def _real_ms() -> int:
    """Wall time that no machine moves: whether a process is alive is not a matter of test time."""
    return time.time_ns() // 1_000_000
