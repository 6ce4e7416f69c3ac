"""Expiry: delete the rows of days that are older than `history.keep_days`.

One Delta commit per table removes the files of these days. It adds one gap with cause `expired` for
each log partition: from offset 0 to behind the last deleted row. So the audit knows which rows were
deleted, and every offset is in the table or in a gap. Vacuum deletes the files from the disk later.

Some rows stay, because later rows have no meaning without them, and they have no data of users: the
offsets at which subscriptions start and to which they were reset, and the data sets that the store
has lost. Committed offsets and fingerprints are app transactions of the table and stay, too, so
that ingest and recovery do not notice that rows are gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, date, datetime, time, timedelta

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from waystation.errors import HistoryError
from waystation.history.lake.files import TableWriter, WrittenFile, read_batches
from waystation.history.lake.rollup_schema import GROUP_LOAD
from waystation.history.lake.schema import (
    DELIVERIES,
    EXPIRED,
    STORE_LOST,
    TableSchema,
)
from waystation.history.lake.table import Lake, LakeFile, LakeTable
from waystation.runtime.logging import logger

_log = logger("history")

#: Kinds of deliveries that stay: the audit needs them to know what a subscription has to deliver.
_LASTING_KINDS = pa.array(["start", "reset"])
#: Refuse to delete rows if all of them were ingested so long before the days to delete ended. With
#: a correct clock, a lake has such rows only if no process expired rows in the meantime.
_IDLE_DAYS_MAX = 366
_PARTITION = ("dataset", "log", "log_partition")

#: Data set, log and number of a partition.
_Key = tuple[str, str, int]


class _Survey(msgspec.Struct):
    """Rows of a file that expires."""

    #: Rows to delete.
    rows: int = 0
    #: Rows that stay.
    lasting: int = 0
    has_expired_gaps: bool = False
    #: Time at which the newest row was ingested, in seconds.
    ingested_s: int = 0
    #: The offset behind the last row to delete of each partition.
    ends: dict[_Key, int] = {}


def first_kept_day(now_ms: int, keep_days: int) -> date:
    """Return the first day of which rows are kept. Days are those of UTC."""
    return datetime.fromtimestamp(now_ms / 1000, UTC).date() - timedelta(days=keep_days)


class _ImplausibleTimeError(HistoryError):
    """The clock is probably years ahead."""


def expire_rows(lake: Lake, schema: TableSchema, first_day: date, now_ms: int) -> int | None:
    """Delete the rows of the days before one from a table. Return their number.

    Return None after a failure, which is logged, because the next maintenance does the same again.
    Refuse to delete rows if the newest of them was ingested more than a year before `first_day`,
    because the clock is probably wrong. Rows of an idle table that expire each day are newer.
    """
    rows: int | None = None
    with _logged_failures(schema.name):
        is_there = DeltaTable.is_deltatable(lake.folder(schema))
        rows = _expire(lake.open(schema), schema, first_day, now_ms) if is_there else 0
    if rows:
        _log.info("rows expired", table=schema.name, rows=rows, kept_from=first_day.isoformat())
    return rows


def expire_group_load(lake: Lake, first_day: date) -> bool:
    """Delete the buckets of the days before one from `group_load`, because they name groups.

    Return whether that succeeded.
    The other rollups have only counts and the names of pipelines, subscriptions and endpoints.
    """
    folder = lake.folder(GROUP_LOAD)
    with _logged_failures(GROUP_LOAD.name):
        if not DeltaTable.is_deltatable(folder):
            return True
        table = DeltaTable(folder)
        if table.to_pyarrow_dataset().count_rows(filter=pc.field("day") < pa.scalar(first_day)):
            table.delete(f"day < '{first_day.isoformat()}'")
        return True
    return False


def _expire(table: LakeTable, schema: TableSchema, first_day: date, now_ms: int) -> int:
    old = [file for file in table.listed() if file.day < first_day]
    surveys = {file: _survey(table, schema, file) for file in old}
    rows = sum(survey.rows for survey in surveys.values())
    if not rows:
        return 0
    newest = datetime.fromtimestamp(max(each.ingested_s for each in surveys.values()), UTC).date()
    if newest < first_day - timedelta(days=_IDLE_DAYS_MAX):
        raise _ImplausibleTimeError(
            f"All {rows:,} rows were ingested before {newest + timedelta(days=1)}, and the clock"
            f" demands to delete those before {first_day}.",
            hint="Correct the clock of this machine and of the store. If it is right, rows expire"
            " when newer ones become too old.",
        )
    removed = [file for file, each in surveys.items() if each.rows or each.has_expired_gaps]
    ends: dict[_Key, int] = {}
    for survey in surveys.values():
        for key, end in survey.ends.items():
            ends[key] = max(end, ends.get(key, 0))
    added: list[WrittenFile] = []
    writer = TableWriter(table.folder, schema)
    try:
        for file in removed:
            if surveys[file].lasting:
                for batch in read_batches(table.folder, file.path, schema.file_schema):
                    writer.write(batch.filter(_is_lasting(schema, file, batch)), file.row_state)
        if ends:
            writer.write(_gap_rows(schema, ends, first_day, now_ms), "gap")
        added = writer.close()
        table.replace(removed, added, now_ms=now_ms, kept_from=first_day)
    except BaseException:
        writer.abandon()
        raise
    return rows


def _survey(table: LakeTable, schema: TableSchema, file: LakeFile) -> _Survey:
    survey = _Survey()
    names = [*_PARTITION, "log_offset", "ingested", "gap_end", "gap_cause"]
    names += ["kind"] if schema is DELIVERIES else []
    columns = pa.schema([schema.schema.field(name) for name in names])
    for batch in read_batches(table.folder, file.path, columns):
        newest = pc.max(batch.column("ingested")).as_py()
        if newest is not None:
            survey.ingested_s = max(survey.ingested_s, int(newest.timestamp()))
        lasting = _is_lasting(schema, file, batch)
        expired = _equals(batch.column("gap_cause"), EXPIRED)
        survey.lasting += lasting.true_count
        if file.row_state == "lost":
            # The store has assigned these offsets again.
            survey.rows += batch.num_rows
            continue
        survey.rows += batch.num_rows - lasting.true_count - expired.true_count
        survey.has_expired_gaps |= bool(expired.true_count)
        deleted = batch.filter(pc.invert(lasting))
        ends = pc.coalesce(deleted.column("gap_end"), pc.add(deleted.column("log_offset"), 1))
        grouped = pa.table([*deleted.select(_PARTITION).columns, ends], names=[*_PARTITION, "end"])
        for row in grouped.group_by(list(_PARTITION)).aggregate([("end", "max")]).to_pylist():
            key = row["dataset"], row["log"], row["log_partition"]
            survey.ends[key] = max(row["end_max"], survey.ends.get(key, 0))
    return survey


def _is_lasting(schema: TableSchema, file: LakeFile, batch: pa.RecordBatch) -> pa.BooleanArray:
    """Return which rows stay however old they are."""
    if file.row_state == "gap":
        return _equals(batch.column("gap_cause"), STORE_LOST)
    if file.row_state == "live" and schema is DELIVERIES:
        return pc.is_in(batch.column("kind"), _LASTING_KINDS)
    return pa.repeat(pa.scalar(False), batch.num_rows)


def _equals(column: pa.Array, value: str) -> pa.BooleanArray:
    return pc.fill_null(pc.equal(column, value), False)


def _gap_rows(
    schema: TableSchema, ends: Mapping[_Key, int], first_day: date, now_ms: int
) -> pa.RecordBatch:
    # The last moment of the deleted days, so that a later expiry replaces the gap by a longer one.
    until = datetime.combine(first_day, time(), UTC) - timedelta(milliseconds=1)
    rows = [
        {
            "dataset": dataset,
            "log": log,
            "log_partition": partition,
            "log_offset": 0,
            "item": 0,
            "time": until,
            "ingested": now_ms * 1000,
            "gap_end": end,
            "gap_cause": EXPIRED,
        }
        for (dataset, log, partition), end in sorted(ends.items())
    ]
    return pa.RecordBatch.from_pylist(rows, schema=schema.file_schema)


@contextmanager
def _logged_failures(table: str) -> Iterator[None]:
    try:
        yield
    except (HistoryError, DeltaError, OSError, pa.ArrowException) as error:
        _log.warning("rows not expired", table=table, reason=str(error))
