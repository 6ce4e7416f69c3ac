"""Rows of operations that belong to no shard and no cell, from the log that has them."""

from __future__ import annotations

import json

import pyarrow as pa

from waystation.history.decoders.facts import Row, moment, own_columns
from waystation.history.lake.schema import OPERATIONS
from waystation.history.offsets import OffsetRange
from waystation.logs.operations import unpack
from waystation.logs.protocol import LogBatch


def operation_rows(span: OffsetRange, block: LogBatch) -> dict[str, pa.RecordBatch]:
    """The rows of a block; of an entry that cannot be read, `detail` has its bytes as hex."""
    rows = [
        {"log_offset": block.offset + number, "item": 0, "time": moment(ms), **_told(payload)}
        for number, (ms, payload) in enumerate(zip(block.times_ms, block.payloads, strict=True))
    ]
    schema = own_columns(OPERATIONS)
    return {OPERATIONS.name: pa.RecordBatch.from_pylist(rows, schema=schema)}


def _told(payload: bytes) -> Row:
    try:
        record = unpack(payload)
    except ValueError:
        return {"kind": "unknown", "detail": json.dumps({"bytes": payload.hex()})}
    return {
        "project": record.project or None,
        "kind": record.kind,
        "subject": record.subject or None,
        "detail": json.dumps(record.detail),
    }
