"""The breaker's states, and the share of slots: F-17 without a network."""

from __future__ import annotations

import heapq
import random

import pytest

from waystation.delivery.breaker import Breaker, BreakerLimits, BreakerState
from waystation.delivery.request import Failure, Outcome
from waystation.delivery.share import Share


def fail(breaker: Breaker, *sources: str, now: float = 0.0, answered: bool = True) -> None:
    for source in sources:
        assert breaker.admits(now)
        breaker.report(success=False, now=now, source=source, answered=answered)


def succeed(breaker: Breaker, *, now: float = 0.0) -> None:
    assert breaker.admits(now)
    breaker.report(success=True, now=now, source="other")


def sources(count: int, *, first: int = 0) -> list[str]:
    return [f"g{number}" for number in range(first, first + count)]


def opened(
    *, now: float = 0.0, pause_seconds: float = 5.0, pause_seconds_max: float = 30.0
) -> Breaker:
    limits = BreakerLimits(pause_seconds_max=pause_seconds_max)
    breaker = Breaker(limits, pause_seconds=pause_seconds)
    fail(breaker, *sources(5), now=now, answered=False)
    assert breaker.state is BreakerState.OPEN
    return breaker


def test_breaker_one_group_that_always_fails_stays_closed() -> None:
    breaker = Breaker()
    for second in range(1000):
        fail(breaker, "g", now=float(second), answered=False)

    assert breaker.is_closed


def test_breaker_five_groups_without_a_reply_opens() -> None:
    breaker = Breaker()
    fail(breaker, *sources(4), *sources(4), answered=False)
    assert breaker.is_closed

    fail(breaker, "another", answered=False)

    assert breaker.state is BreakerState.OPEN
    assert not breaker.admits(0.05)


@pytest.mark.parametrize("answered", [True, False])
def test_breaker_many_groups_fail_while_another_succeeds_stays_closed(answered: bool) -> None:
    breaker = Breaker()
    for second in range(100):
        fail(breaker, *sources(4, first=second), now=float(second), answered=answered)
        succeed(breaker, now=float(second))

    assert breaker.is_closed


def test_breaker_groups_that_fail_together_stays_closed_until_time_or_number_shows_more() -> None:
    breaker = Breaker()
    fail(breaker, *sources(100))
    assert breaker.is_closed, "100 groups may share a defect, and others may succeed"

    fail(breaker, *sources(100))
    assert breaker.state is BreakerState.OPEN

    breaker = Breaker()
    fail(breaker, *sources(9))
    fail(breaker, *sources(9), now=1.0)
    assert breaker.is_closed, "too few groups"
    fail(breaker, "another", now=1.0)
    assert breaker.state is BreakerState.OPEN


def test_breaker_failures_of_long_ago_are_forgotten() -> None:
    breaker = Breaker()
    for hour in range(30):
        fail(breaker, *sources(4, first=4 * hour), now=3600.0 * hour, answered=False)

    assert breaker.is_closed


def test_breaker_after_its_pause_admits_one_probe() -> None:
    breaker = opened()

    assert not breaker.admits(4.9)
    assert breaker.admits(5.0)
    assert breaker.state is BreakerState.HALF_OPEN
    assert breaker.is_probing
    assert not breaker.admits(5.0)


def test_breaker_probe_that_hangs_is_followed_by_a_bounded_number_of_others() -> None:
    breaker = opened()
    begun = [second for second in range(5, 60) if breaker.admits(float(second))]
    assert begun == [5, 6, 7, 8]
    assert breaker.next_at() == float("inf")

    breaker.report(success=True, now=60, source="g", probe=True)

    assert breaker.is_closed


def test_breaker_prefers_a_probe_that_has_not_failed_before() -> None:
    breaker = opened()

    assert not breaker.admits(5.0, is_fresh=False)
    assert breaker.next_at(is_fresh=False) == pytest.approx(5.1)
    assert breaker.admits(5.0)


def test_breaker_without_a_fresh_message_is_probed_with_a_retry() -> None:
    breaker = opened()

    assert breaker.admits(5.2, is_fresh=False)


@pytest.mark.parametrize("probe", [True, False])
def test_breaker_any_success_closes_it(probe: bool) -> None:
    breaker = opened()
    assert not probe or breaker.admits(5)

    breaker.report(success=True, now=5, source="g", probe=probe)

    assert breaker.is_closed
    assert breaker.admits(5)
    assert breaker.admits(5)


def test_breaker_failed_probes_lengthen_the_pause_up_to_a_limit() -> None:
    breaker = opened(pause_seconds_max=15.0)
    pauses = []
    for _ in range(3):
        now = breaker.next_at()
        assert breaker.admits(now)
        breaker.report(success=False, now=now, source="g", probe=True)
        pauses.append(breaker.next_at() - now)

    assert pauses == [10, 15, 15]


def test_breaker_default_pauses_are_short_at_first_and_half_a_minute_at_most() -> None:
    breaker, now = Breaker(), 0.0
    fail(breaker, *sources(5), answered=False)
    assert breaker.next_at() == pytest.approx(0.1)
    for _ in range(20):
        now = breaker.next_at()
        assert breaker.admits(now)
        breaker.report(success=False, now=now, source="g", probe=True)
    assert breaker.next_at() - now == 30


def test_breaker_makes_the_pause_that_a_reply_asked_for_up_to_its_longest() -> None:
    for asked, pause in ((7.0, 7.0), (3600.0, 30.0)):
        breaker = Breaker()
        for number in range(10):
            breaker.report(success=False, now=0.0, source=f"g{number}", pause_seconds=asked)
        breaker.report(success=False, now=1.0, source="g0")
        assert breaker.state is BreakerState.OPEN
        assert breaker.next_at() == pause
        breaker.reset()
        fail(breaker, *sources(5), now=2.0, answered=False)
        assert breaker.next_at() < 3.0, "an operator's repair forgets the pause"


def test_breaker_success_forgets_the_pause_that_a_reply_asked_for() -> None:
    breaker = Breaker()
    breaker.report(success=False, now=0.0, source="g", pause_seconds=20.0)
    succeed(breaker)
    fail(breaker, *sources(5), now=1.0, answered=False)
    assert breaker.next_at() < 2.0


def test_breaker_late_failure_of_an_older_attempt_changes_nothing() -> None:
    breaker = opened()

    breaker.report(success=False, now=1, source="g", answered=False)

    assert breaker.state is BreakerState.OPEN
    assert breaker.next_at() == 5


def test_breaker_reset_closes_it_with_probes_in_flight() -> None:
    breaker = opened()
    assert breaker.admits(5.0)

    breaker.reset()

    assert breaker.admits(5.0)
    breaker.report(success=False, now=6.0, source="g", probe=True)
    assert breaker.is_closed
    fail(breaker, *sources(5), now=6.0, answered=False)
    assert breaker.next_at() == 11.0, "the pause is the first one again"


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


THROTTLED = [Outcome(status=status) for status in (429, 502, 504)]
UNANSWERED = [Outcome(failure=failure) for failure in (Failure.TIMEOUT, Failure.CONNECTION)]


def short(outcome: Outcome) -> str:
    return str(outcome.failure or outcome.status)


def seconds_to_deliver(
    failed: Outcome, failed_share: float, *, messages: int = 20_000, request_seconds: float = 0.02
) -> float:
    """Simulate a run in which each request fails with the same chance and is then repeated."""
    share, rng, now, left = Share(), random.Random(1), 0.0, messages
    in_flight: list[float] = []
    while left:
        begun = min(share.free, left - len(in_flight))
        share.take(begun)
        for _ in range(begun):
            # Requests take about as long as each other, but do not end in the order of their begin.
            heapq.heappush(in_flight, now + request_seconds * (0.5 + rng.random()))
        now = heapq.heappop(in_flight)
        failure = rng.random() < failed_share
        share.give_back(failed if failure else Outcome(status=200))
        left -= not failure
    return now


@pytest.mark.parametrize("failed_share", [0.05, 0.1, 0.3, 0.4])
@pytest.mark.parametrize("failed", [*THROTTLED, *UNANSWERED], ids=short)
def test_share_failures_of_some_groups_cost_the_others_no_slots(
    failed: Outcome, failed_share: float
) -> None:
    ordinary = seconds_to_deliver(Outcome(status=500), failed_share)

    assert seconds_to_deliver(failed, failed_share) < 2 * ordinary


def share_of_a_healthy_endpoint() -> Share:
    """A share that has earned all slots, and all of them in use."""
    share = Share()
    while share.slots < 128:
        share.take()
        share.give_back(Outcome(status=200))
    share.take(128)
    return share


@pytest.mark.parametrize("failed", UNANSWERED, ids=short)
def test_share_endpoint_that_hangs_is_down_to_one_slot_after_one_round(failed: Outcome) -> None:
    share = share_of_a_healthy_endpoint()

    for _ in range(128):
        share.give_back(failed)

    assert (share.in_use, share.free) == (0, 1)


@pytest.mark.parametrize("failed", THROTTLED, ids=short)
def test_share_endpoint_that_throttles_all_is_down_to_one_slot_after_three_rounds(
    failed: Outcome,
) -> None:
    share = share_of_a_healthy_endpoint()

    for _ in range(3 * 128):
        share.take(share.free)
        share.give_back(failed)

    assert share.in_use + share.free == 1


def test_share_hundred_groups_that_fail_one_after_another_cost_no_slots() -> None:
    """A tenth of 1,000 groups fails at each first attempt: the topic has them side by side."""
    share = share_of_a_healthy_endpoint()
    for number in range(5_000):
        share.take(share.free)
        share.give_back(Outcome(status=502 if number % 1_000 < 100 else 200))

    assert share.slots == 128


def test_share_halves_once_when_most_attempts_of_a_round_are_throttled() -> None:
    share = Share()
    share.take(8)
    for _ in range(4):
        share.give_back(Outcome(status=429))
    assert share.slots == 8, "the other half may succeed"

    share.give_back(Outcome(status=429))

    assert share.slots == 4


def test_share_attempts_of_a_round_that_were_not_made_leave_the_others_to_decide() -> None:
    share = Share()
    share.take(8)
    share.give_back(Outcome(status=500))
    share.give_back_unused(7)

    for _ in range(2):
        share.take()
        share.give_back(Outcome(failure=Failure.TIMEOUT))

    assert share.slots == 4


def test_share_with_one_slot_has_the_first_ones_again_after_a_few_successes() -> None:
    share = Share()
    for _ in range(5):
        share.take()
        share.give_back(Outcome(failure=Failure.TIMEOUT))
    assert share.slots == 1

    for _ in range(7):
        share.take()
        share.give_back(Outcome(status=200))

    assert share.slots == 8


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


def test_breaker_with_limits_opens_after_so_many_sources_and_with_a_limit_of_zero_never() -> None:
    few, never = (Breaker(BreakerLimits(failed_min=each)) for each in (2, 0))
    for breaker in (few, never):
        fail(breaker, *sources(2), answered=False)
    assert (few.state, never.state) == (BreakerState.OPEN, BreakerState.CLOSED)
    fail(never, *sources(300), now=5.0)
    assert never.is_closed


def test_breaker_forgets_failures_after_the_time_of_its_limits() -> None:
    breaker = Breaker(BreakerLimits(failed_min=2, forget_seconds=10))
    fail(breaker, "a", answered=False)
    fail(breaker, "b", now=11.0, answered=False)
    assert breaker.is_closed
    fail(breaker, "c", now=12.0, answered=False)
    assert breaker.state is BreakerState.OPEN


def test_breaker_that_never_opens_stays_closed_when_told_to_wait() -> None:
    breaker = Breaker(BreakerLimits(failed_min=0))
    breaker.report(success=False, now=0.0, source="a", pause_seconds=60.0, told_to_wait=True)
    assert breaker.is_closed
