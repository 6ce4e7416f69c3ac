"""When an attempt is repeated, when it is the last, and how long the wait is."""

from __future__ import annotations

import random

import pytest

from waystation.delivery.request import Failure, Outcome
from waystation.delivery.schedule import RETRY_AFTER_SECONDS_MAX, Schedule, Verdict

STEADY = Schedule(attempts=4, first_seconds=3, multiplier=1.5, jitter=0)
RNG = random.Random(7)


def verdict(outcome: Outcome, *, attempt: int = 1, schedule: Schedule = STEADY) -> Verdict:
    return schedule.decide(outcome, attempt=attempt, rng=RNG).verdict


def test_waits_grow_exponentially_within_their_bounds() -> None:
    schedule = Schedule(
        first_seconds=3, multiplier=1.5, jitter=0, minimum_seconds=4, maximum_seconds=10
    )

    waits = [schedule.wait_seconds(attempt, RNG) for attempt in range(1, 6)]

    assert waits == [4, 4.5, 6.75, 10, 10]


def test_waits_grow_linearly() -> None:
    schedule = Schedule(growth="linear", first_seconds=2, jitter=0)

    assert [schedule.wait_seconds(attempt, RNG) for attempt in (1, 2, 3)] == [2, 4, 6]


def test_jitter_varies_a_wait_by_its_share() -> None:
    schedule = Schedule(first_seconds=100, jitter=0.2)

    waits = [schedule.wait_seconds(1, RNG) for _ in range(200)]

    assert 80 <= min(waits) < 90
    assert 110 < max(waits) <= 120


def test_the_thousandth_attempt_has_a_finite_wait() -> None:
    assert Schedule(multiplier=100).wait_seconds(1000, RNG) == 3600


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_any_2xx_is_success(status: int) -> None:
    assert verdict(Outcome(status=status)) is Verdict.DONE


@pytest.mark.parametrize(
    "status", [301, 302, 304, 308, 400, 404, 408, 409, 429, 500, 502, 503, 504]
)
def test_a_redirect_or_an_error_that_may_pass_is_tried_again(status: int) -> None:
    assert verdict(Outcome(status=status)) is Verdict.RETRY


@pytest.mark.parametrize("status", [401, 402, 403, 405, 406, 407, 411, 418, 426, 431, 451, 501])
def test_an_error_of_the_request_itself_is_final(status: int) -> None:
    assert verdict(Outcome(status=status)) is Verdict.FAILED


def test_410_disables_the_endpoint() -> None:
    assert verdict(Outcome(status=410)) is Verdict.DISABLE


@pytest.mark.parametrize("failure", [Failure.CONNECTION, Failure.TIMEOUT, Failure.NAME])
def test_no_reply_is_tried_again(failure: Failure) -> None:
    assert verdict(Outcome(failure=failure)) is Verdict.RETRY


def test_a_forbidden_address_is_final() -> None:
    assert verdict(Outcome(failure=Failure.FORBIDDEN)) is Verdict.FAILED


def test_a_receiver_of_our_own_that_refuses_is_final_and_one_without_room_is_not() -> None:
    assert verdict(Outcome(failure=Failure.REFUSED)) is Verdict.FAILED
    assert verdict(Outcome(failure=Failure.BUSY)) is Verdict.RETRY


def test_the_last_attempt_is_the_last() -> None:
    assert verdict(Outcome(status=500), attempt=3) is Verdict.RETRY
    assert verdict(Outcome(status=500), attempt=4) is Verdict.FAILED


def test_retry_after_is_honoured_and_bounded() -> None:
    def wait(retry_after: float) -> float:
        outcome = Outcome(status=429, retry_after=retry_after)
        return STEADY.decide(outcome, attempt=1, rng=RNG).wait_seconds

    assert wait(60) == 60
    assert wait(1) == 3
    assert wait(1e9) == RETRY_AFTER_SECONDS_MAX


def test_codes_can_be_made_fatal_or_repeatable() -> None:
    schedule = Schedule(fatal_codes=(404,), retry_codes=(401, 410))

    assert verdict(Outcome(status=404), schedule=schedule) is Verdict.FAILED
    assert verdict(Outcome(status=401), schedule=schedule) is Verdict.RETRY
    assert verdict(Outcome(status=410), schedule=schedule) is Verdict.RETRY
