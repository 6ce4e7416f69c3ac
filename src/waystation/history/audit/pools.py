"""Checks of pools: every message is settled once, or pending, or a dead letter; keys are in order.

A message is settled when a worker acknowledges it, when it becomes a dead letter, or when an agent
of a mirrored pool removes it from its list. A message of which the lake knows no end must be in its
pool. Messages of a recipient key are taken in the order of their numbers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as f

from waystation.history.audit.findings import EXAMPLES_MAX, Finding, Findings
from waystation.history.audit.live_state import Live
from waystation.history.audit.snapshot import AuditTables
from waystation.history.lake.schema import POOLS

#: Messages that are searched at a time, in all pools and of one recipient key.
_LOOKUP_ROWS, _KEY_ROWS = 10_000, 500
_LOOKUP_JOBS = 8
#: Searches for a message that moves between an ingest and the search after it: it can be
#: pending, then a dead letter, and then deleted.
_SEARCHES_MAX = 3
_LOG = ["log", "log_partition"]
_POOL = ["project", "pool"]
_MESSAGE = [*_POOL, "number"]
#: Place of an event in its log. An entry of a record log has at most 1,000 events.
_EVENT_ORDER = "log_offset * 1024 + item"
_ENDS = "('acknowledged', 'popped', 'purged', 'dropped', 'redriven')"
_SETTLED = "('acknowledged', 'popped', 'dead')"

Renew = Callable[[], AuditTables]


def check_pools(
    tables: AuditTables, live: Live | None, renew: Renew | None, findings: Findings
) -> None:
    """Check that pools settle every message once and in the order of its recipient key."""
    if not tables.has(POOLS):
        findings.note("Pools: nothing recorded.")
        return
    if count := tables.withheld(POOLS):
        findings.note(f"Calls of pools: {count:,} not recorded, as their option `record` says.")
    messages = _messages(tables).persist()
    try:
        findings.seen("messages of pools", messages.where("enqueued_at is not null").count())
        _check_twice(messages, findings)
        _check_order(tables, messages, findings)
        _check_open(messages, live, renew, findings)
    finally:
        messages.unpersist()


def _events(tables: AuditTables) -> DataFrame:
    """Return the events of logs of which all events were recorded."""
    rows = tables.frame(POOLS).where("kind is not null").withColumn("at", f.expr(_EVENT_ORDER))
    if not tables.unrecorded:
        return rows
    logs = tables.small(tables.unrecorded, "log string, log_partition int")
    return rows.join(logs, _LOG, "anti")


def _messages(tables: AuditTables) -> DataFrame:
    """Return each message with the number of its ends, and the place where it must be."""
    columns = (
        *("log", "log_partition", "log_offset", "at", "kind", "number", "recipient_key"),
        "message_id",
    )
    # A row that is in the lake twice is found by its offset.
    events = (
        _events(tables)
        .where("number > 0 and kind <> 'closed'")
        .dropDuplicates(["log", "log_partition", "at"])
    )
    redriven = events.where("kind = 'redriven'").withColumns(
        {"number": f.col("new_number"), "kind": f.lit("enqueued")}
    )
    ended = events.withColumn(
        "message_id", f.when(f.col("kind") != "redriven", f.col("message_id"))
    )
    messages = (
        ended.select(*_POOL, *columns)
        .union(redriven.select(*_POOL, *columns))
        .groupBy(*_MESSAGE)
        .agg(
            f.first("log").alias("log"),
            f.first("log_partition").alias("log_partition"),
            f.min(_if_kind("= 'enqueued'")).alias("enqueued_at"),
            f.min("log_offset").alias("log_offset"),
            f.max("recipient_key").alias("recipient_key"),
            f.max("message_id").alias("message_id"),
            f.count(_if_kind(f"in {_SETTLED}")).alias("settled"),
            f.min(_if_kind(f"in {_SETTLED}")).alias("settled_at"),
            f.max(_if_kind("= 'taken'")).alias("taken_at"),
            f.count(_if_kind(f"in {_ENDS}")).alias("ends"),
            f.count(_if_kind("= 'dead'")).alias("deaths"),
        )
    )
    closed = (
        _events(tables)
        .where("kind = 'closed'")
        .groupBy(*_POOL)
        .agg(f.max("number").alias("closed_to"))
    )
    is_open = "enqueued_at is not null and ends = 0 and number > coalesce(closed_to, 0)"
    # The end of an earlier message can be in a part of the log that cannot be read.
    unread = tables.frame(POOLS).where("kind is null")
    unread = unread.select(*_LOG, (f.col("log_offset") + 1).alias("to"))
    unread = unread.union(tables.gap_frame().select("gap_log", "gap_partition", "gap_to"))
    messages = messages.join(
        unread.groupBy(*_LOG).agg(f.max("to").alias("unread_to")), _LOG, "left"
    )
    is_open += " and enqueued_at >= coalesce(unread_to, 0) * 1024"
    place = f.when(f.col("deaths") > 0, "dead").otherwise("pending")
    return messages.join(closed, _POOL, "left").withColumn("place", f.when(f.expr(is_open), place))


def _if_kind(kind: str) -> Column:
    return f.expr(f"if(kind {kind}, at, null)")


def _check_twice(messages: DataFrame, findings: Findings) -> None:
    """Report messages that were settled twice, or taken after they were settled."""
    _report(
        "settled twice",
        messages.where("settled > 1"),
        lambda row: f"It was acknowledged, popped or made a dead letter {row.settled} times.",
        findings,
    )
    _report(
        "taken again",
        messages.where("taken_at > settled_at"),
        lambda row: "A worker took it after it was settled.",
        findings,
    )


def _check_order(tables: AuditTables, messages: DataFrame, findings: Findings) -> None:
    """Report messages that were taken or popped after a later message of their recipient key."""
    by_key = Window.partitionBy(*_POOL, "recipient_key").orderBy("at")
    overtaken = (
        _events(tables)
        .where("kind in ('taken', 'popped') and number > 0")
        .withColumn(
            "later",
            f.max("number").over(by_key.rowsBetween(Window.unboundedPreceding, -1)),
        )
        .where("number < later")
        .groupBy(*_MESSAGE)
        .agg(f.max("later").alias("later"))
        .join(messages, _MESSAGE)
    )
    _report(
        "overtaken",
        overtaken,
        lambda row: f"Message {row.later} of its recipient key was taken before it.",
        findings,
    )


# -- Messages without an end -----------------------------------------------------------------


def _check_open(
    messages: DataFrame, live: Live | None, renew: Renew | None, findings: Findings
) -> None:
    """Report messages without an end that are not in their pool."""
    unfinished = messages.where("place is not null")
    if live is None:
        if count := unfinished.count():
            findings.note(
                f"{count:,} messages of pools have no end. They were not looked up in the store."
            )
        return
    unsure: Counter[str] = Counter()
    missing, lost = _missing(live, unfinished), list[Row]()
    for _ in range(_SEARCHES_MAX):
        if not missing or renew is None:
            break
        # All events of these messages before the search are in the lake from here on.
        tables = renew()
        before = {_key(row): (row.place, withheld) for row, withheld in missing}
        wanted = tables.small(before, "project string, pool string, number bigint")
        moved: list[Row] = []
        for row in _messages(tables).where("place is not null").join(wanted, _MESSAGE).collect():
            place, withheld = before[_key(row)]
            if row.place != place:
                moved.append(row)
            elif row.number <= withheld:
                unsure[f"{row.project}/{row.pool}"] += 1
            else:
                lost.append(row)
        missing = _search(live, moved)
    lost += [row for row, _ in missing]
    for pool, count in sorted(unsure.items()):
        findings.note(
            f"{pool}: {count:,} messages have no end. They were enqueued before its option `record`"
            " was none, and are not checked."
        )
    findings.add(
        "lost",
        len(lost),
        [
            _finding("lost", row, "It has no end, and its pool does not have it.")
            for row in lost[:EXAMPLES_MAX]
        ],
    )


def _missing(live: Live, unfinished: DataFrame) -> list[tuple[Row, int]]:
    """Return the messages that are not where they must be, as `_search` does."""
    missing: list[tuple[Row, int]] = []
    batch: list[Row] = []
    for row in unfinished.coalesce(_LOOKUP_JOBS).toLocalIterator():
        batch.append(row)
        if len(batch) == _LOOKUP_ROWS:
            missing += _search(live, batch)
            batch = []
    return missing + _search(live, batch)


def _search(live: Live, rows: Sequence[Row]) -> list[tuple[Row, int]]:
    """Return the messages that are not where they must be.

    With each message, return the number up to which its pool withheld events.
    """
    by_key: defaultdict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        by_key[row.project, row.pool, row.recipient_key].append(row)
    missing: list[tuple[Row, int]] = []
    while by_key:
        chunk = {recipient: some[:_KEY_ROWS] for recipient, some in by_key.items()}
        found = live.pool_messages(
            {recipient: [row.number for row in some] for recipient, some in chunk.items()}
        )
        for recipient, some in chunk.items():
            reply = found[recipient]
            missing += [
                (row, reply.withheld)
                for row, place in zip(some, reply.places, strict=True)
                if place != row.place
            ]
            by_key[recipient] = by_key[recipient][_KEY_ROWS:]
            if not by_key[recipient]:
                del by_key[recipient]
    return missing


def _key(row: Row) -> tuple[str, str, int]:
    return row.project, row.pool, row.number


def _report(check: str, rows: DataFrame, text: Callable[[Row], str], findings: Findings) -> None:
    examples = rows.limit(EXAMPLES_MAX).collect()
    count = len(examples) if len(examples) < EXAMPLES_MAX else rows.count()
    findings.add(check, count, [_finding(check, row, text(row)) for row in examples])


def _finding(check: str, row: Row, text: str) -> Finding:
    return Finding(
        check=check,
        subject=f"{row.project}/{row.pool}",
        id=row.message_id or str(row.number),
        position=f"{row.log}/{row.log_partition}/{row.log_offset}",
        text=text,
    )
