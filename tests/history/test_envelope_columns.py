"""Blocks of envelopes decode to the same rows as envelopes that msgspec decodes one at a time."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waystation.history.decoders.envelopes import decode_envelopes
from waystation.messages.envelope import Envelope, pack

MS_MAX = (2**63 - 1) // 1000
BAD_UTF8 = [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xed\xb3\xbf", b"\xc0\x80", b"\xf5\x80\x80\x80"]

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.sampled_from(
    ["", "é", "z" * 31, "z" * 32, "ü" * 100, "x" * 255, "x" * 256]
)
envelopes = st.builds(
    Envelope,
    id=texts,
    project=st.just(""),
    data=st.binary(max_size=300) | st.sampled_from([b"", b"d" * 255, b"d" * 256, b"d" * 65_536]),
    group=st.none() | texts,
    headers=st.lists(st.tuples(texts, texts), max_size=4).map(tuple)
    | st.sampled_from([("a", "b")]).map(lambda pair: (pair,) * 20),
    not_before_ms=st.sampled_from([0, 1, 127, 128, 255, 256, 65_536, 2**32, 10**13, MS_MAX]),
    cause=st.none() | texts,
    traceparent=st.none() | texts,
)


def fields_of(envelope: Envelope) -> list[Any]:
    """Return the fields of an envelope as msgpack stores them."""
    return msgspec.msgpack.decode(pack(envelope), type=list[Any])


def changed(envelope: Envelope, place: int, value: object) -> bytes:
    """Return a packed envelope with another value in a field."""
    fields = fields_of(envelope)
    fields[place] = value
    return msgspec.msgpack.encode(fields)


def cut(packed: bytes, at: int) -> bytes:
    """Return the first bytes of a message."""
    return packed[: at % (len(packed) + 1)]


def flipped(packed: bytes, at: int, byte: int) -> bytes:
    """Return a message with another byte at a place."""
    at %= len(packed)
    return packed[:at] + bytes([byte]) + packed[at + 1 :]


good = envelopes.map(pack)
odd_values: st.SearchStrategy[object] = st.sampled_from(
    [None, -1, 2, 3.5, True, "text", b"bytes", [], [["a"]], [["a", "b", "c"]], [["a", 1]], {}]
) | st.sampled_from([2**63, 2**64 - 1, MS_MAX + 1, -(2**62)])
others = st.one_of(
    st.binary(max_size=40),
    st.builds(cut, good, st.integers(0, 2**20)),
    st.builds(flipped, good, st.integers(0, 2**20), st.integers(0, 255)),
    st.builds(changed, envelopes, st.integers(0, 7), odd_values),
    st.builds(lambda packed, more: packed + more, good, st.binary(min_size=1, max_size=8)),
    # Texts that are not UTF-8, lone surrogates among them
    st.builds(
        lambda bad: b"\x98\x01" + bytes([0xA0 + len(bad)]) + bad + b"\xc4\x00\xc0\x90\x00\xc0\xc0",
        st.sampled_from(BAD_UTF8),
    ),
    # Valid msgpack that `pack` never writes: long forms of short values
    st.just(b"\x98\xcc\x01\xd9\x01i\xc6\x00\x00\x00\x01d\xc0\xdd\x00\x00\x00\x00\xd0\x05\xc0\xc0"),
    st.just(b"\xdc\x00\x08\x01\xa1i\xc4\x01d\xc0\x90\x00\xc0\xc0"),
    st.just(b"\x98\x01\xa1i\xc4\x01d\xc0\x91\xdc\x00\x02\xa1n\xa1v\x00\xc0\xc0"),
)

# The reference: plain Python, one message at a time.
Fields = tuple[int, str, bytes, str | None, msgspec.Raw, int, str | None, str | None]


def expected(packed: bytes) -> dict[str, Any]:
    """Return the row of a message."""
    try:
        found = msgspec.msgpack.decode(packed, type=Fields)
        headers = msgspec.msgpack.decode(found[4], type=list[tuple[str, str]])
        if found[0] != 1 or abs(found[5]) > MS_MAX:
            raise ValueError
    except (msgspec.DecodeError, ValueError):
        fields = ("id", "payload", "group", "headers", "not_before_ms", "cause", "traceparent")
        row = dict.fromkeys(fields)
        return {**row, "payload": packed, "headers": [], "not_before_ms": 0, "malformed": True}
    return {
        "id": found[1],
        "payload": found[2],
        "group": found[3],
        "headers": [{"name": name, "value": value} for name, value in headers],
        "not_before_ms": found[5],
        "cause": found[6],
        "traceparent": found[7],
        "malformed": False,
    }


def decoded(packed: list[bytes]) -> list[dict[str, Any]]:
    """Return the rows of a block, and check that Arrow accepts its columns."""
    columns = decode_envelopes(packed)._asdict()
    for column in columns.values():
        column.validate(full=True)
    lists = {name: column.to_pylist() for name, column in columns.items()}
    return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]


@settings(deadline=None, max_examples=200)
@given(packed=st.lists(good, min_size=1, max_size=40))
def test_decode_envelopes_gives_the_rows_of_plain_python(packed: list[bytes]) -> None:
    assert decoded(packed) == [expected(each) for each in packed]


@settings(deadline=None, max_examples=500)
@given(packed=st.lists(good | others, min_size=1, max_size=20))
def test_decode_envelopes_with_malformed_messages_gives_the_rows_of_plain_python(
    packed: list[bytes],
) -> None:
    assert decoded(packed) == [expected(each) for each in packed]


@pytest.mark.parametrize("bad", BAD_UTF8)
@pytest.mark.parametrize("place", ["id", "group", "name", "value", "cause", "traceparent"])
def test_decode_envelopes_with_a_text_that_is_not_utf8_marks_only_its_message(
    place: str, bad: bytes
) -> None:
    mark = "X" * len(bad)
    texts_at = dict.fromkeys(["id", "group", "name", "value", "cause", "traceparent"], "ok")
    texts_at[place] = mark
    whole = pack(
        Envelope(
            id=texts_at["id"],
            project="",
            data=b"{}",
            group=texts_at["group"],
            headers=((texts_at["name"], texts_at["value"]),),
            cause=texts_at["cause"],
            traceparent=texts_at["traceparent"],
        )
    )
    fine = pack(Envelope(id="é", project="", data=b"1"))
    broken = whole.replace(mark.encode(), bad)

    rows = decoded([fine, broken, fine])

    assert [row["malformed"] for row in rows] == [False, True, False]
    assert [row["payload"] for row in rows] == [b"1", broken, b"1"]


def test_decode_envelopes_joins_no_halves_of_a_character_from_two_messages() -> None:
    # Each is invalid alone, both together are "é".
    first = b"\x98\x01\xa1\xc3\xc4\x00\xc0\x90\x00\xc0\xc0"
    second = b"\x98\x01\xa1\xa9\xc4\x00\xc0\x90\x00\xc0\xc0"
    assert [row["malformed"] for row in decoded([first, second])] == [True, True]


def test_decode_envelopes_with_a_huge_message_and_many_headers_keeps_every_byte() -> None:
    headers = tuple((f"x-{number}", "v" * number) for number in range(300))
    packed = [
        pack(Envelope(id="huge", project="", data=bytes(range(256)) * 20_000)),
        # More headers than a message of Waystation may have
        pack(Envelope(id="many", project="", data=b"", headers=headers)),
        pack(Envelope(id="few", project="", data=b"", headers=headers[:100])),
    ]
    assert decoded(packed) == [expected(each) for each in packed]


@pytest.mark.parametrize("headers", [b"", b"\x92\xa1n", b"\x91"])
def test_decode_envelopes_with_deeply_nested_headers_is_malformed(headers: bytes) -> None:
    deep = b"\x98\x01\xa1i\xc4\x01d\xc0" + headers + b"\x91" * 5000 + b"\xc0\x00\xc0\xc0"
    assert [row["malformed"] for row in decoded([deep])] == [True]


@pytest.mark.parametrize("claim", [b"\xdc\xff\xff", b"\xdd\xff\xff\xff\xff", b"\x9f"])
def test_decode_envelopes_with_a_false_number_of_headers_is_malformed(claim: bytes) -> None:
    lie = b"\x98\x01\xa1i\xc4\x01d\xc0" + claim + b"\x00\xc0\xc0"
    assert [row["malformed"] for row in decoded([lie] * 3)] == [True] * 3


@pytest.mark.parametrize("tag", [b"\xdb\xff\xff\xff\xff", b"\xda\xff\xff", b"\xd9\xff"])
def test_decode_envelopes_with_a_false_length_is_malformed(tag: bytes) -> None:
    fine = pack(Envelope(id="fine", project="", data=b"1"))
    lie = b"\x98\x01" + tag + b"i\xc4\x01d\xc0\x90\x00\xc0\xc0"
    rows = decoded([fine, lie, fine])
    assert [row["id"] for row in rows] == ["fine", None, "fine"]


@pytest.mark.parametrize("kept_bytes", range(1, 30))
def test_decode_envelopes_with_a_truncated_last_message_marks_it(kept_bytes: int) -> None:
    whole = pack(
        Envelope(id="i", project="", data=b"d", headers=(("n", "v"),), not_before_ms=MS_MAX)
    )
    packed = [whole, whole[: min(kept_bytes, len(whole) - 1)]]
    assert decoded(packed) == [expected(each) for each in packed]


def test_decode_envelopes_of_a_message_without_its_last_bytes_is_malformed() -> None:
    assert decoded([b""]) == [expected(b"")]
    # The last text announces a byte that the block does not have.
    assert decoded([b"\x98\x01\xa0\xc4\x00\xc0\x90\x00\xc0\xa1"])[0]["malformed"]
    assert decoded([b"", pack(Envelope(id="a", project="", data=b""))])[1]["id"] == "a"
