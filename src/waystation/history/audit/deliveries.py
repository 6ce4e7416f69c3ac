"""Whether every message reached each of its subscriptions, once and in the order of its group."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as f

from waystation.history.audit.completeness import in_gap
from waystation.history.audit.findings import EXAMPLES_MAX, Finding, Findings
from waystation.history.audit.live_state import Live, Owed
from waystation.history.audit.read_ranges import ReadRange, read_ranges
from waystation.history.audit.snapshot import AuditTables
from waystation.history.lake.lifecycle import (
    POSITION,
    entries,
    lifecycles,
    ranges,
    unknown_origins,
    with_origin,
)
from waystation.history.lake.schema import DELIVERIES, MESSAGES
from waystation.subscriptions.endpoints.protocol import DUPLICATE

_PLACE = ["project", "subscription", "storage", "partition"]
#: What tells a message in an incarnation of a subscription.
_JOURNEY = [*POSITION, "incarnation"]
#: After all moments: of what is not settled.
_NEVER = (1 << 63) - 1
#: A storage topic in a number that orders messages; no log has as many.
_STORAGE = 1 << 40
#: Looked up in the store at a time.
_AT_ONCE = 10_000
_PARTITIONS = 8
#: How often a message is looked for that was elsewhere by the time somebody looked: it goes from
#: its topic over retry to dead letters, and out.
_LOOKS_MAX = 5
#: After a change of a topic's options, other nodes may still use the former ones for a moment.
_SETTLED_MS = 60_000
#: The source of a message that is a CloudEvent under the event's own id, as
#: `topics.cloudevents.source_of_event` finds it; else null.
_EVENT_SOURCE = """
    if(coalesce(try_element_at(filter(headers, h -> h.name = 'ce-specversion'), -1).value, '') <> ''
       and try_url_decode(replace(
             try_element_at(filter(headers, h -> h.name = 'ce-id'), -1).value, '+', '%2B')) = id,
       coalesce(try_element_at(filter(headers, h -> h.name = 'ce-source'), -1).value, ''), null)"""
#: Neither settled nor given up with its subscription.
_OPEN = "coalesce(ends, 0) = 0 and not deleted and (lasts or left > 0)"
_TWICE = "ends > 1 or left > 1"

Renew = Callable[[], AuditTables]


def check_messages(
    tables: AuditTables, live: Live | None, renew: Renew | None, findings: Findings
) -> None:
    """Conservation and order of all subscriptions."""
    if not tables.has(DELIVERIES):
        findings.note("Deliveries: nothing recorded.")
        return
    for log in sorted({log for log, _ in tables.broken if log.startswith("s.")}):
        findings.note(f"Deliveries of {log} were not all recorded: it is not checked.")
    scopes = _ranges(tables, live)
    for project, subscription in sorted({each.whose for each in scopes if not each.topic}):
        findings.note(
            f"{project}/{subscription}: its record does not name its topic: it is not checked."
        )
    for project, subscription in sorted({each.whose for each in scopes if each.deleted}):
        findings.note(
            f"{project}/{subscription} was deleted: what it had not delivered by then is not"
            " looked for."
        )
    scopes = [each for each in scopes if each.topic]
    wanted = _wanted(tables)
    taken = lifecycles(tables.frame(DELIVERIES)).where(wanted)
    owed = _owed(tables, scopes, taken).persist()
    try:
        (counts,) = owed.selectExpr("count(*)", f"count_if({_TWICE})").collect()
        findings.seen("messages of subscriptions", counts[0])
        if counts[1]:
            _report_twice(owed.where(_TWICE), findings)
        _check_order(owed, findings)
        _check_unknown(tables, scopes, taken, findings)
        _check_swallowed(with_origin(tables.frame(DELIVERIES)).where(wanted), findings)
        _check_unknown_origins(_unknown_origins(tables).where(wanted), findings)
        _check_ends(owed.where(_OPEN), live, renew, findings)
    finally:
        owed.unpersist()


def check_repeated_ids(tables: AuditTables, live: Live | None, findings: Findings) -> None:
    """Check that a deduplicated topic has no id twice within the time that it remembers ids.

    An id counts as deduplication counts it: within its group, and the id of a CloudEvent within its
    source. Messages from before the topic had its present window are left out.
    """
    if not tables.has(MESSAGES):
        return
    if live is None:
        findings.note("Ids of deduplicated topics were not checked: the store was not asked.")
        return
    scopes = [
        (each.project, each.topic, number, each.window_ms, since_ms)
        for each in live.deduplicated()
        for since_ms in [each.since_ms + _SETTLED_MS if each.since_ms else 0]
        for number in each.storage
    ]
    if not scopes:
        return
    scope = tables.small(
        scopes, "project string, topic string, storage int, window_ms bigint, since_ms bigint"
    )
    counted = (
        tables.frame(MESSAGES)
        .where("id is not null")
        .join(scope, ["project", "topic", "storage"])
        .withColumn("ms", f.unix_millis("time"))
        .where("ms >= since_ms")
        .withColumn("source", f.expr(_EVENT_SOURCE))
    )
    same = Window.partitionBy("project", "topic", "id", "group", "source").orderBy(
        "ms", "storage", "offset"
    )
    repeated = (
        counted.withColumn("before", f.lag(f.struct("ms", "position")).over(same))
        # A row that is in the lake twice is found by its offset.
        .where("before.position <> position and ms - before.ms < window_ms")
        .withColumn("subject", f.concat_ws("/", "project", "topic"))
        .select("subject", "id", "position", "ms", "window_ms", "before")
    )
    rows = repeated.limit(EXAMPLES_MAX).collect()
    count = len(rows) if len(rows) < EXAMPLES_MAX else repeated.count()
    findings.add(
        "repeated id",
        count,
        [
            Finding(
                check="repeated id",
                subject=row.subject,
                id=row.id,
                position=row.position,
                text=f"{row.before.position} has the same id, {row.ms - row.before.ms} ms before;"
                f" the topic remembers ids for {row.window_ms} ms.",
            )
            for row in rows
        ],
    )


def _left_out(tables: AuditTables) -> set[tuple[str, ...]]:
    """Subscriptions of which not all is in the lake."""
    return {tuple(log.split(".")[1:3]) for log, _ in tables.broken if log.startswith("s.")}


def _ranges(tables: AuditTables, live: Live | None) -> list[ReadRange]:
    left_out = _left_out(tables)
    return [each for each in read_ranges(tables, live) if each.whose not in left_out]


def _wanted(tables: AuditTables) -> Column:
    return _every(~_is(project, subscription) for project, subscription in _left_out(tables))


def _owed(tables: AuditTables, scopes: Sequence[ReadRange], taken: DataFrame) -> DataFrame:
    """Messages that a subscription has, or had, to deal with: one row for each incarnation."""
    schema = (
        "project string, subscription string, topic string, storage int, partition int,"
        " incarnation bigint, lasts boolean, deleted boolean, begin bigint, upto bigint,"
        " last_generation int, last_shard int"
    )
    scope = tables.small((msgspec.structs.astuple(each) for each in scopes), schema)
    passed = ranges(tables.frame(DELIVERIES)).where("kind in ('passed', 'trimmed')")
    renamed = {name: f"passed_{name}" for name in (*_PLACE, "incarnation", "offset", "to")}
    return (
        # The first deliveries of an older message may have been deleted because of their age.
        tables.complete(tables.frame(MESSAGES))
        .select("project", "topic", "storage", "partition", "offset", "position", "id", "group")
        .join(scope, ["project", "topic", "storage", "partition"])
        .where("offset >= begin and offset < upto")
        .join(
            passed.select(*renamed).withColumnsRenamed(renamed),
            _every(f.col(name) == f.col(f"passed_{name}") for name in (*_PLACE, "incarnation"))
            & (f.col("offset") >= f.col("passed_offset"))
            & (f.col("offset") < f.col("passed_to")),
            "anti",
        )
        .join(taken, _JOURNEY, "left")
    )


def _report_twice(twice: DataFrame, findings: Findings) -> None:
    _report(
        "doubled",
        twice,
        lambda row: f"It was taken from its topic {row.left} times, and settled {row.ends} times.",
        findings,
    )


def _check_order(owed: DataFrame, findings: Findings) -> None:
    """The first attempt at a message began after all before it in its group were settled."""
    line = (
        Window.partitionBy("project", "subscription", "incarnation", "group")
        # One number, so that a message that is there twice is not before itself.
        .orderBy(f.col("storage") * _STORAGE + f.col("offset"))
        .rangeBetween(Window.unboundedPreceding, -1)
    )
    before = f.max(f.struct(f.coalesce("settled", f.lit(_NEVER)).alias("moment"), "id", "position"))
    overtaken = (
        # Of what was taken, its subscription may keep no order; what was not has to wait for all.
        owed.where("group is not null and (left is null or grouped)")
        .withColumn("before", before.over(line))
        .where("begun is not null and before.moment >= begun")
        .withColumn("later", f.col("id"))
        .withColumn("id", f.col("before.id"))
        .withColumn("position", f.col("before.position"))
    )
    _report(
        "overtaken",
        overtaken,
        lambda row: f"{row.later} of group {row.group} was attempted before it was settled.",
        findings,
    )


def _check_unknown(
    tables: AuditTables, scopes: Sequence[ReadRange], taken: DataFrame, findings: Findings
) -> None:
    """Deliveries of positions that are no message, of those that are in the lake as a whole."""
    topics = tables.small(
        {(*each.whose, each.incarnation, each.topic) for each in scopes},
        "project string, subscription string, incarnation bigint, topic string",
    )
    named = taken.join(topics, ["project", "subscription", "incarnation"]).withColumn(
        "log", f.concat_ws(".", f.lit("t"), "project", "topic", "storage")
    )
    ends = tables.end_frame(MESSAGES).withColumnRenamed("log_partition", "partition")
    unknown = (
        named.join(ends, ["log", "partition"])
        .where("offset < end")
        .join(
            tables.frame(MESSAGES).select("project", "topic", "storage", "partition", "offset"),
            ["project", "topic", "storage", "partition", "offset"],
            "anti",
        )
    )
    if tables.gaps:
        unknown = unknown.join(tables.gap_frame(), in_gap("log", "partition", "offset"), "anti")
    ids = (
        tables.frame(DELIVERIES)
        .where("message_id is not null and storage is not null")
        .select(*POSITION, f.col("message_id").alias("id"))
        .dropDuplicates(POSITION)
    )
    place = f.concat_ws("/", "project", "topic", "storage", "partition", "offset")
    _report(
        "unknown message",
        unknown.withColumn("position", place),
        lambda row: "It was delivered, and no such message is in the lake.",
        findings,
        ids=ids,
    )


def _check_swallowed(hops: DataFrame, findings: Findings) -> None:
    """Report deliveries that the receiver took for a repetition of another message.

    A receiver of our own names each message that it has by a receipt, and answers a repetition
    with the receipt of the first time. A message that was answered as a repetition under the
    receipt of another one did not arrive. The message id is compared too, because a channel that
    was empty for long counts its receipts anew.
    """
    same = ["project", "endpoint", "message_id", "excerpt"]
    arrived = hops.where("to_place = '-' and excerpt is not null and endpoint is not null").select(
        *same, "subscription", *POSITION[2:], "incarnation", "position", "status"
    )
    repeated = arrived.where(f.col("status") == DUPLICATE)
    journey = [*POSITION[1:], "incarnation"]
    others = arrived.select(*same, *(f.col(name).alias(f"other_{name}") for name in journey))
    differs = ~_every(f.col(name) == f.col(f"other_{name}") for name in journey)
    swallowed = (
        repeated.join(others, same)
        .where(differs)
        .dropDuplicates(_JOURNEY)
        .withColumn("id", f.col("message_id"))
    )
    _report(
        "swallowed",
        swallowed,
        lambda row: f"{row.endpoint} took it for a repetition of another message with its id.",
        findings,
    )


def _unknown_origins(tables: AuditTables) -> DataFrame:
    """Return the transitions from a place that no message ever entered.

    The entrance can be in rows that were deleted because of their age. A shard numbers its places
    in the order in which messages enter them, so a place has an entrance in the rows that are left
    only if its number is greater than that of an entrance there.
    """
    rows = tables.frame(DELIVERIES)
    unknown = unknown_origins(rows)
    if not any(log.startswith("s.") for log, _ in tables.expired):
        return unknown
    shard = ["log", "log_partition", "queue"]
    first = (
        entries(rows)
        .withColumns(_numbered("place"))
        .groupBy(*shard)
        .agg(f.min("number").alias("first_number"))
    )
    logs = tables.small(tables.expired, "log string, log_partition int").withColumn(
        "has_expired", f.lit(True)
    )
    return (
        unknown.withColumns(_numbered("from_place"))
        .join(first, shard, "left")
        .join(logs, shard[:2], "left")
        .where("has_expired is null or number > first_number")
    )


def _numbered(place: str) -> dict[str, Column]:
    """Return columns with the queue of a place and its number there."""
    return {
        "queue": f.substring(place, 1, 1),
        "number": f.substring(place, 2, 20).cast("bigint"),
    }


def _check_unknown_origins(hops: DataFrame, findings: Findings) -> None:
    place = f.concat_ws("/", "project", "subscription", "generation", "shard", "from_place")
    _report(
        "unknown place",
        hops.withColumn("position", place).withColumn("id", f.lit("")),
        lambda row: f"Something was {row.kind} from here, and nothing ever came here.",
        findings,
    )


def _check_ends(
    open_: DataFrame, live: Live | None, renew: Renew | None, findings: Findings
) -> None:
    """What has no end has to be in the store, or to have ended since it was looked at."""
    if live is None:
        if count := open_.where("letter is null").count():
            findings.note(f"{count:,} messages have not ended; the store was not asked for them.")
        return
    gone = _look(live, open_)
    lost: list[Row] = []
    for _ in range(_LOOKS_MAX):
        if not gone or renew is None:
            break
        # All that happened to them before the look is in the lake from here on.
        now = _still_open(renew(), live, gone)
        before = {_journey(row): _place(row) for row in gone}
        lost += [row for row in now if _place(row) == before[_journey(row)]]
        gone = _missing(live, [row for row in now if _place(row) != before[_journey(row)]])
    lost += gone
    findings.add(
        "lost",
        len(lost),
        [
            _finding("lost", row, "It has no end, and is not in the store any more.")
            for row in lost[:EXAMPLES_MAX]
        ],
    )


def _look(live: Live, open_: DataFrame) -> list[Row]:
    """Those that are not where they have to be."""
    gone: list[Row] = []
    batch: list[Row] = []
    # A job for each partition: few, and none is too large to be held.
    for row in open_.coalesce(_PARTITIONS).toLocalIterator():
        batch.append(row)
        if len(batch) == _AT_ONCE:
            gone += _missing(live, batch)
            batch = []
    return gone + _missing(live, batch)


def _missing(live: Live, rows: Sequence[Row]) -> list[Row]:
    found = live.messages([_owed_row(row) for row in rows])
    return [row for row, there in zip(rows, found, strict=True) if not there]


def _still_open(tables: AuditTables, live: Live, gone: Sequence[Row]) -> list[Row]:
    """Those of some that have no end either in what is recorded by now, as they are by now."""
    schema = (
        "project string, subscription string, storage int, partition int, offset bigint,"
        " incarnation bigint"
    )
    asked = tables.small(map(_journey, gone), schema)
    taken = lifecycles(tables.frame(DELIVERIES)).join(asked, _JOURNEY)
    owed = _owed(tables, _ranges(tables, live), taken)
    return owed.join(asked, _JOURNEY).where(_OPEN).dropDuplicates(_JOURNEY).collect()


def _journey(row: Row) -> tuple[object, ...]:
    return tuple(row[name] for name in _JOURNEY)


def _place(row: Row) -> str:
    """Where it has to be, by its record."""
    if row.letter is not None:
        return f"d{row.letter}"
    if row.retry is not None:
        return f"r{row.retry}"
    return f"m{row.storage}.{row.partition}.{row.offset}"


def _owed_row(row: Row) -> Owed:
    # What was not taken is where its partition is read now.
    taken = row.left is not None
    return Owed(
        project=row.project,
        subscription=row.subscription,
        generation=row.generation if taken else row.last_generation,
        shard=row.shard if taken else row.last_shard,
        place=_place(row),
    )


def _report(
    check: str,
    bad: DataFrame,
    text: Callable[[Row], str],
    findings: Findings,
    *,
    ids: DataFrame | None = None,
) -> None:
    examples = bad.limit(EXAMPLES_MAX)
    if ids is not None:
        examples = examples.join(ids, POSITION, "left")
    rows = examples.collect()
    count = len(rows) if len(rows) < EXAMPLES_MAX else bad.count()
    findings.add(check, count, [_finding(check, row, text(row)) for row in rows])


def _finding(check: str, row: Row, text: str) -> Finding:
    return Finding(
        check=check,
        subject=f"{row.project}/{row.subscription}",
        id=row.id or "",
        position=row.position,
        text=text,
    )


def _is(project: str, subscription: str) -> Column:
    return (f.col("project") == project) & (f.col("subscription") == subscription)


def _every(conditions: object) -> Column:
    """All of them; true where there are none."""
    joined = f.lit(True)
    for each in conditions:  # type: ignore[attr-defined]
        joined = joined & each
    return joined
