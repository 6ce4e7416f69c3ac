"""The only source of time in a process.

Ownership and expiry are decided by the store's clock inside scripts; this clock is for what
happens in the process alone: waits, ages, log lines. In test mode it is shifted along with the
store's (see `waystation.store.time_machine`), and whoever sleeps on it wakes when time jumps.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from datetime import UTC, datetime


class Clock:
    """Wall time plus a shift. The shift is zero unless a time machine moves it."""

    def __init__(self) -> None:
        self._shift_ms = 0
        self._watchers: set[Callable[[], None]] = set()

    @property
    def shift_ms(self) -> int:
        """How far ahead of wall time this clock is."""
        return self._shift_ms

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return time.time_ns() // 1_000_000 + self._shift_ms

    def monotonic(self) -> float:
        """Seconds that never run backwards; they jump forward when time is advanced."""
        return time.monotonic() + self._shift_ms / 1000

    def real_seconds(self) -> float:
        """Monotonic seconds that no time machine moves: for the age of what a process holds."""
        return time.monotonic()

    def shift_to(self, shift_ms: int) -> None:
        """Moves the clock and wakes every sleeper, so that each looks at the time again."""
        self._shift_ms = shift_ms
        for watcher in list(self._watchers):
            watcher()

    def on_jump(self, watcher: Callable[[], None]) -> Callable[[], None]:
        """Calls `watcher` after every jump in time; the returned function ends that."""
        self._watchers.add(watcher)
        return lambda: self._watchers.discard(watcher)

    async def sleep(self, seconds: float) -> None:
        """Sleeps until this clock has moved on by `seconds`."""
        until = self.monotonic() + seconds
        jumped = asyncio.Event()
        forget = self.on_jump(jumped.set)
        try:
            while (left := until - self.monotonic()) > 0:
                jumped.clear()
                # An event loop's timer may be a little early: the loop looks at the time again.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await jumped.wait()
        finally:
            forget()


def utc_text(at_ms: int) -> str:
    """A time as people read it: `2030-01-31T12:00:00.000Z`."""
    moment = datetime.fromtimestamp(at_ms // 1000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at_ms % 1000:03d}Z"
