"""Circuit breaker: stops requests to an endpoint that fails, and probes it until it answers.

closed ──(down, told to wait)─▶ open ──(pause over)──▶ half open, probes
   ▲                            │ ▲                        │
   └────────── success ─────────┘ └──── probe failed ──────┤ (a longer pause)
   └────────── success ────────────────────────────────────┘

The breaker judges an endpoint, not one group of messages. An endpoint is down if, since its last
success, requests of several different sources (groups, or messages without a group) have failed:

- 5 sources got no reply: connection errors and time-outs; or
- 10 sources got a failure of any kind, and 200 attempts have failed or a second has passed.

`BreakerLimits` has these numbers of sources where settings change them. The breaker also opens if
the endpoint tells us to wait: a 429 with `Retry-After`, and no success in the 10 s before.

If a reply since the last success asked for a longer pause with `Retry-After`, the breaker makes
that pause, up to its longest one: such replies may concern some groups only, so a healthy group
must not wait for all of it.

A success of any source closes the breaker in every state. So a group that fails again and again
opens no breaker, and groups that fail at the same time open none while others succeed.

Every process has its own breakers: it learns quickly by itself, and sharing each outcome would cost
a round trip per attempt. Nodes report open breakers to the store (`states.py`) for operators only.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

#: Different sources without a reply, and different sources that failed in any way.
_UNANSWERED_MIN = 5
_FAILED_MIN = 10
#: Pause before the first probe; each probe that fails doubles it.
_PAUSE_SECONDS = 0.1
#: Failed attempts in a row, or the time that they take, after which the sources decide.
_ATTEMPTS_MIN = 200
_SECONDS_MIN = 1.0
#: While a probe is in flight, the next one begins after this: one group that hangs must not keep
#: the breaker open for the length of a time-out.
_PROBE_SECONDS = 1.0
_PROBES_MAX = 4
#: A message that has failed before is sent as a probe so much later than one that has not, so that
#: any lane with a message that has not failed goes first.
_RETRY_PROBE_SECONDS = 0.1


class BreakerState(StrEnum):
    """What the breaker does with attempts."""

    CLOSED = "closed"  # lets them through
    OPEN = "open"  # holds them back
    HALF_OPEN = "half open"  # lets probes through


#: Next state by state and event.
TRANSITIONS: dict[tuple[BreakerState, str], BreakerState] = {
    (BreakerState.CLOSED, "limit reached"): BreakerState.OPEN,
    (BreakerState.CLOSED, "told to wait"): BreakerState.OPEN,
    (BreakerState.OPEN, "pause over"): BreakerState.HALF_OPEN,
    (BreakerState.OPEN, "success"): BreakerState.CLOSED,
    (BreakerState.HALF_OPEN, "success"): BreakerState.CLOSED,
    (BreakerState.HALF_OPEN, "failure"): BreakerState.OPEN,
}


class BreakerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """When a breaker opens, and how long its pauses become."""

    #: Different sources that must fail; 0: the breaker never opens.
    failed_min: int = _FAILED_MIN
    #: Failures are forgotten if no other follows for so long.
    forget_seconds: float = 60.0
    pause_seconds_max: float = 30.0

    def __str__(self) -> str:
        return (
            f"{self.failed_min} messages failed and none succeeded;"
            f" a probe every {self.pause_seconds_max:g} s"
        )


class Breaker:
    """Circuit breaker of one endpoint. Times are seconds of the caller's monotonic clock."""

    def __init__(
        self, limits: BreakerLimits | None = None, *, pause_seconds: float = _PAUSE_SECONDS
    ) -> None:
        self.state = BreakerState.CLOSED
        self._limits = limits or BreakerLimits()
        self._unanswered_min = min(_UNANSWERED_MIN, self._limits.failed_min)
        self._pause_first = min(pause_seconds, self._limits.pause_seconds_max)
        self._pause = self._pause_first
        self._open_until = 0.0
        #: Probes in flight, and when the last one began.
        self._probes = 0
        self._probed_at = 0.0
        #: Failures since the last success: how many, from when to when, and of which sources.
        self._attempts = 0
        self._failed_since = self._failed_at = 0.0
        self._failed: set[str] = set()
        self._unanswered: set[str] = set()
        #: The latest time until which a failed reply asked us to wait.
        self._asked_until = 0.0

    def __repr__(self) -> str:
        return f"<Breaker {self.state}, {self._attempts} failures of {len(self._failed)} sources>"

    @property
    def is_closed(self) -> bool:
        """True if attempts need no permission of the breaker."""
        return self.state is BreakerState.CLOSED

    @property
    def is_at_longest_pause(self) -> bool:
        """True if so many probes have failed in a row that pauses grow no more."""
        return not self.is_closed and self._pause >= self._limits.pause_seconds_max

    @property
    def is_probing(self) -> bool:
        """True while a probe is in flight that may close the breaker."""
        return self._probes > 0 and self.state is BreakerState.HALF_OPEN

    def admits(self, now: float, *, is_fresh: bool = True) -> bool:
        """Return True if an attempt may begin now. Unless the breaker is closed, it is a probe.

        `is_fresh`: the message has not failed before. Report or withdraw each admitted probe.
        """
        if self.state is BreakerState.CLOSED:
            return True
        if now < self.next_at(is_fresh=is_fresh):
            return False
        if self.state is BreakerState.OPEN:
            self._step("pause over")
        self._probes += 1
        self._probed_at = now
        return True

    def pause_left(self, now: float) -> float:
        """Return the seconds until the pause of an open breaker is over."""
        return max(0.0, self._open_until - now)

    def next_at(self, *, is_fresh: bool = True) -> float:
        """Return when `admits` allows the next attempt, unless a success comes before."""
        if self.state is BreakerState.CLOSED:
            return 0.0
        at = self._open_until if is_fresh else self._open_until + _RETRY_PROBE_SECONDS
        if self._probes >= _PROBES_MAX:
            return float("inf")
        return max(at, self._probed_at + _PROBE_SECONDS) if self.is_probing else at

    def reset(self) -> None:
        """Close the breaker, because an operator says that the endpoint is repaired."""
        self.state = BreakerState.CLOSED
        self._pause = self._pause_first
        self._asked_until = 0.0
        self._forget_failures()

    def withdraw(self) -> None:
        """Take back the admission of a probe that was not sent."""
        self._probes -= 1

    def report(
        self,
        *,
        success: bool,
        now: float,
        source: str,
        answered: bool = True,
        probe: bool = False,
        pause_seconds: float = 0.0,
        told_to_wait: bool = False,
    ) -> None:
        """Note the end of an attempt: its source, and whether the endpoint has sent a reply.

        `pause_seconds`: the pause that a failed reply asked for. It applies if the breaker opens.
        `told_to_wait`: the reply concerns all requests, so the breaker opens.
        """
        if probe:
            self._probes -= 1
        if not success and pause_seconds:
            pause = min(pause_seconds, self._limits.pause_seconds_max)
            self._asked_until = max(self._asked_until, now + pause)
        if success:
            self._attempts = 0
            self._asked_until = 0.0
            if self._failed:
                self._forget_failures()
            if self.state is not BreakerState.CLOSED:
                self._pause = self._pause_first
                self._step("success")
        elif self.state is BreakerState.CLOSED:
            self._note_failure(now, source, answered=answered)
            if told_to_wait and self._limits.failed_min:
                self._open(now, "told to wait")
            elif self._is_down(now):
                self._open(now, "limit reached")
        elif self.state is BreakerState.HALF_OPEN and probe:
            self._pause = min(self._pause * 2, self._limits.pause_seconds_max)
            self._open(now, "failure")

    def _note_failure(self, now: float, source: str, *, answered: bool) -> None:
        if now - self._failed_at > self._limits.forget_seconds:
            self._forget_failures()
        if not self._attempts:
            self._failed_since = now
        self._failed_at = now
        self._attempts += 1
        if len(self._failed) < self._limits.failed_min:
            self._failed.add(source)
        if not answered and len(self._unanswered) < self._unanswered_min:
            self._unanswered.add(source)

    def _is_down(self, now: float) -> bool:
        if not self._limits.failed_min:
            return False
        if len(self._unanswered) >= self._unanswered_min:
            return True
        if len(self._failed) < self._limits.failed_min:
            return False
        return self._attempts >= _ATTEMPTS_MIN or now - self._failed_since >= _SECONDS_MIN

    def _forget_failures(self) -> None:
        self._attempts = 0
        self._failed.clear()
        self._unanswered.clear()

    def _open(self, now: float, event: str) -> None:
        self._step(event)
        self._open_until = max(now + self._pause, self._asked_until)
        self._forget_failures()

    def _step(self, event: str) -> None:
        self.state = TRANSITIONS[self.state, event]
