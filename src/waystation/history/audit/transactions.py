"""Checks of transactions: each starts once, ends once or is still open, and is then archived."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

from pyspark.sql import DataFrame, Row, Window
from pyspark.sql import functions as f

from waystation.history.audit.findings import EXAMPLES_MAX, Finding, Findings
from waystation.history.audit.live_state import Live
from waystation.history.audit.snapshot import AuditTables
from waystation.history.lake.schema import OPERATIONS, STEPS, TRANSACTIONS
from waystation.transactions.states import Status

#: Kinds of changes that follow the end, and have its status.
_AFTER = ("notified", "lifted")
_STATUSES = [each.value for each in Status]
#: Transactions of one look-up.
_LOOKUP_ROWS = 5_000
_LOOKUP_JOBS = 8
_CELL_LOG = "tx"
_BEHIND_MS = 1_000

Renew = Callable[[], AuditTables]


def check_transactions(
    tables: AuditTables,
    live: Live | None,
    renew: Renew | None,
    findings: Findings,
    *,
    archived_before_ms: int,
) -> None:
    """Check starts, ends, versions and steps; with the store, also open and archived ones."""
    if not tables.has(TRANSACTIONS):
        findings.note("Transactions: nothing recorded.")
        return
    _note_unrecorded(tables, findings)
    summaries = _summaries(tables).persist()
    try:
        _check_counts(tables, summaries, findings)
        _check_versions(tables, findings)
        _check_steps(tables, summaries, findings)
        _check_open(summaries, live, renew, findings)
        _check_archive(tables, summaries, live, findings, archived_before_ms)
    finally:
        summaries.unpersist()


def _changes(tables: AuditTables) -> DataFrame:
    """Return the changes of cells without gaps."""
    rows = tables.frame(TRANSACTIONS).where("transaction_id is not null")
    broken = _broken(tables)
    return rows.where(~f.col("log_partition").isin(broken)) if broken else rows


def _broken(tables: AuditTables) -> list[int]:
    """Return the cells with gaps or withheld events."""
    return sorted(partition for log, partition in tables.broken if log == _CELL_LOG)


def _expired_cells(tables: AuditTables) -> list[int]:
    """Return the cells that lack their first rows, which were deleted because of their age."""
    return sorted(partition for log, partition in tables.expired if log == _CELL_LOG)


def _note_unrecorded(tables: AuditTables, findings: Findings) -> None:
    """Note cells with gaps, and transactions whose pipelines record only starts and ends."""
    for partition in _broken(tables):
        findings.note(f"Transactions of cell {partition} were not all recorded: not checked.")
    kept = tables.frame(TRANSACTIONS).where("kind = 'started' and recorded = 'none'")
    for row in kept.groupBy("project", "pipeline").count().orderBy("project", "pipeline").collect():
        findings.note(
            f"Pipeline {row.project}/{row.pipeline}: steps and data of {row['count']:,}"
            " transactions not recorded, as it says."
        )


def _summaries(tables: AuditTables) -> DataFrame:
    """Return a row for each transaction."""
    is_end = f.col("status").isNotNull() & ~f.col("kind").isin(*_AFTER)
    status = f.array_position(f.array(*map(f.lit, _STATUSES)), f.col("status"))
    return (
        _changes(tables)
        .groupBy("transaction_id")
        .agg(
            f.count_if(f.col("kind") == "started").alias("started"),
            f.count_if(is_end).alias("ended"),
            f.max("version").alias("version"),
            f.max(f.when(is_end, status)).alias("status"),
            f.max(f.when(is_end, f.unix_millis("time"))).alias("ended_ms"),
            f.min("log_offset").alias("log_offset"),
            f.max("log_partition").alias("log_partition"),
        )
    )


def _check_counts(tables: AuditTables, summaries: DataFrame, findings: Findings) -> None:
    no_start = "started = 0"
    if cells := _expired_cells(tables):
        # The start can be in rows that were deleted because of their age.
        no_start += f" and log_partition not in ({', '.join(map(str, cells))})"
    checks = (
        ("started twice", "started > 1", "It was started more than once."),
        ("no start", no_start, "It has changes, but the lake has no start of it."),
        ("ended twice", "ended > 1", "It has ended more than once."),
    )
    counted = summaries.selectExpr("count(*)", *(f"count_if({wrong})" for _, wrong, _ in checks))
    (counts,) = counted.collect()
    findings.seen("transactions", counts[0])
    for number, (check, wrong, text) in enumerate(checks, 1):
        if counts[number]:
            _report(check, summaries.where(wrong), text, findings)


def _check_versions(tables: AuditTables, findings: Findings) -> None:
    in_order = Window.partitionBy("transaction_id").orderBy("log_offset", "item")
    decreased = (
        _changes(tables)
        .withColumn("before", f.lag("version").over(in_order))
        .where("version < before")
    )
    _report(
        "version fell",
        decreased,
        "A change has a lower version than the change before it.",
        findings,
    )


def _check_steps(tables: AuditTables, summaries: DataFrame, findings: Findings) -> None:
    unsure = [*_broken(tables), *_expired_cells(tables)]
    steps = tables.frame(STEPS).where(~f.col("log_partition").isin(unsure or [-1]))
    started = summaries.where("started > 0").select("transaction_id")
    orphans = steps.join(started, "transaction_id", "anti")
    _report(
        "unknown transaction",
        orphans,
        "A step of it ran, but the lake has no start of it.",
        findings,
    )


def _check_open(
    summaries: DataFrame, live: Live | None, renew: Renew | None, findings: Findings
) -> None:
    unfinished = summaries.where("started > 0 and ended = 0")
    if live is None:
        if count := unfinished.count():
            findings.note(
                f"{count:,} transactions have not ended. They were not looked up in the store."
            )
        return
    unexplained: dict[str, tuple[Row, str]] = {}
    for rows in _batches(unfinished):
        ids = [row.transaction_id for row in rows]
        heads = live.heads(ids)
        archived = live.archived([each for each in ids if each not in heads])
        for row in rows:
            key = row.transaction_id
            if key in heads:
                status = heads[key].status
                problem = f"It ended in the store as {status}, but the lake has no end of it."
                if status is None:
                    continue
            elif key in archived:
                problem = "It ended in the archive, but the lake has no end of it."
                if not archived[key].completed_ms:
                    continue
            else:
                problem = "It has no end, and neither the store nor the archive has it."
            unexplained[key] = row, problem
    if unexplained and renew is not None:
        later = renew()
        keys = later.small(((key,) for key in unexplained), "transaction_id string")
        for row in _summaries(later).where("ended > 0").join(keys, "transaction_id").collect():
            del unexplained[row.transaction_id]
    findings.add(
        "lost",
        len(unexplained),
        [_finding("lost", row, text) for row, text in list(unexplained.values())[:EXAMPLES_MAX]],
    )


def _check_archive(
    tables: AuditTables,
    summaries: DataFrame,
    live: Live | None,
    findings: Findings,
    archived_before_ms: int,
) -> None:
    """Report transactions that ended long ago and are not in the archive as they ended."""
    if live is None or not live.has_archive:
        findings.note("The archive was not checked.")
        return
    late, wrong, wrong_rows = 0, 0, list[Finding]()
    ended = summaries.where(f.col("ended") == 1).where(f.col("ended_ms") < archived_before_ms)
    # The deletion of an older transaction from the archive may have been deleted from the lake.
    ended = ended.where(f.col("ended_ms") >= tables.kept_from_ms)
    if tables.has(OPERATIONS):
        ended = ended.where(f.col("ended_ms") >= _pruned_before_ms(tables))
        ended = ended.join(_erased(tables), "transaction_id", "anti")
    for rows in _batches(ended):
        left = _not_archived(rows, live)
        heads = live.heads([row.transaction_id for row in left])
        late += len(heads)
        # The archiver may have moved it between the two look-ups.
        left = _not_archived([row for row in left if row.transaction_id not in heads], live)
        wrong += len(left)
        examples = left[: EXAMPLES_MAX - len(wrong_rows)]
        wrong_rows += [_archive_finding(row, live) for row in examples]
    findings.add("archive", wrong, wrong_rows)
    if late:
        findings.note(f"{late:,} ended transactions wait in the store for archiving.")


def _not_archived(rows: Sequence[Row], live: Live) -> list[Row]:
    found = live.archived([row.transaction_id for row in rows])
    return [
        row
        for row in rows
        if (state := found.get(row.transaction_id)) is None
        or state.version < row.version
        or state.status != _STATUSES[row.status - 1]
    ]


def _archive_finding(row: Row, live: Live) -> Finding:
    found = live.archived([row.transaction_id]).get(row.transaction_id)
    archived = (
        "is not in the archive"
        if found is None
        else f"is {found.status} there, in version {found.version}"
    )
    at = datetime.fromtimestamp(row.ended_ms / 1000, UTC).isoformat(timespec="seconds")
    text = (
        f"It ended at {at} as {_STATUSES[row.status - 1]}, version {row.version}, and {archived}."
    )
    return _finding("archive", row, text)


def _pruned_before_ms(tables: AuditTables) -> int:
    """Return the time before which the archive may have deleted ended transactions."""
    before = f.get_json_object("detail", "$.before_ms").cast("bigint")
    (row,) = tables.frame(OPERATIONS).where("kind = 'prune'").select(f.max(before)).collect()
    # The time of an entry can be later than that of the deletion which it records.
    return row[0] + _BEHIND_MS if row[0] else 0


def _erased(tables: AuditTables) -> DataFrame:
    """Return the transactions that were deleted from the archive one by one."""
    return (
        tables.frame(OPERATIONS)
        .where("kind = 'erase'")
        .select(f.col("subject").alias("transaction_id"))
    )


def _batches(rows: DataFrame) -> Iterator[list[Row]]:
    batch: list[Row] = []
    # Spark runs one job per partition, so few; each must fit into memory.
    for row in rows.coalesce(_LOOKUP_JOBS).toLocalIterator():
        batch.append(row)
        if len(batch) == _LOOKUP_ROWS:
            yield batch
            batch = []
    if batch:
        yield batch


def _report(check: str, bad: DataFrame, text: str, findings: Findings) -> None:
    by_id = bad.dropDuplicates(["transaction_id"])
    rows = by_id.limit(EXAMPLES_MAX).collect()
    count = len(rows) if len(rows) < EXAMPLES_MAX else by_id.count()
    findings.add(check, count, [_finding(check, row, text) for row in rows])


def _finding(check: str, row: Row, text: str) -> Finding:
    return Finding(
        check=check,
        subject=f"{_CELL_LOG}/{row.log_partition}",
        id=row.transaction_id,
        position=f"{_CELL_LOG}/{row.log_partition}/{row.log_offset}",
        text=text,
    )
