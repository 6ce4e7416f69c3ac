"""The error throttle: failures in a second, as a share of what was delivered lately.

Deliveries are counted over two seconds by ticks of one second, failures over a sliding second by
ticks of 10 ms. Where a window ends within a tick, the tick counts for the part of it that is still
inside: so permits come back gradually.
"""

from __future__ import annotations

from collections import deque

#: What is let through in a second at least, however little is delivered.
_ERRORS_MIN = 1.0
_DELIVERY_SECONDS = 2
_DELIVERY_TICK_SECONDS = 1.0
_ERROR_SECONDS = 1
_ERROR_TICK_SECONDS = 0.01
#: Rounding of seconds must not make nine out of ten of what is a whole number.
_ALMOST = 1e-6


class _Window:
    """A count over a sliding time."""

    __slots__ = ("_tick", "_ticks", "_total", "_width")

    def __init__(self, seconds: int, tick_seconds: float) -> None:
        self._tick = tick_seconds
        self._width = round(seconds / tick_seconds)
        #: Number of the tick, and its count; those that are over are forgotten.
        self._ticks: deque[list[int]] = deque()
        self._total = 0

    def add(self, now: float) -> None:
        number = int(now / self._tick + _ALMOST)
        if self._ticks and self._ticks[-1][0] >= number:
            self._ticks[-1][1] += 1
        else:
            self._ticks.append([number, 1])
        self._total += 1

    def total(self, now: float) -> float:
        position = now / self._tick
        number = int(position + _ALMOST)
        while self._ticks and self._ticks[0][0] < number - self._width:
            self._total -= self._ticks.popleft()[1]
        if self._ticks and self._ticks[0][0] == number - self._width:
            return self._total - self._ticks[0][1] * max(0.0, position - number)
        return float(self._total)


class ErrorThrottle:
    """How many failures may end now. Seconds are those of the caller's monotonic clock."""

    __slots__ = ("_delivered", "_failed", "error_percent")

    def __init__(self, error_percent: float) -> None:
        #: Can be changed at any time.
        self.error_percent = error_percent
        self._delivered = _Window(_DELIVERY_SECONDS, _DELIVERY_TICK_SECONDS)
        self._failed = _Window(_ERROR_SECONDS, _ERROR_TICK_SECONDS)

    def delivered(self, now: float) -> None:
        """An attempt has ended, well or not."""
        self._delivered.add(now)

    def allowed(self, now: float) -> float:
        """Failures in a second that are let through."""
        rate = self._delivered.total(now) / _DELIVERY_SECONDS
        return max(_ERRORS_MIN, rate * self.error_percent / 100)

    def admits(self, now: float) -> bool:
        """Whether a failure is let through now; it is counted if so."""
        if self._failed.total(now) + 1 > self.allowed(now) + _ALMOST:
            return False
        self._failed.add(now)
        return True

    def wait_seconds(self, now: float) -> float:
        """After so long it makes sense to ask again."""
        if self._failed.total(now) + 1 <= self.allowed(now) + _ALMOST:
            return 0.0
        return _ERROR_TICK_SECONDS
