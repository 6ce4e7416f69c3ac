"""Parquet files of the lake: written by tasks with the statistics that the Delta log stores."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Sequence, Set
from datetime import UTC, date, datetime
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from waystation.history.lake.schema import DAY, ROW_STATE, RowState, TableSchema
from waystation.runtime.ids import IdSource, RandomIds

#: Rows of a row group, the unit that a reader can skip within a file. Spark reads groups of 65,536
#: rows a fifth slower.
GROUP_ROWS = 262_144
#: Rows of a batch that `read_batches` yields.
_BATCH_ROWS = 65_536
#: Bytes of rows in memory after which a row group ends, because a task holds it until then.
_GROUP_BYTES = 64 * 1_048_576
#: Largest dictionary of a column in a row group. With more, columns whose values all differ would
#: get a dictionary, too, and Spark would decode it without a benefit.
DICTIONARY_BYTES = 65_536
#: Characters of a bound of a text column.
_TEXT_MAX = 32
#: The day of files without rows, which declare new columns.
DECLARED = "1970-01-01"
#: A text that sorts behind all others.
_LAST = "\U0010ffff"


class WrittenFile(msgspec.Struct, frozen=True):
    """A file that a task wrote. It belongs to no table until a commit adds it."""

    #: Path relative to the folder of the table.
    path: str
    day: str
    row_state: RowState
    size: int
    modified_ms: int
    rows: int
    #: Smallest and largest value of each column, as JSON values.
    least: dict[str, Any]
    greatest: dict[str, Any]
    nulls: dict[str, int]


class AddedFile(msgspec.Struct, frozen=True):
    """A file that a commit added to a table."""

    day: str
    #: None if the commit has no statistics of the file.
    rows: int | None = None
    #: Smallest and largest `time`; None without statistics.
    first_time: Any = None
    last_time: Any = None


class TableWriter:
    """Write rows of one table to files, one file per day and row state."""

    def __init__(self, folder: str, schema: TableSchema, *, ids: IdSource | None = None) -> None:
        self._schema = schema
        self._ids = ids or RandomIds()
        self._files, self._folder = _file_system(folder)
        self._open: dict[tuple[date, RowState], _PartitionFile] = {}

    def write(self, batch: pa.RecordBatch, row_state: RowState = "live") -> None:
        """Write rows that have all columns of the table except those of its partitions."""
        for day, part in split_by_day(batch):
            if (day, row_state) not in self._open:
                self._open[day, row_state] = self._create(day, row_state)
            self._open[day, row_state].write(part)

    def declare(self) -> None:
        """Write a file without rows, for a day before all others, because it has all columns."""
        day = date.fromisoformat(DECLARED)
        self._open[day, "live"] = self._create(day, "live")

    def close(self) -> list[WrittenFile]:
        """Close all files and return them."""
        return [file.close(*partition) for partition, file in self._open.items()]

    def abandon(self) -> None:
        """Delete the files, because they take space on a disk that is full. Ignore failures."""
        for file in self._open.values():
            file.abandon()

    def _create(self, day: date, row_state: RowState) -> _PartitionFile:
        folder = f"{DAY}={day.isoformat()}/{ROW_STATE}={row_state}"
        path = f"{folder}/{self._ids.token(16)}.parquet"
        return _PartitionFile(self._files, self._folder, path, self._schema)


class _PartitionFile:
    """One open file."""

    def __init__(self, files: fs.FileSystem, folder: str, path: str, schema: TableSchema) -> None:
        self._files = files
        self._path = path
        self._place = f"{folder}/{path}"
        self._schema = schema
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0
        self._pending_bytes = 0
        self._metadata: list[pq.FileMetaData] = []
        files.create_dir(self._place.rpartition("/")[0], recursive=True)
        self._writer = pq.ParquetWriter(
            self._place,
            schema.file_schema,
            filesystem=files,
            compression="zstd",
            dictionary_pagesize_limit=DICTIONARY_BYTES,
            metadata_collector=self._metadata,
        )

    def write(self, batch: pa.RecordBatch) -> None:
        self._pending.append(batch)
        self._pending_rows += batch.num_rows
        self._pending_bytes += batch.nbytes
        if self._pending_rows >= GROUP_ROWS or self._pending_bytes >= _GROUP_BYTES:
            self._flush()

    def close(self, day: date, row_state: RowState) -> WrittenFile:
        self._flush()
        self._writer.close()
        info = self._files.get_file_info(self._place)
        least, greatest, nulls = _statistics(self._metadata[0], self._schema)
        return WrittenFile(
            path=self._path,
            day=day.isoformat(),
            row_state=row_state,
            size=info.size,
            modified_ms=info.mtime_ns // 1_000_000,
            rows=self._metadata[0].num_rows,
            least=least,
            greatest=greatest,
            nulls=nulls,
        )

    def abandon(self) -> None:
        # Without this, the writer would write the footer when it is collected.
        self._writer.is_open = False
        with contextlib.suppress(OSError):
            self._files.delete_file(self._place)

    def _flush(self) -> None:
        if self._pending:
            self._writer.write_table(
                pa.Table.from_batches(self._pending, schema=self._schema.file_schema)
            )
            self._pending, self._pending_rows, self._pending_bytes = [], 0, 0


def _file_system(folder: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a folder or URL, and the path in it."""
    if "://" in folder:
        files, path = fs.FileSystem.from_uri(folder)
        return files, path
    return fs.LocalFileSystem(), os.path.abspath(folder)


def file_sizes(folder: str, paths: Sequence[str]) -> dict[str, int | None]:
    """Return the size of each file in bytes; None if the file does not exist."""
    files, root = _file_system(folder)
    found = files.get_file_info([f"{root}/{path}" for path in paths])
    return {path: info.size for path, info in zip(paths, found, strict=True)}


def commit_marks(entries: Sequence[tuple[str, int]]) -> list[tuple[int, int] | None]:
    """Return a mark of the log entry of each version of a table; None if there is no such entry.

    The entries are pairs of the folder of a table and a version. A mark is the size and the time of
    the file, so an entry that was written again has another mark.
    """
    if not entries:
        return []
    files, _ = _file_system(entries[0][0])
    paths = [f"{_file_system(folder)[1]}/{_commit_path(version)}" for folder, version in entries]
    found = files.get_file_info(paths)
    return [(each.size, each.mtime_ns) if each.is_file else None for each in found]


def read_batches(
    folder: str, path: str, schema: pa.Schema, rows: int = _BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file with the columns of a schema.

    Columns that were added to the table after the file was written are null. Raise
    FileNotFoundError, or ArrowInvalid if the file is incomplete.
    """
    files, root = _file_system(folder)
    with files.open_input_file(f"{root}/{path}") as source:
        file = pq.ParquetFile(source)
        there = [name for name in schema.names if name in file.schema_arrow.names]
        # Without columns, Arrow does not report the number of rows.
        for batch in file.iter_batches(rows, columns=there or file.schema_arrow.names[:1]):
            yield pa.record_batch(
                [
                    batch.column(field.name).cast(field.type)
                    if field.name in there
                    else pa.nulls(batch.num_rows, field.type)
                    for field in schema
                ],
                schema=schema,
            )


def delete_file(folder: str, path: str) -> None:
    """Delete a file of a table, if it exists."""
    files, root = _file_system(folder)
    with contextlib.suppress(FileNotFoundError):
        files.delete_file(f"{root}/{path}")


def delete_statistics(folder: str, paths: Set[str], *, ids: IdSource | None = None) -> None:
    """Delete the statistics of files from the Delta log, because they have values of rows.

    The files are no part of the newest version. The entry of a commit stays, without the smallest
    and largest values of these files. Each entry is replaced atomically, so that a crash leaves the
    old or the new one.
    """
    files, root = _file_system(folder)
    log = f"{root}/_delta_log"
    for info in files.get_file_info(fs.FileSelector(log)):
        if not re.fullmatch(r"\d{20}\.json", info.base_name):
            continue
        with files.open_input_stream(info.path) as stream:
            lines = stream.read().splitlines()
        changed = [_without_statistics(line, paths) for line in lines]
        if changed != lines:
            # Readers of the log ignore other names.
            fresh = f"{log}/.{info.base_name}.{(ids or RandomIds()).token(8)}.tmp"
            with files.open_output_stream(fresh) as stream:
                stream.write(b"\n".join(changed) + b"\n")
            files.move(fresh, info.path)


def _without_statistics(line: bytes, paths: Set[str]) -> bytes:
    action = json.loads(line)
    added = action.get("add")
    if added is None or added["path"] not in paths or added.pop("stats", None) is None:
        return line
    return json.dumps(action, separators=(",", ":")).encode()


def delete_old_checkpoints(folder: str, version: int) -> None:
    """Delete the checkpoints before the one of a version."""
    files, root = _file_system(folder)
    for info in files.get_file_info(fs.FileSelector(f"{root}/_delta_log")):
        found = re.fullmatch(r"(\d{20})\.checkpoint.*\.parquet", info.base_name)
        if found and int(found[1]) < version:
            with contextlib.suppress(FileNotFoundError):
                files.delete_file(info.path)


def read_commit(folder: str, version: int) -> list[AddedFile] | None:
    """Return the files that a commit of a table added; None if its log entry was cleaned up."""
    files, root = _file_system(folder)
    try:
        with files.open_input_stream(f"{root}/{_commit_path(version)}") as stream:
            actions = [json.loads(line) for line in stream.read().splitlines()]
    except FileNotFoundError:
        return None
    added = []
    for action in actions:
        # Compaction marks its files with `dataChange` false, because their rows existed before.
        if "add" in action and action["add"]["dataChange"]:
            stats = json.loads(action["add"].get("stats") or "{}")
            added.append(
                AddedFile(
                    action["add"]["partitionValues"]["day"],
                    stats.get("numRecords"),
                    stats.get("minValues", {}).get("time"),
                    stats.get("maxValues", {}).get("time"),
                )
            )
    return added


def _commit_path(version: int) -> str:
    return f"_delta_log/{version:020}.json"


def split_by_day(batch: pa.RecordBatch) -> Iterator[tuple[date, pa.RecordBatch]]:
    """Yield the rows of each day, in UTC, by the column `time`."""
    days = batch.column("time").cast(pa.timestamp("us")).cast(pa.date32())
    found = pc.unique(days).to_pylist()
    if len(found) == 1:
        yield found[0], batch
        return
    for day in found:
        yield day, batch.filter(pc.equal(days, pa.scalar(day, pa.date32())))


def _statistics(
    metadata: pq.FileMetaData, schema: TableSchema
) -> tuple[dict[str, Any], dict[str, Any], dict[str, int]]:
    """Return smallest values, largest values and null counts of the columns with statistics."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    indexes = {metadata.schema.column(index).path: index for index in range(metadata.num_columns)}
    for name in schema.measured:
        groups = [
            metadata.row_group(number).column(indexes[name]).statistics
            for number in range(metadata.num_row_groups)
        ]
        if not all(group is not None and group.has_null_count for group in groups):
            continue
        nulls[name] = sum(group.null_count for group in groups)
        is_text = pa.types.is_string(schema.schema.field(name).type)
        valued = [group for group in groups if group.num_values]
        if not valued:
            continue
        if all(group.has_min_max for group in valued):
            least[name] = _json_value(min(group.min for group in valued))
            greatest[name] = _json_value(max(group.max for group in valued))
        elif is_text:
            # Parquet writes no bounds of a very long text, so use bounds that any text is within.
            least[name], greatest[name] = "", _LAST
        if is_text:
            least[name], greatest[name] = _cut_bounds(least[name], greatest[name])
    return least, greatest, nulls


def _cut_bounds(least: str, greatest: str) -> tuple[str, str]:
    """Cut the bounds of a text column, because every reader loads them with the Delta log."""
    is_long = len(greatest) > _TEXT_MAX
    return least[:_TEXT_MAX], greatest[:_TEXT_MAX] + _LAST if is_long else greatest


def _json_value(value: Any) -> Any:
    """Return a bound in the form of the Delta log. Times of the store are whole milliseconds."""
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=UTC)
        text = moment.astimezone(UTC).isoformat(timespec="milliseconds")
        return text.replace("+00:00", "Z")
    return value
