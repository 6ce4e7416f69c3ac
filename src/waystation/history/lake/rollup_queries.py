"""What the derived tables are: one query each, over the rows of the days that are asked for.

Events have a time, the key of a table, and values; a slot sums them up. What an event needs to know
of what came before it, such as the pipeline of a transaction that ends, is looked up in all rows.
"""

# ruff: noqa: S608 (names, days and numbers of our own; no text of users)
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta

import msgspec
from pyspark.sql import DataFrame, SparkSession

from waystation.history.lake.lifecycle import followed
from waystation.history.lake.rollup_schema import (
    ENDPOINT_HEALTH,
    GROUP_LOAD,
    PIPELINE_SLOTS,
    SUBSCRIPTION_SLOTS,
)


class Window(msgspec.Struct, frozen=True):
    """Slots of one length that are computed anew: whole ones."""

    slot_seconds: int
    begin: datetime
    end: datetime

    def days(self) -> Iterator[date]:
        """Days that it is about."""
        day = self.begin.date()
        while datetime.combine(day, datetime.min.time(), UTC) < self.end:
            yield day
            day += timedelta(days=1)


def slots_of(spark: SparkSession, table: str, windows: Sequence[Window]) -> DataFrame:
    """The rows of a derived table for some windows; the views of the lake are there already."""
    days = sorted({day.isoformat() for window in windows for day in window.days()})
    listed = ", ".join(f"date '{day}'" for day in days)
    return _QUERIES[table](spark, f"day in ({listed})", _values(windows))


def _values(windows: Sequence[Window]) -> str:
    rows = ", ".join(
        f"({each.slot_seconds}, timestamp '{each.begin.isoformat()}',"
        f" timestamp '{each.end.isoformat()}')"
        for each in windows
    )
    return f"(values {rows}) as w(slot_seconds, begin, end)"


def _slotted(events: str, windows: str) -> str:
    """Events, once for each slot that they are in."""
    return f"""
        select w.slot_seconds, e.*,
               timestamp_seconds(unix_seconds(e.time) div w.slot_seconds * w.slot_seconds) slot
        from ({events}) e join {windows} on e.time >= w.begin and e.time < w.end"""


def _percentiles(column: str, name: str) -> str:
    found = f"percentile_approx({column}, array(0.5, 0.95, 0.99))"
    names = ((0, "p50"), (1, "p95"), (2, "p99"))
    return ", ".join(f"cast({found}[{at}] as double) {name}_{word}" for at, word in names)


def _seconds(begun: str, ended: str) -> str:
    return f"(unix_millis({ended}) - unix_millis({begun})) / 1000d"


def _pipelines(spark: SparkSession, days: str, windows: str) -> DataFrame:
    statuses = ("success", "failed", "aborted", "internal-error", "timeout", "cancelled")
    counted = ", ".join(
        f"count_if(status = '{each}') {each.replace('-', '_')}" for each in statuses
    )
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
        select slot_seconds, to_date(slot) day, slot, project, pipeline,
               count_if(kind = 'started') started, {counted}, count_if(kind = 'step') steps,
               count_if(outcome in ('failed', 'aborted', 'internal-error', 'timeout', 'retry'))
                 step_failures,
               count_if(kind = 'rescued') rescued, {_percentiles("seconds", "seconds")}
        from ({_slotted(events, windows)}) where pipeline is not null group by 1, 2, 3, 4, 5"""
    )


def _subscriptions(spark: SparkSession, days: str, windows: str) -> DataFrame:
    hops = followed(spark.table("waystation.deliveries"))
    events = f"""
        select h.project, h.subscription, h.time, h.kind, h.now, h.attempt, 0L filtered,
               if(h.now = '-' and h.kind = 'attempt', {_seconds("m.time", "h.time")}, null) latency
        from {{hops}} h
        left join (select project, subscription, max(topic) topic from waystation.deliveries
                   where kind = 'start' group by 1, 2) t using (project, subscription)
        left join waystation.messages m
          on m.dataset = h.dataset and m.project = h.project and m.topic = t.topic
         and m.storage = h.storage and m.partition = h.partition and m.offset = h.offset
        where h.{days}
        union all
        select project, subscription, time, kind, now, null,
               cast(element_at(split(now, '[.]'), -1) as bigint) - offset, null
        from waystation.deliveries where kind = 'passed' and {days}"""
    return spark.sql(
        f"""
        select slot_seconds, to_date(slot) day, slot, project, subscription,
               count_if(now = '-' and kind = 'attempt') delivered,
               count_if(attempt > 0 and now <> '-') failed,
               count_if(kind = 'dead') dead, count_if(kind in ('parked', 'followed')) parked,
               sum(filtered) filtered, {_percentiles("latency", "latency")},
               {_percentiles("if(now = '-' and attempt > 0, attempt, null)", "attempts")}
        from ({_slotted(events, windows)}) group by 1, 2, 3, 4, 5""",
        hops=hops,
    )


def _endpoints(spark: SparkSession, days: str, windows: str) -> DataFrame:
    events = f"""
        select project, endpoint, time, {_seconds("begun", "ended")} seconds,
               now <> '-' is_failure, failure, status
        from waystation.deliveries where begun is not null and endpoint is not null and {days}
        union all
        select project, endpoint, time, seconds, verdict <> 'done', failure, status
        from waystation.webhook_attempts where endpoint is not null and {days}"""
    return spark.sql(
        f"""
        select slot_seconds, to_date(slot) day, slot, project, endpoint, count(*) attempts,
               count_if(is_failure) failed,
               count_if(is_failure and (failure in ('connection', 'name', 'forbidden', 'refused')
                                        or status between 400 and 499)) refused,
               count_if(failure = 'timeout') timed_out, {_percentiles("seconds", "seconds")},
               max_by(if(is_failure, coalesce(failure, cast(status as string)), null),
                      if(is_failure, time, null)) last_failure
        from ({_slotted(events, windows)}) group by 1, 2, 3, 4, 5"""
    )


def _groups(spark: SparkSession, days: str, windows: str) -> DataFrame:
    key = "slot_seconds, slot, project, topic, partition, subscription, shard"
    events = f"""
        select project, topic, partition, cast(null as string) subscription,
               cast(null as int) shard, time, group, cast(size as bigint) size
        from waystation.messages where {days}
        union all
        select d.project, t.topic, d.partition, d.subscription, d.shard, d.time, d.group, null
        from waystation.deliveries d
        join (select project, subscription, max(topic) topic from waystation.deliveries
              where kind = 'start' group by 1, 2) t using (project, subscription)
        where d.was like 'm%' and d.{days}
          and d.kind not in ('start', 'reset', 'passed', 'trimmed', 'damaged', 'opened')"""
    return spark.sql(
        f"""
        with by_group as (
          select {key}, group, count(*) messages, sum(size) bytes
          from ({_slotted(events, windows)}) group by {key}, group),
        ranked as (
          select *, row_number() over (partition by {key}
                                       order by if(group is null, 1, 0), messages desc, group) rank
          from by_group)
        select slot_seconds, to_date(slot) day, slot, project, topic, partition, subscription,
               shard, sum(messages) messages, sum(bytes) bytes, count(group) groups,
               transform(sort_array(collect_list(if(rank <= 10 and group is not null,
                           named_struct('rank', rank, 'group', group, 'messages', messages),
                           null))),
                         x -> named_struct('group', x.group, 'messages', x.messages)) largest
        from ranked group by {key}, day"""
    )


_QUERIES: dict[str, Callable[[SparkSession, str, str], DataFrame]] = {
    PIPELINE_SLOTS.name: _pipelines,
    SUBSCRIPTION_SLOTS.name: _subscriptions,
    ENDPOINT_HEALTH.name: _endpoints,
    GROUP_LOAD.name: _groups,
}
