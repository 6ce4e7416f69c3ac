"""Messages of a topic as Arrow: a block of packed envelopes becomes a batch of rows.

No Python runs for each row. The payloads of a block are joined to one msgpack array, which one call
decodes; its rows are turned into columns by `zip`, and these into Arrow by C++. What cannot be
unpacked is a row too: its bytes as they are, marked as malformed.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
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
#: Named as Spark names the element of an array, else it refuses a batch.
HEADERS = pa.list_(pa.field("element", pa.struct([("name", pa.string()), ("value", pa.string())])))

#: What the Spark source gives.
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

#: The layout of a packed envelope (`envelope.py`), with headers left packed: format, id, payload,
#: group, headers, not before, cause, traceparent.
_Row = tuple[int, str, bytes, str | None, msgspec.Raw, int, str | None, str | None]
_FORMAT = 1
_decode_rows = msgspec.msgpack.Decoder(list[_Row]).decode
_decode_row = msgspec.msgpack.Decoder(_Row).decode
_decode_headers = msgspec.msgpack.Decoder(list[tuple[str, str]]).decode
_NO_HEADERS = b"\x90"


def message_batch(place: TopicPlace, block: LogBatch) -> pa.RecordBatch:
    """The rows of a block."""
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
    """Messages as they are recorded: `size` is of the payload as it was."""
    malformed = batch.column("malformed").to_pylist()
    payloads = [
        # What is no envelope may have anything anywhere.
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
    """One row that stands for messages that were gone before they were read."""
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
    """Times in ms as timestamps."""
    return pc.multiply(pa.array(times_ms, pa.int64()), 1000).view(TIME)


def without_collections(made: Iterator[_T]) -> Iterator[_T]:
    """The same, with Python's garbage collector off while it is made.

    It would look at millions of short-lived rows again and again, which have no cycles: three
    quarters of the time.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield from made
    finally:
        if was_on:
            gc.enable()


def _unpacked(payloads: list[bytes]) -> tuple[list[tuple[Any, ...]], pa.Array, pa.Array]:
    """The columns of packed rows, their headers, and which rows are none."""
    count = len(payloads)
    try:
        rows = _decode_rows(b"\xdd" + count.to_bytes(4, "big") + b"".join(payloads))
        columns = list(zip(*rows, strict=True))
        if set(columns[0]) == {_FORMAT}:
            return columns, _headers(columns[4]), pa.repeat(pa.scalar(False), count)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    # Something among them is no envelope, or of another release: one by one then.
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
    """Most messages of a topic have one of few lists of headers: each is decoded once."""
    texts = list(map(bytes, packed))
    distinct = set(texts)
    if len(distinct) == 1:
        # By far the most: nothing needs to be looked up for each.
        which = pa.array(np.zeros(len(texts), np.int32))
    else:
        encoded = pa.array(texts, pa.binary()).dictionary_encode()
        distinct, which = encoded.dictionary.to_pylist(), encoded.indices
    return pa.array([_decode_headers(each) for each in distinct], HEADERS).take(which)


def _later(not_before_ms: Iterable[int]) -> pa.Array:
    """When messages may be delivered; null for those that may at once."""
    times = pa.array(not_before_ms, pa.int64())
    wanted = pc.if_else(pc.equal(times, 0), pa.scalar(None, pa.int64()), times)
    return pc.multiply(wanted, 1000).view(TIME)
