"""Comparison of a lake with the logs from which it was made, entry by entry."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from waystation.history.decoders.registry import decoder_for
from waystation.history.lake.projections import PROJECTIONS
from waystation.history.lake.table import Lake
from waystation.history.log_reader import LogReader
from waystation.history.offsets import OffsetRange
from waystation.logs.protocol import LogState

_NAMING = ("log_offset", "item", "time", "id", "transaction_id", "version", "attempts")


def require_whole(lake: Path, url: str) -> None:
    """Assert that the tables have each entry of all logs once, or count it in a gap."""
    with LogReader(url) as logs:
        for log, partitions in logs.names().items():
            for (_, partition), state in logs.states((log, n) for n in range(partitions)).items():
                _require_log(lake, logs, OffsetRange(log, partition, state.first, state.end), state)


def gaps_of(lake: Path, dataset: str = "ds-test") -> list[tuple[str, int, int, str]]:
    """Return log, start, end and cause of all gaps, sorted. A snapshot has no order of tables."""
    tables = Lake(str(lake)).snapshot().values()
    return sorted(
        (gap.log, gap.start, gap.end, gap.cause) for table in tables for gap in table.gaps(dataset)
    )


def projected_rows(lake: Path, table: str) -> list[dict[str, Any]]:
    """Return the rows of a view that follow from the rows of its table, in the order of the log."""
    projection = PROJECTIONS[table]
    found = DeltaTable(str(lake / projection.source.name)).to_pyarrow_table(
        filters=[("row_state", "!=", "gap")]
    )
    order = [(name, "ascending") for name in ("log_partition", "log_offset", "item")]
    rows = [projection.rows(batch) for batch in found.to_batches()]
    return pa.Table.from_batches(rows).sort_by(order).to_pylist() if rows else []


def _require_log(lake: Path, logs: LogReader, span: OffsetRange, state: LogState) -> None:
    decoder = decoder_for(span.log)
    assert decoder is not None
    gone = [
        offset
        for row in _rows(lake, decoder.table.name, span, "gap")
        for offset in range(row["log_offset"], row["gap_end"])
    ]
    there = [_naming(row) for row in _rows(lake, decoder.table.name, span, "live")]
    doubled = [each for each, times in Counter(there).items() if times > 1]
    assert not doubled, f"{span.key}: {doubled[:5]}"
    kept = [
        _naming(row)
        for block in logs.blocks(span, on_gap="fail")
        if not isinstance(block, OffsetRange)
        for row in decoder.decode(span, block).to_pylist()
    ]
    missing = {each for each in set(kept) - set(there) if each[0] not in gone}
    assert not missing, f"{span.key}: {sorted(missing)[:5]}"
    # Gaps and rows side by side are all that there ever was
    offsets = sorted({each[0] for each in there} | set(gone))
    assert offsets == list(range(state.end)), span.key
    assert len(gone) == len(set(gone)), span.key
    assert not {each[0] for each in there} & set(gone), span.key


def _rows(lake: Path, table: str, span: OffsetRange, state: str) -> list[dict[str, Any]]:
    folder = str(lake / table)
    if not DeltaTable.is_deltatable(folder):
        return []
    wanted = [("log", "=", span.log), ("log_partition", "=", span.partition)]
    wanted.append(("row_state", "=", state))
    return DeltaTable(folder).to_pyarrow_table(filters=wanted).to_pylist()


def _naming(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(str(row.get(name)) if name == "attempts" else row.get(name) for name in _NAMING)
