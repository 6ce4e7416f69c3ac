"""Verdicts: what is made of an attempt, for every kind of outcome."""

from __future__ import annotations

import random

import pytest

from waystation.delivery.request import Failure, Outcome
from waystation.delivery.schedule import Schedule
from waystation.messages.envelope import Envelope
from waystation.subscriptions.definition import RetryPolicy
from waystation.subscriptions.endpoints.protocol import Parcel
from waystation.subscriptions.positions import Position
from waystation.subscriptions.states import Verdict
from waystation.subscriptions.verdicts import Decided, verdict_of

SCHEDULE = RetryPolicy(attempts=2, first_seconds=1.0, jitter=0).schedule


def decide(outcome: Outcome, attempt: int = 1, schedule: Schedule = SCHEDULE) -> Decided:
    parcel = Parcel(
        message=Envelope(id="m", project="default", data=b""),
        position=Position(1, 0, 0, 0),
        attempt=attempt,
        subscription="crm",
        incarnation=1,
    )
    return verdict_of(outcome, parcel, schedule, random.Random(1))


def test_a_success_is_done() -> None:
    assert decide(Outcome(status=204)) == Decided(Verdict.DONE)


@pytest.mark.parametrize("status", [500, 503, 404, 409, 301, 429, 400])
def test_a_code_that_may_pass_is_tried_again_after_its_wait(status: int) -> None:
    decided = decide(Outcome(status=status))
    assert (decided.verdict, decided.wait_ms, decided.failure) == (
        Verdict.AGAIN,
        1000,
        str(status),
    )
    assert decide(Outcome(status=status), attempt=2).wait_ms == 2000
    assert str(status) in decided.cause


def test_attempts_are_retries_and_the_first() -> None:
    assert [decide(Outcome(status=500), attempt=n).verdict for n in (1, 2, 3)] == [
        Verdict.AGAIN,
        Verdict.AGAIN,
        Verdict.DEAD,
    ]
    once = RetryPolicy(attempts=0).schedule
    assert decide(Outcome(status=500), schedule=once).verdict is Verdict.DEAD


@pytest.mark.parametrize("status", [401, 403, 413, 415])
def test_a_fatal_code_is_dead_at_once(status: int) -> None:
    decided = decide(Outcome(status=status))
    assert (decided.verdict, decided.failure) == (Verdict.DEAD, str(status))


@pytest.mark.parametrize("failure", [Failure.FORBIDDEN, Failure.REFUSED])
def test_what_can_never_be_taken_is_dead_at_once(failure: Failure) -> None:
    decided = decide(Outcome(failure=failure, detail="it is not JSON"))
    assert decided == Decided(Verdict.DEAD, failure=failure.value, cause="it is not JSON")


@pytest.mark.parametrize(
    "failure",
    [Failure.CONNECTION, Failure.TIMEOUT, Failure.NAME, Failure.BROKEN, Failure.BUSY],
)
def test_what_may_pass_is_tried_again(failure: Failure) -> None:
    decided = decide(Outcome(failure=failure))
    assert (decided.verdict, decided.failure) == (Verdict.AGAIN, failure.value)
    assert decided.cause


def test_gone_disables_the_endpoint_and_counts_for_nothing() -> None:
    decided = decide(Outcome(status=410), attempt=99)
    assert (decided.verdict, decided.disable) == (Verdict.RELEASE, True)
    kept = RetryPolicy(retry_codes=(410,)).schedule
    assert decide(Outcome(status=410), schedule=kept).verdict is Verdict.AGAIN


def test_one_that_was_not_made_counts_for_nothing() -> None:
    decided = decide(Outcome(failure=Failure.CANCELLED, retry_after=3.0), attempt=99)
    assert (decided.verdict, decided.hold_seconds, decided.disable) == (Verdict.RELEASE, 3.0, False)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_verdict_retry_after_delays_the_message_for_all_of_it(status: int) -> None:
    decided = decide(Outcome(status=status, retry_after=3600.0))
    assert (decided.verdict, decided.wait_ms) == (Verdict.AGAIN, 3_600_000)
    assert decided.hold_seconds == 0.0, "the standing of the endpoint decides about the others"
    last = decide(Outcome(status=status, retry_after=3600.0), attempt=3)
    assert last.verdict is Verdict.DEAD
