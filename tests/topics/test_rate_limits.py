"""Rate limiter: average rates, debt, modes, shares of processes, headers, unexpected errors."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.errors import InvalidInputError, RateLimitedError
from waystation.runtime.clock import Clock
from waystation.topics import rate_limits as limits_module
from waystation.topics.model import StorageTopicDefinition, TopicDefinition
from waystation.topics.rate_limits import Admission, RateLimiter, check_rate
from waystation.types.topic import RateLimit, RateMode, TopicOptions


class HandClock(Clock):
    """Clock that a test moves."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 1000.0

    def monotonic(self) -> float:
        return self.seconds


def topic(
    mode: RateMode = "enforced",
    *,
    name: str = "orders",
    qps: float | None = None,
    bytes_per_second: float | None = None,
) -> TopicDefinition:
    rate = RateLimit(mode=mode, qps=qps, bytes_per_second=bytes_per_second)
    return TopicDefinition(
        project="default",
        name=name,
        version=1,
        options=TopicOptions(rate=rate),
        storage=(StorageTopicDefinition(number=0, partitions=1),),
    )


def admit(limits: RateLimiter, of: TopicDefinition, messages: int = 1, size: int = 1) -> Admission:
    admission = limits.admit(of, messages=messages, size=size)
    assert admission is not None
    return admission


def test_rate_limiter_with_full_bucket_admits_quota_of_one_second_then_refuses() -> None:
    clock, orders = HandClock(), topic(qps=5)
    limits = RateLimiter(clock=clock)
    assert [admit(limits, orders).refused for _ in range(7)] == [False] * 5 + [True] * 2
    refused = admit(limits, orders)
    assert refused.retry_after_seconds == 1
    clock.seconds += refused.retry_after_seconds
    assert not admit(limits, orders).refused


def test_rate_limiter_with_two_limits_requires_credit_of_both() -> None:
    clock, orders = HandClock(), topic(qps=100, bytes_per_second=1000)
    limits = RateLimiter(clock=clock)
    assert not admit(limits, orders, size=1000).refused
    refused = admit(limits, orders, size=1)
    assert refused.refused
    # A refused request is not debited from the other limit either.
    assert [quota.credit for quota in refused.quotas] == [99, 0]


def test_rate_limiter_admits_large_message_and_refuses_until_debt_is_paid() -> None:
    clock, orders = HandClock(), topic(bytes_per_second=1000)
    limits = RateLimiter(clock=clock)
    assert not admit(limits, orders, size=5000).refused
    refused = admit(limits, orders)
    assert refused.retry_after_seconds == 5  # 4,000 bytes are owed, one more is needed.
    clock.seconds += 4
    assert admit(limits, orders).refused
    clock.seconds += 1
    assert not admit(limits, orders).refused


def test_rate_limiter_admits_or_refuses_all_messages_of_batch() -> None:
    clock, orders = HandClock(), topic(qps=10)
    limits = RateLimiter(clock=clock)
    admitted = admit(limits, orders, messages=100)
    assert not admitted.refused
    assert [quota.credit for quota in admitted.quotas] == [-90]
    assert admit(limits, orders, messages=2).refused
    assert [quota.credit for quota in admit(limits, orders).quotas] == [-90]


@pytest.mark.parametrize("mode", ["disabled", "shadow"])
def test_rate_limiter_in_shadow_or_disabled_mode_refuses_nothing(mode: RateMode) -> None:
    orders, limits = topic(mode, qps=1), RateLimiter(clock=HandClock())
    for _ in range(50):
        admission = limits.admit(orders, messages=10, size=1000)
        assert admission is None or not (admission.refused or admission.headers)


def test_rate_limiter_in_shadow_mode_counts_messages_over_limit() -> None:
    orders, limits = topic("shadow", qps=2), RateLimiter(clock=HandClock())
    messages = limits_module.topic_messages_over_limit.of("shadow")
    size = limits_module.topic_bytes_over_limit.of("shadow")
    before = messages.value, size.value
    overs = [admit(limits, orders, messages=1, size=7).over for _ in range(5)]
    # As in mode enforced, a request over the limit is not debited.
    assert overs == [False, False, True, True, True]
    assert (messages.value - before[0], size.value - before[1]) == (3, 21)


def test_rate_limiter_counts_refused_messages() -> None:
    orders, limits = topic(qps=1), RateLimiter(clock=HandClock())
    count = limits_module.topic_messages_over_limit.of("enforced")
    before = count.value
    admit(limits, orders)
    admit(limits, orders, messages=3)
    assert count.value - before == 3


def test_rate_limiter_keeps_credit_per_topic() -> None:
    limits = RateLimiter(clock=HandClock())
    assert not admit(limits, topic(name="one", qps=1)).refused
    assert admit(limits, topic(name="one", qps=1)).refused
    assert not admit(limits, topic(name="two", qps=1)).refused


def test_rate_limiter_of_several_processes_enforces_share() -> None:
    clock, orders = HandClock(), topic(qps=12)
    processes = [RateLimiter(clock=clock, processes=4) for _ in range(4)]
    admitted = sum(not admit(limits, orders).refused for limits in processes for _ in range(10))
    assert admitted == 12


def test_rate_limiter_with_changed_number_of_processes_changes_share() -> None:
    clock, orders = HandClock(), topic(qps=10)
    limits = RateLimiter(clock=clock)
    admit(limits, orders, messages=4)
    limits.processes = 2
    # The bucket had a credit of 6; its capacity is 5 now.
    assert [quota.credit for quota in admit(limits, orders).quotas] == [4]


def test_rate_limiter_with_changed_limit_keeps_debt() -> None:
    clock = HandClock()
    limits = RateLimiter(clock=clock)
    admit(limits, topic(qps=10), messages=110)
    assert admit(limits, topic(qps=1000)).refused
    clock.seconds += 0.2  # The bucket has a debt of 100, which it repays at the new rate.
    assert not admit(limits, topic(qps=1000)).refused


def test_rate_limiter_after_unexpected_error_admits_and_counts_failure() -> None:
    class BrokenClock(Clock):
        def monotonic(self) -> float:
            raise OSError("the clock cannot be read")

    before = limits_module.topic_limit_failures.value
    assert RateLimiter(clock=BrokenClock()).admit(topic(qps=1), messages=1, size=1) is None
    assert limits_module.topic_limit_failures.value == before + 1


def test_rate_limiter_keeps_limited_number_of_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_module, "_TOPICS_MAX", 3)
    limits = RateLimiter(clock=HandClock())
    for number in range(10):
        admit(limits, topic(name=f"t{number}", qps=1))
    assert len(limits._buckets) == 3
    assert admit(limits, topic(name="t9", qps=1)).refused


def test_admission_headers_state_policy_and_remaining_credit() -> None:
    clock = HandClock()
    limits, orders = RateLimiter(clock=clock), topic(qps=2.5, bytes_per_second=4000)
    assert admit(limits, orders, size=100).headers == (
        (b"ratelimit-policy", b'"messages";q=2;w=1, "bytes";q=4000;qu="content-bytes";w=1'),
        (b"ratelimit", b'"messages";r=2, "bytes";r=3900'),
    )
    admit(limits, orders, size=8000)
    assert admit(limits, orders, size=8000).headers[1:] == (
        (b"ratelimit", b'"messages";r=1, "bytes";r=0;t=2'),
        (b"retry-after", b"2"),
    )


def test_admission_headers_of_rate_below_one_use_whole_numbers() -> None:
    limits, orders = RateLimiter(clock=HandClock()), topic(qps=0.3)
    admission = admit(limits, orders)
    assert admission.headers[0] == (b"ratelimit-policy", b'"messages";q=1;w=4')
    assert admission.headers[1] == (b"ratelimit", b'"messages";r=0;t=3')


def test_admission_refused_raises_rate_limited_with_retry_after() -> None:
    limits, orders = RateLimiter(clock=HandClock()), topic(qps=1)
    admit(limits, orders).require()
    with pytest.raises(RateLimitedError) as raised:
        admit(limits, orders).require()
    assert raised.value.code == "topic.rate-limited"
    assert raised.value.retry_after_s == 1


@pytest.mark.parametrize(
    "rate",
    [
        RateLimit(mode="enforced"),
        RateLimit(mode="shadow"),
        RateLimit(qps=math.inf),
        RateLimit(qps=math.nan),
        RateLimit(qps=0),
        RateLimit(qps=-1),
        RateLimit(bytes_per_second=1e15),
        RateLimit(mode="enforced", qps=100, bytes_per_second=99),
    ],
)
def test_check_rate_with_invalid_limits_raises_invalid_input(rate: RateLimit) -> None:
    with pytest.raises(InvalidInputError) as raised:
        check_rate(rate)
    assert raised.value.field.startswith("rate")


@pytest.mark.parametrize(
    "rate",
    [
        RateLimit(),
        RateLimit(qps=10),
        RateLimit(mode="enforced", qps=0.1),
        RateLimit(mode="shadow", bytes_per_second=1),
        RateLimit(mode="enforced", qps=100, bytes_per_second=100),
    ],
)
def test_check_rate_with_valid_limits_accepts_them(rate: RateLimit) -> None:
    check_rate(rate)


#: (seconds before a request, size of the request)
REQUESTS = st.lists(st.tuples(st.floats(0, 3), st.integers(1, 200)), min_size=1, max_size=60)


@given(rate=st.floats(0.1, 100), requests=REQUESTS)
def test_rate_limiter_over_any_window_admits_capacity_refill_and_one_debt(
    rate: float, requests: list[tuple[float, int]]
) -> None:
    clock = HandClock()
    limits, orders = RateLimiter(clock=clock), topic(bytes_per_second=rate)
    admitted: list[tuple[float, int]] = []
    for wait, size in requests:
        clock.seconds += wait
        if not admit(limits, orders, size=size).refused:
            admitted.append((clock.seconds, size))
    for first in range(len(admitted)):
        total = 0
        for at, size in admitted[first:]:
            # Only the last request may exceed capacity and refill, because it causes the debt.
            assert total <= rate * (1 + at - admitted[first][0]) + 1e-6
            total += size


@given(rate=st.floats(0.1, 100), requests=REQUESTS)
def test_rate_limiter_admits_refused_request_after_its_retry_after(
    rate: float, requests: list[tuple[float, int]]
) -> None:
    clock = HandClock()
    limits, orders = RateLimiter(clock=clock), topic(bytes_per_second=rate)
    for wait, size in requests:
        clock.seconds += wait
        admission = admit(limits, orders, size=size)
        if admission.refused:
            clock.seconds += admission.retry_after_seconds + 1e-6
            assert not admit(limits, orders, size=size).refused


@given(rate=st.floats(0.1, 100), requests=REQUESTS)
def test_rate_limiter_debt_is_at_most_one_request(
    rate: float, requests: list[tuple[float, int]]
) -> None:
    clock = HandClock()
    limits, orders = RateLimiter(clock=clock), topic(qps=rate)
    for wait, messages in requests:
        clock.seconds += wait
        (quota,) = admit(limits, orders, messages=messages).quotas
        assert -200 < quota.credit <= rate
