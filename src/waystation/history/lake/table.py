"""The lake: Delta tables, each with a mark for every partition of a log that is in it.

A commit brings files and marks in one transaction. It is made from the version of the table in
which the marks were read: if anyone has moved one of them since, it is refused, whole. So a range
of a log is in a table once, whoever tried how often, and a table alone says how far it has come.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction, WriterProperties
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from waystation.errors import (
    HistoryBusyError,
    LakeDamagedError,
    LakeRefusedError,
    LakeWriteError,
    NoLakeError,
)
from waystation.history.lake.files import TableWriter, WrittenFile, file_sizes
from waystation.history.lake.schema import DAY, TableSpec
from waystation.history.offsets import Span
from waystation.runtime.data_files import make_private

#: All columns have statistics, not the first 32 alone: of those, files can be skipped.
_CONFIGURATION = {"delta.dataSkippingNumIndexedCols": "-1"}
ROOM_HINT = "Nothing is half in the lake. Make room, and ingest goes on from where it was."


class Mark(msgspec.Struct, frozen=True):
    """How far a table has come in a partition of a log."""

    #: Of the first entry that is not in the table.
    offset: int
    #: A hash of the last entry that is: a store that was restored gives the offset to another.
    print: int = 0


class Named(Protocol):
    """A table, as far as it has a name."""

    @property
    def name(self) -> str: ...


class Lake:
    """Tables below one folder or URL."""

    def __init__(self, root: str) -> None:
        # Tasks write there too, and the folder that they are in is another.
        self.root = root.rstrip("/") if "://" in root else os.path.abspath(root)

    def require(self, specs: Iterable[Named]) -> None:
        """Raise NoLakeError unless one of these tables is there. It needs no Spark."""
        if not any(DeltaTable.is_deltatable(self.folder(spec)) for spec in specs):
            raise no_lake(self.root)

    def folder(self, spec: Named) -> str:
        """Where a table is."""
        return f"{self.root}/{spec.name}"

    def files(self, spec: Named) -> list[str] | None:
        """Paths, below its folder, of the files that a table consists of; None if it is none.

        LakeDamagedError if one of them is missing, or is not as long as what was written.
        """
        folder = self.folder(spec)
        if not DeltaTable.is_deltatable(folder):
            return None
        # Not `file_uris`, which writes a blank in the folder's own path as %20.
        with _reading(spec):
            added = pa.table(DeltaTable(folder).get_add_actions())
        paths: list[str] = added.column("path").to_pylist()
        sizes = dict(zip(paths, added.column("size_bytes").to_pylist(), strict=True))
        for path, found in file_sizes(folder, paths).items():
            if found != sizes[path]:
                now = "is missing" if found is None else f"has {found:,} bytes"
                raise LakeDamagedError(
                    f"{spec.name}: {path} {now}, and {sizes[path]:,} bytes were written.",
                    hint=f"Put it back below {folder} from a copy of the lake.",
                )
        return paths

    def open(self, spec: TableSpec) -> LakeTable:
        """A table as it is now, made if it is not there."""
        folder = self.folder(spec)
        try:
            with _reading(spec):
                table = DeltaTable(folder)
        except TableNotFoundError:
            # Of two that find none, the second finds the first one's.
            with _writing(spec):
                if "://" not in self.root:
                    make_private(Path(self.root))
                table = DeltaTable.create(
                    folder,
                    schema=Schema.from_arrow(spec.schema),
                    mode="ignore",
                    partition_by=[DAY],
                    name=spec.name,
                    configuration=_CONFIGURATION,
                )
        if missing := _missing_columns(table, spec):
            table = _grow(folder, spec, missing)
        return LakeTable(spec, table)


class LakeTable:
    """One version of a table. It does not follow what is committed, by itself or others."""

    def __init__(self, spec: TableSpec, table: DeltaTable) -> None:
        self.spec = spec
        self._table = table

    @property
    def version(self) -> int:
        """The version of the table that this is."""
        return self._table.version()

    def mark(self, key: str) -> Mark:
        """How far this version has come."""
        offset = self._table.transaction_version(key)
        if offset is None:
            return Mark(0)
        return Mark(offset, self._table.transaction_version(f"{key}#") or 0)

    def rows(self, dataset: str, span: Span, columns: list[str]) -> pa.Table:
        """Rows of a span, lost ones too."""
        wanted = [
            ("dataset", "=", dataset),
            ("log", "=", span.log),
            ("log_partition", "=", span.partition),
            ("log_offset", ">=", span.start),
            ("log_offset", "<", span.end),
        ]
        return self._table.to_pyarrow_table(columns=columns, filters=wanted)

    def commit(self, files: Sequence[WrittenFile], marks: Mapping[str, Mark]) -> None:
        """Adds files and moves marks, all or nothing.

        HistoryBusyError if another was quicker, LakeWriteError if the lake takes nothing.
        """
        with _writing(self.spec):
            self._table.create_write_transaction(
                [_action(file) for file in files],
                "append",
                Schema.from_arrow(self.spec.schema),
                [DAY],
                commit_properties=_properties(marks),
            )

    def update(self, predicate: str, updates: Mapping[str, str], marks: Mapping[str, Mark]) -> int:
        """Changes rows and moves marks, all or nothing; how many rows. See `commit`."""
        with _writing(self.spec):
            done = self._table.update(
                predicate=predicate,
                updates=dict(updates),
                writer_properties=WriterProperties(compression="ZSTD"),
                commit_properties=_properties(marks),
            )
        if not done["num_updated_rows"]:
            # Then it has committed nothing at all, not even the marks.
            self.commit([], marks)
        return int(done["num_updated_rows"])


@contextmanager
def _reading(spec: Named) -> Iterator[None]:
    try:
        yield
    except TableNotFoundError:
        raise
    except DeltaError as error:
        raise LakeDamagedError(
            f"The log of {spec.name} cannot be read: {_in_a_line(error)}.",
            hint="Put its _delta_log back from a copy of the lake.",
        ) from error


@contextmanager
def _writing(spec: TableSpec) -> Iterator[None]:
    try:
        yield
    except CommitFailedError as error:
        raise HistoryBusyError(
            f"Another ingest has written to {spec.name} meanwhile.",
            hint="Nothing was written; its work is there, and the next round goes on from it.",
        ) from error
    except (DeltaError, OSError) as error:
        raise lake_write(spec.name, error) from error


def no_lake(root: str) -> NoLakeError:
    """Return the error for a place without a lake."""
    return NoLakeError(
        f"There is no lake at {root}.",
        hint="`waystation history ingest` creates it; --lake, --data and --url name another one.",
    )


def lake_write(table: str, error: object) -> LakeWriteError:
    """What is said where the lake cannot be written to."""
    return LakeWriteError(f"{table} cannot be written to: {_in_a_line(error)}.", hint=ROOM_HINT)


def _in_a_line(error: object) -> str:
    """What an error says: it comes in several lines, and in colours."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m|↳", " ", str(error)).split()).rstrip(".")


def _properties(marks: Mapping[str, Mark]) -> CommitProperties:
    transactions = []
    for key, mark in marks.items():
        transactions.append(Transaction(key, mark.offset))
        transactions.append(Transaction(f"{key}#", mark.print))
    return CommitProperties(app_transactions=transactions)


def _action(file: WrittenFile) -> AddAction:
    stats = {
        "numRecords": file.rows,
        "minValues": file.least,
        "maxValues": file.greatest,
        "nullCount": file.nulls,
    }
    return AddAction(
        path=file.path,
        size=file.size,
        partition_values={DAY: file.day},
        modification_time=file.modified_ms,
        data_change=True,
        stats=json.dumps(stats),
    )


def _grow(folder: str, spec: TableSpec, missing: list[Field]) -> DeltaTable:
    """Adds columns. First a file without rows that has them: Spark finds columns in files alone."""
    writer = TableWriter(folder, spec)
    writer.declare()
    LakeTable(spec, DeltaTable(folder)).commit(writer.close(), {})
    with _writing(spec):
        DeltaTable(folder).alter.add_columns(missing)
    return DeltaTable(folder)


def _missing_columns(table: DeltaTable, spec: TableSpec) -> list[Field]:
    """Columns that came with this release. Refuses a table that is somebody else's.

    One with further columns is a newer release's, and no reason to stop.
    """
    if table.metadata().partition_columns != [DAY]:
        raise LakeRefusedError(f"{spec.name} is not partitioned by {DAY}: it is not our table.")
    found = {field.name: field.type for field in table.schema().fields}
    fields = Schema.from_arrow(spec.schema).fields
    for field in fields:
        if field.name in found and found[field.name] != field.type:
            raise LakeRefusedError(
                f"Column {field.name} of {spec.name} is {found[field.name]}, not {field.type}.",
                hint="Move the table away, and it is made anew.",
            )
    return [field for field in fields if field.name not in found]
