"""Rows of the table `messages`, from the logs of topics.

No Python runs per row: the payloads of a block are joined to one msgpack array, which one call
decodes, `zip` turns the rows into columns, and Arrow copies the columns. A payload that is no
envelope becomes a malformed row with its bytes in `payload`.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from waystation.history.decoders.partitions import TopicPlace
from waystation.logs.protocol import LogBatch
from waystation.messages.redaction import RedactionPolicy

_T = TypeVar("_T")

TIME = pa.timestamp("us", "UTC")
#: Spark refuses a batch unless the element of an array has this name.
HEADERS = pa.list_(pa.field("element", pa.struct([("name", pa.string()), ("value", pa.string())])))

#: Columns of the data source.
MESSAGE_SCHEMA = pa.schema(
    [
        ("position", pa.string()),
        ("project", pa.string()),
        ("topic", pa.string()),
        ("storage", pa.int32()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("time", TIME),
        ("id", pa.string()),
        ("group", pa.string()),
        ("headers", HEADERS),
        ("payload", pa.binary()),
        ("not_before", TIME),
        ("cause", pa.string()),
        ("traceparent", pa.string()),
        ("malformed", pa.bool_()),
        ("size", pa.int32()),
        ("gap", pa.int64()),
    ]
)

#: Fields of a packed envelope (`messages/envelope.py`): format, id, payload, group, packed headers,
#: not before, cause, traceparent.
_Row = tuple[int, str, bytes, str | None, msgspec.Raw, int, str | None, str | None]
_FORMAT = 1
_decode_rows = msgspec.msgpack.Decoder(list[_Row]).decode
_decode_row = msgspec.msgpack.Decoder(_Row).decode
_decode_headers = msgspec.msgpack.Decoder(list[tuple[str, str]]).decode
_NO_HEADERS = b"\x90"


def message_batch(place: TopicPlace, block: LogBatch) -> pa.RecordBatch:
    """Return the rows of a block, with the columns of the data source."""
    columns, headers, malformed = _unpacked(block.payloads)
    count = len(block.payloads)
    _, ids, payloads, groups, _, not_before, causes, traces = columns
    offsets = pa.array(np.arange(block.offset, block.offset + count))
    data = pa.array(payloads, pa.binary())
    made = {
        "position": pc.binary_join_element_wise(place.prefix, offsets.cast(pa.string()), ""),
        "project": pa.repeat(pa.scalar(place.project), count),
        "topic": pa.repeat(pa.scalar(place.topic), count),
        "storage": pa.repeat(pa.scalar(place.storage, pa.int32()), count),
        "partition": pa.repeat(pa.scalar(place.partition, pa.int32()), count),
        "offset": offsets,
        "time": moments(block.times_ms),
        "id": pa.array(ids, pa.string()),
        "group": pa.array(groups, pa.string()),
        "headers": headers,
        "payload": data,
        "not_before": _later(not_before),
        "cause": pa.array(causes, pa.string()),
        "traceparent": pa.array(traces, pa.string()),
        "malformed": malformed,
        "size": pc.binary_length(data),
        "gap": pa.repeat(pa.scalar(0, pa.int64()), count),
    }
    return pa.record_batch([made[name] for name in MESSAGE_SCHEMA.names], schema=MESSAGE_SCHEMA)


def kept(batch: pa.RecordBatch, recording: RedactionPolicy) -> pa.RecordBatch:
    """Return messages with redacted payloads. `size` stays that of the whole payload."""
    malformed = batch.column("malformed").to_pylist()
    payloads = [
        # A payload that is no envelope may have a withheld value anywhere.
        recording.keep_opaque(payload) if bad else recording.keep_json(payload)
        for payload, bad in zip(batch.column("payload").to_pylist(), malformed, strict=True)
    ]
    changed = {
        "payload": pa.array(payloads, pa.binary()),
        "recorded": pa.repeat(pa.scalar(recording.label), batch.num_rows),
    }
    for name, column in changed.items():
        batch = batch.set_column(batch.schema.get_field_index(name), name, column)
    return batch


def gap_batch(place: TopicPlace, start: int, end: int) -> pa.RecordBatch:
    """Return one row for a range of messages that a reader did not find."""
    row = {name: [None] for name in MESSAGE_SCHEMA.names} | {
        "position": [f"{place.prefix}{start}"],
        "project": [place.project],
        "topic": [place.topic],
        "storage": [place.storage],
        "partition": [place.partition],
        "offset": [start],
        "malformed": [False],
        "gap": [end - start],
    }
    return pa.record_batch(row, schema=MESSAGE_SCHEMA)


def moments(times_ms: Iterable[int]) -> pa.Array:
    """Return times in milliseconds as timestamps."""
    return pc.multiply(pa.array(times_ms, pa.int64()), 1000).view(TIME)


@contextmanager
def gc_disabled() -> Iterator[None]:
    """Disable the garbage collector of Python while a block decodes.

    It would examine millions of short-lived rows without cycles again and again, which takes three
    quarters of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def without_collections(batches: Iterator[_T]) -> Iterator[_T]:
    """Yield batches, with the garbage collector disabled while they are made."""
    with gc_disabled():
        yield from batches


def _unpacked(payloads: list[bytes]) -> tuple[list[tuple[Any, ...]], pa.Array, pa.Array]:
    """Return the columns of packed envelopes, their headers, and which ones are malformed."""
    count = len(payloads)
    try:
        rows = _decode_rows(b"\xdd" + count.to_bytes(4, "big") + b"".join(payloads))
        columns = list(zip(*rows, strict=True))
        if set(columns[0]) == {_FORMAT}:
            return columns, _headers(columns[4]), pa.repeat(pa.scalar(False), count)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    # At least one payload is no envelope, or of another release, so decode one by one.
    single = [_row(payload) for payload in payloads]
    columns = list(zip(*(row for row, _ in single), strict=True))
    return columns, _headers(columns[4]), pa.array([bad for _, bad in single], pa.bool_())


def _row(payload: bytes) -> tuple[tuple[Any, ...], bool]:
    try:
        row = _decode_row(payload)
        if row[0] == _FORMAT:
            _decode_headers(row[4])
            return row, False
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    return (_FORMAT, None, payload, None, _NO_HEADERS, 0, None, None), True


def _headers(packed: Iterable[Any]) -> pa.Array:
    """Return decoded headers. Decode each distinct value once, because few differ in a topic."""
    texts = list(map(bytes, packed))
    distinct = set(texts)
    if len(distinct) == 1:
        # The most frequent case needs no dictionary.
        which = pa.array(np.zeros(len(texts), np.int32))
    else:
        encoded = pa.array(texts, pa.binary()).dictionary_encode()
        distinct, which = encoded.dictionary.to_pylist(), encoded.indices
    return pa.array([_decode_headers(each) for each in distinct], HEADERS).take(which)


def _later(not_before_ms: Iterable[int]) -> pa.Array:
    """Return the times before which messages are not delivered; null without such a time."""
    times = pa.array(not_before_ms, pa.int64())
    wanted = pc.if_else(pc.equal(times, 0), pa.scalar(None, pa.int64()), times)
    return pc.multiply(wanted, 1000).view(TIME)
