"""The definition of a subscription: bad input is refused by its field, good input is kept."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from waystation.errors import InvalidInputError
from waystation.subscriptions.definition import (
    NewSubscription,
    RetryPolicy,
    Subscription,
    SubscriptionOptions,
    check_new,
    decode_subscription,
    encode_subscription,
)
from waystation.topics.model import StorageTopicDefinition


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"retry": {"attempts": 101}}, "retry.attempts"),
        ({"retry": {"attempts": -1}}, "retry.attempts"),
        ({"retry": {"jitter": 2}}, "retry.jitter"),
        ({"retry": {"fatal_codes": [99]}}, "retry.fatal_codes"),
        ({"poison": "drop"}, "poison"),
        ({"in_flight_messages": 0}, "in_flight_messages"),
        ({"in_flight_messages": 10_001}, "in_flight_messages"),
        ({"in_flight_bytes": 1}, "in_flight_bytes"),
        ({"concurrency_max": 0}, "concurrency_max"),
        ({"rate": 0}, "rate"),
        ({"error_percent": 101}, "error_percent"),
        ({"retry_max_bytes": 0}, "retry_max_bytes"),
        ({"dead_full_policy": "lose"}, "dead_full_policy"),
        ({"timeout_seconds": 0}, "timeout_seconds"),
        ({"method": "GET"}, "method"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_a_bad_option_is_refused_by_its_name(options: dict[str, Any], field: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(options, SubscriptionOptions)
    assert field in str(caught.value)


@pytest.mark.parametrize(
    "endpoint", ["", "crm", "ftp://x", "pipeline:", "pool:", "pull:x", "https://"]
)
def test_an_endpoint_of_no_known_kind_is_refused(endpoint: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        check_new(NewSubscription(topic="orders", endpoint=endpoint))
    assert (caught.value.code, caught.value.field) == ("subscription.endpoint-invalid", "endpoint")


@pytest.mark.parametrize("shards", [0, -1, 1025])
def test_so_many_shards_are_refused(shards: int) -> None:
    with pytest.raises(InvalidInputError) as caught:
        check_new(NewSubscription(topic="orders", endpoint="pipeline:x", shards=shards))
    assert (caught.value.code, caught.value.field) == ("subscription.shards-invalid", "shards")


def test_what_is_asked_for_says_from_where() -> None:
    asked = {"topic": "orders", "endpoint": "channel:x", "from": 1_700_000_000_000}
    assert msgspec.convert(asked, NewSubscription).start == 1_700_000_000_000
    for bad in ("middle", -1, 1.5):
        with pytest.raises(msgspec.ValidationError, match="from"):
            msgspec.convert(asked | {"from": bad}, NewSubscription)


def test_retries_come_after_the_first_attempt() -> None:
    assert RetryPolicy().schedule.attempts == 6
    assert RetryPolicy(attempts=0).schedule.attempts == 1


def test_the_error_throttle_is_off_unless_a_percentage_is_set() -> None:
    assert SubscriptionOptions().error_percent is None


def test_a_definition_comes_back_as_it_was_and_tells_place_and_terms() -> None:
    storage = (StorageTopicDefinition(number=0, partitions=4),)
    found = Subscription(
        project="shop",
        name="crm",
        version=1,
        topic="orders",
        endpoint="https://crm.example/",
        shards=4,
        options=SubscriptionOptions(poison="skip", dead_max_bytes=5),
        state="active",
        retry=storage,
        dead=storage,
        start="end",
    )
    assert decode_subscription(encode_subscription(found)) == found
    assert found.place(3).tag == "{s.shop.crm.0.3}:"
    assert found.terms("ds", 9).argument == "ds 9 1 skip 67108864 5 refuse"
