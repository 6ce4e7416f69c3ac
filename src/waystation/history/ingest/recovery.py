"""A store that went back: what history has and the store has lost is marked as lost, once.

A store that was restored from a backup, or has lost its tail, gives offsets anew. It is known by
the last entry that was read: that is not there any more, or is another one. The border is behind
the last entry that both have. Rows from there on stay in the lake, marked as lost, and all is read
again from the border.

The gap is written down first, the table that has a row of every entry comes last: until that has
changed, whoever does it again finds the same border.
"""

from __future__ import annotations

from typing import Any

import msgspec

from waystation.history.decoders.registry import feed_of
from waystation.history.ingest.gaps import GapBook
from waystation.history.ingest.round_tables import RoundTables
from waystation.history.lake.table import AnySchema, Lake, LakeTable, TableOffset
from waystation.history.log_reader import LogReader
from waystation.history.offsets import TASK_ROWS, Gap, OffsetRange, parse_key
from waystation.logs.protocol import LogState
from waystation.runtime.logging import logger

_log = logger("history")

#: What tells entries apart that have the same offset and time.
_NAMING = (
    *("id", "transaction_id", "version", "message_id", "from_place", "delivery_id"),
    *("channel", "clock", "pool", "number"),
)


class Border(msgspec.Struct, frozen=True):
    """From where on a partition has others than the lake."""

    key: str
    offset: int
    #: How far the lake had come.
    reached: int
    #: Of the entry before it.
    fingerprint: int


def find_border(
    logs: LogReader, dataset: str, tables: RoundTables, key: str, state: LogState
) -> Border | None:
    """Compares a partition with what was read of it; None: it still has that."""
    marks = {mark for _, mark in tables.of(key)}
    if not any(_is_other(logs, key, state, mark) for mark in marks):
        return None
    log, partition = parse_key(key)
    reached = max(mark.offset for mark in marks)
    offset = min(reached, state.end)
    table, _ = tables.of(key)[0]
    while offset > state.first:
        span = OffsetRange(log, partition, max(state.first, offset - TASK_ROWS), offset)
        same = _read(logs, span, table.schema) & _rows(table, dataset, span)
        if same:
            offset = max(entry[0] for entry in same) + 1
            break
        offset = span.start
    return Border(
        key, offset, reached, logs.fingerprint_before(OffsetRange(log, partition, 0, offset))
    )


def mark_lost(lake: Lake, dataset: str, tables: RoundTables, border: Border, now_ms: int) -> int:
    """Marks what is behind a border as lost, and lets reading begin there; how many rows."""
    log, partition = parse_key(border.key)
    first, *others = tables.of(border.key)
    gap = OffsetRange(log, partition, border.offset, border.reached)
    if gap.rows:
        GapBook(lake, dataset).commit_lost(gap, first[0].version, now_ms)
    ours = f"dataset = '{dataset}' and log = '{log}' and log_partition = {partition} and not lost"
    _cut_gaps(lake, dataset, border, ours)
    behind = f"{ours} and log_offset >= {border.offset}"
    back, lost = TableOffset(border.offset, border.fingerprint), 0
    for table, mark in (*others, first):
        if mark != back and mark.offset >= border.offset:
            lost += table.update(behind, {"lost": "true"}, {f"{dataset}/{border.key}": back})
    _log.error(
        "the store went back: what it has lost is marked in the lake",
        log=log,
        partition=partition,
        from_offset=border.offset,
        to_offset=border.reached,
        rows=lost,
    )
    return lost


def _cut_gaps(lake: Lake, dataset: str, border: Border, ours: str) -> None:
    """Gaps end at the border, too: what is behind it can be read."""
    table, at, key = GapBook(lake, dataset).table, border.offset, f"{dataset}/{border.key}"
    before = table.offset(key)
    if before.offset > at:
        updates = {
            "lost": f"from_offset >= {at}",
            "to_offset": f"case when from_offset < {at} then {at} else to_offset end",
            "rows": f"case when from_offset < {at} then {at} - from_offset else rows end",
        }
        behind = f"{ours} and cause != 'lost' and to_offset > {at}"
        table.update(behind, updates, {key: TableOffset(at, before.fingerprint + 1)})


def _is_other(logs: LogReader, key: str, state: LogState, mark: TableOffset) -> bool:
    """Whether the last entry before a mark is not there, or is another one than it was."""
    if state.end < mark.offset:
        return True
    if not mark.fingerprint or mark.offset - 1 < state.first:
        return False  # There is nothing to compare with, and nothing that could come twice.
    found = logs.fingerprint_before(OffsetRange(*parse_key(key), 0, mark.offset))
    return found not in (0, mark.fingerprint)


def _columns(spec: AnySchema) -> list[str]:
    return ["log_offset", "time", *(name for name in _NAMING if name in spec.schema.names)]


def _read(logs: LogReader, span: OffsetRange, spec: AnySchema) -> set[tuple[Any, ...]]:
    """The entries of a span as the store has them."""
    feed = feed_of(span.log)
    assert feed is not None, "only logs with a feed are looked at"
    found: set[tuple[Any, ...]] = set()
    for block in logs.blocks(span, on_gap="count"):
        if not isinstance(block, Gap):
            columns = feed.rows(span, block)[spec.name].select(_columns(spec)).columns
            found |= set(zip(*(column.to_pylist() for column in columns), strict=True))
    return found


def _rows(table: LakeTable, dataset: str, span: OffsetRange) -> set[tuple[Any, ...]]:
    """The entries of a span as the lake has them."""
    rows = table.rows(dataset, span, [*_columns(table.schema), "lost"])
    columns = [rows.column(name).to_pylist() for name in rows.column_names]
    return {entry[:-1] for entry in zip(*columns, strict=True) if not entry[-1]}
