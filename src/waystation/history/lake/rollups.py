"""Refresh of the rollups: compute the time buckets that new rows belong to.

A refresh reads one snapshot of the lake. A rollup stores, for each table that it is computed from,
the version that it contains. The files that were added since tell the times of the new rows; the
buckets of these times are computed from the rows of the snapshot and replace the old buckets. The
versions are in the last commit of a rollup, so a crash makes the next refresh do the same again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa
from deltalake import (
    CommitProperties,
    DeltaTable,
    Schema,
    Transaction,
    WriterProperties,
    write_deltalake,
)
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from pyspark.sql import SparkSession

from waystation.errors import HistoryBusyError
from waystation.history.lake.files import AddedFile
from waystation.history.lake.maintenance import maintain
from waystation.history.lake.rollup_queries import Window, slots_of
from waystation.history.lake.rollup_schema import DERIVED, PARTITIONS, SLOT_SECONDS, RollupSchema
from waystation.history.lake.table import Lake, LakeSnapshot, lake_write
from waystation.history.lake.views import attach, open_snapshot
from waystation.runtime.clock import Clock

#: Days of one commit, because the driver holds all of its buckets in memory.
_COMMIT_DAYS = 7
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Refreshed(msgspec.Struct):
    """Progress of a refresh."""

    #: Buckets that were written, by rollup.
    rows: dict[str, int] = msgspec.field(default_factory=dict)
    #: Days with new rows, over all rollups so far.
    days: int = 0
    #: Days of the present rollup that are not committed yet.
    left: int = 0


class Touched(msgspec.Struct, frozen=True):
    """First and last time of the new rows of a day."""

    first: datetime
    last: datetime

    def __or__(self, other: Touched) -> Touched:
        return Touched(min(self.first, other.first), max(self.last, other.last))

    def windows(self) -> Iterator[Window]:
        """Yield the buckets of every length that contain these times."""
        for seconds in SLOT_SECONDS:
            end = _bucket_start(self.last, seconds) + timedelta(seconds=seconds)
            yield Window(seconds, _bucket_start(self.first, seconds), end)


def refresh(
    spark: SparkSession,
    lake: Lake,
    on_progress: Callable[[Refreshed], None] | None = None,
    *,
    clock: Clock | None = None,
) -> Refreshed:
    """Compute all rollups from one snapshot, and attach the session to the result.

    Raise NoLakeError if there is no lake, HistoryBusyError if another refresh commits first.
    """
    done = Refreshed()
    snapshot = open_snapshot(lake.root)
    attach(spark, lake=snapshot)
    for schema in DERIVED:
        _refresh(spark, snapshot, lake.folder(schema), schema, done, on_progress)
        maintain(lake.folder(schema), (clock or Clock()).now_ms())
    attach(spark, lake=lake.root)
    return done


def _refresh(
    spark: SparkSession,
    snapshot: LakeSnapshot,
    folder: str,
    schema: RollupSchema,
    done: Refreshed,
    on_progress: Callable[[Refreshed], None] | None,
) -> None:
    rollup = _open(folder, schema)
    touched: dict[date, Touched] = {}
    versions: dict[str, int] = {}
    for base in schema.bases:
        table = snapshot.get(base.name)
        key = f"refresh/{base.name}"
        known = rollup.transaction_version(key)
        if table is None or table.version == known:
            continue
        versions[key] = table.version
        for part in touched_times(table.added_since(known)):
            day = part.first.date()
            touched[day] = touched[day] | part if day in touched else part
    days = sorted(touched)
    if versions and not days:
        # Commits without rows; remember them so that the next refresh does not read them.
        _commit_versions(_open(folder, schema), schema, versions)
    done.days += len(days)
    done.left = len(days)
    for start in range(0, len(days), _COMMIT_DAYS):
        some = days[start : start + _COMMIT_DAYS]
        windows = merged(window for day in some for window in touched[day].windows())
        rows = slots_of(spark, schema.name, windows).toArrow().select(schema.schema.names)
        rows = rows.cast(schema.schema)
        is_last = start + _COMMIT_DAYS >= len(days)
        _replace(_open(folder, schema), rows, windows, versions if is_last else {})
        done.rows[schema.name] = done.rows.get(schema.name, 0) + rows.num_rows
        done.left -= len(some)
        if on_progress is not None:
            on_progress(done)


def touched_times(added: Iterable[AddedFile]) -> Iterator[Touched]:
    """Yield the times of the rows of each file; the whole day if a file has no statistics."""
    for file in added:
        if file.rows != 0:
            start = datetime.combine(date.fromisoformat(file.day), datetime.min.time(), UTC)
            end = start + timedelta(days=1) - timedelta(milliseconds=1)
            yield Touched(_moment(file.first_time) or start, _moment(file.last_time) or end)


def merged(windows: Iterable[Window]) -> list[Window]:
    """Combine windows that overlap. A bucket of 1,000 s across midnight belongs to two days."""
    found: list[Window] = []
    for each in sorted(windows, key=lambda window: (window.slot_seconds, window.begin)):
        last = found[-1] if found else None
        if last and last.slot_seconds == each.slot_seconds and each.begin <= last.end:
            found[-1] = Window(last.slot_seconds, last.begin, max(last.end, each.end))
        else:
            found.append(each)
    return found


def _open(folder: str, schema: RollupSchema) -> DeltaTable:
    try:
        return DeltaTable(folder)
    except TableNotFoundError:
        return DeltaTable.create(
            folder,
            schema=Schema.from_arrow(schema.schema),
            mode="ignore",
            partition_by=list(PARTITIONS),
            name=schema.name,
        )


def _replace(
    table: DeltaTable, rows: pa.Table, windows: Sequence[Window], versions: dict[str, int]
) -> None:
    """Replace the buckets of some windows and store the versions, in one commit."""
    predicate = " or ".join(
        f"(slot_seconds = {each.slot_seconds} and slot >= '{_iso(each.begin)}'"
        f" and slot < '{_iso(each.end)}')"
        for each in windows
    )
    with _writing(table):
        write_deltalake(
            table,
            rows,
            mode="overwrite",
            predicate=predicate,
            writer_properties=WriterProperties(compression="ZSTD"),
            commit_properties=_properties(versions),
        )


def _commit_versions(table: DeltaTable, schema: RollupSchema, versions: dict[str, int]) -> None:
    with _writing(table):
        table.create_write_transaction(
            [],
            "append",
            Schema.from_arrow(schema.schema),
            list(PARTITIONS),
            commit_properties=_properties(versions),
        )


def _properties(versions: dict[str, int]) -> CommitProperties:
    transactions = [Transaction(key, version) for key, version in versions.items()]
    return CommitProperties(app_transactions=transactions)


@contextmanager
def _writing(table: DeltaTable) -> Iterator[None]:
    name = table.metadata().name or ""
    try:
        yield
    except CommitFailedError as error:
        raise HistoryBusyError(
            f"Another refresh committed to {name} in the meantime.",
            hint="Run the command again; it continues from that commit.",
        ) from error
    except (DeltaError, OSError) as error:
        raise lake_write(name, error) from error


def _moment(value: Any) -> datetime | None:
    """Return a bound of a column of times; text comes from the Delta log."""
    if value is None:
        return None
    moment: datetime = datetime.fromisoformat(value) if isinstance(value, str) else value
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _bucket_start(moment: datetime, seconds: int) -> datetime:
    passed = int((moment - _EPOCH).total_seconds())
    return _EPOCH + timedelta(seconds=passed // seconds * seconds)


def _iso(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")
