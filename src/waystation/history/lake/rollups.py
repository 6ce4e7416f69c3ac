"""Rollups: the query of each one, and the refresh that computes the buckets with new rows.

A query turns rows of the base tables into events with a time, the key of the rollup and values, and
sums up the events of each bucket. An event that needs facts from before its bucket, such as the
pipeline of a transaction that ends, joins the rows of all times.

A refresh reads one snapshot of the lake. A rollup stores, for each table that it is computed from,
the version that it contains. The files that were added since have the times of the new rows; the
buckets of these times are computed from the rows of the snapshot and replace the old buckets. The
versions are in the last commit of a rollup, so a crash makes the next refresh do the same again.
"""

# ruff: noqa: S608 (names, days and numbers of our own; no text of users)
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa
from deltalake import (
    CommitProperties,
    DeltaTable,
    Schema,
    Transaction,
    WriterProperties,
    write_deltalake,
)
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from pyspark.sql import DataFrame, SparkSession

from waystation.errors import HistoryBusyError
from waystation.history.lake.files import AddedFile
from waystation.history.lake.lifecycle import with_origin
from waystation.history.lake.maintenance import maintain
from waystation.history.lake.rollup_schema import (
    BUCKET_SECONDS,
    ENDPOINT_METRICS,
    GROUP_LOAD,
    PARTITIONS,
    PIPELINE_METRICS,
    ROLLUPS,
    SUBSCRIPTION_METRICS,
    RollupSchema,
)
from waystation.history.lake.table import Lake, LakeSnapshot, lake_write
from waystation.history.lake.views import attach, open_snapshot
from waystation.runtime.clock import Clock

#: Days of one commit, because the driver holds all of its buckets in memory.
_COMMIT_DAYS = 7
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Statuses in which a transaction ends, as the record log has them.
_STATUSES = ("success", "failed", "aborted", "internal-error", "timeout", "cancelled")


class BucketWindow(msgspec.Struct, frozen=True):
    """Consecutive whole buckets of one length, from `start` up to, but excluding, `end`."""

    bucket_seconds: int
    start: datetime
    end: datetime

    def days(self) -> Iterator[date]:
        """Yield the days that contain rows of these buckets."""
        day = self.start.date()
        while datetime.combine(day, datetime.min.time(), UTC) < self.end:
            yield day
            day += timedelta(days=1)


class TimeSpan(msgspec.Struct, frozen=True):
    """First and last time of new rows of a day."""

    first: datetime
    last: datetime

    def __or__(self, other: TimeSpan) -> TimeSpan:
        return TimeSpan(min(self.first, other.first), max(self.last, other.last))

    def windows(self) -> Iterator[BucketWindow]:
        """Yield the buckets of every length that contain these times."""
        for seconds in BUCKET_SECONDS:
            end = _bucket_start(self.last, seconds) + timedelta(seconds=seconds)
            yield BucketWindow(seconds, _bucket_start(self.first, seconds), end)


class RefreshProgress(msgspec.Struct):
    """Progress of a refresh."""

    #: Buckets that were written, by rollup.
    rows: dict[str, int] = msgspec.field(default_factory=dict)
    #: Days with new rows, over all rollups so far.
    days: int = 0
    #: Days of the present rollup that are not committed yet.
    left: int = 0


def refresh_rollups(
    spark: SparkSession,
    lake: Lake,
    on_progress: Callable[[RefreshProgress], None] | None = None,
    *,
    clock: Clock | None = None,
) -> RefreshProgress:
    """Compute all rollups from one snapshot, and attach the session to the result.

    Raise NoLakeError if there is no lake, HistoryBusyError if another refresh commits first.
    """
    progress = RefreshProgress()
    snapshot = open_snapshot(lake.root)
    attach(spark, lake=snapshot)
    for schema in ROLLUPS:
        _refresh(spark, snapshot, lake.folder(schema), schema, progress, on_progress)
        maintain(lake.folder(schema), (clock or Clock()).now_ms())
    attach(spark, lake=lake.root)
    return progress


def rollup_rows(
    spark: SparkSession, rollup: RollupSchema, windows: Sequence[BucketWindow]
) -> DataFrame:
    """Return the rows of a rollup in some windows, computed from the views of an attached lake."""
    days = sorted({day.isoformat() for window in windows for day in window.days()})
    listed = ", ".join(f"date '{day}'" for day in days)
    return _QUERIES[rollup.name](spark, f"day in ({listed})", _values(windows))


def touched_times(added: Iterable[AddedFile]) -> Iterator[TimeSpan]:
    """Yield the times of the rows of each file; the whole day if a file has no statistics."""
    for file in added:
        if file.rows != 0:
            start = datetime.combine(date.fromisoformat(file.day), datetime.min.time(), UTC)
            end = start + timedelta(days=1) - timedelta(milliseconds=1)
            yield TimeSpan(_moment(file.first_time) or start, _moment(file.last_time) or end)


def merge_windows(windows: Iterable[BucketWindow]) -> list[BucketWindow]:
    """Combine windows that overlap. A bucket of 1,000 s across midnight belongs to two days."""
    merged: list[BucketWindow] = []
    for each in sorted(windows, key=lambda window: (window.bucket_seconds, window.start)):
        last = merged[-1] if merged else None
        if last and last.bucket_seconds == each.bucket_seconds and each.start <= last.end:
            merged[-1] = BucketWindow(last.bucket_seconds, last.start, max(last.end, each.end))
        else:
            merged.append(each)
    return merged


# -- Refresh of one rollup ---------------------------------------------------------------------


def _refresh(
    spark: SparkSession,
    snapshot: LakeSnapshot,
    folder: str,
    schema: RollupSchema,
    progress: RefreshProgress,
    on_progress: Callable[[RefreshProgress], None] | None,
) -> None:
    rollup = _open(folder, schema)
    touched: dict[date, TimeSpan] = {}
    versions: dict[str, int] = {}
    for base in schema.bases:
        table = snapshot.get(base.name)
        key = f"refresh/{base.name}"
        known = rollup.transaction_version(key)
        if table is None or table.version == known:
            continue
        versions[key] = table.version
        for part in touched_times(table.added_since(known)):
            day = part.first.date()
            touched[day] = touched[day] | part if day in touched else part
    if kept_from := snapshot.kept_from:
        # Expiry has deleted rows of earlier buckets, and of buckets that contain this midnight.
        oldest = datetime.combine(kept_from, datetime.min.time(), UTC)
    else:
        oldest = _EPOCH
    days = sorted(day for day in touched if kept_from is None or day >= kept_from)
    if versions and not days:
        # Commits without rows; remember them so that the next refresh does not read them.
        _commit_versions(_open(folder, schema), schema, versions)
    progress.days += len(days)
    progress.left = len(days)
    for start in range(0, len(days), _COMMIT_DAYS):
        some = days[start : start + _COMMIT_DAYS]
        windows = merge_windows(
            window for day in some for window in _since(oldest, touched[day].windows())
        )
        rows = rollup_rows(spark, schema, windows).toArrow().select(schema.schema.names)
        rows = rows.cast(schema.schema)
        is_last = start + _COMMIT_DAYS >= len(days)
        _replace(_open(folder, schema), rows, windows, versions if is_last else {})
        progress.rows[schema.name] = progress.rows.get(schema.name, 0) + rows.num_rows
        progress.left -= len(some)
        if on_progress is not None:
            on_progress(progress)


def _since(oldest: datetime, windows: Iterable[BucketWindow]) -> Iterator[BucketWindow]:
    """Yield windows without the buckets that begin before a time."""
    for each in windows:
        start = each.start
        while start < oldest:
            start += timedelta(seconds=each.bucket_seconds)
        if start < each.end:
            yield msgspec.structs.replace(each, start=start)


def _open(folder: str, schema: RollupSchema) -> DeltaTable:
    try:
        return DeltaTable(folder)
    except TableNotFoundError:
        return DeltaTable.create(
            folder,
            schema=Schema.from_arrow(schema.schema),
            mode="ignore",
            partition_by=list(PARTITIONS),
            name=schema.name,
        )


def _replace(
    table: DeltaTable, rows: pa.Table, windows: Sequence[BucketWindow], versions: dict[str, int]
) -> None:
    """Replace the buckets of some windows and store the versions, in one commit."""
    predicate = " or ".join(
        f"(bucket_seconds = {each.bucket_seconds} and bucket >= '{_iso(each.start)}'"
        f" and bucket < '{_iso(each.end)}')"
        for each in windows
    )
    with _writing(table):
        write_deltalake(
            table,
            rows,
            mode="overwrite",
            predicate=predicate,
            writer_properties=WriterProperties(compression="ZSTD"),
            commit_properties=_properties(versions),
        )


def _commit_versions(table: DeltaTable, schema: RollupSchema, versions: dict[str, int]) -> None:
    with _writing(table):
        table.create_write_transaction(
            [],
            "append",
            Schema.from_arrow(schema.schema),
            list(PARTITIONS),
            commit_properties=_properties(versions),
        )


def _properties(versions: dict[str, int]) -> CommitProperties:
    transactions = [Transaction(key, version) for key, version in versions.items()]
    return CommitProperties(app_transactions=transactions)


@contextmanager
def _writing(table: DeltaTable) -> Iterator[None]:
    name = table.metadata().name or ""
    try:
        yield
    except CommitFailedError as error:
        raise HistoryBusyError(
            f"Another refresh committed to {name} in the meantime.",
            hint="Run the command again; it continues from that commit.",
        ) from error
    except (DeltaError, OSError) as error:
        raise lake_write(name, error) from error


def _moment(value: Any) -> datetime | None:
    """Return a bound of a column of times; text comes from the Delta log."""
    if value is None:
        return None
    moment: datetime = datetime.fromisoformat(value) if isinstance(value, str) else value
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _bucket_start(moment: datetime, seconds: int) -> datetime:
    passed = int((moment - _EPOCH).total_seconds())
    return _EPOCH + timedelta(seconds=passed // seconds * seconds)


def _iso(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


# -- Queries -----------------------------------------------------------------------------------


def _values(windows: Sequence[BucketWindow]) -> str:
    rows = ", ".join(
        f"({each.bucket_seconds}, timestamp '{each.start.isoformat()}',"
        f" timestamp '{each.end.isoformat()}')"
        for each in windows
    )
    return f"(values {rows}) as w(bucket_seconds, window_start, window_end)"


def _bucketed(events: str, windows: str) -> str:
    """Return a query for events, each repeated for every bucket that contains its time."""
    return f"""
        select w.bucket_seconds, e.*,
               timestamp_seconds(unix_seconds(e.time) div w.bucket_seconds * w.bucket_seconds)
                 bucket
        from ({events}) e join {windows} on e.time >= w.window_start and e.time < w.window_end"""


def _percentiles(column: str, name: str) -> str:
    found = f"percentile_approx({column}, array(0.5, 0.95, 0.99))"
    names = ((0, "p50"), (1, "p95"), (2, "p99"))
    return ", ".join(f"cast({found}[{at}] as double) {name}_{word}" for at, word in names)


def _seconds(first: str, last: str) -> str:
    return f"(unix_millis({last}) - unix_millis({first})) / 1000d"


def _pipelines(spark: SparkSession, days: str, windows: str) -> DataFrame:
    counted = ", ".join(
        f"count_if(status = '{each}') {each.replace('-', '_')}" for each in _STATUSES
    )
    # Rows of the kinds `notified` and `lifted` come after the end and repeat its status.
    events = f"""
        select project, pipeline, time, kind, cast(null as string) status,
               cast(null as double) seconds, cast(null as string) outcome
        from waystation.transactions where kind = 'started' and {days}
        union all
        select s.project, s.pipeline, t.time, t.kind,
               if(t.kind in ('notified', 'lifted'), null, t.status),
               if(t.kind in ('notified', 'lifted') or t.status is null, null,
                  {_seconds("s.time", "t.time")}), null
        from waystation.transactions t join starts s using (transaction_id)
        where t.kind <> 'started' and (t.status is not null or t.kind = 'rescued') and t.{days}
        union all
        select s.project, s.pipeline, t.time, 'step', null, null, t.outcome
        from waystation.steps t join starts s using (transaction_id) where t.{days}"""
    return spark.sql(
        f"""
        with starts as (select transaction_id, project, pipeline, time
                        from waystation.transactions where kind = 'started')
        select bucket_seconds, to_date(bucket) day, bucket, project, pipeline,
               count_if(kind = 'started') started, {counted}, count_if(kind = 'step') steps,
               count_if(outcome in ('failed', 'aborted', 'internal-error', 'timeout', 'retry'))
                 step_failures,
               count_if(kind = 'rescued') rescued, {_percentiles("seconds", "seconds")}
        from ({_bucketed(events, windows)}) where pipeline is not null group by 1, 2, 3, 4, 5"""
    )


def _subscriptions(spark: SparkSession, days: str, windows: str) -> DataFrame:
    transitions = with_origin(spark.table("waystation.deliveries"))
    events = f"""
        select h.project, h.subscription, h.time, h.kind, h.to_place, h.attempt, 0L filtered,
               if(h.to_place = '-' and h.kind = 'attempt', {_seconds("m.time", "h.time")}, null)
                 latency
        from {{transitions}} h
        left join (select project, subscription, max(topic) topic from waystation.deliveries
                   where kind = 'start' group by 1, 2) t using (project, subscription)
        left join waystation.messages m
          on m.dataset = h.dataset and m.project = h.project and m.topic = t.topic
         and m.storage = h.storage and m.partition = h.partition and m.offset = h.offset
        where h.{days}
        union all
        select project, subscription, time, kind, to_place, null,
               cast(element_at(split(to_place, '[.]'), -1) as bigint) - offset, null
        from waystation.deliveries where kind = 'passed' and {days}"""
    return spark.sql(
        f"""
        select bucket_seconds, to_date(bucket) day, bucket, project, subscription,
               count_if(to_place = '-' and kind = 'attempt') delivered,
               count_if(attempt > 0 and to_place <> '-') failed,
               count_if(kind = 'dead') dead, count_if(kind in ('parked', 'followed')) parked,
               sum(filtered) filtered, {_percentiles("latency", "latency")},
               {_percentiles("if(to_place = '-' and attempt > 0, attempt, null)", "attempts")}
        from ({_bucketed(events, windows)}) group by 1, 2, 3, 4, 5""",
        transitions=transitions,
    )


def _endpoints(spark: SparkSession, days: str, windows: str) -> DataFrame:
    events = f"""
        select project, endpoint, time, {_seconds("started_at", "ended_at")} seconds,
               to_place <> '-' is_failure, failure, status
        from waystation.deliveries
        where started_at is not null and endpoint is not null and {days}
        union all
        select project, endpoint, time, seconds, verdict <> 'done', failure, status
        from waystation.webhook_attempts where endpoint is not null and {days}"""
    return spark.sql(
        f"""
        select bucket_seconds, to_date(bucket) day, bucket, project, endpoint, count(*) attempts,
               count_if(is_failure) failed,
               count_if(is_failure and (failure in ('connection', 'name', 'forbidden', 'refused')
                                        or status between 400 and 499)) refused,
               count_if(failure = 'timeout') timed_out, {_percentiles("seconds", "seconds")},
               max_by(if(is_failure, coalesce(failure, cast(status as string)), null),
                      if(is_failure, time, null)) last_failure
        from ({_bucketed(events, windows)}) group by 1, 2, 3, 4, 5"""
    )


def _groups(spark: SparkSession, days: str, windows: str) -> DataFrame:
    key = "bucket_seconds, bucket, project, topic, partition, subscription, shard"
    events = f"""
        select project, topic, partition, cast(null as string) subscription,
               cast(null as int) shard, time, group, cast(size as bigint) size
        from waystation.messages where {days}
        union all
        select d.project, t.topic, d.partition, d.subscription, d.shard, d.time, d.group, null
        from waystation.deliveries d
        join (select project, subscription, max(topic) topic from waystation.deliveries
              where kind = 'start' group by 1, 2) t using (project, subscription)
        where d.from_place like 'm%' and d.{days}
          and d.kind not in ('start', 'reset', 'passed', 'trimmed', 'damaged', 'opened')"""
    return spark.sql(
        f"""
        with by_group as (
          select {key}, group, count(*) messages, sum(size) bytes
          from ({_bucketed(events, windows)}) group by {key}, group),
        ranked as (
          select *, row_number() over (partition by {key}
                                       order by if(group is null, 1, 0), messages desc, group) rank
          from by_group)
        select bucket_seconds, to_date(bucket) day, bucket, project, topic, partition,
               subscription, shard, sum(messages) messages, sum(bytes) bytes, count(group) groups,
               transform(sort_array(collect_list(if(rank <= 10 and group is not null,
                           named_struct('rank', rank, 'group', group, 'messages', messages),
                           null))),
                         x -> named_struct('group', x.group, 'messages', x.messages)) largest
        from ranked group by {key}, day"""
    )


_QUERIES: dict[str, Callable[[SparkSession, str, str], DataFrame]] = {
    PIPELINE_METRICS.name: _pipelines,
    SUBSCRIPTION_METRICS.name: _subscriptions,
    ENDPOINT_METRICS.name: _endpoints,
    GROUP_LOAD.name: _groups,
}
