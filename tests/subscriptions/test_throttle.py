"""The error throttle, by the figures of what it is modelled on."""

from __future__ import annotations

import pytest

from waystation.subscriptions.throttle import ErrorThrottle


def let_through(throttle: ErrorThrottle, now: float) -> int:
    """How many failures pass at once."""
    count = 0
    while throttle.admits(now):
        count += 1
    return count


class Fixed(ErrorThrottle):
    """One that lets ten through in a second, whatever is delivered."""

    def allowed(self, now: float) -> float:
        return 10.0


def test_a_threshold_of_ten_lets_ten_through_and_none_until_a_second_is_over() -> None:
    throttle = Fixed(10.0)
    assert let_through(throttle, 100.0) == 10
    for now in (100.001, 100.5, 100.99):
        assert let_through(throttle, now) == 0
    assert let_through(throttle, 101.0) == 0


def test_half_a_tick_after_that_second_half_of_them_are_free() -> None:
    throttle = Fixed(10.0)
    assert let_through(throttle, 100.0) == 10
    assert let_through(throttle, 101.005) == 5
    assert let_through(throttle, 101.01) == 5


def test_twenty_one_failures_at_a_threshold_of_ten_take_two_to_three_seconds() -> None:
    throttle, now, passed = Fixed(10.0), 100.0, 0
    while passed < 21:
        if throttle.admits(now):
            passed += 1
        else:
            assert throttle.wait_seconds(now) > 0
            now = round(now + 0.005, 3)
    assert 2.0 <= now - 100 < 3.0


def test_one_in_a_second_is_let_through_however_little_is_delivered() -> None:
    throttle = ErrorThrottle(50.0)
    assert let_through(throttle, 7.0) == 1
    assert let_through(throttle, 7.9) == 0
    assert let_through(throttle, 8.02) == 1


def test_the_rate_is_that_of_two_seconds() -> None:
    throttle = ErrorThrottle(100.0)
    for _ in range(100):
        throttle.delivered(10.0)
    assert throttle.allowed(10.5) == pytest.approx(50)
    assert throttle.allowed(11.9) == pytest.approx(50)
    assert throttle.allowed(12.5) == pytest.approx(25), "half of the tick is outside"
    assert throttle.allowed(13.0) == 1


def test_a_share_of_what_is_delivered_may_fail() -> None:
    throttle = ErrorThrottle(10.0)
    for second in (98.5, 99.5):
        for _ in range(100):
            throttle.delivered(second)
    assert let_through(throttle, 100.0) == 10


def test_what_was_counted_is_forgotten() -> None:
    throttle = ErrorThrottle(100.0)
    for second in range(1000):
        throttle.delivered(float(second))
        throttle.admits(float(second))
    assert len(throttle._delivered._ticks) <= 3
    assert len(throttle._failed._ticks) <= 101
