"""The clock: the only source of time in a process.

The store's clock decides about ownership and expiry, inside scripts. This clock serves the process
alone: waits, ages, timestamps of log lines. In test mode the time machine shifts it together with
the store's clock (`waystation.store.time_machine`).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from datetime import UTC, datetime


class Clock:
    """Wall time plus a shift, which is zero unless a time machine moves it.

    The mutable state is the shift and the functions to call when it changes.
    """

    def __init__(self) -> None:
        self._shift_ms = 0
        self._watchers: set[Callable[[], None]] = set()

    @property
    def shift_ms(self) -> int:
        """Milliseconds by which the time machine has moved this clock ahead of wall time."""
        return self._shift_ms

    def now_ms(self) -> int:
        """Return milliseconds since the epoch."""
        return time.time_ns() // 1_000_000 + self._shift_ms

    def monotonic(self) -> float:
        """Return seconds that never run backwards. They jump when the time machine does."""
        return time.monotonic() + self._shift_ms / 1000

    def uptime_s(self) -> float:
        """Return monotonic seconds that the time machine does not move, as for cache expiry."""
        return time.monotonic()

    def shift_to(self, shift_ms: int) -> None:
        """Set the shift and call all watchers, so that sleepers check the time again."""
        self._shift_ms = shift_ms
        for watcher in list(self._watchers):
            watcher()

    def on_jump(self, watcher: Callable[[], None]) -> Callable[[], None]:
        """Call `watcher` when the time machine moves the clock. Return a function to end it."""
        self._watchers.add(watcher)
        return lambda: self._watchers.discard(watcher)

    async def sleep(self, seconds: float) -> None:
        """Sleep until this clock has advanced by `seconds`, including jumps by the time machine."""
        until = self.monotonic() + seconds
        jumped = asyncio.Event()
        forget = self.on_jump(jumped.set)
        try:
            while (left := until - self.monotonic()) > 0:
                jumped.clear()
                # A timer of an event loop may fire a little early, so the loop checks the time.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await jumped.wait()
        finally:
            forget()


def utc_text(at_ms: int) -> str:
    """Format milliseconds since the epoch as `2030-01-31T12:00:00.000Z`."""
    moment = datetime.fromtimestamp(at_ms // 1000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at_ms % 1000:03d}Z"
