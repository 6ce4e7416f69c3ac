"""Rows of the table `operations`, from the record log of what operators did.

An entry that cannot be decoded becomes a row of kind `unknown` with its bytes as hex in `detail`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa

from waystation.history.decoders.facts import Row, decode_entries
from waystation.history.lake.schema import OPERATIONS
from waystation.history.offsets import OffsetRange
from waystation.logs.operations import unpack
from waystation.logs.protocol import LogBatch


def operation_rows(offsets: OffsetRange, block: LogBatch) -> pa.RecordBatch:
    """Return the rows of a block."""
    return decode_entries(OPERATIONS, block, lambda payload, ms: _operation(payload))


def _operation(payload: bytes) -> Iterator[Row]:
    try:
        record = unpack(payload)
        # Another program may have written bytes, or values that are nested too deeply for JSON.
        detail = json.dumps(record.detail)
    except (ValueError, TypeError, RecursionError):
        yield {"kind": "unknown", "detail": json.dumps({"bytes": payload.hex()})}
        return
    yield {
        "project": record.project or None,
        "kind": record.kind,
        "subject": record.subject or None,
        "detail": detail,
    }
