"""Produce limits: the average holds, debts are bounded, shadow refuses nobody, faults admit."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.errors import InvalidInputError, RateLimitedError
from waystation.runtime.clock import Clock
from waystation.telemetry import metrics
from waystation.topics import rate_limits as limits_module
from waystation.topics.model import StorageTopicDefinition, TopicDefinition
from waystation.topics.rate_limits import Admission, RateLimiter, check_rate
from waystation.types.topic import RateLimit, RateMode, TopicOptions


class HandClock(Clock):
    """Time that stands still until a test moves it."""

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


def test_a_full_bucket_admits_a_seconds_worth_then_refuses_then_recovers() -> None:
    clock, orders = HandClock(), topic(qps=5)
    limits = RateLimiter(clock=clock)
    assert [admit(limits, orders).refused for _ in range(7)] == [False] * 5 + [True] * 2
    refused = admit(limits, orders)
    assert refused.retry_after_seconds == 1
    clock.seconds += refused.retry_after_seconds
    assert not admit(limits, orders).refused


def test_both_limits_must_have_credit() -> None:
    clock, orders = HandClock(), topic(qps=100, bytes_per_second=1000)
    limits = RateLimiter(clock=clock)
    assert not admit(limits, orders, size=1000).refused
    refused = admit(limits, orders, size=1)
    assert refused.refused
    # What was refused is not debited from the other one.
    assert [quota.credit for quota in refused.quotas] == [99, 0]


def test_a_message_larger_than_a_seconds_worth_passes_and_is_waited_for() -> None:
    clock, orders = HandClock(), topic(bytes_per_second=1000)
    limits = RateLimiter(clock=clock)
    assert not admit(limits, orders, size=5000).refused
    refused = admit(limits, orders)
    assert refused.retry_after_seconds == 5  # 4000 are owed, and 1 more brings credit.
    clock.seconds += 4
    assert admit(limits, orders).refused
    clock.seconds += 1
    assert not admit(limits, orders).refused


def test_a_batch_is_admitted_or_refused_as_a_whole() -> None:
    clock, orders = HandClock(), topic(qps=10)
    limits = RateLimiter(clock=clock)
    admitted = admit(limits, orders, messages=100)
    assert not admitted.refused
    assert [quota.credit for quota in admitted.quotas] == [-90]
    assert admit(limits, orders, messages=2).refused
    assert [quota.credit for quota in admit(limits, orders).quotas] == [-90]


@pytest.mark.parametrize("mode", ["disabled", "shadow"])
def test_shadow_and_disabled_never_refuse(mode: RateMode) -> None:
    orders, limits = topic(mode, qps=1), RateLimiter(clock=HandClock())
    for _ in range(50):
        admission = limits.admit(orders, messages=10, size=1000)
        assert admission is None or not (admission.refused or admission.headers)


def test_shadow_counts_what_would_have_been_refused() -> None:
    orders, limits = topic("shadow", qps=2), RateLimiter(clock=HandClock())
    messages = metrics.topic_messages_over_limit.of("shadow")
    size = metrics.topic_bytes_over_limit.of("shadow")
    before = messages.value, size.value
    overs = [admit(limits, orders, messages=1, size=7).over for _ in range(5)]
    # The same as enforced: what is over is not debited.
    assert overs == [False, False, True, True, True]
    assert (messages.value - before[0], size.value - before[1]) == (3, 21)


def test_refused_messages_are_counted() -> None:
    orders, limits = topic(qps=1), RateLimiter(clock=HandClock())
    count = metrics.topic_messages_over_limit.of("enforced")
    before = count.value
    admit(limits, orders)
    admit(limits, orders, messages=3)
    assert count.value - before == 3


def test_topics_do_not_share_credit() -> None:
    limits = RateLimiter(clock=HandClock())
    assert not admit(limits, topic(name="one", qps=1)).refused
    assert admit(limits, topic(name="one", qps=1)).refused
    assert not admit(limits, topic(name="two", qps=1)).refused


def test_a_process_has_its_share() -> None:
    clock, orders = HandClock(), topic(qps=12)
    processes = [RateLimiter(clock=clock, processes=4) for _ in range(4)]
    admitted = sum(not admit(limits, orders).refused for limits in processes for _ in range(10))
    assert admitted == 12


def test_another_number_of_processes_counts_from_the_next_request_on() -> None:
    clock, orders = HandClock(), topic(qps=10)
    limits = RateLimiter(clock=clock)
    admit(limits, orders, messages=4)
    limits.processes = 2
    # 6 were left, but the share is 5 now.
    assert [quota.credit for quota in admit(limits, orders).quotas] == [4]


def test_a_changed_limit_forgives_no_debt() -> None:
    clock = HandClock()
    limits = RateLimiter(clock=clock)
    admit(limits, topic(qps=10), messages=110)
    assert admit(limits, topic(qps=1000)).refused
    clock.seconds += 0.2  # 100 were owed: paid back at the new rate.
    assert not admit(limits, topic(qps=1000)).refused


def test_a_fault_of_the_limit_admits_and_is_counted() -> None:
    class BrokenClock(Clock):
        def monotonic(self) -> float:
            raise OSError("no time")

    before = metrics.topic_limit_failures.value
    assert RateLimiter(clock=BrokenClock()).admit(topic(qps=1), messages=1, size=1) is None
    assert metrics.topic_limit_failures.value == before + 1


def test_what_is_remembered_of_topics_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_module, "_TOPICS_MAX", 3)
    limits = RateLimiter(clock=HandClock())
    for number in range(10):
        admit(limits, topic(name=f"t{number}", qps=1))
    assert len(limits._buckets) == 3
    assert admit(limits, topic(name="t9", qps=1)).refused


def test_headers_tell_policy_and_what_is_left() -> None:
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


def test_less_than_one_a_second_is_told_in_whole_numbers() -> None:
    limits, orders = RateLimiter(clock=HandClock()), topic(qps=0.3)
    admission = admit(limits, orders)
    assert admission.headers[0] == (b"ratelimit-policy", b'"messages";q=1;w=4')
    assert admission.headers[1] == (b"ratelimit", b'"messages";r=0;t=3')


def test_a_refusal_is_an_error_with_a_code_and_a_time() -> None:
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
def test_limits_that_nobody_can_mean_are_refused(rate: RateLimit) -> None:
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
def test_limits_that_make_sense_are_accepted(rate: RateLimit) -> None:
    check_rate(rate)


#: Seconds that pass before a request, and its size.
REQUESTS = st.lists(st.tuples(st.floats(0, 3), st.integers(1, 200)), min_size=1, max_size=60)


@given(rate=st.floats(0.1, 100), requests=REQUESTS)
def test_over_any_window_no_more_is_admitted_than_capacity_and_time_and_one_debt(
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
            # All but the last fit into capacity and refill: only the last goes into debt.
            assert total <= rate * (1 + at - admitted[first][0]) + 1e-6
            total += size


@given(rate=st.floats(0.1, 100), requests=REQUESTS)
def test_whoever_waits_as_told_is_admitted(rate: float, requests: list[tuple[float, int]]) -> None:
    clock = HandClock()
    limits, orders = RateLimiter(clock=clock), topic(bytes_per_second=rate)
    for wait, size in requests:
        clock.seconds += wait
        admission = admit(limits, orders, size=size)
        if admission.refused:
            clock.seconds += admission.retry_after_seconds + 1e-6
            assert not admit(limits, orders, size=size).refused


@given(rate=st.floats(0.1, 100), requests=REQUESTS)
def test_a_debt_is_never_larger_than_one_request(
    rate: float, requests: list[tuple[float, int]]
) -> None:
    clock = HandClock()
    limits, orders = RateLimiter(clock=clock), topic(qps=rate)
    for wait, messages in requests:
        clock.seconds += wait
        (quota,) = admit(limits, orders, messages=messages).quotas
        assert -200 < quota.credit <= rate
