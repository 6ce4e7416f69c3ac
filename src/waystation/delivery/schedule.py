"""Retry schedules: when to try again, and when to stop.

    Schedule(attempts=5, first_seconds=3, multiplier=1.5)    # waits 3, 4.5, 6.75, 10.1 s

This module decides what an outcome means: success, retry at a time, give up, or disable the
endpoint. A message whose reply had `Retry-After` is not sent again before that time.
"""

from __future__ import annotations

import random
from enum import StrEnum
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from waystation.delivery.request import Failure, Outcome

#: A receiver cannot make us wait longer than this.
RETRY_AFTER_SECONDS_MAX = 24 * 3600.0
#: Codes that say "slower", by the Standard Webhooks specification.
THROTTLING = frozenset({429, 502, 504})
#: "Gone": the receiver wants nothing more.
GONE = 410
TOO_MANY_REQUESTS = 429


class Verdict(StrEnum):
    """What to do after an attempt."""

    DONE = "done"
    RETRY = "retry"
    FAILED = "failed"
    DISABLE = "disable"


class Decision(msgspec.Struct, frozen=True):
    """A verdict, with the wait before the next attempt."""

    verdict: Verdict
    wait_seconds: float = 0.0
    cause: str = ""


_DONE = Decision(Verdict.DONE)


class Schedule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How patient a sender is."""

    #: All attempts, the first included.
    attempts: Annotated[int, Meta(ge=1, le=1000)] = 10
    #: The wait before the second attempt.
    first_seconds: Annotated[float, Meta(ge=0, le=86400)] = 3.0
    growth: Literal["linear", "exponential"] = "exponential"
    #: Exponential: each wait is this much longer. Linear: each wait is `first_seconds` longer.
    multiplier: Annotated[float, Meta(ge=1, le=100)] = 2.0
    minimum_seconds: Annotated[float, Meta(ge=0, le=86400)] = 0.0
    maximum_seconds: Annotated[float, Meta(gt=0, le=30 * 86400)] = 3600.0
    #: A wait varies by this share of itself, so that many do not come back at once.
    jitter: Annotated[float, Meta(ge=0, le=1)] = 0.2
    #: Status codes that end it at once, and codes that never do whatever the defaults say.
    fatal_codes: tuple[int, ...] = ()
    retry_codes: tuple[int, ...] = ()

    def decide(self, outcome: Outcome, *, attempt: int, rng: random.Random) -> Decision:
        """What follows attempt number `attempt` (1 = the first)."""
        if outcome.succeeded:
            return _DONE
        cause = describe(outcome)
        if outcome.status == GONE and GONE not in self.retry_codes:
            return Decision(Verdict.DISABLE, cause=cause)
        if self._is_fatal(outcome) or attempt >= self.attempts:
            return Decision(Verdict.FAILED, cause=cause)
        wait = self.wait_seconds(attempt, rng)
        if outcome.retry_after is not None:
            wait = max(wait, min(outcome.retry_after, RETRY_AFTER_SECONDS_MAX))
        return Decision(Verdict.RETRY, wait, cause)

    def wait_seconds(self, attempt: int, rng: random.Random) -> float:
        """The wait after attempt number `attempt`, jitter included."""
        if self.growth == "linear":
            wait = self.first_seconds * attempt
        else:
            # Capped before it is raised: 100 ** 1000 is no float.
            steps = min(attempt - 1, 64)
            wait = self.first_seconds * self.multiplier**steps
        wait *= 1 + self.jitter * (2 * rng.random() - 1)
        return max(self.minimum_seconds, min(wait, self.maximum_seconds))

    def _is_fatal(self, outcome: Outcome) -> bool:
        if outcome.failure is not None:
            # What is forbidden or refused stays so; everything else may pass.
            return outcome.failure in (Failure.FORBIDDEN, Failure.REFUSED)
        if outcome.status in self.retry_codes:
            return False
        return outcome.status in self.fatal_codes or outcome.status in FATAL_CODES


#: What DSPS never tries again: the request itself is at fault.
FATAL_CODES = frozenset({401, 402, 403, 405, 406, 407, *range(411, 419), 426, 431, 451, 501})


#: Statuses whose Retry-After may concern the endpoint, not one message.
_HOLDING = frozenset({429, 503})


def hold_seconds(outcome: Outcome) -> float:
    """Return how long the reply asks us to wait; 0 if it does not ask."""
    if outcome.status not in _HOLDING or outcome.retry_after is None:
        return 0.0
    return min(outcome.retry_after, RETRY_AFTER_SECONDS_MAX)


def is_told_to_wait(outcome: Outcome) -> bool:
    """Return True for a 429 with Retry-After, which may concern all requests of the sender.

    503 may be the state of one tenant behind the endpoint: its Retry-After delays the message, and
    stops the others only when the circuit breaker opens (`Breaker.report`).
    """
    return outcome.status == TOO_MANY_REQUESTS and hold_seconds(outcome) > 0


def describe(outcome: Outcome) -> str:
    """One sentence about an attempt that failed."""
    if outcome.failure is not None:
        return outcome.detail or outcome.failure.value
    return f"the endpoint answered {outcome.status}"
