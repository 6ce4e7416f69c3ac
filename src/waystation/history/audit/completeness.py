"""Check that every entry of every log is in the lake once.

For each block of 65,536 offsets, the number of rows, the sum of their offsets and the sum of the
squares must be those of all offsets of the block. This takes one pass without sorting. Only blocks
with other sums are searched for the entries.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as f

from waystation.history.audit.findings import EXAMPLES_MAX, Finding, Findings
from waystation.history.audit.live_state import Live
from waystation.history.audit.snapshot import WHOLE, AuditTables
from waystation.history.decoders.partitions import topic_place
from waystation.history.lake.schema import DELIVERIES, MESSAGES, TRANSACTIONS, TableSchema
from waystation.history.offsets import OffsetRange

#: The sum of the squares of all offsets within a block fits into an integer.
BLOCK = 65_536
#: Blocks that are searched for examples.
_SEARCHED_MAX = 20
_LOG = ["log", "log_partition"]
_KEY = (*_LOG, "block")
_BEFORE = "log_offset < end"
#: Column with the id of the message or transaction of an entry.
_IDS = {
    MESSAGES.name: "id",
    TRANSACTIONS.name: "transaction_id",
    DELIVERIES.name: "message_id",
}

Key = tuple[str, int, int]


class Sums(msgspec.Struct, frozen=True):
    """Sums of a set of offsets of a block, which show whether the set is complete."""

    count: int = 0
    first: int = 0
    second: int = 0

    def __add__(self, other: Sums) -> Sums:
        return Sums(self.count + other.count, self.first + other.first, self.second + other.second)


def range_sums(start: int, end: int) -> Sums:
    """Return the sums of all integers from `start` up to, but excluding, `end`."""

    def below(n: int) -> Sums:
        return Sums(n, n * (n - 1) // 2, (n - 1) * n * (2 * n - 1) // 6)

    low, high = below(start), below(end)
    return Sums(high.count - low.count, high.first - low.first, high.second - low.second)


def check_offsets(tables: AuditTables, live: Live | None, findings: Findings) -> None:
    """Report entries that are missing from their table, or in it more than once."""
    known = live.partitions() if live is not None else set()
    for spec in WHOLE:
        logs = {(log, partition) for log, partition, table in known if table == spec.name}
        found = _summed(_rows(tables, spec)) if tables.has(spec) else []
        failed = _failed(tables, spec, found, logs)
        if failed:
            # Without rows behind the committed offset.
            found = _summed(_rows(tables, spec).join(tables.end_frame(spec), _LOG).where(_BEFORE))
            failed = _failed(tables, spec, found, logs)
        findings.seen(f"entries of {spec.name}", sum(row.rows for row in found))
        if failed:
            _search(tables, spec, failed, live, findings)
        if any(row.last_item for row in found):
            _check_items(tables, spec, findings)


def _failed(
    tables: AuditTables, spec: TableSchema, found: list[Row], known: set[tuple[str, int]]
) -> list[Key]:
    """Return the blocks with other sums than those of their offsets."""
    sums = {_key(row): Sums(row.rows, row.first, row.second) for row in found if row.rows}
    expected: dict[Key, Sums] = {}
    for log, partition in known | {key[:2] for key in sums}:
        for span in present(tables, spec, log, partition):
            _add_blocks(expected, span)
    keys = sums.keys() | expected.keys()
    return sorted(key for key in keys if sums.get(key, Sums()) != expected.get(key, Sums()))


def present(
    tables: AuditTables, spec: TableSchema, log: str, partition: int
) -> Iterator[OffsetRange]:
    """Yield the ranges that a table must have: up to its committed offset, without gaps."""
    offset, end = 0, tables.committed_offset(spec, log, partition)
    for gap in tables.gaps_of(log, partition):
        if gap.start >= end:
            break
        if gap.start > offset:
            yield OffsetRange(log, partition, offset, gap.start)
        offset = max(offset, gap.end)
    if offset < end:
        yield OffsetRange(log, partition, offset, end)


def _rows(tables: AuditTables, spec: TableSchema) -> DataFrame:
    """Return the rows outside of gaps, with their blocks."""
    rows = (
        tables.frame(spec)
        .withColumn("block", f.expr(f"log_offset div {BLOCK}"))
        .withColumn("at", f.when(f.col("item") == 0, f.col("log_offset") % BLOCK))
    )
    if tables.gaps:
        rows = rows.join(tables.gap_frame(), in_gap("log", "log_partition", "log_offset"), "anti")
    return rows


def in_gap(log: str, partition: str, offset: str) -> Column:
    """Return whether an entry is in a gap."""
    return (
        (f.col(log) == f.col("gap_log"))
        & (f.col(partition) == f.col("gap_partition"))
        & (f.col(offset) >= f.col("gap_from"))
        & (f.col(offset) < f.col("gap_to"))
    )


def _summed(rows: DataFrame) -> list[Row]:
    return (
        rows.groupBy(*_KEY)
        .agg(
            f.count("at").alias("rows"),
            f.sum("at").alias("first"),
            f.sum(f.col("at") * f.col("at")).alias("second"),
            f.max("item").alias("last_item"),
        )
        .collect()
    )


def _key(row: Row) -> Key:
    return row.log, row.log_partition, row.block


def _add_blocks(expected: dict[Key, Sums], span: OffsetRange) -> None:
    for block in range(span.start // BLOCK, (span.end - 1) // BLOCK + 1):
        start, end = max(span.start, block * BLOCK), min(span.end, (block + 1) * BLOCK)
        sums = range_sums(start - block * BLOCK, end - block * BLOCK)
        key = (span.log, span.partition, block)
        expected[key] = expected.get(key, Sums()) + sums


def _search(
    tables: AuditTables,
    spec: TableSchema,
    failed: list[Key],
    live: Live | None,
    findings: Findings,
) -> None:
    """Report the entries that blocks lack, or have more than once."""
    wanted = tables.spark.createDataFrame(failed, "log string, log_partition int, block bigint")
    rows = _rows(tables, spec).where("item = 0").join(tables.end_frame(spec), _LOG).where(_BEFORE)
    present_rows = rows.join(f.broadcast(wanted), list(_KEY))
    by_offset = present_rows.groupBy(*_KEY, "log_offset").agg(
        f.count("*").alias("times"), f.min(_IDS.get(spec.name, "log")).alias("id")
    )
    twice = by_offset.where("times > 1")
    count = twice.count()
    findings.add(
        "doubled",
        count,
        [
            Finding(
                check="doubled",
                subject=f"{row.log}/{row.log_partition}",
                id=row.id if spec.name in _IDS and row.id else "",
                position=entry_position(row.log, row.log_partition, row.log_offset),
                text=f"It is in {spec.name} {row.times} times.",
            )
            for row in twice.orderBy("log", "log_partition", "log_offset")
            .limit(EXAMPLES_MAX)
            .collect()
        ],
    )
    distinct = {_key(row): row["count"] for row in by_offset.groupBy(*_KEY).count().collect()}
    missing, lost = 0, list[OffsetRange]()
    for number, key in enumerate(failed):
        inside = [
            OffsetRange(span.log, span.partition, max(span.start, low), min(span.end, low + BLOCK))
            for low in (key[2] * BLOCK,)
            for span in present(tables, spec, *key[:2])
            if span.start < low + BLOCK and span.end > low
        ]
        lacks = sum(span.rows for span in inside) - distinct.get(key, 0)
        missing += max(0, lacks)
        if lacks > 0 and number < _SEARCHED_MAX and len(lost) < EXAMPLES_MAX:
            lost += _holes(by_offset, key, inside)
    findings.add("missing", missing, _missing_findings(tables, spec, lost[:EXAMPLES_MAX], live))


def _holes(by_offset: DataFrame, key: Key, inside: list[OffsetRange]) -> Iterator[OffsetRange]:
    log, partition, block = key
    one = (f.col("log") == log) & (f.col("log_partition") == partition) & (f.col("block") == block)
    ingested = {row.log_offset for row in by_offset.where(one).select("log_offset").collect()}
    for span in inside:
        for offset in range(span.start, span.end):
            if offset not in ingested:
                yield OffsetRange(log, partition, offset, offset + 1)


def _missing_findings(
    tables: AuditTables, spec: TableSchema, lost: list[OffsetRange], live: Live | None
) -> Iterator[Finding]:
    """Yield findings of missing entries, with the id if the store or another table has it."""
    for span in lost:
        known = live.message_id(span) if live is not None and spec is MESSAGES else ""
        position = entry_position(span.log, span.partition, span.start)
        yield Finding(
            check="missing",
            subject=span.key,
            id=known or _delivered_id(tables, span),
            position=position,
            text=f"{spec.name} was ingested beyond this entry, but does not have it.",
        )


def _delivered_id(tables: AuditTables, span: OffsetRange) -> str:
    place = topic_place(span.log, span.partition)
    if place is None:
        return ""
    deliveries = tables.frame(DELIVERIES).where(f.col("project") == place.project)
    readers = deliveries.where(f.col("topic") == place.topic).select("subscription").distinct()
    same = (
        f.col("subscription").isin([row.subscription for row in readers.collect()])
        & (f.col("storage") == place.storage)
        & (f.col("partition") == place.partition)
        & (f.col("offset") == span.start)
        & f.col("message_id").isNotNull()
    )
    found = deliveries.where(same).select("message_id").limit(1).collect()
    return found[0].message_id if found else ""


def entry_position(log: str, partition: int, offset: int) -> str:
    """Return the position of a message, or partition and offset of another entry."""
    place = topic_place(log, partition)
    return f"{place.prefix}{offset}" if place is not None else f"{log}/{partition}/{offset}"


def _check_items(tables: AuditTables, spec: TableSchema, findings: Findings) -> None:
    """Report entries of several rows that lack one of them, or have one twice."""
    last, squares = f.col("last"), f.col("last") * (f.col("last") + 1) * (2 * f.col("last") + 1)
    bad = (
        tables.frame(spec)
        .where("item > 0")
        .groupBy("log", "log_partition", "log_offset")
        .agg(
            f.count("*").alias("rows"),
            f.max("item").cast("bigint").alias("last"),
            f.sum("item").alias("first"),
            f.sum(f.col("item").cast("bigint") * f.col("item")).alias("second"),
        )
        .where(
            (f.col("rows") != last)
            | (f.col("first") * 2 != last * (last + 1))
            | (f.col("second") * 6 != squares)
        )
    )
    examples = bad.limit(EXAMPLES_MAX).collect()
    count = len(examples) if len(examples) < EXAMPLES_MAX else bad.count()
    findings.add(
        "items",
        count,
        [
            Finding(
                check="items",
                subject=f"{row.log}/{row.log_partition}",
                id="",
                position=entry_position(row.log, row.log_partition, row.log_offset),
                text=f"Rows of this entry are missing from {spec.name}, or doubled.",
            )
            for row in examples
        ],
    )
