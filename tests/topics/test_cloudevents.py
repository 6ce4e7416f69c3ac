"""CloudEvents in binary, structured and batch mode, in and out; payloads stay as they are."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topics.requests import receive, receive_one, refusal
from waystation.messages.cloudevents import as_event
from waystation.messages.envelope import Envelope

EVENT = b"application/cloudevents+json"
EVENTS = b"application/cloudevents-batch+json"
BINARY = (
    (b"ce-specversion", b"1.0"),
    (b"ce-id", b"a-1"),
    (b"ce-source", b"/shop"),
    (b"ce-type", b"order.made"),
)
REQUIRED = {"specversion": "1.0", "id": "a-1", "source": "/shop", "type": "order.made"}
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def event(**attributes: object) -> bytes:
    return msgspec.json.encode(REQUIRED | attributes)


def test_a_binary_event_is_its_body_and_its_headers() -> None:
    body = b'{"n": 12345678901234567890.10}\n'
    envelope = receive_one(
        body, *BINARY, (b"ce-partitionkey", b"caf%C3%A9"), kind=b"application/json"
    )
    assert envelope == Envelope(
        id="a-1",
        project="shop",
        data=body,
        group="café",
        headers=(
            *((name.decode(), value.decode()) for name, value in BINARY),
            ("ce-partitionkey", "caf%C3%A9"),
            ("content-type", "application/json"),
        ),
    )


def test_what_the_request_says_goes_before_what_the_event_says() -> None:
    own = ((b"waystation-id", b"b"), (b"waystation-group", b"g"), (b"waystation-cause", b"c"))
    binary = receive_one(b"", *BINARY, *own, (b"ce-partitionkey", b"k"))
    structured = receive_one(event(partitionkey="k"), *own, (b"x-a", b"1"), kind=EVENT)
    for envelope in (binary, structured):
        assert (envelope.id, envelope.group, envelope.cause) == ("b", "g", "c")
    assert ("x-a", "1") in structured.headers


def test_a_structured_event_becomes_the_same_message_as_a_binary_one() -> None:
    structured = receive_one(
        b'{"specversion":"1.0","id":"a-1","source":"/shop","type":"order.made",'
        b'"datacontenttype":"application/json", "subject":"caf\xc3\xa9 \\"1\\" %",'
        b'"count":5,"late":true,"gone":null, "data": {"n" : 12345678901234567890.10} }',
        kind=EVENT + b"; charset=utf-8",
    )
    binary = receive_one(
        b'{"n" : 12345678901234567890.10}',
        (b"content-type", b"application/json"),
        *BINARY,
        (b"ce-subject", b"caf%C3%A9%20%221%22%20%25"),
        (b"ce-count", b"5"),
        (b"ce-late", b"true"),
    )
    assert structured == binary


@pytest.mark.parametrize(
    ("attributes", "data", "kind"),
    [
        ({"data": {"a": 1}}, b'{"a":1}', "application/json"),
        ({"data": "x", "datacontenttype": "application/json"}, b'"x"', "application/json"),
        ({"data": "<a/>", "datacontenttype": "text/xml"}, b"<a/>", "text/xml"),
        ({"data": 5, "datacontenttype": "text/xml"}, b"5", "text/xml"),
        ({"data": None}, b"null", "application/json"),
        ({"data_base64": "/wA="}, b"\xff\x00", None),
        ({"data_base64": "/wA=", "datacontenttype": "a/b"}, b"\xff\x00", "a/b"),
        ({}, b"", None),
    ],
)
def test_data_of_a_structured_event(
    attributes: dict[str, object], data: bytes, kind: str | None
) -> None:
    envelope = receive_one(event(**attributes), kind=EVENT)
    assert envelope.data == data
    assert dict(envelope.headers).get("content-type") == kind


def test_an_event_brings_its_trace_else_the_request_does() -> None:
    other = TRACE.replace("4bf9", "5bf9")
    request = (b"traceparent", TRACE.encode())
    own = (b"ce-traceparent", other.encode())
    assert receive_one(b"", *BINARY, request).traceparent == TRACE
    assert receive_one(b"", *BINARY, request, own).traceparent == other
    assert receive_one(b"", *BINARY, request, (b"ce-traceparent", b"?")).traceparent == TRACE
    assert receive_one(event(), request, kind=EVENT).traceparent == TRACE
    assert receive_one(event(traceparent=other), request, kind=EVENT).traceparent == other


@pytest.mark.parametrize("missing", range(1, 4))
def test_an_event_needs_id_source_and_type(missing: int) -> None:
    headers = [each for number, each in enumerate(BINARY) if number != missing]
    name = BINARY[missing][0].decode()
    assert refusal(b"", *headers) == ("input.invalid", name)
    attribute = name.removeprefix("ce-")
    assert refusal(event(**{attribute: None}), kind=EVENT) == ("input.invalid", attribute)
    assert refusal(event(**{attribute: ""}), kind=EVENT) == ("input.invalid", attribute)


def test_headers_of_events_without_a_version_are_only_headers() -> None:
    assert receive_one(b"", (b"ce-source", b"/a")).headers == (("ce-source", "/a"),)


@pytest.mark.parametrize(
    ("headers", "field"),
    [
        ([*BINARY[1:], (b"ce-specversion", b"0.3")], "ce-specversion"),
        ([*BINARY, (b"ce-id", b"b")], "ce-id"),
        ([*BINARY, (b"ce-x", b"1"), (b"ce-x", b"2")], "ce-x"),
        ([*BINARY[:1], (b"ce-id", b"a" * 101), *BINARY[2:]], "id"),
        ([*BINARY[:1], (b"ce-id", b"a%0Ab"), *BINARY[2:]], "id"),
        ([*BINARY[:1], (b"ce-id", b"a%FF"), *BINARY[2:]], "ce-id"),
        ([*BINARY, (b"ce-partitionkey", b"%C3")], "ce-partitionkey"),
    ],
)
def test_a_bad_binary_event_is_refused(headers: list[tuple[bytes, bytes]], field: str) -> None:
    assert refusal(b"", *headers) == ("input.invalid", field)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"", "body"),
        (b"[]", "body"),
        (b"{", "body"),
        (event(specversion="2.0"), "specversion"),
        (event(id="a" * 101), "id"),
        (event(subject="a\nb"), "subject"),
        (event(subject="a\tb"), "subject"),
        (event(subject={"a": 1}), "subject"),
        (event(subject=1.5), "subject"),
        (event(Subject="a"), "Subject"),
        (event(**{"a-b": "a"}), "a-b"),
        (event(data=1, data_base64="YQ=="), "data"),
        (event(data_base64="a"), "data_base64"),
        (event(data_base64=5), "data_base64"),
    ],
)
def test_a_bad_structured_event_is_refused(body: bytes, field: str) -> None:
    assert refusal(body, kind=EVENT) == ("input.invalid", field)


def test_a_batch_of_events_is_a_batch_of_messages() -> None:
    body = b"[%b, %b]" % (event(data={"a": 1.0}), event(id="a-2", partitionkey="g"))
    received = receive(body, (b"traceparent", TRACE.encode()), kind=EVENTS)
    assert received.batch
    assert [(each.id, each.group, each.data) for each in received.envelopes] == [
        ("a-1", None, b'{"a":1.0}'),
        ("a-2", "g", b""),
    ]
    assert [each.traceparent for each in received.envelopes] == [TRACE] * 2


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        (b"[]", "input.invalid", "messages"),
        (b"{}", "input.invalid", "body"),
        (b"[%b,5]" % event(), "input.invalid", "messages[1]"),
        (b"[%b,{}]" % event(), "input.invalid", "messages[1].specversion"),
        (b"[%b]" % b",".join([event()] * 1001), "input.too-large", "messages"),
    ],
)
def test_a_bad_batch_of_events_is_refused_with_the_position(
    body: bytes, code: str, field: str
) -> None:
    assert refusal(body, kind=EVENTS) == (code, field)


def test_an_event_for_a_grouped_topic_needs_a_partition_key() -> None:
    assert refusal(event(), kind=EVENT, grouped=True) == ("topic.group-required", "group")
    assert receive_one(event(partitionkey="k"), kind=EVENT, grouped=True).group == "k"


# -- The way back -------------------------------------------------------------------------------


def test_a_message_that_was_no_event_becomes_one() -> None:
    envelope = Envelope(id="m", project="shop", data=b"\xff", group="g", traceparent=TRACE)
    assert msgspec.json.decode(as_event(envelope, source="/v1/topics/orders", ms=1)) == {
        "specversion": "1.0",
        "id": "m",
        "source": "/v1/topics/orders",
        "type": "waystation.message",
        "time": "1970-01-01T00:00:00.001Z",
        "partitionkey": "g",
        "traceparent": TRACE,
        "datacontenttype": "application/octet-stream",
        "data_base64": "/w==",
    }


def test_headers_that_are_no_attributes_stay_out_of_an_event() -> None:
    headers = (("x-a", "1"), ("ce-a-b", "2"), ("ce-data", "3"), ("ce-ok", "4%FF"))
    made = msgspec.json.decode(
        as_event(Envelope(id="m", project="shop", data=b"", headers=headers), source="/s", ms=0)
    )
    assert set(made) == {"ok", "specversion", "id", "source", "type", "time"}


TEXTS = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=20)


@given(
    attributes=st.fixed_dictionaries(
        {"id": TEXTS, "source": TEXTS, "type": TEXTS},
        optional={"subject": TEXTS, "partitionkey": TEXTS, "other1": TEXTS},
    ),
    data=st.sampled_from(
        [
            {},
            {"data": {"a": [1, "ü\n"]}},
            {"data": "text\n", "datacontenttype": "text/plain"},
            {"data": "", "datacontenttype": "application/json"},
            {"data_base64": "/wA=", "datacontenttype": "a/b"},
        ]
    ),
)
def test_an_event_comes_out_as_it_came_in(
    attributes: dict[str, object], data: dict[str, object]
) -> None:
    sent = {"specversion": "1.0"} | attributes | data
    envelope = receive_one(msgspec.json.encode(sent), kind=EVENT)
    if "data" in sent:
        sent.setdefault("datacontenttype", "application/json")
    assert msgspec.json.decode(as_event(envelope, source="/other", ms=5)) == sent
