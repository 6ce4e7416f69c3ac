"""What rows made of record logs have in common."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from waystation.history.lake.schema import STAMP, TableSchema
from waystation.messages.redaction import RedactionPolicy

#: Parts of the stamp that are told apart by row; the rest is the same for a span.
_OWN = ("log_offset", "item", "time")

Row = dict[str, Any]

#: Row of an entry of a channel or pool with `record` none.
WITHHELD: Row = {
    "kind": "withheld",
    "malformed": False,
    "recorded": RedactionPolicy(record="none").label,
}


def own_columns(spec: TableSchema) -> pa.Schema:
    """The columns that a feed gives."""
    shared = set(STAMP.names) - set(_OWN)
    return pa.schema([field for field in spec.schema if field.name not in shared])


def moment(ms: int) -> int:
    """A time of the store as Arrow has it, in µs: a datetime would only be taken apart again."""
    return ms * 1000
