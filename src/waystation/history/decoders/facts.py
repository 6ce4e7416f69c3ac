"""Rows of record logs: the parts that the decoders of all record logs share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from waystation.history.lake.schema import STAMP, TableSchema
from waystation.logs.protocol import LogBatch
from waystation.messages.redaction import RedactionPolicy

#: Columns of the stamp that a decoder sets. All rows of a range have the same values in the others.
_DECODED = ("log_offset", "item", "time")

Row = dict[str, Any]

#: Row of an entry of a channel or pool with `record` none.
WITHHELD: Row = {
    "kind": "withheld",
    "malformed": False,
    "recorded": RedactionPolicy(record="none").label,
}


def own_columns(table: TableSchema) -> pa.Schema:
    """Return the columns of a table that a decoder sets."""
    shared = set(STAMP.names) - set(_DECODED)
    return pa.schema([field for field in table.schema if field.name not in shared])


def decode_entries(
    table: TableSchema, block: LogBatch, rows_of: Callable[[bytes, int], Iterable[Row]]
) -> pa.RecordBatch:
    """Return the rows of all entries of a block.

    `rows_of` returns the rows of an entry, given its payload and its time in milliseconds. A row
    lacks the columns that are null.
    """
    rows = [
        {"log_offset": offset, "item": item, "time": moment(ms), **row}
        for offset, (ms, payload) in enumerate(
            zip(block.times_ms, block.payloads, strict=True), block.offset
        )
        for item, row in enumerate(rows_of(payload, ms))
    ]
    return pa.RecordBatch.from_pylist(rows, schema=own_columns(table))


def moment(ms: int) -> int:
    """Return a time of the store in microseconds, as Arrow stores it.

    Arrow would have to convert a datetime back to this number.
    """
    return ms * 1000
