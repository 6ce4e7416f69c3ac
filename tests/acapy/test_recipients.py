"""Who an envelope is for; and that whatever a stranger sends is an error of his, never of ours."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.acapy.relay_world import encoded, v1, v2
from waystation.acapy.envelopes import (
    envelope_of,
    inbound_of,
    read_direct_response,
)
from waystation.acapy.recipients import recipient_key
from waystation.errors import EnvelopeInvalidError

DID = "did:peer:2.Ez6LS#key-1"


def test_a_v1_envelope_has_its_recipients_in_the_protected_header() -> None:
    assert recipient_key(v1("7Zk")).key == "7Zk"


def test_a_v2_envelope_has_them_beside_it_and_their_did_urls_stay_as_they_are() -> None:
    assert recipient_key(v2(DID)).key == DID


def test_a_jwe_for_one_may_be_written_flat() -> None:
    body = json.dumps({"protected": encoded({}), "header": {"kid": DID}, "encrypted_key": "x"})
    assert recipient_key(body.encode()).key == DID


def test_several_recipients_are_one_composite_key_in_their_order() -> None:
    assert recipient_key(v1("b", "a", "c")).key == "b,a,c"
    assert recipient_key(v2("b", "a")).key == "b,a"


def test_the_protected_header_is_read_with_and_without_padding() -> None:
    for padding in ("", "=", "=="):
        body = json.loads(v1("kid"))
        body["protected"] += padding
        assert recipient_key(json.dumps(body).encode()).key == "kid"


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({}, False),
        ({"~transport": {"return_route": "all"}}, True),
        ({"~transport": {"return_route": "thread"}}, True),
        ({"~transport": {"return_route": "none"}}, False),
        ({"return_route": "all"}, True),
        ({"return_route": "none"}, False),
        ({"return_route": ["all"]}, False),
        ({"~transport": "all"}, False),
        ({"~transport": {"return_route": {"all": 1}}}, False),
    ],
)
def test_an_answer_is_wanted_where_the_sender_says_so(more: dict[str, Any], wanted: bool) -> None:
    assert recipient_key(v1("k", **more)).wants_answer is wanted
    assert recipient_key(v2("k", **more)).wants_answer is wanted


def of(protected: object) -> bytes:
    return json.dumps({"protected": protected}).encode()


BAD = {
    "nothing": (b"", "no JSON"),
    "no JSON": (b"hello", "no JSON"),
    "no UTF-8": (b'{"protected": "\xff"}', "no JSON"),
    "cut off": (v1("k")[:-1], "no JSON"),
    "an array": (b"[]", "no JSON object"),
    "a number": (b"7", "no JSON object"),
    "null": (b"null", "no JSON object"),
    "deep": (b"[" * 100_000, "no JSON"),
    "an empty object": (b"{}", "no protected header"),
    "a protected header that is a number": (of(7), "no protected header"),
    "no base64": (of("a$b"), "no base64"),
    "half of base64": (of("a"), "no base64"),
    "no ASCII": (of("ä"), "no base64"),
    "no JSON in it": (of(encoded(b"{")), "no JSON"),
    "no UTF-8 in it": (of(encoded(b'"\xff"')), "no JSON"),
    "an array in it": (of(encoded([])), "no JSON object"),
    "no recipients": (of(encoded({})), "no recipients"),
    "none of them": (of(encoded({"recipients": []})), "no recipients"),
    "recipients that are an object": (of(encoded({"recipients": {"a": 1}})), "no recipients"),
    "a recipient that is text": (of(encoded({"recipients": ["k"]})), "no kid"),
    "a recipient without a header": (of(encoded({"recipients": [{}]})), "no kid"),
    "a header that is a list": (of(encoded({"recipients": [{"header": []}]})), "no kid"),
    "a kid that is a number": (of(encoded({"recipients": [{"header": {"kid": 7}}]})), "no kid"),
    "an empty kid": (v1(""), "no kid"),
    "one kid of two is missing": (v1("a", ""), "no kid"),
    "a line break in a kid": (v1("a\nb"), "cannot be printed"),
    "half of a surrogate pair": (v1("\ud800"), "no JSON"),
    "too many": (v1(*["k" * 60] * 70), "more than 4096 bytes"),
}


@pytest.mark.parametrize(("body", "problem"), BAD.values(), ids=BAD.keys())
def test_what_is_no_envelope_is_an_error_that_says_why(body: bytes, problem: str) -> None:
    with pytest.raises(EnvelopeInvalidError, match=problem):
        recipient_key(body)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["header", "kid", "recipients", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.binary(max_size=100))
def test_whatever_bytes_come_nothing_else_is_raised(body: bytes) -> None:
    with contextlib.suppress(EnvelopeInvalidError):
        recipient_key(body)


@given(_json, _json, _json, st.booleans())
def test_whatever_json_comes_nothing_else_is_raised(
    inner: Any, recipients: Any, transport: Any, wrapped: bool
) -> None:
    protected = encoded(inner) if wrapped else inner
    body = {"protected": protected, "recipients": recipients, "~transport": transport}
    with contextlib.suppress(EnvelopeInvalidError):
        assert recipient_key(json.dumps(body).encode()).key


# -- The plugin's formats --------------------------------------------------------------------


def test_an_agent_gets_what_the_plugin_would_write() -> None:
    def written(answer_to: str, *, can_answer: bool = True) -> Any:
        told = {"message_id": "m", "project": "p", "key": "k", "content_type": "a/b"}
        envelope = envelope_of(b"\xff\xfe", transport="ws", answer_to=answer_to, **told)
        return json.loads(inbound_of(envelope, 7, can_answer=can_answer))

    plain = {"waystation": 7, "payload": "__4=", "transport_type": "ws"}
    assert written("") == plain
    assert written("t-1") == {**plain, "txn_id": "t-1"}
    assert written("t-1", can_answer=False) == plain


@pytest.mark.parametrize("name", ["content-type", "content_type"])
def test_a_direct_response_is_read_with_either_name_of_its_type(name: str) -> None:
    raw = json.dumps({"txn_id": "t", "response_data": {name: "a/b", "response": "__4="}})
    found = read_direct_response(raw.encode())
    assert (found.answer_to, found.content_type, found.data) == ("t", "a/b", b"\xff\xfe")


@pytest.mark.parametrize("data", [None, {}, {"response": None}])
def test_a_direct_response_of_nothing_is_an_empty_answer(data: Any) -> None:
    found = read_direct_response(json.dumps({"txn_id": "t", "response_data": data}).encode())
    assert (found.answer_to, found.data) == ("t", b"")


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b'{"txn_id":1}', b"[" * 100_000])
def test_what_is_no_direct_response_is_an_error(raw: bytes) -> None:
    with pytest.raises(EnvelopeInvalidError):
        read_direct_response(raw)
