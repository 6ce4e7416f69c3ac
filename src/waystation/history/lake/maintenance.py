"""Tidying: tables of few files, and none that belong to no table.

To read a table costs by its files, and every round of ingest adds some: those of a day become one,
and nobody who reads or writes meanwhile is disturbed. What was replaced, and what tasks that died
have left, is deleted when nobody can be reading it any more.
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

#: More files than this make queries slow: 400 cost 5 s before the first row.
FILES_MAX = 200
#: Files that a partition may have, and the newest one, which gets more all the time.
_PARTITION_FILES, _NEWEST_FILES = 8, 32
_TARGET_BYTES = 256 * 1_048_576
#: The mark of when a table was vacuumed, in seconds.
_VACUUMED = "vacuum"
_VACUUM_SECONDS = 86_400
#: Up to this, delta-rs wants to be told that it is meant.
_CAREFUL_HOURS = 168


class MaintenanceResult(msgspec.Struct):
    """What was done to a table."""

    files: int = 0
    #: Files that others have taken the place of.
    compacted: int = 0
    #: Files that were deleted.
    deleted: int = 0


def maintain(folder: str, now_ms: int, *, vacuum_hours: int = _CAREFUL_HOURS) -> MaintenanceResult:
    """Makes few files of many, and deletes old ones once a day. Nothing that fails here matters."""
    done = MaintenanceResult()
    if not DeltaTable.is_deltatable(folder):
        return done
    try:
        done.compacted = _compact(folder)
        done.deleted = _vacuum(folder, now_ms // 1000, vacuum_hours)
    except (DeltaError, OSError) as error:
        # Another was quicker, or a disk is full: the next time does it.
        _log.warning("a table could not be tidied", table=folder, error=error)
    done.files = sum(_partitions(DeltaTable(folder)).values())
    if done.files >= FILES_MAX:
        _log.info("a table has many files: it has many days", table=folder, files=done.files)
    return done


def _compact(folder: str) -> int:
    table, removed = DeltaTable(folder), 0
    found = _partitions(table)
    newest = max(found, default=())
    crowded = sum(found.values()) >= FILES_MAX
    for values, files in found.items():
        most = _NEWEST_FILES if values[0] == newest[0] else 1 if crowded else _PARTITION_FILES
        if files > most:
            done = DeltaTable(folder).optimize.compact(
                partition_filters=[(name, "=", str(value)) for name, value in values],
                target_size=_TARGET_BYTES,
                max_concurrent_tasks=1,
                writer_properties=WriterProperties(
                    compression="ZSTD",
                    max_row_group_size=GROUP_ROWS,
                    dictionary_page_size_limit=DICTIONARY_BYTES,
                ),
            )
            removed += int(done["numFilesRemoved"])
    return removed


def _vacuum(folder: str, now_s: int, hours: int) -> int:
    table = DeltaTable(folder)
    if now_s - (table.transaction_version(_VACUUMED) or 0) < _VACUUM_SECONDS:
        return 0
    # Full: files of tasks that died are named nowhere.
    gone = table.vacuum(
        retention_hours=hours,
        dry_run=False,
        enforce_retention_duration=hours >= _CAREFUL_HOURS,
        full=True,
        commit_properties=CommitProperties(app_transactions=[Transaction(_VACUUMED, now_s)]),
    )
    return len(gone)


def _partitions(table: DeltaTable) -> Counter[tuple[tuple[str, Any], ...]]:
    """How many files each partition has; the greatest is the newest day."""
    added = pa.table(table.get_add_actions(flatten=True))
    names = table.metadata().partition_columns
    columns = [added.column(f"partition.{name}").to_pylist() for name in names]
    rows = zip(*columns, strict=True) if columns else ()
    return Counter(tuple(zip(names, row, strict=True)) for row in rows)
