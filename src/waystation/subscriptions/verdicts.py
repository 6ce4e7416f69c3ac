"""What is made of an attempt: delivered, tried again, dead, or as if it had not been made."""

from __future__ import annotations

import random

import msgspec

from waystation.delivery.request import Failure, Outcome
from waystation.delivery.schedule import Schedule, describe
from waystation.delivery.schedule import Verdict as Asked
from waystation.subscriptions.endpoints.protocol import Parcel
from waystation.subscriptions.states import Verdict


class Decided(msgspec.Struct, frozen=True, gc=False):
    """A verdict, and what the endpoint asks for besides."""

    verdict: Verdict
    #: With `again`: until the next attempt.
    wait_ms: int = 0
    #: A status code, or the name of a `delivery.Failure`; empty after a success.
    failure: str = ""
    #: A sentence for people.
    cause: str = ""
    #: The endpoint wants nothing more.
    disable: bool = False
    #: For so long there is no sense in asking it.
    hold_seconds: float = 0.0


DONE = Decided(Verdict.DONE)


def verdict_of(outcome: Outcome, parcel: Parcel, schedule: Schedule, rng: random.Random) -> Decided:
    """What becomes of a message after an attempt."""
    if outcome.succeeded:
        return DONE
    if outcome.failure is Failure.CANCELLED:
        # Nobody was asked. It may say for how long there is no sense in asking.
        return Decided(Verdict.RELEASE, hold_seconds=outcome.retry_after or 0.0)
    decision = schedule.decide(outcome, attempt=parcel.attempt, rng=rng)
    failure = outcome.failure.value if outcome.failure is not None else str(outcome.status)
    cause = decision.cause or describe(outcome)
    match decision.verdict:
        case Asked.DISABLE:
            return Decided(Verdict.RELEASE, failure=failure, cause=cause, disable=True)
        case Asked.FAILED:
            return Decided(Verdict.DEAD, failure=failure, cause=cause)
    wait_ms = round(decision.wait_seconds * 1000)
    return Decided(Verdict.AGAIN, wait_ms, failure, cause)
