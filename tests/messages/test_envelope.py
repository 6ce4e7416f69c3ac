"""Envelopes: pack and unpack return equal messages, and other bytes raise a clear error."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.messages.envelope import Envelope, pack, unpack

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
ENVELOPES = st.builds(
    Envelope,
    id=TEXT,
    project=st.just("shop"),
    data=st.binary(max_size=200),
    group=st.none() | TEXT,
    headers=st.lists(st.tuples(TEXT, TEXT), max_size=4).map(tuple),
    not_before_ms=st.integers(0, 2**53),
    cause=st.none() | TEXT,
    traceparent=st.none() | TEXT,
)


@given(ENVELOPES)
def test_envelope_survives_pack_and_unpack(envelope: Envelope) -> None:
    assert unpack(pack(envelope), project="shop") == envelope


def test_envelope_keeps_order_and_commas_of_repeated_headers() -> None:
    headers = (("x-tag", "b, a"), ("x-other", ""), ("x-tag", "c,d"), ("x-tag", "b, a"))
    envelope = Envelope(id="m", project="shop", data=b"", headers=headers)
    assert unpack(pack(envelope), project="shop").headers == headers


def test_envelope_pack_omits_project() -> None:
    envelope = Envelope(id="m", project="a-long-name-of-a-project", data=b"x")
    assert b"project" not in pack(envelope)
    assert unpack(pack(envelope), project="other").project == "other"


def test_unpack_of_later_format_names_format() -> None:
    fields = msgspec.msgpack.decode(pack(Envelope(id="m", project="shop", data=b"x")))
    with pytest.raises(ValueError, match="format 2, which this release cannot read"):
        unpack(msgspec.msgpack.encode([2, *fields[1:]]), project="shop")


@pytest.mark.parametrize("stored", [b"", b"\xc1", b"plain text", b"\x90", b"\x93\x01\xa1m\xc0"])
def test_unpack_of_other_bytes_raises_value_error(stored: bytes) -> None:
    with pytest.raises(ValueError, match="not an envelope"):
        unpack(stored, project="shop")


def test_unpack_of_deeply_nested_bytes_raises_value_error() -> None:
    fields = msgspec.msgpack.decode(pack(Envelope(id="a", project="shop", data=b"", group=None)))
    stored = msgspec.msgpack.encode(fields)
    deeper = bytes([stored[0] + 1]) + stored[1:] + b"\x91" * 5000 + b"\xc0"
    with pytest.raises(ValueError, match="not an envelope"):
        unpack(deeper, project="shop")
