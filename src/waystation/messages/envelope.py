"""The envelope: what every message carries with it, whichever part of the product moves it.

The payload is bytes that nobody here looks into. Headers are a list: names may be repeated, and
their order and the commas in their values are kept. Lineage is in it from the first day: `cause`
is the id of what led to this message.
"""

from __future__ import annotations

import msgspec

#: The layout of `_Packed`; a reader that meets a larger number is too old.
_FORMAT = 1

Headers = tuple[tuple[str, str], ...]


class Envelope(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One message."""

    id: str
    project: str
    data: bytes
    #: The ordering key; None: no order is asked for.
    group: str | None = None
    headers: Headers = ()
    #: Not to be delivered before this time; 0: at once.
    not_before_ms: int = 0
    cause: str | None = None
    traceparent: str | None = None


class _Packed(msgspec.Struct, frozen=True, array_like=True):
    """The stored form, an array: field names would be a third of a small message."""

    format: int
    id: str
    data: bytes
    group: str | None
    headers: Headers
    not_before_ms: int
    cause: str | None
    traceparent: str | None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Packed).decode


def pack(envelope: Envelope) -> bytes:
    """The stored form. The project is not in it: a log belongs to one."""
    # A tuple in the order of `_Packed`, which is written the same and made in half the time.
    return _encode(
        (
            _FORMAT,
            envelope.id,
            envelope.data,
            envelope.group,
            envelope.headers,
            envelope.not_before_ms,
            envelope.cause,
            envelope.traceparent,
        )
    )


def unpack(packed: bytes, *, project: str) -> Envelope:
    """The message in a stored form; ValueError for one that is none."""
    try:
        fields = _decode(packed)
    except msgspec.DecodeError as error:
        raise ValueError(f"not an envelope: {error}") from error
    if fields.format != _FORMAT:
        raise ValueError(f"an envelope of format {fields.format}, which this release cannot read")
    return Envelope(
        id=fields.id,
        project=project,
        data=fields.data,
        group=fields.group,
        headers=fields.headers,
        not_before_ms=fields.not_before_ms,
        cause=fields.cause,
        traceparent=fields.traceparent,
    )
