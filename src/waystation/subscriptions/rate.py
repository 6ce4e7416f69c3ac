"""A rate: so many in a second, as credit that grows with time and is spent."""

from __future__ import annotations


class Rate:
    """Seconds are of the caller's monotonic clock; it holds one second's worth, 1 at least."""

    __slots__ = ("_at", "_credit", "per_second")

    def __init__(self, per_second: float, now: float) -> None:
        #: Can be changed at any time.
        self.per_second = per_second
        self._credit = max(1.0, per_second)
        self._at = now

    def wait_seconds(self, now: float) -> float:
        """How long until there is credit for one; 0 if there is."""
        most = max(1.0, self.per_second)
        self._credit = min(most, self._credit + (now - self._at) * self.per_second)
        self._at = now
        return 0.0 if self._credit >= 1 else (1 - self._credit) / self.per_second

    def spend(self, count: int) -> None:
        """So many were begun; it may go into debt, by one batch at most."""
        self._credit -= count
