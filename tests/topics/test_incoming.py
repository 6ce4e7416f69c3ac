"""A request's headers and body become a message: bytes as they are, headers in their order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topics.requests import FIRST_ID, receive, receive_one, refusal
from waystation.messages.envelope import Envelope, pack, unpack
from waystation.messages.message_rules import HEADERS_MAX, MESSAGE_BYTES_MAX, is_kept, size_of

TRACE = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@given(st.binary(max_size=300))
def test_any_bytes_are_a_payload(body: bytes) -> None:
    envelope = receive_one(body)
    assert envelope.data == body
    assert unpack(pack(envelope), project="shop") == envelope


def test_an_id_is_made_where_none_is_given() -> None:
    assert receive_one(b"x") == Envelope(id=FIRST_ID, project="shop", data=b"x")


def test_headers_say_what_a_message_is() -> None:
    envelope = receive_one(
        b"x",
        (b"waystation-id", b"order-17"),
        (b"waystation-group", "ünï".encode()),
        (b"waystation-not-before", b"1900000000000"),
        (b"waystation-cause", b"click-5"),
        (b"traceparent", TRACE),
        kind=b"image/png",
    )
    assert envelope == Envelope(
        id="order-17",
        project="shop",
        data=b"x",
        group="ünï",
        headers=(("content-type", "image/png"),),
        not_before_ms=1_900_000_000_000,
        cause="click-5",
        traceparent=TRACE.decode(),
    )


def test_repeated_headers_are_kept_in_order_with_their_commas() -> None:
    envelope = receive_one(
        b"",
        (b"x-tag", b"a, b"),
        (b"x-other", b'"q,r"'),
        (b"x-tag", b"c"),
        (b"x-tag", b""),
        (b"x-tab", b"a\tb"),
        (b"x-name", "ü".encode()),
    )
    assert envelope.headers == (
        ("x-tag", "a, b"),
        ("x-other", '"q,r"'),
        ("x-tag", "c"),
        ("x-tag", ""),
        ("x-tab", "a\tb"),
        ("x-name", "ü"),
    )


@pytest.mark.parametrize(
    "name",
    [
        "authorization",
        "cookie",
        "proxy-authorization",
        "set-cookie",
        "x-api-key",
        "x-auth-token",
        "x-forwarded-for",
        "x-real-ip",
        "host",
        "content-length",
        "user-agent",
        "accept",
    ],
)
def test_what_opens_doors_or_tells_of_the_way_is_not_kept(name: str) -> None:
    assert not is_kept(name)
    assert receive_one(b"x", (name.encode(), b"secret")).headers == ()


@pytest.mark.parametrize(
    "name", ["x-tenant", "ce-source", "content-type", "content-encoding", "tracestate", "baggage"]
)
def test_what_applications_say_is_kept(name: str) -> None:
    assert receive_one(b"x", (name.encode(), b"v")).headers == ((name, "v"),)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        (b"0", 0),
        (b"1735689600123", 1735689600123),
        (b"2025-01-01T00:00:00Z", 1735689600000),
        (b"2025-01-01T02:00:00.123+02:00", 1735689600123),
        (b"2001-09-09T01:46:40.001Z", 1000000000001),
        (b"9999-12-31T23:59:59Z", 253402300799000),
    ],
)
def test_a_time_is_milliseconds_or_as_in_rfc_3339(text: bytes, ms: int) -> None:
    assert receive_one(b"", (b"waystation-not-before", text)).not_before_ms == ms


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"soon",
        b"-1",
        b"1.5",
        b"999999999999999",
        b"9" * 5000,
        b"2025-01-01",
        b"2025-01-01T00:00:00",
        b"1969-12-31T00:00:00Z",
        "١٢".encode(),
    ],
)
def test_any_other_time_is_refused(text: bytes) -> None:
    found = refusal(b"", (b"waystation-not-before", text))
    assert found == ("input.invalid", "waystation-not-before")


@pytest.mark.parametrize("header", [b"waystation-id", b"waystation-group", b"waystation-cause"])
def test_ids_have_1_to_100_characters_and_no_controls(header: bytes) -> None:
    assert receive_one(b"", (header, "ü".encode() * 100))
    for value in (b"", b"a" * 101, b"a\tb", b"a\x7f", "a\x85b".encode()):
        assert refusal(b"", (header, value)) == ("input.invalid", header.decode())


def test_ids_that_look_like_keys_paths_or_patterns_are_only_text() -> None:
    for value in ("{x}:log", "*", "../..", "a:b", "}{", "%00", "a b"):
        assert receive_one(b"", (b"waystation-id", value.encode())).id == value


@pytest.mark.parametrize(
    ("headers", "code", "field"),
    [
        ([(b"waystation-id", b"a"), (b"waystation-id", b"b")], "input.invalid", "waystation-id"),
        ([(b"waystation-group", b"a")] * 2, "input.invalid", "waystation-group"),
        ([(b"content-type", b"text/plain")] * 2, "input.invalid", "content-type"),
        ([(b"waystation-groupid", b"a")], "input.invalid", "waystation-groupid"),
        ([(b"waystation-id", b"\xff")], "input.invalid", "waystation-id"),
        ([(b"x-a", b"\xfc")], "input.invalid", "x-a"),
        ([(b"x-a", b"a\r\nx-b: c")], "input.invalid", "x-a"),
        ([(b"x-a", b"a\x00")], "input.invalid", "x-a"),
        ([(b"x-a", b"a" * 8193)], "input.too-large", "x-a"),
        ([(b"x-" + b"a" * 99, b"a")], "input.invalid", "x-" + "a" * 38),
        ([(b"x-a", b"a")] * (HEADERS_MAX + 1), "input.too-large", "headers"),
    ],
)
def test_bad_headers_are_refused_by_name(
    headers: list[tuple[bytes, bytes]], code: str, field: str
) -> None:
    assert refusal(b"x", *headers) == (code, field)


def test_a_long_name_that_is_not_kept_is_no_matter() -> None:
    assert receive_one(b"x", (b"y" * 5000, b"a")).headers == ()


@pytest.mark.parametrize(
    "trace", [b"", b"nonsense", TRACE[:-1], TRACE.upper(), TRACE + b"-more", b"zz" + TRACE[2:]]
)
def test_a_broken_trace_stops_no_message(trace: bytes) -> None:
    assert receive_one(b"x", (b"traceparent", trace)).traceparent is None


def test_a_grouped_topic_refuses_a_message_without_a_group() -> None:
    assert refusal(b"x", grouped=True) == ("topic.group-required", "group")
    assert receive_one(b"x", (b"waystation-group", b"g"), grouped=True).group == "g"


def test_a_message_has_at_most_5_mib_with_its_id_group_and_headers() -> None:
    headers = [(b"waystation-id", b"i" * 10), (b"waystation-group", "ü".encode()), (b"x-a", b"bb")]
    room = MESSAGE_BYTES_MAX - 10 - 2 - 3 - 2
    received = receive(b"d" * room, *headers)
    assert received.size == MESSAGE_BYTES_MAX == size_of(received.envelopes[0])
    assert refusal(b"d" * (room + 1), *headers) == ("input.too-large", "data")


@pytest.mark.parametrize(
    "kind",
    [
        b"application/cloudevents+xml",
        b"application/cloudevents-batch+avro",
        b"application/cloudevents",
        b"application/vnd.waystation.thing+json",
    ],
)
def test_forms_that_hold_messages_but_are_not_spoken_are_refused(kind: bytes) -> None:
    assert refusal(b"<x/>", kind=kind) == ("input.unsupported-media-type", "")
