"""The census: how many processes serve a data set at this time.

Each of them says every two seconds that it is there, and hears how many are. One that was silent
for ten seconds is not counted any more; one that stops takes itself off. While the store is away
the last count stays. Good for sharing something evenly, such as a limit; not for being the only
one, which is what leases are for: for some seconds two processes can have different counts.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from waystation.errors import BusyError, StoreError
from waystation.runtime.clock import Clock
from waystation.store import keys
from waystation.store.client import Store
from waystation.store.scripts import script

_ATTEND = script("waystation.store", "attend")
_BEAT_SECONDS = 2.0
_SILENT_MS_MAX = 10_000
_LEAVE_SECONDS_MAX = 1.0


class Census:
    """One process among all; tells each count to its listener."""

    def __init__(
        self, store: Store, *, clock: Clock, process: str, on_count: Callable[[int], None]
    ) -> None:
        self._store = store
        self._clock = clock
        self._process = process
        self._on_count = on_count
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Is counted from now on."""
        await self._attend()
        self._task = asyncio.get_running_loop().create_task(self._stay())

    async def close(self) -> None:
        """Is not counted any more; others hear of it at their next beat."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        # Not for long: where the store is away, silence tells the same.
        with contextlib.suppress(BusyError, StoreError, TimeoutError):
            async with asyncio.timeout(_LEAVE_SECONDS_MAX):
                await self._store.call("ZREM", keys.PROCESSES, self._process, repeatable=True)

    async def _stay(self) -> None:
        while True:
            await self._clock.sleep(_BEAT_SECONDS)
            await self._attend()

    async def _attend(self) -> None:
        with contextlib.suppress(BusyError, StoreError):
            arguments = (self._process, _SILENT_MS_MAX)
            self._on_count(int(await self._store.run(_ATTEND, [keys.PROCESSES], arguments)))
