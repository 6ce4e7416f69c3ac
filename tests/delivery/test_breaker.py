"""The breaker's states, and the share of slots: F-17 without a network."""

from __future__ import annotations

import pytest

from waystation.delivery.breaker import Breaker, BreakerState
from waystation.delivery.request import Failure, Outcome
from waystation.delivery.share import Share


def failing(breaker: Breaker, times: int, *, now: float = 0.0) -> None:
    for _ in range(times):
        assert breaker.admits(now)
        breaker.report(success=False, now=now)


def test_it_opens_after_so_many_failures_in_a_row() -> None:
    breaker = Breaker(failures_max=3)
    failing(breaker, 2)
    breaker.report(success=True, now=0)
    failing(breaker, 2)
    assert breaker.state is BreakerState.CLOSED

    failing(breaker, 1)

    assert breaker.state is BreakerState.OPEN
    assert not breaker.admits(0.5)


def test_after_its_pause_it_lets_one_probe_through() -> None:
    breaker = Breaker(failures_max=1, pause_seconds=5)
    failing(breaker, 1)

    assert not breaker.admits(4.9)
    assert breaker.admits(5.0)
    assert not breaker.admits(5.0)
    assert breaker.state is BreakerState.HALF_OPEN


def test_a_successful_probe_closes_it() -> None:
    breaker = Breaker(failures_max=1, pause_seconds=5)
    failing(breaker, 1)
    assert breaker.admits(5)

    breaker.report(success=True, now=5, probe=True)

    assert breaker.state is BreakerState.CLOSED
    assert breaker.admits(5)
    assert breaker.admits(5)


def test_a_failed_probe_opens_it_for_longer_up_to_a_most() -> None:
    breaker = Breaker(failures_max=1, pause_seconds=5, pause_seconds_max=15)
    failing(breaker, 1)
    opened = []
    now = 0.0
    for _ in range(3):
        now = breaker.opens_at()
        assert breaker.admits(now)
        breaker.report(success=False, now=now, probe=True)
        opened.append(breaker.opens_at() - now)

    assert opened == [10, 15, 15]


def test_an_endpoint_that_was_well_is_probed_a_second_later() -> None:
    breaker = Breaker()
    failing(breaker, 5)

    assert breaker.opens_at() == 1
    assert not breaker.admits(0.9)
    assert breaker.admits(1)


def test_a_late_report_of_an_old_attempt_does_not_reopen_it() -> None:
    breaker = Breaker(failures_max=1, pause_seconds=5)
    failing(breaker, 1)

    breaker.report(success=False, now=1)

    assert breaker.state is BreakerState.OPEN
    assert breaker.opens_at() == 5


def test_a_hanging_endpoint_is_down_to_one_slot_soon() -> None:
    share = Share()
    for _ in range(5):
        share.take()
        share.give_back(Outcome(failure=Failure.TIMEOUT))

    assert share.free == 1


@pytest.mark.parametrize(
    "outcome",
    [
        *(Outcome(status=status) for status in (429, 502, 504)),
        *(Outcome(failure=failure) for failure in (Failure.TIMEOUT, Failure.CONNECTION)),
    ],
    ids=str,
)
def test_who_throttles_does_not_answer_or_is_not_reached_has_half_the_slots(
    outcome: Outcome,
) -> None:
    share = Share()
    before = share.slots
    share.take()

    share.give_back(outcome)

    assert share.slots == before / 2


def test_success_earns_slots_one_by_one_up_to_a_most() -> None:
    share = Share()
    for _ in range(8):
        share.take()
        share.give_back(Outcome(status=200))
    assert 8.5 < share.slots <= 9

    for _ in range(20_000):
        share.take()
        share.give_back(Outcome(status=200))
    assert share.slots == 128


def test_an_ordinary_error_changes_nothing() -> None:
    share = Share()
    share.take()

    share.give_back(Outcome(status=500))

    assert share.slots == 8
