"""CloudEvents in binary, structured and batch mode."""

from __future__ import annotations

import msgspec
import pytest

from tests.messages.requests import receive, receive_one, rejection
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


def test_binary_event_becomes_body_and_headers() -> None:
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


def test_event_fields_yield_to_request_headers() -> None:
    own = ((b"waystation-id", b"b"), (b"waystation-group", b"g"), (b"waystation-cause", b"c"))
    binary = receive_one(b"", *BINARY, *own, (b"ce-partitionkey", b"k"))
    structured = receive_one(event(partitionkey="k"), *own, (b"x-a", b"1"), kind=EVENT)
    for envelope in (binary, structured):
        assert (envelope.id, envelope.group, envelope.cause) == ("b", "g", "c")
    assert ("x-a", "1") in structured.headers


def test_structured_event_equals_binary_event() -> None:
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
def test_structured_event_keeps_data(
    attributes: dict[str, object], data: bytes, kind: str | None
) -> None:
    envelope = receive_one(event(**attributes), kind=EVENT)
    assert envelope.data == data
    assert dict(envelope.headers).get("content-type") == kind


def test_traceparent_of_event_overrides_that_of_its_request() -> None:
    other = TRACE.replace("4bf9", "5bf9")
    request = (b"traceparent", TRACE.encode())
    own = (b"ce-traceparent", other.encode())
    assert receive_one(b"", *BINARY, request).traceparent == TRACE
    assert receive_one(b"", *BINARY, request, own).traceparent == other
    assert receive_one(b"", *BINARY, request, (b"ce-traceparent", b"?")).traceparent == TRACE
    assert receive_one(event(), request, kind=EVENT).traceparent == TRACE
    assert receive_one(event(traceparent=other), request, kind=EVENT).traceparent == other


@pytest.mark.parametrize("missing", range(1, 4))
def test_event_without_required_attribute_is_rejected(missing: int) -> None:
    headers = [each for number, each in enumerate(BINARY) if number != missing]
    name = BINARY[missing][0].decode()
    assert rejection(b"", *headers) == ("input.invalid", name)
    attribute = name.removeprefix("ce-")
    assert rejection(event(**{attribute: None}), kind=EVENT) == ("input.invalid", attribute)
    assert rejection(event(**{attribute: ""}), kind=EVENT) == ("input.invalid", attribute)


def test_event_headers_without_specversion_are_plain_headers() -> None:
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
def test_binary_event_with_invalid_header_is_rejected(
    headers: list[tuple[bytes, bytes]], field: str
) -> None:
    assert rejection(b"", *headers) == ("input.invalid", field)


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
def test_structured_event_with_invalid_field_is_rejected(body: bytes, field: str) -> None:
    assert rejection(body, kind=EVENT) == ("input.invalid", field)


def test_event_batch_becomes_batch_of_messages() -> None:
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
def test_event_batch_error_names_position(body: bytes, code: str, field: str) -> None:
    assert rejection(body, kind=EVENTS) == (code, field)


def test_event_to_grouped_topic_requires_partitionkey() -> None:
    assert rejection(event(), kind=EVENT, grouped=True) == ("topic.group-required", "group")
    assert receive_one(event(partitionkey="k"), kind=EVENT, grouped=True).group == "k"
