"""The breaker: an endpoint that keeps failing is left alone for a while, then probed.

closed ──(failures in a row reach the limit)──▶ open ──(pause over)──▶ half open, one probe
   ▲                                              ▲                        │
   └──────────────── success ─────────────────────┼──────── failure ───────┘ (a longer pause)

Every process has its own view: it learns quickly by itself, and sharing it would cost a round trip
per attempt.
"""

from __future__ import annotations

from enum import StrEnum


class BreakerState(StrEnum):
    """What the breaker does with attempts."""

    CLOSED = "closed"  # lets them through
    OPEN = "open"  # holds them back
    HALF_OPEN = "half open"  # lets one through, to see


#: From each state, by what happened.
TRANSITIONS: dict[tuple[BreakerState, str], BreakerState] = {
    (BreakerState.CLOSED, "limit reached"): BreakerState.OPEN,
    (BreakerState.OPEN, "pause over"): BreakerState.HALF_OPEN,
    (BreakerState.HALF_OPEN, "success"): BreakerState.CLOSED,
    (BreakerState.HALF_OPEN, "failure"): BreakerState.OPEN,
}


class Breaker:
    """One endpoint's breaker. Times are seconds of the caller's monotonic clock."""

    def __init__(
        self, *, failures_max: int = 5, pause_seconds: float = 1.0, pause_seconds_max: float = 300.0
    ) -> None:
        self.state = BreakerState.CLOSED
        self._failures_max = failures_max
        self._pause_first = pause_seconds
        self._pause_max = pause_seconds_max
        self._pause = pause_seconds
        self._failures = 0
        self._open_until = 0.0
        self._probing = False

    def __repr__(self) -> str:
        return f"<Breaker {self.state}, {self._failures} failures>"

    def admits(self, now: float) -> bool:
        """Whether an attempt may begin now. A probe that is admitted must be reported."""
        if self.state is BreakerState.OPEN and now >= self._open_until:
            self._step("pause over")
        if self.state is BreakerState.HALF_OPEN:
            if self._probing:
                return False
            self._probing = True
            return True
        return self.state is BreakerState.CLOSED

    @property
    def is_probing(self) -> bool:
        """Whether a probe is under way; right after `admits`: whether it let a probe through."""
        return self._probing

    def withdraw(self) -> None:
        """The probe was not made after all: there was nothing to send."""
        self._probing = False

    def opens_at(self) -> float:
        """When the next attempt makes sense; meaningful while open."""
        return self._open_until

    def report(self, *, success: bool, now: float, probe: bool = False) -> None:
        """Tells how an attempt ended, and whether it was the probe.

        Others that began before may end while a probe is under way; of these only success counts.
        """
        if probe:
            self._probing = False
        if success:
            self._failures = 0
            self._pause = self._pause_first
            if self.state is BreakerState.HALF_OPEN:
                self._step("success")
            return
        self._failures += 1
        if self.state is BreakerState.HALF_OPEN and probe:
            self._pause = min(self._pause * 2, self._pause_max)
            self._open(now, "failure")
        elif self.state is BreakerState.CLOSED and self._failures >= self._failures_max:
            self._open(now, "limit reached")

    def _open(self, now: float, event: str) -> None:
        self._step(event)
        self._open_until = now + self._pause

    def _step(self, event: str) -> None:
        self.state = TRANSITIONS[self.state, event]
