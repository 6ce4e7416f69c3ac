"""The figures of a report: sums of rollups, computed in pandas.

Channels and pools have no rollups; Spark counts their rows in the time of the report.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import msgspec
import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from waystation.history.lake.rollup_schema import (
    BUCKET_SECONDS,
    ENDPOINT_METRICS,
    GROUP_LOAD,
    PIPELINE_METRICS,
    SUBSCRIPTION_METRICS,
    RollupSchema,
)

#: Points of a line. A reader cannot distinguish more.
_POINTS_MAX = 300
#: Columns of a heat map.
_COLUMNS_MAX = 96
#: Pipelines and subscriptions with charts of percentiles: the ones with most traffic.
_BUSIEST = 2
#: Rows of a table or heat map.
_ROWS_MAX = 12
#: With fewer buckets, the time axis starts one bucket early and ends one late, so that the charts
#: show where a short run began and ended.
_SHORT_RUN = 24
#: Names of subscriptions or pipelines that the name of an endpoint mentions.
_MENTIONED_MAX = 2
_ENDED = ["success", "failed", "aborted", "internal_error", "timeout", "cancelled"]
_PERCENTILES = ("p50", "p95", "p99")
#: Endpoint of a subscription: host and digest of the URL.
_HOST = re.compile(r"(?P<host>.+):[0-9a-f]{12}")
#: Receiver of the events of transactions: webhook, channel or topic; project; name or digest.
_RECEIVER = re.compile(r"(?P<kind>[wct])\.[^.]+\.(?P<name>[^.]+)")
_RECEIVER_KINDS = {"w": "webhook", "c": "channel", "t": "topic"}
_ACTIVITY = """
    select min(time) first, max(time) last from (
      select bucket time from waystation.group_load where bucket_seconds = 5
      union all select bucket from waystation.pipeline_metrics where bucket_seconds = 5
      union all select bucket from waystation.subscription_metrics where bucket_seconds = 5
      union all select bucket from waystation.endpoint_metrics where bucket_seconds = 5
      union all select time from waystation.channels
      union all select time from waystation.pools)"""

#: Values by number of their bucket.
Line = dict[int, float]


class Buckets(msgspec.Struct, frozen=True):
    """Consecutive time buckets of one length."""

    start: datetime
    seconds: int
    count: int

    @property
    def end(self) -> datetime:
        """The moment at which the last bucket ends."""
        return self.start + timedelta(seconds=self.count * self.seconds)


class HeatMap(msgspec.Struct, frozen=True):
    """Values by name and bucket. A bucket without a value had no activity."""

    rows: dict[str, Line]
    buckets: Buckets


class Figures(msgspec.Struct, frozen=True):
    """All figures of a page. A percentile is NaN if there is no value."""

    #: First and last moment with activity.
    begin: datetime
    end: datetime
    #: Time axis of the lines.
    buckets: Buckets
    totals: dict[str, int]
    #: Per second, by series.
    throughput: dict[str, Line]
    #: Seconds, by chart and percentile.
    latency: dict[str, dict[str, Line]]
    #: Counts by kind and cause.
    failures: dict[str, dict[str, int]]
    #: By endpoint: attempts, failed, p95, last_failure.
    endpoints: pd.DataFrame
    endpoint_heat: HeatMap
    shard_heat: HeatMap
    #: Load of the busiest shard divided by the mean of its subscription; NaN without shards.
    skew: float
    #: By pipeline: started, ended, p50, p95.
    pipelines: pd.DataFrame
    #: By channel: published, acknowledged, expired, dropped.
    channels: pd.DataFrame
    #: By pool: enqueued, acknowledged, dead, moved.
    pools: pd.DataFrame
    #: Rows that are not in the lake, by cause.
    gaps: dict[str, int]


def read_figures(spark: SparkSession, *, days: float) -> Figures | None:
    """Return the figures of the last days with activity; None if the lake has no activity.

    The session must be attached to the lake, and its rollups refreshed.
    """
    (activity,) = spark.sql(_ACTIVITY).collect()
    if activity.last is None:
        return None
    last = _utc(activity.last)
    end = _floor(last, BUCKET_SECONDS[0]) + timedelta(seconds=BUCKET_SECONDS[0])
    begin = max(_floor(_utc(activity.first), BUCKET_SECONDS[0]), end - timedelta(days=days))
    return _Reader(spark, begin, end).read()


class _Reader:
    """Reader of one time range. Its only state is the session and the time axis."""

    def __init__(self, spark: SparkSession, begin: datetime, end: datetime) -> None:
        self._spark = spark
        self._begin = begin
        self._end = end
        self._buckets = time_axis(begin, end)

    def read(self) -> Figures:
        pipelines = self._rollup(PIPELINE_METRICS, "pipeline")
        subscriptions = self._rollup(SUBSCRIPTION_METRICS, "subscription")
        endpoints = self._rollup(ENDPOINT_METRICS, "endpoint")
        load = self._rollup(GROUP_LOAD, "subscription")
        produced, shards = load[load["shard"].isna()], load[load["shard"].notna()]
        published, channels = self._channels()
        enqueued, pools = self._pools()
        endpoint_table = _endpoint_table(endpoints)
        endpoint_heat = self._heat_map(endpoints, endpoint_table.index, "failed", "attempts")
        names = self._endpoint_names(endpoints, endpoint_table.index)
        return Figures(
            begin=self._begin,
            end=self._end,
            buckets=self._buckets,
            totals={
                "messages": _total(produced, "messages"),
                "bytes": _total(produced, "bytes"),
                "delivered": _total(subscriptions, "delivered"),
                "dead": _total(subscriptions, "dead", "parked"),
                "started": _total(pipelines, "started"),
                "ended": _total(pipelines, *_ENDED),
                "succeeded": _total(pipelines, "success"),
                "published": int(channels["published"].sum()),
                "enqueued": int(pools["enqueued"].sum()),
            },
            throughput={
                "produced to topics": self._rate(produced, "messages"),
                "delivered": self._rate(subscriptions, "delivered"),
                "transactions started": self._rate(pipelines, "started"),
                "published to channels": self._rate(published, "count"),
                "sent to pools": self._rate(enqueued, "count"),
            },
            latency={
                **_latency(pipelines, "pipeline", "started", "seconds"),
                **_latency(subscriptions, "subscription", "delivered", "latency"),
            },
            failures=_failures(pipelines, subscriptions, endpoints),
            endpoints=endpoint_table.rename(index=names),
            endpoint_heat=msgspec.structs.replace(
                endpoint_heat, rows={names[key]: row for key, row in endpoint_heat.rows.items()}
            ),
            shard_heat=self._shard_heat(shards),
            skew=_skew(shards),
            pipelines=_slowest(pipelines, self._rollup(PIPELINE_METRICS, "pipeline", 3_600)),
            channels=channels.head(_ROWS_MAX),
            pools=pools.head(_ROWS_MAX),
            gaps=self._gaps(),
        )

    def _rollup(self, rollup: RollupSchema, name: str, seconds: int = 0) -> pd.DataFrame:
        """Return the rows of a rollup, with their names and the number of their bucket."""
        seconds = seconds or self._buckets.seconds
        columns = [each for each in rollup.schema.names if each not in ("day", "largest")]
        start = _floor(self._buckets.start, seconds)
        frame: pd.DataFrame = (
            self._spark.sql(
                f"select {', '.join(f'`{each}`' for each in columns)}"  # noqa: S608 (our names)
                f" from waystation.{rollup.name} where bucket_seconds = {seconds}"
                f" and bucket >= timestamp '{start.isoformat()}'"
                f" and bucket < timestamp '{self._end.isoformat()}' order by bucket"
            )
            .toArrow()
            .to_pandas()
        )
        return frame.assign(name=_names(frame, name), number=self._numbers(frame["bucket"]))

    def _numbers(self, moments: pd.Series[pd.Timestamp]) -> pd.Series[int]:
        passed = pd.to_datetime(moments, utc=True) - pd.Timestamp(self._buckets.start)
        return passed // pd.Timedelta(seconds=self._buckets.seconds)

    def _rate(self, frame: pd.DataFrame, column: str) -> Line:
        line: Line = (frame.groupby("number")[column].sum() / self._buckets.seconds).to_dict()
        return line

    def _heat_map(
        self, frame: pd.DataFrame, order: Sequence[str], part: str, whole: str = ""
    ) -> HeatMap:
        """Return the sums of a column, or its share of another one, for names in this order."""
        merged = math.ceil(self._buckets.count / _COLUMNS_MAX)
        frame = frame[frame["name"].isin(order)]
        sums = frame.groupby([frame["name"], frame["number"] // merged])
        values = sums[part].sum() / (sums[whole].sum() if whole else 1)
        rows: dict[str, Line] = {name: {} for name in order}
        for (name, number), value in values.dropna().items():
            rows[name][number] = value
        seconds, count = self._buckets.seconds * merged, math.ceil(self._buckets.count / merged)
        return HeatMap(rows, Buckets(self._buckets.start, seconds, count))

    def _shard_heat(self, shards: pd.DataFrame) -> HeatMap:
        """Return the messages that each of the busiest shards took."""
        number = shards["shard"].astype(int)
        shards = shards.assign(
            subscription=shards["name"],
            shard=number,
            name=shards["name"] + " " + number.astype(str),
        )
        busiest = shards.groupby("name")["messages"].sum().nlargest(_ROWS_MAX).index
        order = shards[shards["name"].isin(busiest)].sort_values(["subscription", "shard"])
        return self._heat_map(shards, list(order["name"].unique()), "messages")

    def _channels(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return what was published by bucket, and the counts of each channel."""
        # A message expires without a row of its own.
        end = f"timestamp '{self._end.isoformat()}'"
        return self._volume_and_counts(
            "channel",
            "published",
            "count_if(kind = 'published') published, count_if(kind = 'acknowledged') acknowledged,"
            f" count_if(kind = 'published' and expires <= {end}) expired,"
            " cast(coalesce(sum(if(kind = 'dropped', to_clock - clock + 1, 0)), 0) as bigint)"
            " dropped",
        )

    def _pools(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return what was enqueued by bucket, and the counts of each pool."""
        return self._volume_and_counts(
            "pool",
            "enqueued",
            "count_if(kind = 'enqueued') enqueued, count_if(kind = 'acknowledged') acknowledged,"
            " count_if(kind = 'dead') dead, count_if(kind = 'moved') moved",
        )

    def _volume_and_counts(
        self, name: str, volume: str, counts: str
    ) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return the volume by bucket, and the counts by channel or pool, the busiest first."""
        days = f"day >= date '{self._begin.date()}' and day <= date '{self._end.date()}'"
        times = (
            f"time >= timestamp '{self._begin.isoformat()}'"
            f" and time < timestamp '{self._end.isoformat()}'"
        )
        rows = f"from waystation.{name}s where {days} and {times} and {name} is not null"
        length = self._buckets.seconds
        by_bucket = self._spark.sql(
            f"select timestamp_seconds(unix_seconds(time) div {length} * {length}) bucket,"
            f" count(*) count {rows} and kind = '{volume}' group by 1"
        )
        by_name = self._spark.sql(
            f"select project, {name}, {counts} {rows} group by 1, 2 order by {volume} desc, 1, 2"
        )
        line, frame = by_bucket.toArrow().to_pandas(), by_name.toArrow().to_pandas()
        line = line.assign(number=self._numbers(line["bucket"]))
        frame = frame.set_index(_names(frame, name)).drop(columns=["project", name])
        return line, frame

    def _endpoint_names(self, endpoints: pd.DataFrame, shown: pd.Index[str]) -> dict[str, str]:
        """Return a unique name for each shown endpoint, in which no digest of a URL appears."""
        known = endpoints.drop_duplicates("name").set_index("name").loc[shown]
        keys = list(zip(known["project"].fillna(""), known["endpoint"], strict=True))
        users = self._endpoint_users([endpoint for _, endpoint in keys])
        names: dict[str, str] = {}
        for full, (project, endpoint) in zip(shown, keys, strict=True):
            prefix = full.removesuffix(endpoint)
            name = base = prefix + endpoint_name(endpoint, users.get((project, endpoint), []))
            number = 1
            while name in names.values():
                number += 1
                name = f"{base} #{number}"
            names[full] = name
        return names

    def _endpoint_users(self, endpoints: Sequence[str]) -> dict[tuple[str, str], list[str]]:
        """Return the subscriptions or pipelines of each endpoint that is named by a digest."""
        wanted = [each for each in endpoints if _HOST.fullmatch(each) or each.startswith("w.")]
        if not wanted:
            return {}
        in_time = f.col("day").between(self._begin.date(), self._end.date())
        deliveries = self._spark.table("waystation.deliveries").where(in_time)
        webhooks = self._spark.table("waystation.webhook_attempts").where(in_time)
        starts = self._spark.table("waystation.transactions").where("kind = 'started'")
        # The id of a delivery is that of its transaction, with a suffix for channel and topic.
        transaction = f.substring_index("delivery_id", ".", 1).alias("transaction_id")
        subscriptions = deliveries.where(f.col("endpoint").isin(wanted)).select(
            "project", "endpoint", f.col("subscription").alias("user")
        )
        pipelines = (
            webhooks.where(f.col("endpoint").isin(wanted))
            .select("endpoint", transaction)
            .join(starts, "transaction_id")
            .select("project", "endpoint", f.col("pipeline").alias("user"))
        )
        found = subscriptions.unionByName(pipelines).na.drop().distinct().collect()
        users: dict[tuple[str, str], list[str]] = {}
        for row in sorted(found):
            users.setdefault((row.project, row.endpoint), []).append(row.user)
        return users

    def _gaps(self) -> dict[str, int]:
        rows = self._spark.sql("select cause, sum(rows) n from waystation.gaps group by 1")
        return {row.cause: int(row.n) for row in rows.collect()}


def time_axis(begin: datetime, end: datetime) -> Buckets:
    """Return the shortest buckets that a chart can show for this time."""
    passed = (end - begin).total_seconds()
    fitting = (each for each in BUCKET_SECONDS if passed / each < _POINTS_MAX)
    seconds = next(fitting, BUCKET_SECONDS[-1])
    start = _floor(begin, seconds)
    count = math.ceil((end - start).total_seconds() / seconds)
    if count < _SHORT_RUN:
        start, count = start - timedelta(seconds=seconds), count + 2
    return Buckets(start, seconds, count)


def endpoint_name(endpoint: str, users: Sequence[str]) -> str:
    """Return a name for an endpoint that its users know: host or kind, and who sends there."""
    mentioned = ", ".join([*users[:_MENTIONED_MAX], *["…"][: len(users) > _MENTIONED_MAX]])
    if found := _HOST.fullmatch(endpoint):
        return f"{found['host']} ({mentioned})" if users else found["host"]
    if found := _RECEIVER.fullmatch(endpoint):
        if found["kind"] == "w":
            return f"webhook of {mentioned or 'transactions'}"
        return f"{_RECEIVER_KINDS[found['kind']]} {found['name']}"
    return endpoint


def _names(frame: pd.DataFrame, column: str) -> pd.Series[str]:
    """Return the names in a column, after their project if the frame has several projects."""
    names = frame[column].fillna("").astype(str)
    projects = frame["project"].fillna("").astype(str)
    return names if projects.nunique() < 2 else projects + "/" + names


def _total(frame: pd.DataFrame, *columns: str) -> int:
    return int(frame[list(columns)].sum().sum())


def _latency(
    frame: pd.DataFrame, kind: str, volume: str, column: str
) -> dict[str, dict[str, Line]]:
    """Return the percentiles of the busiest names by title, without names that have no values."""
    known = frame[frame[f"{column}_p50"].notna()]
    busiest = known.groupby("name")[volume].sum().nlargest(_BUSIEST).index
    found: dict[str, dict[str, Line]] = {}
    for name in busiest:
        rows = known[known["name"] == name].set_index("number")
        found[f"{kind} {name}"] = {
            each: rows[f"{column}_{each}"].dropna().to_dict() for each in _PERCENTILES
        }
    return found


def _failures(
    pipelines: pd.DataFrame, subscriptions: pd.DataFrame, endpoints: pd.DataFrame
) -> dict[str, dict[str, int]]:
    refused, timed_out = _total(endpoints, "refused"), _total(endpoints, "timed_out")
    return {
        "transactions": {
            each.replace("_", " "): _total(pipelines, each) for each in (*_ENDED[1:], "rescued")
        },
        "requests": {
            "refused": refused,
            "timed out": timed_out,
            "other failures": _total(endpoints, "failed") - refused - timed_out,
        },
        "messages": {each: _total(subscriptions, each) for each in ("dead", "parked")},
    }


def _endpoint_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the endpoints with most failures. The rows of the frame are in order of time."""
    table = frame.groupby("name").agg(
        attempts=("attempts", "sum"),
        failed=("failed", "sum"),
        p95=("seconds_p95", "max"),
        last_failure=("last_failure", "last"),
    )
    return table.sort_values(["failed", "attempts"], ascending=False).head(_ROWS_MAX)


def _slowest(frame: pd.DataFrame, hours: pd.DataFrame) -> pd.DataFrame:
    """Return counts of each pipeline, and the percentiles of its slowest hour; the slowest first.

    A pipeline of which no transaction has ended has no percentiles and comes last.
    """
    table = pd.DataFrame(
        {
            "started": frame.groupby("name")["started"].sum(),
            "ended": frame.groupby("name")[_ENDED].sum().sum(axis=1),
        }
    )
    known = hours[hours["seconds_p95"].notna()].sort_values("seconds_p95")
    slowest = known.drop_duplicates("name", keep="last").set_index("name")
    table = table.assign(p50=slowest["seconds_p50"], p95=slowest["seconds_p95"])
    return table.sort_values("p95", ascending=False, na_position="last").head(_ROWS_MAX)


def _skew(shards: pd.DataFrame) -> float:
    """Return the load of a shard divided by the mean, where it is farthest from the mean."""
    by_shard = shards.groupby(["name", "shard"])["messages"].sum().groupby("name")
    return float((by_shard.max() / by_shard.mean()).max())


def _floor(moment: datetime, seconds: int) -> datetime:
    return datetime.fromtimestamp(moment.timestamp() // seconds * seconds, UTC)


def _utc(moment: datetime) -> datetime:
    """Return a time of Spark, which has no zone and is in that of the process, with its zone."""
    return moment.astimezone(UTC)
