"""The hash of a transaction as two pieces of bytes, and back, byte for byte."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

_STATE = b"state"
_decoder = msgspec.msgpack.Decoder(dict[bytes, bytes])


def split_hash(fields: Mapping[bytes, bytes]) -> tuple[bytes, bytes]:
    """(`packed`, `fields`) of an archived state; ValueError for what is no transaction."""
    rest = dict(fields)
    packed = rest.pop(_STATE, None)
    if packed is None:
        raise ValueError("it has no field state")
    return packed, msgspec.msgpack.encode(rest)


def join_hash(packed: bytes, fields: bytes) -> dict[bytes, bytes]:
    """What was split; ValueError for what never was."""
    try:
        return {**_decoder.decode(fields), _STATE: packed}
    except msgspec.DecodeError as error:
        raise ValueError("not the fields of a transaction") from error
