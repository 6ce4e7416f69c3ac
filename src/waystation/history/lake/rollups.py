"""Refresh: brings the derived tables up to the rows that came since.

Each has, for each table that it is computed from, the version of it that is in it. Files that were
added since tell which times are touched; slots of these times are computed anew from base rows, and
take the place of what was there. A process may die at any line: slots are replaced day by day, and
the versions are in the last commit of a table, so the next one does it again.
"""

from __future__ import annotations

import json
import os
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
from pyarrow import fs
from pyspark.sql import SparkSession

from waystation.errors import HistoryBusyError
from waystation.history.lake.maintenance import tidy
from waystation.history.lake.rollup_queries import Window, slots_of
from waystation.history.lake.rollup_schema import DERIVED, PARTITIONS, SLOT_SECONDS, DerivedSpec
from waystation.history.lake.table import Lake, lake_write
from waystation.history.lake.views import attach
from waystation.runtime.clock import Clock

#: Days of one commit: what the driver holds at once.
_DAYS_AT_ONCE = 7
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Refreshed(msgspec.Struct):
    """What was done so far."""

    #: Table -> rows of slots that were written.
    rows: dict[str, int] = msgspec.field(default_factory=dict)
    #: Days that were touched, of all tables.
    days: int = 0
    #: Days that are still to be done, of tables that were looked at.
    left: int = 0


class Touched(msgspec.Struct, frozen=True):
    """Times of a day that rows came for."""

    first: datetime
    last: datetime

    def __or__(self, other: Touched) -> Touched:
        return Touched(min(self.first, other.first), max(self.last, other.last))

    def windows(self) -> Iterator[Window]:
        """Slots that these times are in."""
        for seconds in SLOT_SECONDS:
            end = _slot_begin(self.last, seconds) + timedelta(seconds=seconds)
            yield Window(seconds, _slot_begin(self.first, seconds), end)


def refresh(
    spark: SparkSession,
    lake: Lake,
    on_progress: Callable[[Refreshed], None] | None = None,
    *,
    clock: Clock | None = None,
) -> Refreshed:
    """Brings all derived tables up to date; LakeRefusedError where there is no lake."""
    done = Refreshed()
    attach(spark, lake=lake.root)
    for spec in DERIVED:
        _refresh(spark, lake, spec, done, on_progress)
        tidy(lake.folder(spec), (clock or Clock()).now_ms())
    attach(spark, lake=lake.root)
    return done


def _refresh(
    spark: SparkSession,
    lake: Lake,
    spec: DerivedSpec,
    done: Refreshed,
    on_progress: Callable[[Refreshed], None] | None,
) -> None:
    folder = lake.folder(spec)
    table = _opened(folder, spec)
    touched: dict[date, Touched] = {}
    versions: dict[str, int] = {}
    for base in spec.bases:
        if lake.files(base) is None:
            continue
        base_folder = lake.folder(base)
        key = f"refresh/{base.name}"
        known, now = table.transaction_version(key), DeltaTable(base_folder).version()
        if known == now:
            continue
        versions[key] = now
        for part in touched_times(base_folder, known, now):
            day = part.first.date()
            touched[day] = touched[day] | part if day in touched else part
    days = sorted(touched)
    if versions and not days:
        # Commits without rows: not to be looked at again.
        _note_versions(_opened(folder, spec), spec, versions)
    done.days += len(days)
    done.left = len(days)
    for at in range(0, len(days), _DAYS_AT_ONCE):
        some = days[at : at + _DAYS_AT_ONCE]
        windows = merged(window for day in some for window in touched[day].windows())
        rows = slots_of(spark, spec.name, windows).toArrow().select(spec.schema.names)
        rows = rows.cast(spec.schema)
        last = at + _DAYS_AT_ONCE >= len(days)
        _replace(_opened(folder, spec), rows, windows, versions if last else {})
        done.rows[spec.name] = done.rows.get(spec.name, 0) + rows.num_rows
        done.left = max(0, done.left - len(some))
        if on_progress is not None:
            on_progress(done)


def merged(windows: Iterable[Window]) -> list[Window]:
    """The same slots, each once: one of 1,000 s that reaches over midnight is of two days."""
    found: list[Window] = []
    for each in sorted(windows, key=lambda window: (window.slot_seconds, window.begin)):
        last = found[-1] if found else None
        if last and last.slot_seconds == each.slot_seconds and each.begin <= last.end:
            found[-1] = Window(last.slot_seconds, last.begin, max(last.end, each.end))
        else:
            found.append(each)
    return found


def _opened(folder: str, spec: DerivedSpec) -> DeltaTable:
    try:
        return DeltaTable(folder)
    except TableNotFoundError:
        return DeltaTable.create(
            folder,
            schema=Schema.from_arrow(spec.schema),
            mode="ignore",
            partition_by=list(PARTITIONS),
            name=spec.name,
        )


def _replace(
    table: DeltaTable, rows: pa.Table, windows: Sequence[Window], versions: dict[str, int]
) -> None:
    """Puts slots in the place of those that are there, all or nothing."""
    predicate = " or ".join(
        f"(slot_seconds = {each.slot_seconds} and slot >= '{_told(each.begin)}'"
        f" and slot < '{_told(each.end)}')"
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


def _note_versions(table: DeltaTable, spec: DerivedSpec, versions: dict[str, int]) -> None:
    with _writing(table):
        table.create_write_transaction(
            [],
            "append",
            Schema.from_arrow(spec.schema),
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
            f"Another refresh has written to {name} meanwhile.",
            hint="Its work is there; run it again.",
        ) from error
    except (DeltaError, OSError) as error:
        raise lake_write(name, error) from error


def touched_times(folder: str, known: int | None, now: int) -> Iterator[Touched]:
    """Times of rows that came between two versions; of all rows where that cannot be told."""
    if known is not None:
        found = list(_added(folder, known, now))
        if None not in found:
            yield from (each for each in found if each is not None)
            return
    actions = pa.table(DeltaTable(folder).get_add_actions(flatten=True)).to_pylist()
    for each in actions:
        if each["num_records"] != 0:
            yield _times(each["partition.day"], each.get("min.time"), each.get("max.time"))


def _added(folder: str, known: int, now: int) -> Iterator[Touched | None]:
    """From the log of the table; None for a version whose file is gone."""
    files, root = (
        fs.FileSystem.from_uri(folder)
        if "://" in folder
        else (fs.LocalFileSystem(), os.path.abspath(folder))
    )
    for version in range(known + 1, now + 1):
        try:
            with files.open_input_stream(f"{root}/_delta_log/{version:020}.json") as stream:
                actions = [json.loads(line) for line in stream.read().splitlines()]
        except FileNotFoundError:
            yield None
            return
        # What compaction adds was there before, and it says so.
        for add in (each["add"] for each in actions if "add" in each):
            if add["dataChange"]:
                stats: dict[str, Any] = json.loads(add.get("stats") or "{}")
                if stats.get("numRecords") != 0:
                    least, most = stats.get("minValues", {}), stats.get("maxValues", {})
                    yield _times(add["partitionValues"]["day"], least.get("time"), most.get("time"))


def _times(day: str | date, first: Any, last: Any) -> Touched:
    """Times of a file; of its whole day where it has no statistics."""
    begin = datetime.combine(
        date.fromisoformat(day) if isinstance(day, str) else day, datetime.min.time(), UTC
    )
    end = begin + timedelta(days=1) - timedelta(milliseconds=1)
    return Touched(_moment(first) or begin, _moment(last) or end)


def _moment(told: Any) -> datetime | None:
    if told is None:
        return None
    moment: datetime = datetime.fromisoformat(told) if isinstance(told, str) else told
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _slot_begin(moment: datetime, seconds: int) -> datetime:
    passed = int((moment - _EPOCH).total_seconds())
    return _EPOCH + timedelta(seconds=passed // seconds * seconds)


def _told(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")
