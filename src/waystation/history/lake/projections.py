"""The views `steps`, `operations` and `gaps`: rows that are computed from the rows of tables.

A log feeds one table, so the attempts of steps are a column of `transactions`, the actions of
operators on subscriptions are in `deliveries`, and gaps are rows of the table that lacks the
entries. Spark computes the views from the lake. For `steps` and `operations`, the data source
computes the same rows from Arrow batches, without a lake.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from waystation.history.lake.schema import (
    ATTEMPT,
    DELIVERIES,
    GAP_COLUMNS,
    OPERATIONS,
    ROW_STATE,
    STAMP,
    STEPS,
    TRANSACTIONS,
    TableSchema,
)

#: Kinds of deliveries that are about a range. Both ends are offsets, and the second is excluded.
RANGES = frozenset({"start", "passed", "trimmed", "damaged", "reset"})
#: Kinds of deliveries of a message that an operator caused.
BY_OPERATION = frozenset({"redriven", "skipped", "purged"})
#: Columns of `operations` that have another name in `deliveries`.
_RENAMED = {"subject": "subscription", "from_position": "from_place", "to_position": "to_place"}
#: Columns of `deliveries` that are the JSON object `detail` of `operations`.
_DETAIL = ("operation", "topic", "incarnation", "epoch")


class Projection(msgspec.Struct, frozen=True):
    """Rows of one table that are computed from another one."""

    table: TableSchema
    source: TableSchema
    #: Return the rows that follow from decoded rows of the source.
    rows: Callable[[pa.RecordBatch], pa.RecordBatch]


#: Columns of the view `gaps`.
GAPS = pa.schema(
    [
        *(field for field in STAMP if field.name not in (ROW_STATE, *GAP_COLUMNS)),
        ("from_offset", pa.int64()),
        ("to_offset", pa.int64()),
        ("rows", pa.int64()),
        ("cause", pa.string()),
    ]
)
_GAP_STAMP = ", ".join(GAPS.names[:-4])


def steps_query(transactions: str, columns: Iterable[str]) -> str:
    """Return a query for columns of `steps`, over a view of `transactions`."""
    columns = (
        f"call.`{name}` `{name}`" if name in ATTEMPT.names else f"`{name}`" for name in columns
    )
    # Spark reads only the columns of the outer query.
    calls = f"select *, explode(attempts) call from {transactions}"  # noqa: S608 (our names)
    return f"select {', '.join(columns)} from ({calls})"  # noqa: S608 (our names)


def operations_query(deliveries: str, columns: Iterable[str]) -> str:
    """Return a query for columns of the `operations` in a view of `deliveries`."""
    detail = ", ".join(f"'{name}', `{name}`" for name in _DETAIL)
    renamed = _RENAMED | {"detail": f"to_json(named_struct({detail}))"}
    values = (f"{renamed[name]} `{name}`" if name in renamed else f"`{name}`" for name in columns)
    kinds = ", ".join(f"'{kind}'" for kind in sorted(RANGES | BY_OPERATION))
    return (
        f"select {', '.join(values)}"  # noqa: S608 (our names)
        f" from {deliveries} where kind in ({kinds})"
    )


def gaps_query(gaps: str) -> str:
    """Return a query for rows of `gaps`, over a query for the rows of a table in state `gap`."""
    return (
        f"select {_GAP_STAMP}, log_offset, gap_end, gap_end - log_offset, gap_cause"  # noqa: S608
        f" from ({gaps})"
    )


def lost_query(lost: str) -> str:
    """Return a query for rows of `gaps`: ranges of entries that the store lost.

    `lost` is a query for the rows of a table in state `lost`. A store can assign an
    offset several times and lose it each time, so each loss of an offset belongs to another range.
    """
    losses = f"""
        select *, row_number() over (
            partition by dataset, log, log_partition, log_offset order by ingested) loss
        from ({lost}) where item = 0 and gap_end is null"""  # noqa: S608 (our names)
    return _ranges(losses, "dataset, log, log_partition, loss", "lost")


def withheld_query(events: str) -> str:
    """Return a query for rows of `gaps`: ranges of calls that channels and pools withhold.

    `events` is a view of `channels` or `pools`.
    """
    withheld = f"select * from {events} where kind = 'withheld'"  # noqa: S608 (our names)
    return _ranges(withheld, "dataset, log, log_partition", "policy")


def _ranges(entries: str, keys: str, cause: str) -> str:
    """Return a query for the ranges of consecutive offsets of some entries, as rows of `gaps`."""
    return f"""
        select min(day), dataset, log, log_partition, min(log_offset), 0, min(time), min(ingested),
               min(log_offset), max(log_offset) + 1, count(*), '{cause}'
        from (select *, log_offset - row_number() over (
                            partition by {keys} order by log_offset) run from ({entries}))
        group by {keys}, run"""  # noqa: S608 (our names)


def _steps(transactions: pa.RecordBatch) -> pa.RecordBatch:
    attempts = transactions.column("attempts")
    parents, calls = pc.list_parent_indices(attempts), pc.list_flatten(attempts)
    schema = _decoded_columns(STEPS, transactions)
    columns = [
        pc.struct_field(calls, field.name)
        if field.name in ATTEMPT.names
        else transactions.column(field.name).take(parents)
        for field in schema
    ]
    return pa.record_batch(columns, schema=schema)


def _operations(deliveries: pa.RecordBatch) -> pa.RecordBatch:
    kinds = pa.array(sorted(RANGES | BY_OPERATION))
    rows = deliveries.filter(pc.is_in(deliveries.column("kind"), kinds))
    details = [
        json.dumps({name: row[name] for name in _DETAIL if row[name] is not None})
        for row in rows.select(_DETAIL).to_pylist()
    ]
    schema = _decoded_columns(OPERATIONS, deliveries)
    columns = [
        pa.array(details, pa.string())
        if field.name == "detail"
        else rows.column(_RENAMED.get(field.name, field.name))
        for field in schema
    ]
    return pa.record_batch(columns, schema=schema)


def _decoded_columns(table: TableSchema, source: pa.RecordBatch) -> pa.Schema:
    """Return the columns of a table without the columns of the stamp that the source lacks."""
    missing = set(STAMP.names) - set(source.schema.names)
    return pa.schema([field for field in table.schema if field.name not in missing])


PROJECTIONS = {
    each.table.name: each
    for each in (
        Projection(STEPS, TRANSACTIONS, _steps),
        Projection(OPERATIONS, DELIVERIES, _operations),
    )
}
