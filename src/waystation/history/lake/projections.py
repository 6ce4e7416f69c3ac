"""The views `steps` and `operations`: rows that are computed from the rows of another table.

A log feeds one table, so the attempts of steps are a column of `transactions`, and what operators
did to subscriptions is in `deliveries`. Spark computes the views from the lake. The data source
computes the same rows from Arrow batches, without a lake.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from waystation.history.lake.schema import (
    ATTEMPT,
    DELIVERIES,
    OPERATIONS,
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
_RENAMED = {"subject": "subscription", "from_position": "was", "to_position": "now"}
#: Columns of `deliveries` that are the JSON object `detail` of `operations`.
_DETAIL = ("operation", "topic", "incarnation", "epoch")


class Projection(msgspec.Struct, frozen=True):
    """Rows of one table that are computed from another one."""

    table: TableSchema
    source: TableSchema
    #: Return the rows that follow from decoded rows of the source.
    rows: Callable[[pa.RecordBatch], pa.RecordBatch]


def steps_query(transactions: str) -> str:
    """Return a query for the rows of `steps`, over a view of `transactions`."""
    columns = (
        f"call.`{name}` `{name}`" if name in ATTEMPT.names else f"`{name}`"
        for name in STEPS.schema.names
    )
    # Spark reads only the columns of the outer query.
    calls = f"select *, explode(attempts) call from {transactions}"  # noqa: S608 (our names)
    return f"select {', '.join(columns)} from ({calls})"  # noqa: S608 (our names)


def operations_query(deliveries: str) -> str:
    """Return a query for the rows of `operations` that are in `deliveries`, over a view of it."""
    columns = (
        f"`{_RENAMED.get(name, name)}` `{name}`"
        for name in OPERATIONS.schema.names
        if name != "detail"
    )
    detail = ", ".join(f"'{name}', `{name}`" for name in _DETAIL)
    kinds = ", ".join(f"'{kind}'" for kind in sorted(RANGES | BY_OPERATION))
    return (
        f"select {', '.join(columns)}, to_json(named_struct({detail})) detail"  # noqa: S608 (ours)
        f" from {deliveries} where kind in ({kinds})"
    )


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
