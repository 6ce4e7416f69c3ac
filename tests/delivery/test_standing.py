"""One breaker and one share of slots for all lanes of an endpoint, and turns among them."""

from __future__ import annotations

import pytest

from waystation.delivery.breaker import BreakerState
from waystation.delivery.request import Failure, Outcome
from waystation.delivery.standing import Reservation, Standing, is_well

ILL = Outcome(status=503)
AWAY = Outcome(failure=Failure.NAME)
WELL = Outcome(status=200)


def standing_with(*lanes: str) -> tuple[Standing, list[str]]:
    """A standing, and a list of the lanes that it wakes."""
    standing, woken = Standing("crm"), list[str]()
    for lane in lanes:
        standing.join(lane, lambda lane=lane: woken.append(lane))  # type: ignore[misc]
    return standing, woken


def broken(standing: Standing, lane: str, *, now: float = 0.0) -> None:
    """Fails until the breaker opens."""
    number = 0
    while standing.breaker.state is BreakerState.CLOSED:
        number += 1
        assert standing.reserve(lane, now, 1).slots == 1
        standing.report(AWAY, now=now, probe=False, source=f"g{number}")


def test_lanes_of_an_endpoint_share_its_slots() -> None:
    standing, _ = standing_with("a", "b")

    assert standing.reserve("a", 0.0, 64) == Reservation(8)
    assert standing.reserve("b", 0.0, 64) == Reservation(0)


def test_a_lane_without_a_slot_is_woken_when_there_is_one_and_goes_before_newcomers() -> None:
    standing, woken = standing_with("a", "b", "c")
    standing.reserve("a", 0.0, 64)
    assert not standing.reserve("b", 0.0, 64).slots

    standing.report(WELL, now=0.0, probe=False, source="g")

    assert woken == ["b"]
    assert standing.reserve("b", 0.0, 64).slots == 1


def test_a_lane_that_always_has_more_to_send_does_not_pass_those_in_line() -> None:
    standing, woken = standing_with("greedy", "modest")
    standing.reserve("greedy", 0.0, 64)
    assert not standing.reserve("modest", 0.0, 64).slots
    order = []
    for _ in range(6):
        standing.report(WELL, now=0.0, probe=False, source="g")
        # Both come, the greedy one first.
        for lane in ("greedy", "modest"):
            if standing.reserve(lane, 0.0, 1).slots:
                order.append(lane)

    assert order[0] == "modest"
    assert order.count("modest") >= 3
    assert "modest" in woken


def test_slots_that_were_not_used_wake_the_next() -> None:
    standing, woken = standing_with("a", "b")
    reserved = standing.reserve("a", 0.0, 64)
    standing.reserve("b", 0.0, 64)

    standing.give_back(reserved, reserved.slots)

    assert woken == ["b"]
    assert standing.share.in_use == 0


def test_failures_of_several_lanes_open_one_breaker_for_all() -> None:
    standing, _ = standing_with("a", "b", "c")
    for number, lane in enumerate(("a", "b", "c", "a", "b")):
        assert standing.reserve(lane, 0.0, 1).slots
        standing.report(AWAY, now=0.0, probe=False, source=f"g{number}")

    assert standing.breaker.state is BreakerState.OPEN
    assert not any(standing.reserve(lane, 0.0, 64).slots for lane in ("a", "b", "c"))
    assert standing.wait_seconds(0.025) == pytest.approx(0.075)


def test_one_lane_probes_and_the_others_wait_until_its_outcome_is_known() -> None:
    standing, woken = standing_with("a", "b")
    broken(standing, "a")
    assert standing.reserve("a", 5.0, 64) == Reservation(1, probe=True)
    assert not standing.reserve("b", 5.0, 64).slots
    assert woken == [], "nobody is woken to be refused, again and again"

    standing.report(WELL, now=6.0, probe=True, source="g")

    assert standing.breaker.state is BreakerState.CLOSED
    assert woken == ["b"]


def test_an_older_attempt_that_fails_during_a_probe_does_not_end_it() -> None:
    standing, _ = standing_with("a", "b")
    assert standing.reserve("b", 0.0, 1).slots
    broken(standing, "a")
    assert standing.reserve("a", 5.0, 64).probe

    standing.report(ILL, now=5.5, probe=False, source="g")

    assert standing.breaker.state is BreakerState.HALF_OPEN
    assert not standing.reserve("b", 5.6, 1).slots, "the probe is still under way"


def test_a_probe_with_nothing_to_send_leaves_the_probing_to_another() -> None:
    standing, woken = standing_with("a", "b")
    broken(standing, "a")
    reserved = standing.reserve("a", 5.0, 64)
    standing.reserve("b", 5.0, 64)

    standing.give_back(reserved, 1)

    assert woken == ["b"]
    assert standing.reserve("b", 5.0, 64).probe


def test_a_disabled_or_held_endpoint_gets_nothing_and_wakes_its_lanes_when_it_is_free() -> None:
    standing, woken = standing_with("a")
    standing.update(disabled=True, held_until=0.0)
    assert not standing.reserve("a", 0.0, 64).slots
    standing.update(disabled=False, held_until=30.0)
    assert woken == ["a"]
    assert not standing.reserve("a", 29.0, 64).slots
    assert standing.wait_seconds(29.0) == pytest.approx(1.0)

    standing.update(disabled=False, held_until=0.0)

    assert woken == ["a", "a"]
    assert standing.reserve("a", 29.0, 64).slots


def test_what_this_process_was_told_holds_before_the_store_has_heard_of_it() -> None:
    standing, _ = standing_with("a")
    standing.hold(10.0)
    standing.update(disabled=False, held_until=0.0)
    assert not standing.reserve("a", 9.0, 64).slots
    assert standing.reserve("a", 10.0, 1).slots

    standing.disable(known=False)
    standing.update(disabled=False, held_until=0.0)
    assert not standing.reserve("a", 10.0, 1).slots
    standing.disable(known=True)
    standing.update(disabled=False, held_until=0.0)
    assert standing.reserve("a", 10.0, 1).slots, "somebody has enabled it since"


def test_an_endpoint_that_was_enabled_again_begins_with_a_closed_breaker() -> None:
    standing, _ = standing_with("a")
    broken(standing, "a")
    standing.update(disabled=True, held_until=0.0)

    standing.update(disabled=False, held_until=0.0)

    assert standing.reserve("a", 0.0, 64).slots


def test_a_lane_that_ends_leaves_its_place_in_line() -> None:
    standing, woken = standing_with("a", "b", "c")
    standing.reserve("a", 0.0, 64)
    standing.reserve("b", 0.0, 64)
    standing.reserve("c", 0.0, 64)

    standing.leave("b")
    standing.report(WELL, now=0.0, probe=False, source="g")

    assert woken == ["c"]


@pytest.mark.parametrize(
    ("outcome", "well"),
    [
        (Outcome(status=200), True),
        (Outcome(status=301), True),
        (Outcome(status=400), True),
        (Outcome(status=404), True),
        (Outcome(status=410), True),
        (Outcome(status=408), False),
        (Outcome(status=429), False),
        (Outcome(status=500), False),
        (Outcome(status=503), False),
        (Outcome(failure=Failure.TIMEOUT), False),
        (Outcome(failure=Failure.CONNECTION), False),
        (Outcome(failure=Failure.NAME), False),
    ],
    ids=str,
)
def test_a_reply_that_only_dislikes_the_message_does_not_count_against_the_endpoint(
    outcome: Outcome, well: bool
) -> None:
    assert is_well(outcome) is well


@pytest.mark.parametrize("failure", [Failure.FORBIDDEN, Failure.CANCELLED, Failure.BROKEN])
def test_what_was_never_sent_says_nothing_about_the_endpoint(failure: Failure) -> None:
    standing, _ = standing_with("a")
    for _ in range(20):
        assert standing.reserve("a", 0.0, 1).slots
        standing.report(Outcome(failure=failure), now=0.0, probe=False, source="g")

    assert standing.breaker.state is BreakerState.CLOSED
    assert standing.share.slots == 8


def test_a_receiver_of_our_own_that_refuses_a_message_is_well_and_one_without_room_is_not() -> None:
    assert is_well(Outcome(failure=Failure.REFUSED))
    assert not is_well(Outcome(failure=Failure.BUSY))
    standing = Standing("pipeline:refund")
    before = standing.share.slots
    standing.share.take(1)
    standing.share.give_back(Outcome(failure=Failure.BUSY))
    assert standing.share.slots == before / 2


def test_standing_probe_gets_a_slot_although_hanging_requests_use_all() -> None:
    standing, _ = standing_with("a")
    standing.reserve("a", 0.0, 64)
    for number in range(5):
        lost = Outcome(failure=Failure.CONNECTION)
        standing.report(lost, now=0.0, probe=False, source=f"g{number}")
    standing.share.take(standing.share.free)
    assert standing.share.free == 0

    assert standing.reserve("a", 5.0, 1) == Reservation(1, probe=True)


def test_standing_batch_with_one_delivered_message_counts_as_success() -> None:
    standing, _ = standing_with("a")
    busy = Outcome(failure=Failure.BUSY)
    for second in range(3):
        assert standing.reserve("a", second, 1).slots
        outcomes = [(f"g{number}", busy) for number in range(300)]
        standing.report_batch([*outcomes, ("ok", WELL)], now=float(second), probe=False)
    assert standing.breaker.is_closed

    assert standing.reserve("a", 3.0, 1).slots
    standing.report_batch(outcomes, now=3.0, probe=False)
    assert not standing.breaker.is_closed


def test_standing_batch_that_was_never_sent_withdraws_its_probe() -> None:
    standing, _ = standing_with("a")
    broken(standing, "a")
    assert standing.reserve("a", 5.0, 1).probe
    unsent = Outcome(failure=Failure.CANCELLED)

    standing.report_batch([("a", unsent), ("b", unsent)], now=5.0, probe=True)

    assert standing.reserve("a", 5.0, 1).probe


def test_standing_declared_repaired_closes_its_breaker_and_wakes_lanes_once() -> None:
    standing, woken = standing_with("a")
    standing.update(disabled=False, held_until=0.0, repaired_ms=7)
    broken(standing, "a")
    standing.update(disabled=False, held_until=0.0, repaired_ms=7)
    assert not standing.reserve("a", 0.0, 1).slots
    assert woken == []

    standing.update(disabled=False, held_until=0.0, repaired_ms=8)

    assert woken == ["a"]
    assert standing.reserve("a", 0.0, 1) == Reservation(1)
    standing.update(disabled=False, held_until=0.0, repaired_ms=0)
    assert woken == ["a"], "the store has forgotten the declaration"


def test_standing_batch_in_which_one_message_is_throttled_keeps_its_slots() -> None:
    standing, _ = standing_with("a")
    busy = Outcome(failure=Failure.BUSY)
    for ill, slots in ((1, 8), (3, 4)):
        assert standing.reserve("a", 0.0, 1).slots == 1
        outcomes = [("g", busy)] * ill + [("h", Outcome(status=404))] * (4 - ill)

        standing.report_batch(outcomes, now=0.0, probe=False)

        assert standing.share.slots == slots


LIMITED = Outcome(status=429, retry_after=3600.0)


def test_standing_429_with_retry_after_stops_all_for_the_longest_pause_then_probes() -> None:
    standing, _ = standing_with("a", "b")
    assert standing.reserve("a", 0.0, 1).slots

    held = standing.report(LIMITED, now=0.0, probe=False, source="g")

    assert held == pytest.approx(30.0), "all processes are told"
    assert not standing.reserve("b", 29.0, 64).slots
    assert standing.wait_seconds(29.0) == pytest.approx(1.0)
    assert standing.reserve("b", 30.0, 64) == Reservation(1, probe=True)
    standing.report(WELL, now=30.0, probe=True, source="h")
    assert standing.reserve("a", 30.0, 64).slots > 1


def test_standing_429_with_retry_after_while_others_succeed_stops_no_other() -> None:
    standing, _ = standing_with("a")
    for second in range(100):
        assert standing.reserve("a", second, 2).slots == 2
        standing.report(WELL, now=second, probe=False, source=f"h{second}")
        assert standing.report(LIMITED, now=second, probe=False, source=f"g{second}") == 0.0

    assert standing.breaker.is_closed

    assert standing.reserve("a", 110.0, 1).slots
    assert standing.report(LIMITED, now=110.0, probe=False, source="g") > 0


def test_standing_429_with_retry_after_to_all_stops_all_although_the_endpoint_was_well() -> None:
    """A limit of the sender, just after successes: ten groups and a second show it."""
    standing, _ = standing_with("a")
    assert standing.reserve("a", 0.0, 1).slots
    standing.report(WELL, now=0.0, probe=False, source="g")
    for number in range(10):
        now = number * 0.12
        assert standing.reserve("a", now, 1).slots
        standing.report(LIMITED, now=now, probe=False, source=f"g{number}")

    assert standing.breaker.state is BreakerState.OPEN
    assert standing.wait_seconds(2.0) > 25


def test_standing_503_with_retry_after_stops_no_other() -> None:
    standing, _ = standing_with("a")
    assert standing.reserve("a", 0.0, 1).slots

    told = Outcome(status=503, retry_after=3600.0)

    assert standing.report(told, now=0.0, probe=False, source="g") == 0.0
    assert standing.reserve("a", 0.0, 1).slots


def test_standing_late_success_that_closes_the_breaker_wakes_all_lanes() -> None:
    standing, woken = standing_with("a", "b")
    assert standing.reserve("b", 0.0, 1).slots
    broken(standing, "a")
    assert not standing.reserve("a", 0.0, 1).slots

    standing.report(WELL, now=0.05, probe=False, source="g")

    assert woken == ["a", "b"]
