"""Rows of the table `messages`, from the logs of topics.

No Python runs per row (`envelopes.py`). A payload that is not a valid envelope becomes a malformed
row with its bytes in `payload`.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from waystation.history.decoders.envelopes import HEADERS, decode_envelopes
from waystation.history.decoders.partitions import TopicPlace
from waystation.logs.protocol import LogBatch
from waystation.messages.redaction import RedactionPolicy

_T = TypeVar("_T")

TIME = pa.timestamp("us", "UTC")
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


def message_batch(place: TopicPlace, block: LogBatch) -> pa.RecordBatch:
    """Return the rows of a block, with the columns of the data source."""
    count = len(block.payloads)
    fields = decode_envelopes(block.payloads)
    offsets = pa.array(np.arange(block.offset, block.offset + count))
    made = {
        "position": pc.binary_join_element_wise(place.prefix, offsets.cast(pa.string()), ""),
        "project": pa.repeat(pa.scalar(place.project), count),
        "topic": pa.repeat(pa.scalar(place.topic), count),
        "storage": pa.repeat(pa.scalar(place.storage, pa.int32()), count),
        "partition": pa.repeat(pa.scalar(place.partition, pa.int32()), count),
        "offset": offsets,
        "time": moments(block.times_ms),
        "id": fields.id,
        "group": fields.group,
        "headers": fields.headers,
        "payload": fields.payload,
        "not_before": _later(fields.not_before_ms),
        "cause": fields.cause,
        "traceparent": fields.traceparent,
        "malformed": fields.malformed,
        "size": pc.binary_length(fields.payload),
        "gap": pa.repeat(pa.scalar(0, pa.int64()), count),
    }
    return pa.record_batch([made[name] for name in MESSAGE_SCHEMA.names], schema=MESSAGE_SCHEMA)


def kept(batch: pa.RecordBatch, recording: RedactionPolicy) -> pa.RecordBatch:
    """Return messages with redacted payloads. `size` stays that of the whole payload."""
    malformed = batch.column("malformed").to_pylist()
    payloads = [
        # An invalid envelope may have a withheld value anywhere.
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


def _later(not_before_ms: pa.Array) -> pa.Array:
    """Return the times before which messages are not delivered; null without such a time."""
    none = pa.scalar(None, pa.int64())
    wanted = pc.if_else(pc.equal(not_before_ms, 0), none, not_before_ms)
    return pc.multiply(wanted, 1000).view(TIME)
