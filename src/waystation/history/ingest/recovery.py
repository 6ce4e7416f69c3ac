"""Recovery: find logs of which the store has lost entries, and mark their rows as lost.

A store that was restored from a backup, or that lost its tail, assigns offsets again. The last
ingested entry of such a log is missing, or its fingerprint has changed. The divergence is the first
offset behind the last entry that lake and store have in common. One update of the table marks the
rows from there on as lost, cuts gaps that reach beyond it, and moves the committed offset back, so
that the next micro-batch ingests what the store has now.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from waystation.errors import HistoryBusyError
from waystation.history.decoders.registry import decoder_for
from waystation.history.lake.schema import TableSchema
from waystation.history.lake.table import Lake, LakeTable, TableOffset
from waystation.history.log_reader import LogReader
from waystation.history.offsets import TASK_ROWS, Gap, OffsetRange, parse_key
from waystation.logs.protocol import LogState
from waystation.runtime.logging import logger

_log = logger("history")

#: Columns that tell entries apart that have the same offset and time.
_IDENTITY = (
    *("id", "transaction_id", "version", "message_id", "from_place", "delivery_id"),
    *("channel", "clock", "pool", "number"),
)


class Divergence(msgspec.Struct, frozen=True):
    """A partition of which the store lacks entries that the lake has."""

    key: str
    table: TableSchema
    #: Committed offset of the version of the table that was compared.
    committed: TableOffset
    #: First offset of which lake and store have no common entry, and the entry before it.
    reset: TableOffset


class Recovery:
    """Comparison of the last ingested entries with the store, once in each run of the store."""

    def __init__(self) -> None:
        self._compared: set[str] = set()

    def clear(self) -> None:
        """Compare all partitions again, because the store may have lost entries."""
        self._compared.clear()

    def divergences(
        self,
        logs: LogReader,
        dataset: str,
        tables: Mapping[str, LakeTable],
        states: Mapping[str, LogState],
    ) -> list[Divergence]:
        """Return the partitions of which the store lacks ingested entries."""
        found = []
        for key, known in states.items():
            table = tables[key]
            committed = table.offset(f"{dataset}/{key}")
            if key in self._compared and committed.offset <= known.end:
                continue
            state: LogState | None = known
            if committed.offset > known.end:
                # Another ingest may have committed entries that came after `known` was read. The
                # log has these entries now, unless the store has lost them.
                state = logs.states([parse_key(key)]).get(parse_key(key))
            if state is None:
                continue  # The log was deleted.
            if _differs(logs, key, state, committed):
                assert isinstance(table.schema, TableSchema), "ingest does not write rollups"
                reset = _reset(logs, dataset, table, key, committed, state)
                # Compare it again with the next micro-batch, because its repair can fail.
                found.append(Divergence(key, table.schema, committed, reset))
            else:
                self._compared.add(key)
        return found


def mark_lost(lake: Lake, dataset: str, divergence: Divergence) -> int:
    """Mark rows behind a divergence as lost, and move the committed offset back to it.

    Return the number of rows. Raise HistoryBusyError if another ingest moved the offset meanwhile.
    """
    log, partition = parse_key(divergence.key)
    key, start = f"{dataset}/{divergence.key}", divergence.reset.offset
    # The newest version, because the divergence before this one may have updated the same table.
    table = lake.open(divergence.table)
    if table.offset(key) != divergence.committed:
        raise HistoryBusyError(
            f"Another ingest committed to {divergence.table.name} in the meantime.",
            hint="No rows were written. Run the command again; it continues from that commit.",
        )
    lost = OffsetRange(log, partition, start, max(start, divergence.committed.offset))
    rows: int = table.rows(dataset, lost, ["log_offset"]).num_rows
    table.update(
        f"dataset = '{dataset}' and log = '{log}' and log_partition = {partition}"
        f" and row_state <> 'lost' and (log_offset >= {start} or gap_end > {start})",
        {
            "row_state": f"case when log_offset >= {start} then 'lost' else row_state end",
            "gap_end": f"case when log_offset >= {start} then gap_end else {start} end",
        },
        {key: divergence.reset},
    )
    _log.error(
        "rows marked as lost",
        reason="the store lost entries that were ingested",
        log=log,
        partition=partition,
        from_offset=start,
        to_offset=divergence.committed.offset,
        rows=rows,
    )
    return rows


def _differs(logs: LogReader, key: str, state: LogState, committed: TableOffset) -> bool:
    """Return whether the last ingested entry is missing from its log, or is another one."""
    if state.end < committed.offset:
        return True
    if not committed.fingerprint or committed.offset - 1 < state.first:
        return False  # No entry to compare, and the store cannot assign these offsets again.
    found = logs.fingerprint_before(OffsetRange(*parse_key(key), 0, committed.offset))
    return found not in (0, committed.fingerprint)


def _reset(
    logs: LogReader,
    dataset: str,
    table: LakeTable,
    key: str,
    committed: TableOffset,
    state: LogState,
) -> TableOffset:
    """Return the offset behind the last common entry; the first offset of the log without any."""
    log, partition = parse_key(key)
    offset = min(committed.offset, state.end)
    while offset > state.first:
        chunk = OffsetRange(log, partition, max(state.first, offset - TASK_ROWS), offset)
        common = _stored(logs, chunk, table) & _ingested(table, dataset, chunk)
        if common:
            offset = max(entry[0] for entry in common) + 1
            break
        offset = chunk.start
    return TableOffset(offset, logs.fingerprint_before(OffsetRange(log, partition, 0, offset)))


def _columns(table: LakeTable) -> list[str]:
    return [
        "log_offset",
        "time",
        *(name for name in _IDENTITY if name in table.schema.schema.names),
    ]


def _stored(logs: LogReader, chunk: OffsetRange, table: LakeTable) -> set[tuple[Any, ...]]:
    """Return the entries of a range of a log."""
    decoder = decoder_for(chunk.log)
    assert decoder is not None, "only logs with a decoder are compared"
    entries: set[tuple[Any, ...]] = set()
    for block in logs.blocks(chunk, on_gap="count"):
        if not isinstance(block, Gap):
            rows = decoder.decode(chunk, block).select(_columns(table))
            entries |= set(zip(*(column.to_pylist() for column in rows.columns), strict=True))
    return entries


def _ingested(table: LakeTable, dataset: str, chunk: OffsetRange) -> set[tuple[Any, ...]]:
    """Return the entries of a range that are in the lake."""
    rows = table.rows(dataset, chunk, _columns(table))
    return set(zip(*(rows.column(name).to_pylist() for name in _columns(table)), strict=True))
