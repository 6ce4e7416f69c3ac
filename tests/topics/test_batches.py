"""Batches of our own form: payloads byte for byte, errors with a position, all or nothing."""

from __future__ import annotations

import base64

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topics.requests import FIRST_ID, receive, refusal
from waystation.errors import WaystationError
from waystation.messages.envelope import Envelope
from waystation.messages.shown import as_shown

BATCH = b"application/vnd.waystation.batch+json"
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def batch(*messages: object) -> bytes:
    return msgspec.json.encode({"messages": messages})


def read(*messages: object) -> list[Envelope]:
    received = receive(batch(*messages), kind=BATCH)
    assert received.batch
    return received.envelopes


def test_a_message_of_a_batch_can_say_everything() -> None:
    (envelope,) = read(
        {
            "id": "a",
            "group": "g",
            "text": "hällo",
            "content_type": "text/x-greeting",
            "headers": [["X-Tag", "a, b"], ["x-tag", "c"]],
            "not_before_ms": 5,
            "cause": "z",
            "traceparent": TRACE,
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
        traceparent=TRACE,
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
def test_json_is_kept_byte_for_byte(data: bytes) -> None:
    body = b'{"messages": [ {"data" : %b , "id":"a"} ]}' % data
    (envelope,) = receive(body, kind=BATCH + b"; charset=utf-8").envelopes
    assert envelope.data == data
    assert envelope.headers == (("content-type", "application/json"),)


def test_text_and_base64_and_nothing_are_payloads_too() -> None:
    text, binary, nothing, empty = read({"text": "ü"}, {"base64": "/wA="}, {}, {"text": ""})
    assert (text.data, text.headers) == (
        "ü".encode(),
        (("content-type", "text/plain; charset=utf-8"),),
    )
    assert (binary.data, binary.headers) == (b"\xff\x00", ())
    assert (nothing.data, nothing.headers) == (b"", ())
    assert empty.data == b""
    assert len({each.id for each in (text, binary, nothing, empty)}) == 4


def test_a_content_type_may_stand_among_the_headers() -> None:
    (envelope,) = read({"data": 1, "headers": [["x-a", "b"], ["Content-Type", "text/json"]]})
    assert envelope.headers == (("x-a", "b"), ("content-type", "text/json"))


def test_a_request_gives_its_trace_to_messages_without_one() -> None:
    other = TRACE.replace("4bf9", "5bf9")
    body = batch({}, {"traceparent": other}, {"traceparent": "broken"})
    received = receive(body, (b"traceparent", TRACE.encode()), kind=BATCH)
    assert [each.traceparent for each in received.envelopes] == [TRACE, other, TRACE]


def test_headers_of_the_request_are_not_those_of_its_messages() -> None:
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
def test_an_error_names_the_position_and_the_field(message: object, field: str) -> None:
    found = refusal(batch({}, {}, message, {"id": ""}), kind=BATCH)
    assert found == ("input.invalid", f"messages[2].{field}")


def test_an_unknown_field_is_refused() -> None:
    body = batch({}, {"payload": 1})
    assert refusal(body, kind=BATCH) == ("input.invalid", "messages[1]")
    assert refusal(b'{"messages":[{}],"x":1}', kind=BATCH) == ("input.invalid", "body")


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
        (b'{"messages":[{"data":%b}]}' % (b"[" * 100_000), "input.invalid", "body"),
        (batch(*[{}] * 1001), "input.too-large", "messages"),
    ],
)
def test_a_body_that_is_no_batch_is_refused(body: bytes, code: str, field: str) -> None:
    assert refusal(body, kind=BATCH) == (code, field)


def test_a_thousand_messages_are_a_batch() -> None:
    received = receive(batch(*[{"id": "ab", "data": 5}] * 1000), kind=BATCH)
    assert len(received.envelopes) == 1000
    assert received.size == 1000 * len("ab" + "5" + "content-type" + "application/json")


def test_each_message_of_a_batch_has_5_mib() -> None:
    large = {"text": "x" * 5_242_881}
    assert refusal(batch({}, large), kind=BATCH) == ("input.too-large", "messages[1].data")


def test_each_message_for_a_grouped_topic_needs_a_group() -> None:
    found = refusal(batch({"group": "g"}, {"id": "b"}), kind=BATCH, grouped=True)
    assert found == ("topic.group-required", "messages[1].group")


@pytest.mark.parametrize(
    "name", [b"waystation-id", b"waystation-group", b"waystation-not-before", b"waystation-cause"]
)
def test_what_is_for_a_single_message_is_refused_with_a_batch(name: bytes) -> None:
    assert refusal(batch({}), (name, b"1"), kind=BATCH) == ("input.invalid", name.decode())


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
    traceparent=st.none() | st.just(TRACE),
)


@pytest.mark.slow
@given(ENVELOPES)
def test_what_is_shown_can_be_sent_in_again_and_is_the_same(envelope: Envelope) -> None:
    """Token by token, where it is JSON: blanks between and around them are nobody's."""
    shown = as_shown(envelope)
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
def test_a_payload_is_shown_as_what_it_is(
    data: bytes, kind: str, name: str, value: bytes | None
) -> None:
    headers = (("content-type", kind),) if kind else ()
    shown = as_shown(Envelope(id="a", project="shop", data=data, headers=headers))
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
def test_a_batch_of_plain_messages_is_read_as_one_that_says_more(
    messages: list[dict[str, object]], grouped: bool, trace: bool
) -> None:
    # Given the same messages, each with a list of headers that has nothing in it
    headers = ((b"traceparent", TRACE.encode()),) if trace else ()
    more = [{**message, "headers": []} for message in messages]

    # Then both are accepted alike or refused alike
    def outcome(given: list[dict[str, object]]) -> object:
        try:
            received = receive(batch(*given), *headers, kind=BATCH, grouped=grouped)
            return received.size, [
                # Ids that were made are no one's to promise.
                envelope if message.get("id") else msgspec.structs.replace(envelope, id="")
                for envelope, message in zip(received.envelopes, given, strict=True)
            ]
        except WaystationError as error:
            return type(error), str(error), getattr(error, "field", "")

    assert outcome(messages) == outcome(more)
