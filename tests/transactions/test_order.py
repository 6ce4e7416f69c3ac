"""What a client may ask to be started, and what it is told when it may not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from waystation.errors import InvalidInputError, JsonTooDeepError
from waystation.runtime.json_text import JSON_DEPTH_MAX
from waystation.transactions.order import ORDERS_MAX, Moment, Order, read_moment, read_orders
from waystation.transactions.wanted import Wanted

TRACE = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"


def body(**content: Any) -> bytes:
    return msgspec.json.encode(content)


def test_data_and_unknown_metadata_are_kept_byte_for_byte() -> None:
    text = (
        b'{"type": "refund", "data": {"a": 1.0, "n": 12345678901234567890123},'
        b' "metadata": {"externalId": "r-17", "mine": [1.0, {} ]}}'
    )
    (order,), many = read_orders(text, traceparent=TRACE)
    assert not many
    assert order == Order(
        type="refund",
        data=b'{"a": 1.0, "n": 12345678901234567890123}',
        metadata=b'{"mine":[1.0, {} ]}',
        external_id="r-17",
        traceparent=TRACE,
    )


def test_metadata_without_names_of_ours_stays_as_it_came() -> None:
    (order,), _ = read_orders(b'{"type":"refund","metadata":{"poll":"long", "x" : 1}}')
    assert order.metadata == b'{"poll":"long", "x" : 1}'


def test_a_list_has_orders_in_their_order() -> None:
    orders, many = read_orders(body(transactions=[{"type": "a"}, {"type": "b", "data": 7}]))
    assert many
    assert [(each.type, each.data) for each in orders] == [("a", b"null"), ("b", b"7")]


def test_who_is_to_hear_of_it_is_read_and_kept_where_it_was() -> None:
    metadata = {
        "webhook": "https://shop.example/hook?token=1",
        "channel": "orders",
        "topic": "refunds",
        "progressReports": True,
        "statusChanges": True,
        "pollReplyCancelsWebhook": True,
    }
    (order,), _ = read_orders(body(type="refund", metadata=metadata))
    assert order.wanted == Wanted(
        webhook="https://shop.example/hook?token=1",
        channel="orders",
        topic="refunds",
        progress=True,
        status=True,
        poll_cancels=True,
    )
    assert msgspec.json.decode(order.metadata) == metadata
    assert not order.long_poll


@pytest.mark.parametrize(
    ("metadata", "cancels"),
    [
        ({"cancelWebhook": True}, True),
        ({"cancelWebhook": True, "pollReplyCancelsWebhook": True}, True),
        ({"cancelWebhook": True, "pollReplyCancelsWebhook": None}, True),
        ({"cancelWebhook": False}, False),
        ({"cancelWebhook": None}, False),
    ],
)
def test_order_cancel_webhook_means_that_a_poll_takes_it_back(
    metadata: dict[str, object], cancels: bool
) -> None:
    given = {"webhook": "https://shop.example/hook", **metadata}
    (order,), _ = read_orders(body(type="refund", metadata=given))
    assert order.wanted is not None
    assert order.wanted.poll_cancels is cancels
    assert order.warnings == ()
    assert msgspec.json.decode(order.metadata) == given


@pytest.mark.parametrize(
    "metadata",
    [{"cancelWebhook": "yes"}, {"cancelWebhook": True, "pollReplyCancelsWebhook": False}],
)
def test_order_cancel_webhook_that_cannot_be_meant_is_refused(metadata: dict[str, object]) -> None:
    with pytest.raises(InvalidInputError) as refused:
        read_orders(body(type="refund", metadata=metadata))
    assert refused.value.field == "metadata.cancelWebhook"


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("external_id", "externalId"),
        ("externalID", "externalId"),
        ("WebHook", "webhook"),
        ("webhok", "webhook"),
        ("webhooks", "webhook"),
        ("webhookUrl", "webhook"),
        ("start-at", "startAt"),
        ("dedline", "deadline"),
        ("deadlien", "deadline"),
        ("progressReport", "progressReports"),
        ("cancelsWebhook", "cancelWebhook"),
        ("pollReplyCancelWebhook", "pollReplyCancelsWebhook"),
        ("POLL", "poll"),
    ],
)
def test_order_name_that_looks_like_an_option_is_warned_about(name: str, option: str) -> None:
    (order,), _ = read_orders(body(type="refund", metadata={name: "x"}))
    (warning,) = order.warnings
    assert f"metadata.{name} is not an option" in warning
    assert f"Did you mean {option}?" in warning
    assert msgspec.json.decode(order.metadata) == {name: "x"}, "it is kept all the same"


def test_order_own_name_of_the_station_is_warned_about() -> None:
    (order,), _ = read_orders(body(type="refund", metadata={"nodeGroup": "gpu"}))
    assert order.warnings == ("metadata.nodeGroup is set by the station and was ignored.",)


def test_order_names_of_its_own_are_no_reason_to_warn() -> None:
    names = ("customer", "lane", "pool", "land", "type", "tags", "id", "x" * 5000, "", "état")
    (order,), _ = read_orders(body(type="refund", metadata=dict.fromkeys(names, 1)))
    assert order.warnings == ()


def test_order_many_suspicious_names_give_few_warnings() -> None:
    names = {f"webhook{number}": 1 for number in range(10_000)}
    (order,), _ = read_orders(body(type="refund", metadata=names))
    assert len(order.warnings) == 10


def test_without_a_receiver_nobody_hears_of_it() -> None:
    metadata = {"webhook": None, "channel": "", "progressReports": True}
    (order,), _ = read_orders(body(type="refund", metadata=metadata))
    assert order.wanted is None


@pytest.mark.parametrize(
    ("reply", "kept", "long_poll"),
    [
        ("longpoll", {"poll": "long"}, True),
        ("shortpoll", {"poll": "short"}, False),
        ("http://old.example/hook", {"webhook": "http://old.example/hook"}, False),
    ],
)
def test_what_older_clients_say_is_kept_in_the_words_of_today(
    reply: str, kept: dict[str, str], long_poll: bool
) -> None:
    (order,), _ = read_orders(body(type="refund", metadata={"reply": reply, "mine": 1}))
    assert msgspec.json.decode(order.metadata) == {"mine": 1, **kept}
    assert order.long_poll == long_poll
    assert (order.wanted.webhook if order.wanted else "") == kept.get("webhook", "")


def test_names_that_belong_to_the_station_are_not_kept() -> None:
    metadata = {"owner": "other", "transactionType": "x", "nodeGroup": "g", "onComplete": 1}
    (order,), _ = read_orders(body(type="refund", metadata={**metadata, "kept": 1}))
    assert order.metadata == b'{"kept":1}'


def test_what_is_no_trace_context_does_not_stop_a_start() -> None:
    (order,), _ = read_orders(body(type="refund"), traceparent="junk")
    assert order.traceparent == ""


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ({}, "type"),
        ({"type": 7}, "type"),
        ({"type": "Not a name"}, "type"),
        ({"type": "a", "extra": 1}, ""),
        ({"type": "a", "metadata": []}, "metadata"),
        ({"type": "a", "metadata": {"externalId": 7}}, "metadata.externalId"),
        ({"type": "a", "metadata": {"externalId": ""}}, "metadata.externalId"),
        ({"type": "a", "metadata": {"externalId": "a\n"}}, "metadata.externalId"),
        ({"type": "a", "metadata": {"externalId": "x" * 201}}, "metadata.externalId"),
        ({"type": "a", "metadata": {"poll": "never"}}, "metadata.poll"),
        ({"type": "a", "metadata": {"webhook": 7}}, "metadata.webhook"),
        ({"type": "a", "metadata": {"webhook": "http://" + "x" * 2000}}, "metadata.webhook"),
        ({"type": "a", "metadata": {"channel": ["x"]}}, "metadata.channel"),
        ({"type": "a", "metadata": {"topic": 1}}, "metadata.topic"),
        ({"type": "a", "metadata": {"statusChanges": 1}}, "metadata.statusChanges"),
        (
            {"type": "a", "metadata": {"reply": "http://a/", "webhook": "http://b/"}},
            "metadata.reply",
        ),
        ({"type": "a", "metadata": {"reply": "shortpoll", "poll": "long"}}, "metadata.reply"),
        (
            {"transactions": [{"type": "a"}, {"type": "b", "metadata": {"poll": "long"}}]},
            "transactions[1].metadata.poll",
        ),
        ({"type": "a", "metadata": {"progressReports": "yes"}}, "metadata.progressReports"),
        ({"type": "a", "metadata": {"startAt": "soon"}}, "metadata.startAt"),
        ({"type": "a", "metadata": {"deadline": True}}, "metadata.deadline"),
        ({"type": "a", "metadata": {"deadline": "2030-01-31T12:00:00"}}, "metadata.deadline"),
        ({"transactions": []}, "transactions"),
        ({"transactions": [{"type": "a"}] * (ORDERS_MAX + 1)}, "transactions"),
        ({"transactions": [{"type": "a"}], "type": "b"}, "transactions"),
        ({"transactions": [{"type": "a"}], "data": 1}, "transactions"),
        ({"transactions": [{"type": "a"}, {"type": "B"}]}, "transactions[1].type"),
        (
            {"transactions": [{"type": "a"}, {"type": "b", "metadata": {"poll": 1}}]},
            "transactions[1].metadata.poll",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_place(content: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        read_orders(body(**content))
    assert refused.value.field == field


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b'{"type": "a", "data": nan}',
        b'{"type": "a", "data": "\xff"}',
        b'{"type": "a", "data": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_what_is_no_json_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidInputError):
        read_orders(text)


@pytest.mark.parametrize(
    ("data", "told"),
    [(b'"\xff"', "not UTF-8")],
)
def test_what_is_nearly_json_is_told_what_is_wrong_with_it(data: bytes, told: str) -> None:
    with pytest.raises(InvalidInputError, match=f"The body cannot be accepted: it is {told}"):
        read_orders(b'{"type": "a", "data": %b}' % data)


@pytest.mark.parametrize("depth", [JSON_DEPTH_MAX + 1, 1000, 100_000])
def test_read_orders_with_data_above_depth_limit_raises_json_too_deep(depth: int) -> None:
    data = b"[" * depth + b"]" * depth
    with pytest.raises(JsonTooDeepError, match=f"the limit is {JSON_DEPTH_MAX} levels"):
        read_orders(b'{"transactions": [{"type": "a", "data": %b}]}' % data)


def test_read_orders_with_data_at_depth_limit_keeps_data() -> None:
    data = b"[" * JSON_DEPTH_MAX + b"]" * JSON_DEPTH_MAX
    (order,), _ = read_orders(b'{"transactions": [{"type": "a", "data": %b}]}' % data)
    assert order.data == data


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (rb'{"type": "a", "data": {"a": "\ud83d"}}', "data.a"),
        (
            rb'{"type": "a", "data": {"ok": "\ud83d\ude00", "list": ["x", "\ude00"]}}',
            "data.list[1]",
        ),
        (rb'{"type": "a", "data": "\ud83d"}', "data"),
        (rb'{"type": "a", "data": {"b": {"\ud83d": 1}}}', "data.b"),
        (rb'{"type": "a", "metadata": {"note": "\ud83d"}}', "metadata.note"),
        (rb'{"transactions": [{"type": "a", "data": ["\ud83d"]}]}', "transactions[0].data[0]"),
    ],
)
def test_order_with_a_lone_surrogate_is_refused_with_its_field(text: bytes, field: str) -> None:
    with pytest.raises(InvalidInputError) as told:
        read_orders(text)
    assert told.value.field == field
    assert told.value.message.startswith(f"{field} has a lone surrogate")


@pytest.mark.parametrize(
    ("written", "moment"),
    [
        (1_900_000_000_000, Moment(1_900_000_000_000)),
        ("2030-01-31T12:00:00Z", Moment(1_896_091_200_000)),
        ("2030-01-31T13:00:00.5+01:00", Moment(1_896_091_200_500)),
        ("30s", Moment(30_000, after_start=True)),
        ("2d", Moment(172_800_000, after_start=True)),
    ],
)
def test_a_time_is_by_the_calendar_or_from_the_start(written: str | int, moment: Moment) -> None:
    assert read_moment(written, field="startAt") == moment


@pytest.mark.parametrize("written", [-1, 10**15, "", "-5s", "yesterday", "1" * 200])
def test_what_is_no_time_is_refused(written: str | int) -> None:
    with pytest.raises(InvalidInputError, match="deadline is not a time"):
        read_moment(written, field="deadline")


def test_a_time_that_has_passed_is_now() -> None:
    assert Moment(1000).in_ms(5000) == 0
    assert Moment(9000).in_ms(5000) == 4000
    assert Moment(9000, after_start=True).in_ms(5000) == 9000
