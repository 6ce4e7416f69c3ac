"""Files of the lake: what a task writes, with what the table's log has to know of each."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from waystation.history.lake.schema import DAY, TableSpec
from waystation.runtime.ids import IdSource, RandomIds

#: Rows of a row group: what a reader of files can skip within one.
_GROUP_ROWS = 65_536
#: Of a bound that is a text.
_TEXT_MAX = 32
#: The day of files without rows, which are there for their columns.
DECLARED = "1970-01-01"
#: Not before any text.
_LAST = "\U0010ffff"


class WrittenFile(msgspec.Struct, frozen=True):
    """A file that a task has written, and that is in no table yet."""

    #: Below the folder of its table.
    path: str
    day: str
    size: int
    modified_ms: int
    rows: int
    #: Column -> least and greatest value, as JSON has them.
    least: dict[str, Any]
    greatest: dict[str, Any]
    nulls: dict[str, int]


class TableWriter:
    """Writes the rows of one table, a file for each day. Nothing is in the table by that."""

    def __init__(self, folder: str, spec: TableSpec, *, identity: IdSource | None = None) -> None:
        self._spec = spec
        self._identity = identity or RandomIds()
        self._files, self._folder = _opened(folder)
        self._days: dict[date, _DayFile] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        """Takes rows; they have all columns of the table but the day."""
        for day, part in by_day(batch):
            if day not in self._days:
                path = f"{DAY}={day.isoformat()}/{self._identity.token(16)}.parquet"
                self._days[day] = _DayFile(self._files, self._folder, path, self._spec)
            self._days[day].write(part)

    def declare(self) -> None:
        """Makes a file without rows, of a day before all others: for the columns it has."""
        path = f"{DAY}={DECLARED}/{self._identity.token(16)}.parquet"
        day = date.fromisoformat(DECLARED)
        self._days[day] = _DayFile(self._files, self._folder, path, self._spec)

    def close(self) -> list[WrittenFile]:
        """Ends all files, and says what they are."""
        return [file.close(day) for day, file in self._days.items()]

    def abandon(self) -> None:
        """Deletes what was written, as far as it can: a full disk needs room."""
        for file in self._days.values():
            file.abandon()


class _DayFile:
    """One file while it is written."""

    def __init__(self, files: fs.FileSystem, folder: str, path: str, spec: TableSpec) -> None:
        self._files = files
        self._path = path
        self._place = f"{folder}/{path}"
        self._spec = spec
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._made: list[pq.FileMetaData] = []
        files.create_dir(self._place.rpartition("/")[0], recursive=True)
        self._writer = pq.ParquetWriter(
            self._place,
            spec.file_schema,
            filesystem=files,
            compression="zstd",
            metadata_collector=self._made,
        )

    def write(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        if self._waiting_rows >= _GROUP_ROWS:
            self._flush()

    def close(self, day: date) -> WrittenFile:
        self._flush()
        self._writer.close()
        told = self._files.get_file_info(self._place)
        least, greatest, nulls = _measured(self._made[0], self._spec)
        return WrittenFile(
            path=self._path,
            day=day.isoformat(),
            size=told.size,
            modified_ms=told.mtime_ns // 1_000_000,
            rows=self._made[0].num_rows,
            least=least,
            greatest=greatest,
            nulls=nulls,
        )

    def abandon(self) -> None:
        # Else it would try again to end the file when it is collected.
        self._writer.is_open = False
        with contextlib.suppress(OSError):
            self._files.delete_file(self._place)

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(
                pa.Table.from_batches(self._waiting, schema=self._spec.file_schema)
            )
            self._waiting, self._waiting_rows = [], 0


def _opened(folder: str) -> tuple[fs.FileSystem, str]:
    """What a folder is on, and its path there."""
    if "://" in folder:
        files, path = fs.FileSystem.from_uri(folder)
        return files, path
    return fs.LocalFileSystem(), os.path.abspath(folder)


def file_sizes(folder: str, paths: Sequence[str]) -> dict[str, int | None]:
    """How long files are; None for one that is not there."""
    files, root = _opened(folder)
    found = files.get_file_info([f"{root}/{path}" for path in paths])
    return {path: info.size for path, info in zip(paths, found, strict=True)}


def by_day(batch: pa.RecordBatch) -> Iterator[tuple[date, pa.RecordBatch]]:
    """Rows by the day of their time, in UTC."""
    days = batch.column("time").cast(pa.timestamp("us")).cast(pa.date32())
    found = pc.unique(days).to_pylist()
    if len(found) == 1:
        yield found[0], batch
        return
    for day in found:
        yield day, batch.filter(pc.equal(days, pa.scalar(day, pa.date32())))


def _measured(
    made: pq.FileMetaData, spec: TableSpec
) -> tuple[dict[str, Any], dict[str, Any], dict[str, int]]:
    """Least and greatest values and nulls of measured columns, from the file's own statistics."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    places = {made.schema.column(index).path: index for index in range(made.num_columns)}
    for name in spec.measured:
        groups = [
            made.row_group(number).column(places[name]).statistics
            for number in range(made.num_row_groups)
        ]
        if not all(group is not None and group.has_null_count for group in groups):
            continue
        nulls[name] = sum(group.null_count for group in groups)
        is_text = pa.types.is_string(spec.schema.field(name).type)
        valued = [group for group in groups if group.num_values]
        if not valued:
            continue
        if all(group.has_min_max for group in valued):
            least[name] = _told(min(group.min for group in valued))
            greatest[name] = _told(max(group.max for group in valued))
        elif is_text:
            # Too long to be measured: between the first and the last of all texts.
            least[name], greatest[name] = "", _LAST
        if is_text:
            least[name], greatest[name] = _shortened(least[name], greatest[name])
    return least, greatest, nulls


def _shortened(least: str, greatest: str) -> tuple[str, str]:
    """Bounds of texts that are not longer than it takes: the log of a table is read as a whole."""
    over = len(greatest) > _TEXT_MAX
    return least[:_TEXT_MAX], greatest[:_TEXT_MAX] + _LAST if over else greatest


def _told(value: Any) -> Any:
    """A value as Delta writes it; times of the store are whole milliseconds."""
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=UTC)
        text = moment.astimezone(UTC).isoformat(timespec="milliseconds")
        return text.replace("+00:00", "Z")
    return value
