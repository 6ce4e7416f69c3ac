"""HTTP formats: single messages, batches and the JSON that queries return."""

from __future__ import annotations

import base64
import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.messages.requests import FIRST_ID, receive, receive_one, rejection
from waystation.errors import JsonTooDeepError, WaystationError
from waystation.messages.envelope import (
    HEADERS_MAX,
    MESSAGE_BYTES_MAX,
    Envelope,
    is_kept_header,
    message_bytes,
    pack,
    unpack,
)
from waystation.messages.formats import message_json
from waystation.runtime.json_text import JSON_DEPTH_MAX

BATCH = b"application/vnd.waystation.batch+json"
EVENT = b"application/cloudevents+json"
EVENTS = b"application/cloudevents-batch+json"
#: A batch whose message has headers, which another decoder reads.
BATCH_WITH_HEADERS = BATCH + b";headers"
JSON = b"application/json"
TRACE = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

# -- Single messages -------------------------------------------------------------------------


@given(st.binary(max_size=300))
def test_read_request_keeps_payload_byte_for_byte(body: bytes) -> None:
    envelope = receive_one(body)
    assert envelope.data == body
    assert unpack(pack(envelope), project="shop") == envelope


def test_read_request_without_id_creates_one() -> None:
    assert receive_one(b"x") == Envelope(id=FIRST_ID, project="shop", data=b"x")


def test_read_request_headers_set_fields_of_message() -> None:
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


def test_read_request_keeps_order_and_commas_of_repeated_headers() -> None:
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
def test_read_request_drops_secret_and_network_headers(name: str) -> None:
    assert not is_kept_header(name)
    assert receive_one(b"x", (name.encode(), b"secret")).headers == ()


@pytest.mark.parametrize(
    "name", ["x-tenant", "ce-source", "content-type", "content-encoding", "tracestate", "baggage"]
)
def test_read_request_keeps_application_headers(name: str) -> None:
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
def test_not_before_accepts_milliseconds_and_rfc_3339(text: bytes, ms: int) -> None:
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
def test_not_before_that_is_not_a_time_is_rejected(text: bytes) -> None:
    found = rejection(b"", (b"waystation-not-before", text))
    assert found == ("input.invalid", "waystation-not-before")


@pytest.mark.parametrize("header", [b"waystation-id", b"waystation-group", b"waystation-cause"])
def test_id_and_group_headers_accept_1_to_100_characters_but_no_controls(
    header: bytes,
) -> None:
    assert receive_one(b"", (header, "ü".encode() * 100))
    for value in (b"", b"a" * 101, b"a\tb", b"a\x7f", "a\x85b".encode()):
        assert rejection(b"", (header, value)) == ("input.invalid", header.decode())


def test_message_id_like_key_path_or_pattern_is_plain_text() -> None:
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
def test_read_request_with_invalid_header_raises_error_with_header_name(
    headers: list[tuple[bytes, bytes]], code: str, field: str
) -> None:
    assert rejection(b"x", *headers) == (code, field)


def test_read_request_ignores_long_names_of_dropped_headers() -> None:
    assert receive_one(b"x", (b"y" * 5000, b"a")).headers == ()


@pytest.mark.parametrize(
    "trace", [b"", b"nonsense", TRACE[:-1], TRACE.upper(), TRACE + b"-more", b"zz" + TRACE[2:]]
)
def test_read_request_with_invalid_traceparent_drops_it(trace: bytes) -> None:
    assert receive_one(b"x", (b"traceparent", trace)).traceparent is None


def test_read_request_to_grouped_topic_requires_group() -> None:
    assert rejection(b"x", grouped=True) == ("topic.group-required", "group")
    assert receive_one(b"x", (b"waystation-group", b"g"), grouped=True).group == "g"


def test_message_limit_counts_payload_id_group_and_headers() -> None:
    headers = [(b"waystation-id", b"i" * 10), (b"waystation-group", "ü".encode()), (b"x-a", b"bb")]
    room = MESSAGE_BYTES_MAX - 10 - 2 - 3 - 2
    received = receive(b"d" * room, *headers)
    assert received.size == MESSAGE_BYTES_MAX == message_bytes(received.envelopes[0])
    assert rejection(b"d" * (room + 1), *headers) == ("input.too-large", "data")


@pytest.mark.parametrize(
    "kind",
    [
        b"application/cloudevents+xml",
        b"application/cloudevents-batch+avro",
        b"application/cloudevents",
        b"application/vnd.waystation.thing+json",
    ],
)
def test_read_request_with_unsupported_message_type_is_rejected(kind: bytes) -> None:
    assert rejection(b"<x/>", kind=kind) == ("input.unsupported-media-type", "")


# -- Batches ---------------------------------------------------------------------------------


def batch(*messages: object) -> bytes:
    return msgspec.json.encode({"messages": messages})


def read(*messages: object) -> list[Envelope]:
    received = receive(batch(*messages), kind=BATCH)
    assert received.batch
    return received.envelopes


def test_batch_message_sets_every_field() -> None:
    (envelope,) = read(
        {
            "id": "a",
            "group": "g",
            "text": "hällo",
            "content_type": "text/x-greeting",
            "headers": [["X-Tag", "a, b"], ["x-tag", "c"]],
            "not_before_ms": 5,
            "cause": "z",
            "traceparent": TRACE.decode(),
        }
    )
    assert envelope == Envelope(
        id="a",
        project="shop",
        data="hällo".encode(),
        group="g",
        headers=(("content-type", "text/x-greeting"), ("x-tag", "a, b"), ("x-tag", "c")),
        not_before_ms=5,
        cause="z",
        traceparent=TRACE.decode(),
    )


@pytest.mark.parametrize(
    "data",
    [
        b'{"a" : 12345678901234567890123,  "b":1.0, "a":2}',
        b"[1e9999, -0.0, 1E5]",
        b'"\\u00e9\\/ \xc3\xa9"',
        b"null",
        b"false",
        b'""',
        b'{\n  "pretty": true\n}',
    ],
)
def test_batch_keeps_json_data_byte_for_byte(data: bytes) -> None:
    body = b'{"messages": [ {"data" : %b , "id":"a"} ]}' % data
    (envelope,) = receive(body, kind=BATCH + b"; charset=utf-8").envelopes
    assert envelope.data == data
    assert envelope.headers == (("content-type", "application/json"),)


def test_batch_accepts_text_base64_and_empty_payloads() -> None:
    text, binary, nothing, empty = read({"text": "ü"}, {"base64": "/wA="}, {}, {"text": ""})
    assert (text.data, text.headers) == (
        "ü".encode(),
        (("content-type", "text/plain; charset=utf-8"),),
    )
    assert (binary.data, binary.headers) == (b"\xff\x00", ())
    assert (nothing.data, nothing.headers) == (b"", ())
    assert empty.data == b""
    assert len({each.id for each in (text, binary, nothing, empty)}) == 4


def test_batch_accepts_content_type_among_headers() -> None:
    (envelope,) = read({"data": 1, "headers": [["x-a", "b"], ["Content-Type", "text/json"]]})
    assert envelope.headers == (("x-a", "b"), ("content-type", "text/json"))


def test_batch_messages_without_traceparent_get_that_of_request() -> None:
    other = TRACE.decode().replace("4bf9", "5bf9")
    body = batch({}, {"traceparent": other}, {"traceparent": "broken"})
    received = receive(body, (b"traceparent", TRACE), kind=BATCH)
    assert [each.traceparent for each in received.envelopes] == [
        TRACE.decode(),
        other,
        TRACE.decode(),
    ]


def test_batch_messages_do_not_get_headers_of_request() -> None:
    (envelope,) = receive(batch({}), (b"x-tag", b"a"), kind=BATCH).envelopes
    assert envelope == Envelope(id=FIRST_ID, project="shop", data=b"")


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"id": ""}, "id"),
        ({"id": "a" * 101}, "id"),
        ({"id": 5}, "id"),
        ({"id": "a\x00b"}, "id"),
        ({"group": "a\nb"}, "group"),
        ({"cause": "a\x7f"}, "cause"),
        ({"not_before_ms": -1}, "not_before_ms"),
        ({"not_before_ms": 10**18}, "not_before_ms"),
        ({"not_before_ms": "1"}, "not_before_ms"),
        ({"data": 1, "text": "a"}, "data"),
        ({"text": "", "base64": ""}, "data"),
        ({"base64": "a"}, "base64"),
        ({"base64": "Y Q=="}, "base64"),
        ({"content_type": "a\r\nb"}, "content_type"),
        ({"content_type": "a", "headers": [["content-type", "b"]]}, "content_type"),
        ({"headers": [["content-type", "b"], ["content-type", "b"]]}, "headers"),
        ({"headers": [["x-a\r\n", "b"]]}, "headers"),
        ({"headers": [["x-a", "b\r\nc"]]}, "headers"),
        ({"headers": [["", "b"]]}, "headers"),
        ({"headers": [["authorization", "b"]]}, "headers"),
        ({"headers": [["Host", "b"]]}, "headers"),
        ({"headers": [["x-" + "a" * 99, "b"]]}, "headers"),
        ({"headers": [["x-a"]]}, "headers[0]"),
        ({"headers": [["x-a", 1]]}, "headers[0][1]"),
    ],
)
def test_batch_error_names_position_and_field(message: object, field: str) -> None:
    found = rejection(batch({}, {}, message, {"id": ""}), kind=BATCH)
    assert found == ("input.invalid", f"messages[2].{field}")


def test_batch_with_unknown_field_is_rejected() -> None:
    body = batch({}, {"payload": 1})
    assert rejection(body, kind=BATCH) == ("input.invalid", "messages[1]")
    assert rejection(b'{"messages":[{}],"x":1}', kind=BATCH) == ("input.invalid", "body")


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        (b"", "input.invalid", "body"),
        (b"{", "input.invalid", "body"),
        (b"[]", "input.invalid", "body"),
        (b"{}", "input.invalid", "body"),
        (b'{"messages":[]}', "input.invalid", "messages"),
        (b'{"messages":{}}', "input.invalid", "messages"),
        (b'{"messages":[5]}', "input.invalid", "messages[0]"),
        (b'{"messages":[{"data":NaN}]}', "input.invalid", "body"),
        (b'{"messages":[{"data":"\xff"}]}', "input.invalid", "body"),
        (b'{"messages":[{"text":"\\ud800"}]}', "input.invalid", "body"),
        (b'{"messages":[{"data":%b}]}' % (b"[" * 100_000), "input.too-deep", "body"),
        (batch(*[{}] * 1001), "input.too-large", "messages"),
    ],
)
def test_batch_with_invalid_body_is_rejected(body: bytes, code: str, field: str) -> None:
    assert rejection(body, kind=BATCH) == (code, field)


@pytest.mark.parametrize(
    ("kind", "form", "first"),
    [
        (BATCH, b'{"messages":[%b]}', b'{"data":1}'),
        (BATCH, b'{"messages":[%b]}', b'{"data":"\\ud800"}'),
        (b"application/cloudevents-batch+json", b"[%b]", b'{"id":"a"}'),
    ],
    ids=["batch", "surrogate", "events"],
)
def test_batch_of_760_000_messages_is_rejected_before_they_are_decoded(
    kind: bytes, form: bytes, first: bytes
) -> None:
    body = form % b",".join([first, *[b'{"data":1}'] * 760_000])
    tracemalloc.start()
    try:
        assert rejection(body, kind=kind) == ("input.too-large", "messages")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # A few copies of the body, and no objects of messages.
    assert peak < 6 * len(body)


def test_batch_of_1000_messages_with_many_objects_is_accepted() -> None:
    message = {"data": [{} for _ in range(50)]}
    assert len(receive(batch(*[message] * 1000), kind=BATCH).envelopes) == 1000


def test_batch_of_1000_messages_is_accepted() -> None:
    received = receive(batch(*[{"id": "ab", "data": 5}] * 1000), kind=BATCH)
    assert len(received.envelopes) == 1000
    assert received.size == 1000 * len("ab" + "5" + "content-type" + "application/json")


def test_batch_message_above_5_mib_is_rejected() -> None:
    large = {"text": "x" * 5_242_881}
    assert rejection(batch({}, large), kind=BATCH) == ("input.too-large", "messages[1].data")


def test_batch_to_grouped_topic_requires_group_of_each_message() -> None:
    found = rejection(batch({"group": "g"}, {"id": "b"}), kind=BATCH, grouped=True)
    assert found == ("topic.group-required", "messages[1].group")


@pytest.mark.parametrize(
    "name", [b"waystation-id", b"waystation-group", b"waystation-not-before", b"waystation-cause"]
)
def test_batch_with_header_for_single_messages_is_rejected(name: bytes) -> None:
    assert rejection(batch({}), (name, b"1"), kind=BATCH) == ("input.invalid", name.decode())


KEYS = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=20)
HEADERS = st.lists(st.tuples(st.sampled_from(["x-a", "x-b", "ce-c"]), KEYS | st.just("")))
ENVELOPES = st.builds(
    Envelope,
    id=KEYS,
    project=st.just("shop"),
    data=st.binary() | st.text().map(str.encode) | st.just(b'{"a":1.0}') | st.just(b'[1, "\\n"]'),
    group=st.none() | KEYS,
    headers=st.tuples(
        st.sampled_from([(), (("content-type", "application/json"),), (("content-type", "a/b"),)]),
        HEADERS,
    ).map(lambda parts: (*parts[0], *parts[1])),
    not_before_ms=st.integers(0, 2**40),
    cause=st.none() | KEYS,
    traceparent=st.none() | st.just(TRACE.decode()),
)


@pytest.mark.slow
@given(ENVELOPES)
def test_message_json_can_be_produced_again(envelope: Envelope) -> None:
    # Whitespace between JSON tokens may change.
    shown = message_json(envelope)
    if "data" in shown:
        assert isinstance(shown["data"], msgspec.Raw)
        assert msgspec.json.format(shown["data"]) == msgspec.json.format(envelope.data)
        envelope = msgspec.structs.replace(envelope, data=bytes(shown["data"]))
    body = msgspec.json.encode({"messages": [shown]})
    assert receive(body, kind=BATCH).envelopes == [envelope]


@pytest.mark.parametrize(
    ("data", "kind", "name", "value"),
    [
        (b'{"a":1.0}', "application/json", "data", b'{"a":1.0}'),
        (b' {"a":\n 1.0}\n', "application/vnd.x+json; v=1", "data", b'{"a":1.0}'),
        (b'{"a":1.0}', "text/plain", "text", b'"{\\"a\\":1.0}"'),
        (b'{"a":', "application/json", "text", b'"{\\"a\\":"'),
        (b"1e999", "application/json", "text", b'"1e999"'),
        (b'"\\ud800"', "application/json", "text", None),
        (b"[" * 100_000 + b"]" * 100_000, "application/json", "text", None),
        (b"\xff", "application/json", "base64", b'"/w=="'),
        (b"\xff", "text/plain", "base64", b'"/w=="'),
        (b"abc", "", "text", b'"abc"'),
    ],
)
def test_message_json_shows_payload_as_data_text_or_base64(
    data: bytes, kind: str, name: str, value: bytes | None
) -> None:
    headers = (("content-type", kind),) if kind else ()
    shown = message_json(Envelope(id="a", project="shop", data=data, headers=headers))
    assert {"data", "text", "base64"} & set(shown) == {name}
    line = msgspec.json.encode(shown)
    assert b"\n" not in line
    if value is not None:
        assert msgspec.json.encode(shown[name]) == value
    if name != "data":
        kept = shown[name]
        assert isinstance(kept, str)
        assert (base64.b64decode(kept) if name == "base64" else kept.encode()) == data


PLAIN_MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"data": st.none() | st.integers() | st.text() | st.lists(st.text(), max_size=3)},
        optional={
            "id": st.none() | st.text(max_size=101) | st.just("x" * 100),
            "group": st.none() | st.text(max_size=101) | st.just("ü" * 100),
        },
    ),
    max_size=5,
)


@given(messages=PLAIN_MESSAGES, grouped=st.booleans(), trace=st.booleans())
def test_batch_fast_path_equals_full_path(
    messages: list[dict[str, object]], grouped: bool, trace: bool
) -> None:
    # An empty list of headers takes the full path. The result must be the same.
    headers = ((b"traceparent", TRACE),) if trace else ()
    more = [{**message, "headers": []} for message in messages]

    def outcome(given: list[dict[str, object]]) -> object:
        try:
            received = receive(batch(*given), *headers, kind=BATCH, grouped=grouped)
            return received.size, [
                # Ids that the server creates differ from call to call.
                envelope if message.get("id") else msgspec.structs.replace(envelope, id="")
                for envelope, message in zip(received.envelopes, given, strict=True)
            ]
        except WaystationError as error:
            return type(error), str(error), getattr(error, "field", "")

    assert outcome(messages) == outcome(more)


# -- Nesting ---------------------------------------------------------------------------------


def nested(kind: bytes, depth: int) -> bytes:
    """Return a body of a content type with one message whose JSON is `depth` levels deep."""
    wrapper = {
        BATCH: b'{"messages":[{"data":%b}]}',
        BATCH_WITH_HEADERS: b'{"messages":[{"data":%b,"headers":[["x-a","b"]]}]}',
        EVENT: b'{"specversion":"1.0","id":"a","source":"s","type":"t","data":%b}',
        EVENTS: b'[{"specversion":"1.0","id":"a","source":"s","type":"t","data":%b}]',
        JSON: b"%b",
    }[kind]
    return wrapper % (b"[" * depth + b"]" * depth)


@pytest.mark.parametrize("kind", [BATCH, BATCH_WITH_HEADERS, EVENT, EVENTS])
def test_read_request_nested_up_to_limit_is_accepted(kind: bytes) -> None:
    (envelope,) = receive(nested(kind, JSON_DEPTH_MAX), kind=kind.split(b";")[0]).envelopes

    assert envelope.data == nested(JSON, JSON_DEPTH_MAX)
    assert bytes(message_json(envelope)["data"]) == envelope.data


@pytest.mark.parametrize("depth", [JSON_DEPTH_MAX + 1, 1000, 100_000])
@pytest.mark.parametrize("kind", [BATCH, BATCH_WITH_HEADERS, EVENT, EVENTS])
def test_read_request_nested_above_limit_names_limit(kind: bytes, depth: int) -> None:
    with pytest.raises(JsonTooDeepError, match=f"limit is {JSON_DEPTH_MAX} levels") as raised:
        receive(nested(kind, depth), kind=kind.split(b";")[0])

    if depth == JSON_DEPTH_MAX + 1:
        assert raised.value.field.endswith("data")


@pytest.mark.parametrize("depth", [JSON_DEPTH_MAX + 1, 1000, 100_000])
def test_read_request_of_nested_payload_stores_its_bytes(depth: int) -> None:
    (envelope,) = receive(nested(JSON, depth), kind=JSON).envelopes

    assert envelope.data == nested(JSON, depth)
    shown = message_json(envelope)
    assert shown["text"] == envelope.data.decode()
