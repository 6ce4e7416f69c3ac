"""Forget a person: blank the data of users in the rows of a trace, and delete the old files.

Rows keep their ids, offsets, times, counts and states, so that the audit finds all entries. They
have `recorded` = `forgotten`. The columns of `_BLANKED`, the notes of steps and the values of
headers become null or empty. Rows that a restored store lost are blanked, too; gaps have no data.

1. For each table, rewrite the files with such rows, and replace them in one Delta commit.
2. Delete the replaced files at once, and every other file of an earlier version with such rows.
   Delete the statistics of these files from the Delta log, because they have values of rows.

External ids are blanked last, and only when all transactions of the trace have ended, because a
later run has to find the rows that are ingested until then. `transactions` is the last table in
both phases. So a run after a crash at any line traces the same rows and completes the work.

An ingest appends rows meanwhile and is not disturbed: no commit of this module moves an offset. If
a compaction replaces one of the files meanwhile, the table is begun anew.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from waystation.errors import HistoryBusyError
from waystation.history.lake.files import TableWriter, WrittenFile, delete_file, read_batches
from waystation.history.lake.schema import (
    CHANNELS,
    DELIVERIES,
    FORGOTTEN,
    MESSAGES,
    POOLS,
    TRANSACTIONS,
    WEBHOOK_ATTEMPTS,
    TableSchema,
)
from waystation.history.lake.table import Lake, LakeFile, LakeTable
from waystation.history.lake.trace import (
    TRACED,
    Person,
    TableFiles,
    Trace,
    file_batches,
    table_files,
)

#: Columns that can have data of users. They become null.
_BLANKED = {
    MESSAGES.name: ("payload",),
    DELIVERIES.name: ("excerpt", "cause"),
    TRANSACTIONS.name: ("metadata", "data", "output", "snapshot", "cause"),
    CHANNELS.name: ("content",),
    POOLS.name: ("payload", "reason"),
    WEBHOOK_ATTEMPTS.name: ("excerpt",),
}
#: Headers whose values stay: the audit needs those of a CloudEvent to compare ids.
_KEPT_HEADERS = frozenset({"content-type", "ce-specversion", "ce-id", "ce-source", "ce-type"})
#: Attempts to replace the files of a table while other processes compact it.
_TRIES_MAX = 20


class ForgottenRows(msgspec.Struct):
    """Result of a run, or with `dry_run` what it would do."""

    #: Rows that were blanked, by table.
    rows: dict[str, int] = msgspec.field(default_factory=dict)
    #: Files that were rewritten.
    files: int = 0
    #: Files with data of the person that were deleted.
    deleted_files: int = 0
    #: Files with data of the person that no commit has added. Vacuum deletes them later.
    uncommitted_files: int = 0
    #: Transactions of the person that have not ended. Their external ids stay until then.
    open_transactions: int = 0

    @property
    def total(self) -> int:
        """Number of all rows."""
        return sum(self.rows.values())


def forget(
    lake: Lake,
    person: Person,
    now_ms: Callable[[], int],
    *,
    dry_run: bool = False,
    on_table: Callable[[str], None] = lambda table: None,
) -> ForgottenRows:
    """Blank the data of a person in all tables, and delete the files that had it.

    With `dry_run`, only count. Call `on_table` with the name of each table before it is written.
    Raise LakeRefusedError if a newer release wrote a table, HistoryBusyError if other processes
    replace files all the time, LakeWriteError if the lake cannot be written.
    """
    result = ForgottenRows()
    files = _open(lake)
    trace = Trace(person)
    trace.follow(files)
    result.open_transactions = trace.open_transactions
    rules = _Rules(trace, with_external_ids=not result.open_transactions)
    for each in files:
        on_table(each.schema.name)
        rows = _count(each, rules) if dry_run else _blank_table(lake, each, rules, result, now_ms)
        if rows:
            result.rows[each.schema.name] = rows
    if not dry_run:
        for schema in TRACED:
            _delete_files(lake, schema, rules, result)
    return result


class _Rules:
    """Selection of the rows that have data of a person, and the values that replace the data."""

    def __init__(self, trace: Trace, *, with_external_ids: bool) -> None:
        self._trace = trace
        self._with_external_ids = with_external_ids

    def columns(self, schema: TableSchema) -> tuple[str, ...]:
        """Return the columns that `selects` needs."""
        return (*self._trace.columns(schema), "recorded")

    def selects(self, schema: TableSchema, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Return the rows of the person that have not been blanked."""
        is_blank = pc.fill_null(pc.equal(batch.column("recorded"), FORGOTTEN), False)
        if schema is TRANSACTIONS and self._with_external_ids:
            is_blank = pc.and_(is_blank, pc.invert(self._trace.is_external_id(batch)))
        return pc.and_(self._trace.matches(schema, batch), pc.invert(is_blank))

    def begins(self, schema: TableSchema, batch: pa.RecordBatch) -> bool:
        """Return whether a trace can begin in these rows, so that their file is deleted last."""
        return schema is TRANSACTIONS and bool(self._trace.is_external_id(batch).true_count)

    def blank(self, schema: TableSchema, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows without data of the person."""
        selected = self.selects(schema, batch)
        if not selected.true_count:
            return batch
        changed = {
            name: pc.if_else(selected, pa.scalar(None, schema.schema.field(name).type), column)
            for name in _BLANKED[schema.name]
            for column in [batch.column(name)]
        }
        changed["recorded"] = pc.if_else(selected, FORGOTTEN, batch.column("recorded"))
        if schema is TRANSACTIONS and self._with_external_ids:
            is_id = pc.and_(selected, self._trace.is_external_id(batch))
            changed["external_id"] = pc.if_else(
                is_id, pa.scalar(None, pa.string()), batch.column("external_id")
            )
        for name, empty in (("headers", _empty_headers), ("attempts", _empty_notes)):
            if name in batch.schema.names:
                changed[name] = _changed_values(batch.column(name), selected, empty)
        for name, column in changed.items():
            batch = batch.set_column(batch.schema.get_field_index(name), name, column)
        return batch.cast(schema.file_schema)


def _open(lake: Lake) -> list[TableFiles]:
    """Return the files of all tables that exist."""
    snapshot = lake.snapshot()
    snapshot.require()
    # `open` adds the columns of this release.
    tables = [(lake.open(schema), schema) for schema in TRACED if schema.name in snapshot]
    for table, _ in tables:
        table.require_known_columns()
    return [table_files(*each) for each in tables]


def _count(files: TableFiles, rules: _Rules) -> int:
    return sum(_count_selected(files, path, rules) for path in files.current)


def _count_selected(files: TableFiles, path: str, rules: _Rules) -> int:
    """Return the number of rows of a file that have data of the person."""
    return sum(
        rules.selects(files.schema, batch).true_count
        for batch in file_batches(files, path, rules.columns(files.schema))
    )


# -- Replacing files -----------------------------------------------------------------------------


def _blank_table(
    lake: Lake,
    files: TableFiles,
    rules: _Rules,
    result: ForgottenRows,
    now_ms: Callable[[], int],
) -> int:
    """Replace the files of a table that have rows of the person. Return the number of rows."""
    for left in reversed(range(_TRIES_MAX)):
        # The newest version, because an ingest or a compaction may have committed meanwhile.
        table = lake.open(files.schema)
        found = table_files(table, files.schema)
        rows = {path: _count_selected(found, path, rules) for path in found.current}
        old = [file for file in table.listed() if rows.get(file.path)]
        if not old:
            return 0
        try:
            _replace(table, files.schema, old, rules, now_ms())
        except HistoryBusyError:
            if not left:
                raise
            continue
        result.files += len(old)
        return sum(rows.values())
    raise AssertionError("the last try returns or raises")


def _replace(
    table: LakeTable, schema: TableSchema, old: list[LakeFile], rules: _Rules, now_ms: int
) -> None:
    written: list[WrittenFile] = []
    try:
        for file in old:
            written += _rewrite_file(table, schema, file, rules)
        table.replace(old, written, now_ms=now_ms)
    except BaseException:
        for each in written:
            delete_file(table.folder, each.path)
        raise


def _rewrite_file(
    table: LakeTable, schema: TableSchema, file: LakeFile, rules: _Rules
) -> list[WrittenFile]:
    """Write the rows of a file to another one, those of the person without data."""
    writer = TableWriter(table.folder, schema)
    try:
        for batch in read_batches(table.folder, file.path, schema.file_schema):
            writer.write(rules.blank(schema, batch), file.row_state)
        written = writer.close()
    except BaseException:
        writer.abandon()
        raise
    # Rows that are neither lost nor doubled are the condition of the commit.
    assert sum(each.rows for each in written) == file.rows, f"{file.path} has {file.rows} rows"
    return written


# -- Deleting files ------------------------------------------------------------------------------


def _delete_files(lake: Lake, schema: TableSchema, rules: _Rules, result: ForgottenRows) -> None:
    """Delete the files of earlier versions that have rows of the person."""
    if schema.name not in lake.snapshot():
        return
    files = table_files(lake.open(schema), schema)
    doomed = [each for each in files.former if _has_rows(files, each, rules)]
    # Later runs trace from the files with an external id.
    doomed.sort(key=lambda path: _has_beginning(files, path, rules))
    if doomed:
        # First, because a later run does not find the statistics of deleted files.
        files.table.forget_statistics(set(doomed))
    for path in doomed:
        delete_file(files.table.folder, path)
    result.deleted_files += len(doomed)
    result.uncommitted_files += sum(_has_rows(files, each, rules) for each in files.uncommitted)


def _has_rows(files: TableFiles, path: str, rules: _Rules) -> bool:
    try:
        return _count_selected(files, path, rules) > 0
    except (FileNotFoundError, pa.ArrowInvalid):
        return False  # Vacuum deleted it meanwhile, or a task is writing it.


def _has_beginning(files: TableFiles, path: str, rules: _Rules) -> bool:
    try:
        return any(
            rules.begins(files.schema, batch)
            for batch in file_batches(files, path, rules.columns(files.schema))
        )
    except (FileNotFoundError, pa.ArrowInvalid):
        return False


# -- Nested columns ------------------------------------------------------------------------------

_Rows = list[dict[str, object]]


def _changed_values(
    column: pa.Array, selected: pa.BooleanArray, change: Callable[[_Rows], _Rows]
) -> pa.Array:
    """Return a column of lists in which the lists of selected rows are changed."""
    selected_lists = column.filter(selected)
    lists = [None if each is None else change(each) for each in selected_lists.to_pylist()]
    both = pa.concat_arrays([column, pa.array(lists, column.type)])
    # Arrow has no `if_else` for lists: take the n-th changed list for the n-th selected row.
    rank = pc.add(pc.cumulative_sum(selected.cast(pa.int64())), len(column) - 1)
    return both.take(pc.if_else(selected, rank, pa.array(range(len(column)), pa.int64())))


def _empty_headers(headers: _Rows) -> _Rows:
    return [
        header if header["name"] in _KEPT_HEADERS else {**header, "value": ""} for header in headers
    ]


def _empty_notes(attempts: _Rows) -> _Rows:
    return [{**attempt, "note": None} for attempt in attempts]
