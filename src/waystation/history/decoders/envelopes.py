"""Columns of packed envelopes, decoded without Python code per message.

An envelope is a msgpack array of eight fields (`messages/envelope.py`). The decoder reads one field
of all messages at a time: `_Cursor` has the place of the next byte of each message, numpy reads the
tags and lengths at these places, and Arrow copies the bytes between them into columns.

The decoder reads the encodings that `pack` writes. It leaves every other message to msgspec, which
decodes one at a time and decides whether the message is malformed. So a block with such messages
takes longer, and has the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waystation.messages.envelope import HEADERS_MAX

#: Spark refuses a batch unless the element of an array has this name.
HEADERS = pa.list_(pa.field("element", pa.struct([("name", pa.string()), ("value", pa.string())])))

_Ints = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.bool_]

#: Fields of an envelope: format, id, payload, group, packed headers, time before which it is not
#: delivered, cause, traceparent.
_Fields = tuple[int, str, bytes, str | None, msgspec.Raw, int, str | None, str | None]
_decode_fields = msgspec.msgpack.Decoder(_Fields).decode
_decode_headers = msgspec.msgpack.Decoder(list[tuple[str, str]]).decode

_FORMAT = 1
#: Tags of msgpack: an envelope is an array of eight, a header an array of two.
_ENVELOPE_TAG = 0x98
_HEADER_TAG = 0x92
_NIL_TAG = 0xC0
#: Times in milliseconds that a column of microseconds can store.
_MS_MAX = (2**63 - 1) // 1000
#: Size of an empty header: the tags of a pair and of two texts.
_HEADER_BYTES_MIN = 3
#: Bytes of the widest number.
_NUMBER_BYTES_MAX = 8
#: Zeros behind the messages, so that the number that a truncated message announces can be read.
_PADDING = bytes(2 * _NUMBER_BYTES_MAX)


class _Encoding(NamedTuple):
    """Msgpack encodings of a number, or of the length of a value."""

    #: Tags that contain the number itself.
    small: range
    #: Tag -> number of bytes behind it.
    wide: Mapping[int, int]


_TEXT = _Encoding(range(0xA0, 0xC0), {0xD9: 1, 0xDA: 2, 0xDB: 4})
_BINARY = _Encoding(range(0), {0xC4: 1, 0xC5: 2, 0xC6: 4})
_ARRAY = _Encoding(range(0x90, 0xA0), {0xDC: 2})
_UNSIGNED = _Encoding(range(0x80), {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8})


class EnvelopeColumns(NamedTuple):
    """Fields of messages, in their order. Of a malformed message, `payload` has all bytes."""

    id: pa.Array
    payload: pa.Array
    group: pa.Array
    headers: pa.Array
    not_before_ms: pa.Array
    cause: pa.Array
    traceparent: pa.Array
    malformed: pa.Array


def decode_envelopes(packed: Sequence[bytes]) -> EnvelopeColumns:
    """Return the columns of packed envelopes. Each message becomes a row, malformed or not."""
    sizes = np.fromiter(map(len, packed), np.int64, len(packed))
    ends = np.cumsum(sizes)
    data = b"".join((*packed, _PADDING))
    found = _scan(np.frombuffer(data, np.uint8), ends - sizes, ends)
    try:
        columns = found.columns(pa.py_buffer(data))
    except pa.ArrowInvalid:
        # A text is not UTF-8. msgspec finds out which one.
        return _decode_each(packed)
    if found.valid.all():
        return columns
    rest = np.flatnonzero(~found.valid)
    return _merged(columns, _decode_each([packed[row] for row in rest.tolist()]), found.valid)


# -- All messages at once --------------------------------------------------------------------


class _Slices(NamedTuple):
    """Start and end of a value in the data, for each row; `null` is None if no value is null."""

    start: _Ints
    end: _Ints
    null: _Flags | None = None

    def only(self, rows: _Flags) -> _Slices:
        """Return the slices of some rows."""
        null = None if self.null is None else self.null[rows]
        return _Slices(self.start[rows], self.end[rows], null)

    def array(self, data: pa.Buffer, kind: pa.DataType) -> pa.Array:
        """Return the values. Raise ArrowInvalid if a text is not UTF-8."""
        count = len(self.start)
        if self.null is not None and self.null.all():
            return pa.nulls(count, kind)
        # Values alternate with the bytes between them, so each bound ends one and starts the other.
        bounds = np.zeros(2 * count + 1, np.int32)
        bounds[1::2], bounds[2::2] = self.start, self.end
        both = pa.Array.from_buffers(kind, 2 * count, [None, pa.py_buffer(bounds), data])
        values = pa.array(np.arange(1, 2 * count, 2, dtype=np.int32), mask=self.null)
        taken = both.take(values)
        taken.validate(full=True)
        return taken


class _Cursor:
    """Place of the next byte of each message.

    The state: the places, and whether each message was as expected so far. The cursor of another
    message moves on, at most into the padding, and the values that it reads are not used.
    """

    def __init__(self, data: npt.NDArray[np.uint8], at: _Ints) -> None:
        self.at = at
        self.valid: _Flags = np.ones(len(at), np.bool_)
        self._data = data
        # Within the padding, and behind the end of the last message.
        self._last = len(data) - _NUMBER_BYTES_MAX

    def expect(self, tag: int) -> None:
        """Read a byte that must be there."""
        self.valid &= self._data[self.at] == tag
        self._move(1)

    def number(self, encoding: _Encoding, *, nullable: bool = False) -> tuple[_Ints, _Flags | None]:
        """Read a number. Return it, 0 if it is missing, and where it is null."""
        tags = self._data[self.at]
        self._move(1)
        # Tags below the first one become large numbers, because they have no sign.
        small = tags - np.uint8(encoding.small.start)
        known = small < len(encoding.small)
        if known.all():
            return small.astype(np.int64), None
        numbers = np.where(known, small, 0).astype(np.int64)
        for tag, width in encoding.wide.items():
            rows = np.flatnonzero(tags == tag)
            if len(rows):
                numbers[rows] = self._big_endian(self.at[rows], width)
                self.at[rows] = np.minimum(self.at[rows] + width, self._last)
                known[rows] = True
        null = tags == _NIL_TAG if nullable else None
        self.valid &= known if null is None else known | null
        return numbers, null

    def value(self, encoding: _Encoding, *, nullable: bool = False) -> _Slices:
        """Read a value behind its length."""
        length, null = self.number(encoding, nullable=nullable)
        start = self.at
        self._move(length)
        return _Slices(start, self.at, null)

    def _move(self, by: int | _Ints) -> None:
        self.at = np.minimum(self.at + by, self._last)

    def _big_endian(self, at: _Ints, width: int) -> _Ints:
        number = np.zeros(len(at), np.int64)
        for place in range(width):
            number = number << 8 | self._data[at + place]
        return number


class _Headers(NamedTuple):
    """Headers of messages: how many each has, and the texts of all."""

    counts: _Ints
    names: _Slices
    values: _Slices

    def only(self, rows: _Flags) -> _Headers:
        """Return the headers of some messages."""
        pairs = np.repeat(rows, self.counts)
        return _Headers(self.counts[rows], self.names.only(pairs), self.values.only(pairs))

    def array(self, data: pa.Buffer) -> pa.Array:
        """Return the headers. Raise ArrowInvalid if a text is not UTF-8."""
        bounds = np.zeros(len(self.counts) + 1, np.int32)
        np.cumsum(self.counts, out=bounds[1:])
        texts = [each.array(data, pa.string()) for each in (self.names, self.values)]
        pairs = pa.StructArray.from_arrays(texts, fields=list(HEADERS.value_type))
        return pa.ListArray.from_arrays(pa.array(bounds), pairs, type=HEADERS)


class _Scan(NamedTuple):
    """Places of the fields of messages. Those of messages that are not valid are not used."""

    valid: _Flags
    id: _Slices
    payload: _Slices
    group: _Slices
    headers: _Headers
    not_before_ms: _Ints
    cause: _Slices
    traceparent: _Slices

    def columns(self, data: pa.Buffer) -> EnvelopeColumns:
        """Return the fields of the valid messages. Raise ArrowInvalid if a text is not UTF-8."""
        found = self if self.valid.all() else self._only_valid()
        return EnvelopeColumns(
            id=found.id.array(data, pa.string()),
            payload=found.payload.array(data, pa.binary()),
            group=found.group.array(data, pa.string()),
            headers=found.headers.array(data),
            not_before_ms=pa.array(found.not_before_ms),
            cause=found.cause.array(data, pa.string()),
            traceparent=found.traceparent.array(data, pa.string()),
            malformed=pa.repeat(pa.scalar(False), len(found.valid)),
        )

    def _only_valid(self) -> _Scan:
        rows = self.valid
        return _Scan(
            valid=rows[rows],
            id=self.id.only(rows),
            payload=self.payload.only(rows),
            group=self.group.only(rows),
            headers=self.headers.only(rows),
            not_before_ms=self.not_before_ms[rows],
            cause=self.cause.only(rows),
            traceparent=self.traceparent.only(rows),
        )


def _scan(data: npt.NDArray[np.uint8], starts: _Ints, ends: _Ints) -> _Scan:
    """Find the fields of messages that lie one behind the other in padded data."""
    cursor = _Cursor(data, starts)
    cursor.expect(_ENVELOPE_TAG)
    cursor.expect(_FORMAT)
    id_ = cursor.value(_TEXT)
    payload = cursor.value(_BINARY)
    group = cursor.value(_TEXT, nullable=True)
    headers = _scan_headers(data, cursor, ends)
    not_before_ms, _ = cursor.number(_UNSIGNED)
    # The cast of a number above 2**63 is negative.
    cursor.valid &= (not_before_ms >= 0) & (not_before_ms <= _MS_MAX)
    cause = cursor.value(_TEXT, nullable=True)
    traceparent = cursor.value(_TEXT, nullable=True)
    # A cursor only moves forward, so no field before reached into the next message either.
    cursor.valid &= cursor.at == ends
    return _Scan(cursor.valid, id_, payload, group, headers, not_before_ms, cause, traceparent)


def _scan_headers(data: npt.NDArray[np.uint8], cursor: _Cursor, ends: _Ints) -> _Headers:
    """Find the first header of all messages, then the second, and so on."""
    counts, _ = cursor.number(_ARRAY)
    # Each pass costs the same, however few messages have so many headers. A message that claims
    # more than it has bytes for would take memory for nothing.
    bounded = (counts <= HEADERS_MAX) & (counts * _HEADER_BYTES_MIN <= ends - cursor.at)
    cursor.valid &= bounded
    counts = np.where(cursor.valid, counts, 0)
    first = np.cumsum(counts) - counts
    bounds = np.zeros((4, int(counts.sum())), np.int64)
    for number in range(int(counts.max(initial=0))):
        rows = np.flatnonzero(counts > number)
        pair = _Cursor(data, cursor.at[rows])
        pair.expect(_HEADER_TAG)
        name, value = pair.value(_TEXT), pair.value(_TEXT)
        bounds[:, first[rows] + number] = (name.start, name.end, value.start, value.end)
        cursor.at[rows] = pair.at
        cursor.valid[rows] &= pair.valid
    return _Headers(counts, _Slices(bounds[0], bounds[1]), _Slices(bounds[2], bounds[3]))


# -- One message at a time -------------------------------------------------------------------


def _decode_each(packed: Iterable[bytes]) -> EnvelopeColumns:
    """Return the columns of any messages."""
    rows = [_decode_one(each) for each in packed]
    kinds = (
        *(pa.string(), pa.binary(), pa.string(), HEADERS, pa.int64()),
        *(pa.string(), pa.string(), pa.bool_()),
    )
    columns = zip(*rows, strict=True)
    return EnvelopeColumns(*(pa.array(*each) for each in zip(columns, kinds, strict=True)))


def _decode_one(packed: bytes) -> tuple[Any, ...]:
    """Return a message as a row of the columns."""
    try:
        fields = _decode_fields(packed)
        if fields[0] == _FORMAT and abs(fields[5]) <= _MS_MAX:
            return (*fields[1:4], _decode_headers(fields[4]), *fields[5:], False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    return None, packed, None, [], 0, None, None, True


def _merged(valid: EnvelopeColumns, rest: EnvelopeColumns, is_valid: _Flags) -> EnvelopeColumns:
    """Return the columns of all messages in their order."""
    order = np.empty(len(is_valid), np.int64)
    order[is_valid] = np.arange(len(valid.id))
    order[~is_valid] = np.arange(len(valid.id), len(is_valid))
    return EnvelopeColumns(
        *(pa.concat_arrays(parts).take(pa.array(order)) for parts in zip(valid, rest, strict=True))
    )
