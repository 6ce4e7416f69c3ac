"""Checks of subscriptions: each delivers every message once, in the order of the message's group.

A subscription must have settled every message of its read ranges, or still have it in the topic,
the retry queue or the dead letters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec
from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as f

from waystation.history.audit.completeness import in_gap
from waystation.history.audit.findings import EXAMPLES_MAX, Finding, Findings
from waystation.history.audit.live_state import ExpectedMessage, Live
from waystation.history.audit.read_ranges import ReadRange, read_ranges
from waystation.history.audit.snapshot import AuditTables
from waystation.history.lake.lifecycle import (
    POSITION,
    entries,
    lifecycles,
    unknown_origins,
    with_origin,
)
from waystation.history.lake.lifecycle import ranges as recorded_ranges
from waystation.history.lake.schema import DELIVERIES, MESSAGES
from waystation.subscriptions.endpoints.protocol import DUPLICATE

_PARTITION = ["project", "subscription", "storage", "partition"]
#: Columns that identify a message in an incarnation of a subscription.
_MESSAGE = [*POSITION, "incarnation"]
#: Moment of a message that is not settled: later than all others.
_NEVER = (1 << 63) - 1
#: Distance of two storage topics in the number that orders messages. No log has as many entries.
_STORAGE_STRIDE = 1 << 40
#: Messages of one look-up in the store.
_LOOKUP_ROWS = 10_000
_LOOKUP_JOBS = 8
#: Look-ups of a message that moves between an ingest and the look-up after it. Its places are the
#: topic, the retry queue and the dead letters, until it leaves the subscription.
_LOOKUPS_MAX = 5
#: Time after a change of a topic's options in which other nodes may still use the former ones.
_OPTIONS_DELAY_MS = 60_000
#: The source of a message that is a CloudEvent under the event's own id, as
#: `topics.cloudevents.source_of_event` finds it; else null.
_EVENT_SOURCE = """
    if(coalesce(try_element_at(filter(headers, h -> h.name = 'ce-specversion'), -1).value, '') <> ''
       and try_url_decode(replace(
             try_element_at(filter(headers, h -> h.name = 'ce-id'), -1).value, '+', '%2B')) = id,
       coalesce(try_element_at(filter(headers, h -> h.name = 'ce-source'), -1).value, ''), null)"""
#: Condition of a message that is neither settled nor deleted with its subscription.
_IS_OPEN = "coalesce(ends, 0) = 0 and not deleted and (lasts or left > 0)"
_IS_DOUBLED = "ends > 1 or left > 1"

Renew = Callable[[], AuditTables]


def check_messages(
    tables: AuditTables, live: Live | None, renew: Renew | None, findings: Findings
) -> None:
    """Check that no subscription lost, doubled or overtook a message."""
    if not tables.has(DELIVERIES):
        findings.note("Deliveries: nothing recorded.")
        return
    for log in sorted({log for log, _ in tables.broken if log.startswith("s.")}):
        findings.note(f"Deliveries of {log} were not all recorded: it is not checked.")
    ranges = _read_ranges(tables, live)
    for project, subscription in sorted(
        {each.subscription_id for each in ranges if not each.topic}
    ):
        findings.note(
            f"{project}/{subscription} is not checked, because its record does not name its topic."
        )
    for project, subscription in sorted({each.subscription_id for each in ranges if each.deleted}):
        findings.note(
            f"{project}/{subscription} was deleted: messages that it had not delivered by then are"
            " not checked."
        )
    ranges = [each for each in ranges if each.topic]
    is_checked = _is_checked(tables)
    lifecycle_rows = lifecycles(tables.frame(DELIVERIES)).where(is_checked)
    expected = _expected_messages(tables, ranges, lifecycle_rows).persist()
    try:
        (counts,) = expected.selectExpr("count(*)", f"count_if({_IS_DOUBLED})").collect()
        findings.seen("messages of subscriptions", counts[0])
        if counts[1]:
            _report_doubled(expected.where(_IS_DOUBLED), findings)
        _check_order(expected, findings)
        _check_unknown(tables, ranges, lifecycle_rows, findings)
        _check_swallowed(with_origin(tables.frame(DELIVERIES)).where(is_checked), findings)
        _check_unknown_origins(_unknown_origins(tables).where(is_checked), findings)
        _check_ends(expected.where(_IS_OPEN), live, renew, findings)
    finally:
        expected.unpersist()


def check_repeated_ids(tables: AuditTables, live: Live | None, findings: Findings) -> None:
    """Report ids that a deduplicated topic has twice within the time for which it stores ids.

    Ids are compared as deduplication compares them: within a group, and those of CloudEvents within
    their source. Messages that are older than the present window of the topic are not checked.
    """
    if not tables.has(MESSAGES):
        return
    if live is None:
        findings.note("Ids of deduplicated topics were not checked, because that needs the store.")
        return
    topics = [
        (each.project, each.topic, number, each.window_ms, since_ms)
        for each in live.deduplicated()
        for since_ms in [each.since_ms + _OPTIONS_DELAY_MS if each.since_ms else 0]
        for number in each.storage
    ]
    if not topics:
        return
    windows = tables.small(
        topics, "project string, topic string, storage int, window_ms bigint, since_ms bigint"
    )
    counted = (
        tables.frame(MESSAGES)
        .where("id is not null")
        .join(windows, ["project", "topic", "storage"])
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
                f" the topic stores ids for {row.window_ms} ms.",
            )
            for row in rows
        ],
    )


def _incomplete(tables: AuditTables) -> set[tuple[str, ...]]:
    """Return the subscriptions whose record logs have gaps or withheld events."""
    return {tuple(log.split(".")[1:3]) for log, _ in tables.broken if log.startswith("s.")}


def _read_ranges(tables: AuditTables, live: Live | None) -> list[ReadRange]:
    incomplete = _incomplete(tables)
    return [each for each in read_ranges(tables, live) if each.subscription_id not in incomplete]


def _is_checked(tables: AuditTables) -> Column:
    return _all_of(
        ~_is_subscription(project, subscription) for project, subscription in _incomplete(tables)
    )


def _expected_messages(
    tables: AuditTables, ranges: Sequence[ReadRange], lifecycle_rows: DataFrame
) -> DataFrame:
    """Return the messages of read ranges with their lifecycles: a row for each incarnation.

    A message that its subscription has not taken has no lifecycle: its columns are null.
    """
    schema = (
        "project string, subscription string, topic string, storage int, partition int,"
        " incarnation bigint, lasts boolean, deleted boolean, begin bigint, upto bigint,"
        " last_generation int, last_shard int"
    )
    scope = tables.small((msgspec.structs.astuple(each) for each in ranges), schema)
    passed = recorded_ranges(tables.frame(DELIVERIES)).where("kind in ('passed', 'trimmed')")
    renamed = {name: f"passed_{name}" for name in (*_PARTITION, "incarnation", "offset", "to")}
    return (
        # The first deliveries of an older message may have been deleted because of their age.
        tables.complete(tables.frame(MESSAGES))
        .select("project", "topic", "storage", "partition", "offset", "position", "id", "group")
        .join(scope, ["project", "topic", "storage", "partition"])
        .where("offset >= begin and offset < upto")
        .join(
            passed.select(*renamed).withColumnsRenamed(renamed),
            _all_of(f.col(name) == f.col(f"passed_{name}") for name in (*_PARTITION, "incarnation"))
            & (f.col("offset") >= f.col("passed_offset"))
            & (f.col("offset") < f.col("passed_to")),
            "anti",
        )
        .join(lifecycle_rows, _MESSAGE, "left")
    )


def _report_doubled(doubled: DataFrame, findings: Findings) -> None:
    _report(
        "doubled",
        doubled,
        lambda row: f"It was taken from its topic {row.left} times, and settled {row.ends} times.",
        findings,
    )


def _check_order(expected: DataFrame, findings: Findings) -> None:
    """Report messages that were unsettled when a later message of their group was attempted."""
    earlier = (
        Window.partitionBy("project", "subscription", "incarnation", "group")
        # One number, so that a message with two rows is not earlier than itself.
        .orderBy(f.col("storage") * _STORAGE_STRIDE + f.col("offset"))
        .rangeBetween(Window.unboundedPreceding, -1)
    )
    before = f.max(f.struct(f.coalesce("settled", f.lit(_NEVER)).alias("moment"), "id", "position"))
    overtaken = (
        # The lifecycle of a message says whether its subscription keeps the order of groups.
        # A message that was not taken has none, and must not be overtaken either.
        expected.where("group is not null and (left is null or grouped)")
        .withColumn("before", before.over(earlier))
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
    tables: AuditTables, ranges: Sequence[ReadRange], lifecycle_rows: DataFrame, findings: Findings
) -> None:
    """Report deliveries of messages that the lake does not have.

    Check only positions up to the committed offset of their partition, and outside of gaps.
    """
    topics = tables.small(
        {(*each.subscription_id, each.incarnation, each.topic) for each in ranges},
        "project string, subscription string, incarnation bigint, topic string",
    )
    named = lifecycle_rows.join(topics, ["project", "subscription", "incarnation"]).withColumn(
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
        lambda row: "It was delivered, but the lake has no message at this position.",
        findings,
        ids=ids,
    )


def _check_swallowed(transitions: DataFrame, findings: Findings) -> None:
    """Report deliveries that the receiver answered as a repetition of another message.

    A channel, pool or pipeline answers each new message with a receipt, and a repetition with the
    receipt of the first delivery. A message that was answered with the receipt of another message
    did not arrive. The message id is compared too, because a channel that was empty for a long time
    assigns its receipts again.
    """
    same = ["project", "endpoint", "message_id", "excerpt"]
    arrived = transitions.where(
        "to_place = '-' and excerpt is not null and endpoint is not null"
    ).select(*same, "subscription", *POSITION[2:], "incarnation", "position", "status")
    repeated = arrived.where(f.col("status") == DUPLICATE)
    message = [*POSITION[1:], "incarnation"]
    others = arrived.select(*same, *(f.col(name).alias(f"other_{name}") for name in message))
    differs = ~_all_of(f.col(name) == f.col(f"other_{name}") for name in message)
    swallowed = (
        repeated.join(others, same)
        .where(differs)
        .dropDuplicates(_MESSAGE)
        .withColumn("id", f.col("message_id"))
    )
    _report(
        "swallowed",
        swallowed,
        lambda row: f"{row.endpoint} answered it as a repetition of another message with its id.",
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


def _check_unknown_origins(transitions: DataFrame, findings: Findings) -> None:
    place = f.concat_ws("/", "project", "subscription", "generation", "shard", "from_place")
    _report(
        "unknown place",
        transitions.withColumn("position", place).withColumn("id", f.lit("")),
        lambda row: f"A message was {row.kind} from this place, but no message entered it.",
        findings,
    )


def _check_ends(
    unfinished: DataFrame, live: Live | None, renew: Renew | None, findings: Findings
) -> None:
    """Report messages without an end that the store does not have.

    A message can move or end between the ingest and the look-up. So ingest again after a look-up
    that does not find it, and look it up again if its place has changed by then.
    """
    if live is None:
        if count := unfinished.where("letter is null").count():
            findings.note(
                f"{count:,} messages have not ended. They were not looked up in the store."
            )
        return
    missing = _find_missing(live, unfinished)
    lost: list[Row] = []
    for _ in range(_LOOKUPS_MAX):
        if not missing or renew is None:
            break
        # The lake has all their transitions before the look-up from here on.
        now = _open_by_now(renew(), live, missing)
        before = {_message_key(row): _expected_place(row) for row in missing}
        lost += [row for row in now if _expected_place(row) == before[_message_key(row)]]
        missing = _not_found(
            live, [row for row in now if _expected_place(row) != before[_message_key(row)]]
        )
    lost += missing
    findings.add(
        "lost",
        len(lost),
        [
            _finding("lost", row, "It has no end in the lake, and the store does not have it.")
            for row in lost[:EXAMPLES_MAX]
        ],
    )


def _find_missing(live: Live, unfinished: DataFrame) -> list[Row]:
    """Return the messages that are not in their expected places."""
    missing: list[Row] = []
    batch: list[Row] = []
    # Spark runs one job per partition, so few; each must fit into memory.
    for row in unfinished.coalesce(_LOOKUP_JOBS).toLocalIterator():
        batch.append(row)
        if len(batch) == _LOOKUP_ROWS:
            missing += _not_found(live, batch)
            batch = []
    return missing + _not_found(live, batch)


def _not_found(live: Live, rows: Sequence[Row]) -> list[Row]:
    found = live.messages([_expected_message(row) for row in rows])
    return [row for row, there in zip(rows, found, strict=True) if not there]


def _open_by_now(tables: AuditTables, live: Live, missing: Sequence[Row]) -> list[Row]:
    """Return those of the missing messages that have no end in newer tables, with new places."""
    schema = (
        "project string, subscription string, storage int, partition int, offset bigint,"
        " incarnation bigint"
    )
    missing_keys = tables.small(map(_message_key, missing), schema)
    lifecycle_rows = lifecycles(tables.frame(DELIVERIES)).join(missing_keys, _MESSAGE)
    expected = _expected_messages(tables, _read_ranges(tables, live), lifecycle_rows)
    return expected.join(missing_keys, _MESSAGE).where(_IS_OPEN).dropDuplicates(_MESSAGE).collect()


def _message_key(row: Row) -> tuple[object, ...]:
    return tuple(row[name] for name in _MESSAGE)


def _expected_place(row: Row) -> str:
    """Return the place of a message by its lifecycle, as in `ExpectedMessage.place`."""
    if row.letter is not None:
        return f"d{row.letter}"
    if row.retry is not None:
        return f"r{row.retry}"
    return f"m{row.storage}.{row.partition}.{row.offset}"


def _expected_message(row: Row) -> ExpectedMessage:
    # A message that was not taken belongs to the shard that reads its partition now.
    is_taken = row.left is not None
    return ExpectedMessage(
        project=row.project,
        subscription=row.subscription,
        generation=row.generation if is_taken else row.last_generation,
        shard=row.shard if is_taken else row.last_shard,
        place=_expected_place(row),
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


def _is_subscription(project: str, subscription: str) -> Column:
    return (f.col("project") == project) & (f.col("subscription") == subscription)


def _all_of(conditions: Iterable[Column]) -> Column:
    """Return the conjunction of conditions; true for an empty list."""
    joined = f.lit(True)
    for each in conditions:
        joined = joined & each
    return joined
