"""Delta tables of the lake: open, read, commit, and snapshots of all of them.

A commit adds files and moves committed offsets in one transaction, on the version of the table from
which the offsets were read. Delta refuses the commit if another writer has moved one of these
offsets since. So a table contains every range of a log once, however often an ingest is repeated,
and the tables are the only record of progress.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction, WriterProperties
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from waystation.errors import (
    HistoryBusyError,
    LakeDamagedError,
    LakeRefusedError,
    LakeWriteError,
    NoLakeError,
)
from waystation.history.lake.files import (
    DECLARED,
    AddedFile,
    TableWriter,
    WrittenFile,
    commit_marks,
    delete_old_checkpoints,
    delete_statistics,
    file_sizes,
    read_commit,
)
from waystation.history.lake.rollup_schema import ROLLUPS, RollupSchema
from waystation.history.lake.schema import (
    BASE,
    DAY,
    PARTITIONS,
    ROW_STATE,
    ROW_STATES,
    RowState,
    TableSchema,
)
from waystation.history.offsets import Gap, OffsetRange
from waystation.runtime.data_files import make_private

#: App transaction with the first day of which the table has rows, in days since 1970-01-01. Rows of
#: earlier days were deleted because of their age.
KEPT_FROM = "kept-from"

AnySchema = TableSchema | RollupSchema

_BASE_NAMES = frozenset(schema.name for schema in BASE)
#: Statistics of all columns, not only of the first 32, because readers skip files by them.
_CONFIGURATION = {"delta.dataSkippingNumIndexedCols": "-1"}
_EPOCH = date(1970, 1, 1)
_DECLARED_DAY = date.fromisoformat(DECLARED)
#: Attempts to commit a replacement of files while other processes commit.
_TRIES_MAX = 100
ROOM_HINT = "No rows were committed in part. Free disk space; the next ingest continues from here."


class TableOffset(msgspec.Struct, frozen=True):
    """Committed offset of a table in a log partition."""

    #: First offset that the table lacks.
    offset: int
    #: Fingerprint of the entry before it; 0 if unknown. A restored store gives the offset to
    #: another entry.
    fingerprint: int = 0


class LakeFile(msgspec.Struct, frozen=True):
    """A file of one version of a table."""

    #: Path relative to the folder of the table.
    path: str
    size: int
    day: date
    row_state: RowState
    rows: int


class Lake:
    """The tables below one folder or URL."""

    def __init__(self, root: str) -> None:
        # Absolute, because Spark tasks run in another working directory.
        self.root = root.rstrip("/") if "://" in root else os.path.abspath(root)

    def require(self, schemas: Iterable[AnySchema]) -> None:
        """Raise NoLakeError unless one of these tables exists."""
        if not any(DeltaTable.is_deltatable(self.folder(schema)) for schema in schemas):
            raise no_lake(self.root)

    def folder(self, schema: AnySchema) -> str:
        """Return the folder or URL of a table."""
        return f"{self.root}/{schema.name}"

    def open(self, schema: TableSchema) -> LakeTable:
        """Open the newest version of a table. Create the table if it does not exist.

        Add columns that this release introduced. Raise LakeRefusedError if the columns do not fit,
        LakeDamagedError if the log of the table cannot be read.
        """
        folder = self.folder(schema)
        try:
            with _reading(schema):
                table = DeltaTable(folder)
        except TableNotFoundError:
            with _writing(schema.name):
                if "://" not in self.root:
                    make_private(Path(self.root))
                # If another process creates the table first, open that table.
                table = DeltaTable.create(
                    folder,
                    schema=Schema.from_arrow(schema.schema),
                    mode="ignore",
                    partition_by=list(PARTITIONS),
                    name=schema.name,
                    configuration=_CONFIGURATION,
                )
        _refuse_other_layouts(table, schema)
        if missing := _missing_columns(table, schema):
            table = _add_columns(folder, schema, missing)
        return LakeTable(schema, table, folder)

    def snapshot(self) -> LakeSnapshot:
        """Return the newest version of every table that exists.

        Raise LakeDamagedError if the log of a table cannot be read, LakeRefusedError if an older
        release wrote a table in another layout.
        """
        tables: dict[str, LakeTable] = {}
        # Messages last: ingest commits them before the deliveries of the same micro-batch, so that
        # a snapshot has the message of each of its deliveries.
        schemas: tuple[AnySchema, ...] = (*BASE[::-1], *ROLLUPS)
        for schema in schemas:
            folder = self.folder(schema)
            with _reading(schema):
                if not DeltaTable.is_deltatable(folder):
                    continue
                table = DeltaTable(folder)
            if isinstance(schema, TableSchema):
                _refuse_other_layouts(table, schema)
            tables[schema.name] = LakeTable(schema, table, folder)
        return LakeSnapshot(self.root, tables)


class LakeTable:
    """One version of a table. It never follows later commits, not even its own."""

    def __init__(self, schema: AnySchema, table: DeltaTable, folder: str) -> None:
        self.schema = schema
        self.folder = folder
        self._table = table

    @property
    def id(self) -> str:
        """Id that the table got when it was created."""
        return str(self._table.metadata().id)

    @property
    def version(self) -> int:
        """Number of the version."""
        return self._table.version()

    def offset(self, partition: str) -> TableOffset:
        """Return the committed offset of a partition; offset 0 if none was committed."""
        offset = self._table.transaction_version(partition)
        if offset is None:
            return TableOffset(0)
        return TableOffset(offset, self._table.transaction_version(f"{partition}#") or 0)

    def rows(self, dataset: str, span: OffsetRange, columns: list[str]) -> pa.Table:
        """Return the live rows of an offset range. Raise LakeDamagedError for a damaged file."""
        wanted: list[tuple[str, str, object]] = [
            (ROW_STATE, "=", "live"),
            ("dataset", "=", dataset),
            ("log", "=", span.log),
            ("log_partition", "=", span.partition),
            ("log_offset", ">=", span.start),
            ("log_offset", "<", span.end),
        ]
        return self._read(columns, wanted)

    def gaps(self, dataset: str) -> list[Gap]:
        """Return the gaps of a data set, in the order of their logs.

        Raise LakeDamagedError for a damaged file.
        """
        columns = ["log", "log_partition", "log_offset", "gap_end", "gap_cause"]
        wanted: list[tuple[str, str, object]] = [(ROW_STATE, "=", "gap"), ("dataset", "=", dataset)]
        rows = self._read(columns, wanted).to_pylist()
        gaps = (Gap(*(row[name] for name in columns)) for row in rows)
        return sorted(gaps, key=lambda gap: (gap.log, gap.partition, gap.start))

    def files(self, states: Sequence[RowState] = ("live",)) -> list[str]:
        """Return the files with rows of some states, as paths relative to the folder.

        Return all files of a rollup.
        """
        paths = self._file_sizes()
        if not isinstance(self.schema, TableSchema):
            return list(paths)
        folders = tuple(f"/{ROW_STATE}={state}/" for state in states)
        return [path for path in paths if any(folder in path for folder in folders)]

    def listed(self) -> list[LakeFile]:
        """Return the files, except those that only declare columns."""
        actions = pa.table(self._table.get_add_actions(flatten=True)).to_pylist()
        return [
            LakeFile(
                each["path"],
                each["size_bytes"],
                each[f"partition.{DAY}"],
                each[f"partition.{ROW_STATE}"],
                each["num_records"],
            )
            for each in actions
            if each[f"partition.{DAY}"] != _DECLARED_DAY
        ]

    def unlisted(self) -> tuple[list[str], list[str]]:
        """Return files in the folder that are not of this version, as relative paths.

        The first ones were of an earlier version. The others are of no version: a task that has not
        committed yet writes them, or its process crashed.
        """
        former = self._vacuum_files(full=False)
        return sorted(former), sorted(self._vacuum_files(full=True) - former)

    def _vacuum_files(self, *, full: bool) -> set[str]:
        with _reading(self.schema):
            found = self._table.vacuum(
                retention_hours=0, dry_run=True, enforce_retention_duration=False, full=full
            )
        # A former file that was deleted is still named by the log.
        sizes = file_sizes(self.folder, [each for each in found if each.endswith(".parquet")])
        return {path for path, size in sizes.items() if size is not None}

    @property
    def kept_from(self) -> date | None:
        """First day of which the table has rows; None if no rows were deleted for their age."""
        days = self._table.transaction_version(KEPT_FROM)
        return None if days is None else _EPOCH + timedelta(days=days)

    def verify_files(self, known: Set[str] = frozenset()) -> None:
        """Raise LakeDamagedError if a file is missing or has another size than was written.

        Skip the files in `known`.
        """
        sizes = {path: size for path, size in self._file_sizes().items() if path not in known}
        for path, found in file_sizes(self.folder, list(sizes)).items():
            if found != sizes[path]:
                now = "is missing" if found is None else f"has {found:,} bytes"
                raise LakeDamagedError(
                    f"{self.schema.name}: {path} {now}, and {sizes[path]:,} bytes were written.",
                    hint=f"Restore the file below {self.folder} from a copy of the lake.",
                )

    def added_since(self, version: int | None) -> list[AddedFile]:
        """Return the files that commits added after a version, up to this one.

        Leave out files that compaction wrote, because their rows existed before. Return all files
        if `version` is None or later than this one, or if the log no longer has one of the commits.
        """
        if version is not None and version <= self.version:
            commits = [
                read_commit(self.folder, each) for each in range(version + 1, self.version + 1)
            ]
            if None not in commits:
                return [added for commit in commits for added in commit or ()]
        actions = pa.table(self._table.get_add_actions(flatten=True)).to_pylist()
        return [
            AddedFile(
                str(each["partition.day"]),
                each["num_records"],
                each.get("min.time"),
                each.get("max.time"),
            )
            for each in actions
        ]

    def commit(self, files: Sequence[WrittenFile], offsets: Mapping[str, TableOffset]) -> None:
        """Add files and move committed offsets atomically.

        Raise HistoryBusyError if another writer moved one of the offsets since this version,
        LakeWriteError if the lake cannot be written.
        """
        with _writing(self.schema.name):
            self._table.create_write_transaction(
                [_add_action(file, is_new=True) for file in files],
                "append",
                Schema.from_arrow(self.schema.schema),
                list(PARTITIONS),
                commit_properties=_properties(offsets),
            )

    def replace(
        self,
        removed: Sequence[LakeFile],
        added: Sequence[WrittenFile],
        *,
        now_ms: int,
        kept_from: date | None = None,
    ) -> None:
        """Replace files by others atomically. The others have no new rows.

        With `kept_from`, also store the first day of which the table has rows. Raise the errors of
        `commit`; HistoryBusyError if another process has replaced one of the files meanwhile.
        """
        removals = [
            RemoveAction(
                path=file.path,
                # Delta lets a compaction that began earlier bring rows back unless this is true.
                data_change=True,
                deletion_timestamp=now_ms,
                size=file.size,
                partition_values={DAY: file.day.isoformat(), ROW_STATE: file.row_state},
            )
            for file in removed
        ]
        marks = [] if kept_from is None else [Transaction(KEPT_FROM, (kept_from - _EPOCH).days)]
        with _writing(self.schema.name):
            for left in reversed(range(_TRIES_MAX)):
                newest = LakeTable(self.schema, DeltaTable(self.folder), self.folder)
                # Delta does not notice that a file which it removes was removed before. Its rows
                # would be in the table twice.
                if not {file.path for file in removed} <= {file.path for file in newest.listed()}:
                    raise CommitFailedError("files were replaced")
                try:
                    newest._table.create_write_transaction(
                        [*removals, *(_add_action(file, is_new=False) for file in added)],
                        "append",
                        Schema.from_arrow(self.schema.schema),
                        list(PARTITIONS),
                        # Only as the next version after the one that was compared.
                        commit_properties=CommitProperties(
                            app_transactions=marks, max_commit_retries=0
                        ),
                    )
                except CommitFailedError:
                    if not left:
                        raise
                else:
                    return

    def require_known_columns(self) -> None:
        """Raise LakeRefusedError if the table has columns that this release does not know.

        A file that this release rewrites would lack their values.
        """
        known = set(self.schema.schema.names)
        if unknown := [each.name for each in self._table.schema().fields if each.name not in known]:
            raise LakeRefusedError(
                f"{self.schema.name} has the column {unknown[0]}, which a newer release has added.",
                hint="Run the command with that release.",
            )

    def forget_statistics(self, paths: Set[str]) -> None:
        """Delete the statistics of former files from the log of the table."""
        with _writing(self.schema.name):
            delete_statistics(self.folder, paths)
            # A checkpoint has the statistics of the files of its version.
            table = DeltaTable(self.folder)
            table.create_checkpoint()
            delete_old_checkpoints(self.folder, table.version())

    def update(
        self, predicate: str, values: Mapping[str, str], offsets: Mapping[str, TableOffset]
    ) -> int:
        """Change rows and move committed offsets atomically. Return the number of changed rows.

        Raise the errors of `commit`.
        """
        with _writing(self.schema.name):
            done = self._table.update(
                predicate=predicate,
                updates=dict(values),
                writer_properties=WriterProperties(compression="ZSTD"),
                commit_properties=_properties(offsets),
            )
        if not done["num_updated_rows"]:
            # Delta commits nothing in this case, not even the offsets.
            self.commit([], offsets)
        return int(done["num_updated_rows"])

    def _read(self, columns: list[str], wanted: list[tuple[str, str, object]]) -> pa.Table:
        try:
            return self._table.to_pyarrow_table(columns=columns, filters=wanted)
        except (OSError, pa.ArrowException) as error:
            raise LakeDamagedError(
                f"A file of {self.schema.name} cannot be read: {_one_line(error)}.",
                hint=f"Restore the file below {self.folder} from a copy of the lake.",
            ) from error

    def _file_sizes(self) -> dict[str, int]:
        # Not `file_uris`, because it writes a blank in the path of the folder as %20.
        added = pa.table(self._table.get_add_actions())
        paths, sizes = added.column("path").to_pylist(), added.column("size_bytes").to_pylist()
        return dict(zip(paths, sizes, strict=True))


class CommitMarks(msgspec.Struct, frozen=True):
    """Marks by which a snapshot detects whether tables have changed since.

    Equal marks without later commits: every table has the version of the snapshot. Other marks: a
    table was created again in the same folder.
    """

    #: Size and time of the commit of each table; None if the table does not exist.
    commits: tuple[tuple[int, int] | None, ...]
    has_later_commits: bool


class LakeSnapshot(Mapping[str, LakeTable]):
    """One version of every table that exists, by name.

    Views, rollups, audit and report read a snapshot, so that rows that an ingest commits in the
    meantime are in none of their results instead of in some of them.
    """

    def __init__(self, root: str, tables: Mapping[str, LakeTable]) -> None:
        self.root = root
        self._tables = dict(tables)

    def __getitem__(self, name: str) -> LakeTable:
        return self._tables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)

    @property
    def kept_from(self) -> date | None:
        """First day of which all tables have rows; None if no rows were deleted for their age."""
        days = [table.kept_from for name, table in self.items() if name in _BASE_NAMES]
        return max((day for day in days if day is not None), default=None)

    def require(self) -> None:
        """Raise NoLakeError unless the snapshot has a table that ingest writes."""
        if not any(schema.name in self._tables for schema in BASE):
            raise no_lake(self.root)

    def verify_files(self, than: LakeSnapshot | None = None) -> None:
        """Raise LakeDamagedError if a file of a table is missing or has another size.

        Check only files that an earlier, verified snapshot does not have, if one is given.
        """
        for name, table in self._tables.items():
            before = than.get(name) if than is not None else None
            table.verify_files(frozenset(before.files(ROW_STATES)) if before else frozenset())

    def commit_marks(self) -> CommitMarks:
        """Return marks of the newest commits, by two file look-ups per table."""
        entries = []
        for schema in (*BASE, *ROLLUPS):
            table = self._tables.get(schema.name)
            version = -1 if table is None else table.version
            folder = f"{self.root}/{schema.name}"
            entries += [(folder, max(version, 0)), (folder, version + 1)]
        found = commit_marks(entries)
        return CommitMarks(tuple(found[::2]), any(found[1::2]))


@contextmanager
def _reading(schema: AnySchema) -> Iterator[None]:
    try:
        yield
    except TableNotFoundError:
        raise
    except DeltaError as error:
        raise LakeDamagedError(
            f"The log of {schema.name} cannot be read: {_one_line(error)}.",
            hint="Restore its _delta_log from a copy of the lake.",
        ) from error


@contextmanager
def _writing(table: str) -> Iterator[None]:
    try:
        yield
    except CommitFailedError as error:
        raise HistoryBusyError(
            f"Another process committed to {table} in the meantime.",
            hint="No rows were written. Run the command again; it continues from that commit.",
        ) from error
    except (DeltaError, OSError) as error:
        raise lake_write(table, error) from error


def no_lake(root: str) -> NoLakeError:
    """Return the error for a place without a lake."""
    return NoLakeError(
        f"There is no lake at {root}.",
        hint="`waystation history ingest` creates it; --lake, --data and --url name another one.",
    )


def lake_write(table: str, error: object) -> LakeWriteError:
    """Return the error for a table that cannot be written."""
    return LakeWriteError(f"{table} cannot be written to: {_one_line(error)}.", hint=ROOM_HINT)


def _one_line(error: object) -> str:
    """Return the text of an error without line ends and terminal colours."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m|↳", " ", str(error)).split()).rstrip(".")


def _properties(offsets: Mapping[str, TableOffset]) -> CommitProperties:
    transactions = []
    for partition, reached in offsets.items():
        transactions.append(Transaction(partition, reached.offset))
        transactions.append(Transaction(f"{partition}#", reached.fingerprint))
    return CommitProperties(app_transactions=transactions)


def _add_action(file: WrittenFile, *, is_new: bool) -> AddAction:
    stats = {
        "numRecords": file.rows,
        "minValues": file.least,
        "maxValues": file.greatest,
        "nullCount": file.nulls,
    }
    return AddAction(
        path=file.path,
        size=file.size,
        partition_values=dict(zip(PARTITIONS, (file.day, file.row_state), strict=True)),
        modification_time=file.modified_ms,
        data_change=is_new,
        stats=json.dumps(stats),
    )


def _add_columns(folder: str, schema: TableSchema, missing: list[Field]) -> DeltaTable:
    """Add columns to a table.

    Add a file without rows first, because Spark takes the columns of a view from files alone.
    """
    writer = TableWriter(folder, schema)
    writer.declare()
    LakeTable(schema, DeltaTable(folder), folder).commit(writer.close(), {})
    with _writing(schema.name):
        DeltaTable(folder).alter.add_columns(missing)
    return DeltaTable(folder)


def _refuse_other_layouts(table: DeltaTable, schema: TableSchema) -> None:
    if (found := table.metadata().partition_columns) != list(PARTITIONS):
        raise LakeRefusedError(
            f"{schema.name} is partitioned by {', '.join(found) or 'nothing'}, not by"
            f" {' and '.join(PARTITIONS)}: another release or program created this table.",
            hint="Move the lake away, or choose another one with --lake, and ingest anew.",
        )


def _missing_columns(table: DeltaTable, schema: TableSchema) -> list[Field]:
    """Return the columns that the table lacks. Raise LakeRefusedError if the others do not fit.

    Further columns are allowed, because a newer release may have added them.
    """
    found = {field.name: field.type for field in table.schema().fields}
    fields = Schema.from_arrow(schema.schema).fields
    for field in fields:
        if field.name in found and found[field.name] != field.type:
            raise LakeRefusedError(
                f"Column {field.name} of {schema.name} is {found[field.name]}, not {field.type}.",
                hint="Move the table away; the next ingest creates it again.",
            )
    return [field for field in fields if field.name not in found]
