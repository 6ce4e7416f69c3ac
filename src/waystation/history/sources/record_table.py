"""Record logs as tables of the source: the rows that ingest would make of them, read from the logs.

In place of the lake's stamp a row has its log, partition and offset, its place in the entry and its
time. A reader that counts gaps has one row with `gap` for entries that it did not find, because
retention removed them or the log is damaged.
"""

from __future__ import annotations

import pyarrow as pa

from waystation.history.decoders.facts import own_columns
from waystation.history.decoders.registry import decoder_for
from waystation.history.lake.projections import PROJECTIONS
from waystation.history.lake.schema import (
    CHANNELS,
    DELIVERIES,
    OPERATIONS,
    POOLS,
    STEPS,
    TRANSACTIONS,
    WEBHOOK_ATTEMPTS,
)
from waystation.history.offsets import Gap, OffsetRange
from waystation.logs.protocol import LogBatch

_SPECS = {
    spec.name: spec
    for spec in (
        CHANNELS,
        DELIVERIES,
        OPERATIONS,
        POOLS,
        STEPS,
        TRANSACTIONS,
        WEBHOOK_ATTEMPTS,
    )
}


def record_schema(table: str) -> pa.Schema:
    """The columns of a table."""
    log = [("log", pa.string()), ("log_partition", pa.int32())]
    own = [(field.name, field.type) for field in own_columns(_SPECS[table])]
    return pa.schema([*log, *own, ("gap", pa.int64())])


def has_rows_of(log: str, table: str) -> bool:
    """Whether entries of a log may become rows of a table."""
    decoder = decoder_for(log)
    return decoder is not None and (
        decoder.table.name == table
        or (table in PROJECTIONS and PROJECTIONS[table].source is decoder.table)
    )


def record_batch(table: str, span: OffsetRange, part: LogBatch | Gap) -> pa.RecordBatch:
    """The rows of a block of a span, or the one of a gap."""
    schema = record_schema(table)
    if isinstance(part, Gap):
        gap = {"log": part.log, "log_partition": part.partition, "log_offset": part.start}
        return pa.RecordBatch.from_pylist([{**gap, "gap": part.rows}], schema=schema)
    decoder = decoder_for(span.log)
    assert decoder is not None, "only logs with rows of the table are planned"
    rows = decoder.decode(span, part)
    if decoder.table.name != table:
        rows = PROJECTIONS[table].rows(rows)
    stamp = {
        "log": pa.repeat(pa.scalar(span.log), rows.num_rows),
        "log_partition": pa.repeat(pa.scalar(span.partition, pa.int32()), rows.num_rows),
        "gap": pa.nulls(rows.num_rows, pa.int64()),
    }
    columns = [stamp[name] if name in stamp else rows.column(name) for name in schema.names]
    return pa.record_batch(columns, schema=schema)
