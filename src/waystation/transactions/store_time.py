"""The store's time, as far as a process knows it: what a reply told, and what has passed since.

Nothing is decided by it. It stamps what a journal tells, so that all of it is by one clock.
"""

from __future__ import annotations

from waystation.runtime.clock import Clock


class StoreTime:
    """Follows the store's clock, not the machine's: that one may be wrong by an hour."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told_ms = clock.now_ms()
        self._told_at = clock.monotonic()

    def tell(self, now_ms: int) -> None:
        """A reply of the store said what time it was."""
        self._told_ms = now_ms
        self._told_at = self._clock.monotonic()

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return self._told_ms + int((self._clock.monotonic() - self._told_at) * 1000)
