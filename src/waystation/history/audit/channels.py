"""Checks of channels: every published message is recorded, and is stored until it expires.

Messages of a channel have consecutive clocks, so that a missing clock is a message without a
record. A message that no recorded drop explains must be in the store until its expiry.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame, Row, Window
from pyspark.sql import functions as f

from waystation.channels.model import CLOCK_MAX, CLOCK_MIN
from waystation.history.audit.findings import EXAMPLES_MAX, Finding, Findings
from waystation.history.audit.live_state import Live
from waystation.history.audit.snapshot import AuditTables
from waystation.history.lake.schema import CHANNELS
from waystation.runtime.clock import Clock

#: Messages that are looked up at a time, in all channels and in one of them.
_LOOKUP_ROWS, _CHANNEL_ROWS = 10_000, 500
_LOOKUP_JOBS = 8
#: Place of an event in its log. An entry of a record log has at most 1,000 events.
_EVENT_ORDER = "log_offset * 1024 + item"
#: The clock of a channel expires after its messages, up to the resolution of the store's time.
_SLACK_MS = 1_000
#: Largest difference between the time of the store and that of the audit.
_BEHIND_MS = 60_000
_CHANNEL = ["project", "channel"]

Renew = Callable[[], AuditTables]


def check_channels(
    tables: AuditTables, live: Live | None, renew: Renew | None, findings: Findings
) -> None:
    """Check that every published message is recorded, and stored until it expires."""
    if not tables.has(CHANNELS):
        findings.note("Channels: nothing recorded.")
        return
    if count := tables.withheld(CHANNELS):
        findings.note(f"Calls of channels: {count:,} not recorded, as their option `record` says.")
    published = _published(tables).persist()
    try:
        findings.seen("messages of channels", published.count())
        _check_clocks(tables, published, findings)
        if live is None:
            findings.note("Messages of channels were not looked up in the store.")
        else:
            _check_stored(tables, published, live, renew, findings)
    finally:
        published.unpersist()


def _recorded(tables: AuditTables) -> DataFrame:
    """Return the events of channels, without logs from which settings withheld events."""
    rows = tables.frame(CHANNELS).where("kind is not null").withColumn("at", f.expr(_EVENT_ORDER))
    if not tables.unrecorded:
        return rows
    logs = tables.small(tables.unrecorded, "log string, log_partition int")
    return rows.join(logs, ["log", "log_partition"], "anti")


def _published(tables: AuditTables) -> DataFrame:
    columns = ("log", "log_partition", "log_offset", "at", "clock", "message_id", "time", "expires")
    return _recorded(tables).where("kind = 'published'").select(*_CHANNEL, *columns)


# -- Clocks ----------------------------------------------------------------------------------


def _check_clocks(tables: AuditTables, published: DataFrame, findings: Findings) -> None:
    """Report clocks that no published message has, and clocks that went back."""
    by_log = Window.partitionBy(*_CHANNEL, "log").orderBy("at")
    jumps = (
        published.withColumn("before", f.lag("clock").over(by_log))
        .withColumn("before_at", f.lag("at").over(by_log))
        .withColumn("before_offset", f.lag("log_offset").over(by_log))
        .withColumn(
            "expired",
            f.max("expires").over(by_log.rowsBetween(Window.unboundedPreceding, -1)),
        )
        # A row that is in the lake twice is found by its offset.
        .where("clock <> before + 1 and at <> before_at")
        .where(f"not (before = {CLOCK_MAX} and clock = {CLOCK_MIN})")
        # After its last message has expired, a channel starts again with clock 1.
        .where(f"not (clock = 1 and unix_millis(time) + {_SLACK_MS} >= unix_millis(expired))")
    )
    if tables.gaps:
        # The missing events can be in a gap of the log.
        inside = (
            (f.col("log") == f.col("gap_log"))
            & (f.col("gap_from") < f.col("log_offset"))
            & (f.col("gap_to") > f.col("before_offset"))
        )
        jumps = jumps.join(tables.gap_frame(), inside, "anti")
    withheld = (
        tables.frame(CHANNELS)
        .where("kind = 'withheld' or kind is null")
        .select(f.col("log").alias("hidden_log"), f.col("log_offset").alias("hidden_offset"))
    )
    # The calls in between can have had `record` none, or an entry that cannot be read.
    hidden = (
        (f.col("log") == f.col("hidden_log"))
        & (f.col("hidden_offset") < f.col("log_offset"))
        & (f.col("hidden_offset") > f.col("before_offset"))
    )
    jumps = jumps.join(withheld, hidden, "anti")
    rows = jumps.limit(EXAMPLES_MAX).collect()
    count = len(rows) if len(rows) < EXAMPLES_MAX else jumps.count()
    findings.add("clock", count, [_finding("clock", row, _jump_text(row)) for row in rows])


def _jump_text(row: Row) -> str:
    if row.clock <= row.before:
        return f"The clock went back from {row.before} to {row.clock}."
    return f"No record has clocks {row.before + 1} to {row.clock - 1}."


# -- Stored messages -------------------------------------------------------------------------


def _check_stored(
    tables: AuditTables,
    published: DataFrame,
    live: Live,
    renew: Renew | None,
    findings: Findings,
) -> None:
    """Report messages that the store lacks before their expiry, and that were not dropped."""
    missing = _missing(live, _stored(tables, published))
    if missing and renew is not None:
        # All events that channels recorded before the search are in the lake from here on.
        tables = renew()
    lost = _lost(tables, missing) if missing else []
    # A call with `record` none drops messages without an event, but its messages have clocks.
    unsure = Counter(f"{row.project}/{row.channel}" for row in lost if row.is_unsure)
    for channel, count in sorted(unsure.items()):
        findings.note(
            f"{channel}: {count:,} messages are gone, and it published others since that were not"
            " recorded. They can have been dropped."
        )
    lost = [row for row in lost if not row.is_unsure]
    text = "It has not expired and was not dropped, and the store does not have it."
    findings.add("lost", len(lost), [_finding("lost", row, text) for row in lost[:EXAMPLES_MAX]])


def _stored(tables: AuditTables, published: DataFrame) -> DataFrame:
    """Return the messages that channels must have, by the lake, unless they have expired."""
    dropped = (
        _recorded(tables)
        .where("kind = 'dropped'")
        .groupBy(*_CHANNEL)
        .agg(f.max_by("to_clock", "at").alias("dropped_to"), f.max("at").alias("dropped_at"))
    )
    # A drop deletes the oldest messages. A clock that has wrapped since is small, and not old.
    is_dropped = (
        f"at <= dropped_at and dropped_to - clock between 0 and {CLOCK_MAX}"
        f" or at <= dropped_at and dropped_to - clock < -{CLOCK_MAX}"
    )
    return (
        # The store decides with its own time, which can be behind this clock.
        published.where(f.unix_millis("expires") > Clock().now_ms() - _BEHIND_MS)
        .join(dropped, _CHANNEL, "left")
        .where(f"not coalesce({is_dropped}, false)")
    )


def _missing(live: Live, wanted: DataFrame) -> list[tuple[object, ...]]:
    """Return the messages that the store lacks: their channel, log, place and channel's clock."""
    missing: list[tuple[object, ...]] = []
    batch: list[Row] = []
    for row in wanted.coalesce(_LOOKUP_JOBS).toLocalIterator():
        batch.append(row)
        if len(batch) == _LOOKUP_ROWS:
            missing += _search(live, batch)
            batch = []
    return missing + _search(live, batch)


def _search(live: Live, rows: Sequence[Row]) -> list[tuple[object, ...]]:
    by_channel: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        by_channel[row.project, row.channel].append(row)
    missing: list[tuple[object, ...]] = []
    while by_channel:
        chunk = {channel: some[:_CHANNEL_ROWS] for channel, some in by_channel.items()}
        found = live.channel_messages(
            {channel: [row.clock for row in some] for channel, some in chunk.items()}
        )
        for channel, some in chunk.items():
            now = found[channel]
            missing += [
                (*channel, row.log, row.at, now.clock)
                for row, is_stored in zip(some, now.stored, strict=True)
                if not is_stored and row.expires.timestamp() * 1000 > now.now_ms
            ]
            by_channel[channel] = by_channel[channel][_CHANNEL_ROWS:]
            if not by_channel[channel]:
                del by_channel[channel]
    return missing


def _lost(tables: AuditTables, missing: Sequence[tuple[object, ...]]) -> list[Row]:
    """Return the messages that no recorded drop explains.

    `is_unsure` is true if the channel had published messages by the search that were not recorded.
    """
    published = _published(tables)
    wanted = tables.small(
        missing, "project string, channel string, log string, at bigint, channel_clock bigint"
    )
    lost = _stored(tables, published).join(wanted, [*_CHANNEL, "log", "at"])
    later = published.select(*_CHANNEL, f.col("clock").alias("later"))
    recorded = (
        lost.join(later, _CHANNEL)
        .where("later > clock and later <= channel_clock")
        .groupBy(*_CHANNEL, "log", "at")
        .agg(f.count_distinct("later").alias("recorded"))
    )
    is_unsure = "coalesce(recorded, 0) < channel_clock - clock"
    return (
        lost.join(recorded, [*_CHANNEL, "log", "at"], "left")
        .withColumn("is_unsure", f.coalesce(f.expr(is_unsure), f.lit(False)))
        .collect()
    )


def _finding(check: str, row: Row, text: str) -> Finding:
    return Finding(
        check=check,
        subject=f"{row.project}/{row.channel}",
        id=row.message_id or "",
        position=f"{row.log}/{row.log_partition}/{row.log_offset}",
        text=text,
    )
