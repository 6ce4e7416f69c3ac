"""Maintenance of tables: compaction and vacuum.

The cost of a query grows with the number of files, and every micro-batch adds some. Compaction
merges the small files of a day without blocking readers or writers. Vacuum deletes replaced files,
and files of crashed tasks, when they are older than `history.vacuum_hours`, so that running queries
can still read them.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties
from deltalake.exceptions import DeltaError

from waystation.history.lake.files import DICTIONARY_BYTES, GROUP_ROWS
from waystation.runtime.logging import logger

_log = logger("history")

#: Files of a table from which on queries start slowly: with 400, the first row takes 5 s.
FILES_MAX = 200
#: Files that a partition may have before compaction, and those of the newest one. The newest one
#: may have more, because every micro-batch adds files to it.
_PARTITION_FILES, _NEWEST_FILES = 8, 32
_TARGET_BYTES = 256 * 1_048_576
#: Delta app transaction of which the version is the time of the last vacuum, in seconds.
_VACUUMED = "vacuum"
_VACUUM_SECONDS = 86_400
#: Shortest retention that delta-rs accepts without an explicit setting.
_ENFORCED_HOURS_MIN = 168


class MaintenanceResult(msgspec.Struct):
    """Outcome of the maintenance of a table."""

    #: Files of the table afterwards.
    files: int = 0
    #: Files that compaction replaced.
    compacted: int = 0
    #: Files that vacuum deleted.
    deleted: int = 0


def maintain(
    folder: str, now_ms: int, *, vacuum_hours: int = _ENFORCED_HOURS_MIN
) -> MaintenanceResult:
    """Compact a table, and vacuum it once a day.

    Log a failure instead of raising it, because the next maintenance repeats the work.
    """
    result = MaintenanceResult()
    if not DeltaTable.is_deltatable(folder):
        return result
    try:
        result.compacted = _compact(folder)
        result.deleted = _vacuum(folder, now_ms // 1000, vacuum_hours)
    except (DeltaError, OSError) as error:
        # Another process committed first, or the disk is full.
        _log.warning("table maintenance failed", table=folder, error=error)
    result.files = sum(_files_by_partition(DeltaTable(folder)).values())
    if result.files >= FILES_MAX:
        # One file per day is the minimum, so that a lake of many days stays over the limit.
        _log.info("table not compacted further", table=folder, files=result.files)
    return result


def _compact(folder: str) -> int:
    table, removed = DeltaTable(folder), 0
    by_partition = _files_by_partition(table)
    newest = max(by_partition, default=())
    is_over_limit = sum(by_partition.values()) >= FILES_MAX
    for values, files in by_partition.items():
        files_max = (
            _NEWEST_FILES if values[0] == newest[0] else 1 if is_over_limit else _PARTITION_FILES
        )
        if files > files_max:
            result = DeltaTable(folder).optimize.compact(
                partition_filters=[(name, "=", str(value)) for name, value in values],
                target_size=_TARGET_BYTES,
                max_concurrent_tasks=1,
                writer_properties=WriterProperties(
                    compression="ZSTD",
                    max_row_group_size=GROUP_ROWS,
                    dictionary_page_size_limit=DICTIONARY_BYTES,
                ),
            )
            removed += int(result["numFilesRemoved"])
    return removed


def _vacuum(folder: str, now_s: int, hours: int) -> int:
    table = DeltaTable(folder)
    if now_s - (table.transaction_version(_VACUUMED) or 0) < _VACUUM_SECONDS:
        return 0
    # A full vacuum, because no version of the table lists the files of crashed tasks.
    deleted = table.vacuum(
        retention_hours=hours,
        dry_run=False,
        enforce_retention_duration=hours >= _ENFORCED_HOURS_MIN,
        full=True,
        commit_properties=CommitProperties(app_transactions=[Transaction(_VACUUMED, now_s)]),
    )
    return len(deleted)


def _files_by_partition(table: DeltaTable) -> Counter[tuple[tuple[str, Any], ...]]:
    """Return the number of files of each partition. The greatest key is the newest day."""
    added = pa.table(table.get_add_actions(flatten=True))
    names = table.metadata().partition_columns
    columns = [added.column(f"partition.{name}").to_pylist() for name in names]
    rows = zip(*columns, strict=True) if columns else ()
    return Counter(tuple(zip(names, row, strict=True)) for row in rows)
