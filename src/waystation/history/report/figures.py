"""The figures of a report, read from the derived tables."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from pyspark.sql import Row, SparkSession

from waystation.history.lake.rollup_schema import SLOT_SECONDS

#: Points of a line: more cannot be told apart.
_POINTS_MAX = 300
#: Columns of a heat map.
_COLUMNS_MAX = 96
#: Pipelines and subscriptions whose percentiles are drawn, the busiest.
_BUSIEST = 2
#: Rows of a list or of a heat map.
_ROWS_MAX = 12

#: Values by the number of their slot.
Line = dict[int, float]


class Heat(msgspec.Struct):
    """Rows of cells, one for each slot; a cell without a value had nothing to tell."""

    rows: list[tuple[str, dict[int, float]]]
    slots: int
    slot_seconds: int


class Figures(msgspec.Struct):
    """All that the page shows."""

    begin: datetime
    end: datetime
    #: Of a point of a line.
    slot_seconds: int
    slots: int
    totals: dict[str, float]
    #: Per second.
    throughput: dict[str, Line]
    #: Title -> percentile -> seconds.
    latency: dict[str, dict[str, Line]]
    #: Kind -> cause -> how many.
    failures: dict[str, dict[str, int]]
    endpoints: list[dict[str, Any]]
    endpoint_heat: Heat
    shard_heat: Heat
    #: The busiest shard compared with the mean; 0 without shards.
    skew: float
    pipelines: list[dict[str, Any]]
    #: Cause -> rows that are not in the lake.
    gaps: dict[str, int]
    lost: int


def read_figures(spark: SparkSession, *, days: float) -> Figures | None:
    """The figures of the last days that have any; None if nothing was ever refreshed."""
    newest = spark.sql(
        """select max(slot) newest, min(slot) oldest from (
             select slot from waystation.group_load where slot_seconds = 5
             union all select slot from waystation.pipeline_slots where slot_seconds = 5
             union all select slot from waystation.subscription_slots where slot_seconds = 5
             union all select slot from waystation.endpoint_health where slot_seconds = 5)"""
    ).collect()[0]
    if newest.newest is None:
        return None
    last = _utc(newest.newest) + timedelta(seconds=SLOT_SECONDS[0])
    first = max(_utc(newest.oldest), last - timedelta(days=days))
    return _Reader(spark, first, last).read()


class _Reader:
    """Reads the rows of one time, each table once for each length of slots."""

    def __init__(self, spark: SparkSession, first: datetime, last: datetime) -> None:
        self._spark = spark
        self._seconds = _fitting(first, last, _POINTS_MAX)
        self._begin = _floor(first, self._seconds)
        self._end = last
        self._slots = int((last - self._begin).total_seconds() // self._seconds) + 1

    def read(self) -> Figures:
        pipelines = self._rows("pipeline_slots", self._seconds)
        subscriptions = self._rows("subscription_slots", self._seconds)
        load = self._rows("group_load", self._seconds)
        endpoints = self._rows("endpoint_health", self._seconds)
        shards = [row for row in load if row.shard is not None]
        produced = [row for row in load if row.shard is None]
        return Figures(
            begin=self._begin,
            end=self._end,
            slot_seconds=self._seconds,
            slots=self._slots,
            totals=_totals(pipelines, subscriptions, produced),
            throughput={
                "messages": self._rate(produced, "messages"),
                "deliveries": self._rate(subscriptions, "delivered"),
                "transactions": self._rate(pipelines, "started"),
            },
            latency={
                **self._busiest(pipelines, "pipeline", "started", "seconds"),
                **self._busiest(subscriptions, "subscription", "delivered", "latency"),
            },
            failures=_failures(pipelines, subscriptions, endpoints),
            endpoints=_endpoint_list(endpoints),
            endpoint_heat=self._heat(
                endpoints, lambda row: row.endpoint, lambda row: (row.failed, row.attempts)
            ),
            shard_heat=self._heat(
                shards,
                lambda row: f"{row.subscription} {row.shard}",
                lambda row: (row.messages, None),
            ),
            skew=_skew(shards),
            pipelines=_slowest(self._rows("pipeline_slots", 3600)),
            **self._missing(),
        )

    def _rows(self, table: str, seconds: int) -> list[Row]:
        begin = _floor(self._begin, seconds).isoformat()
        return self._spark.sql(
            f"select * from waystation.{table} where slot_seconds = {seconds}"  # noqa: S608
            f" and slot >= timestamp '{begin}' and slot < timestamp '{self._end.isoformat()}'"
        ).collect()

    def _number(self, row: Row) -> int:
        return int((_utc(row.slot) - self._begin).total_seconds() // self._seconds)

    def _rate(self, rows: list[Row], column: str) -> Line:
        line: Line = {}
        for row in rows:
            number = self._number(row)
            line[number] = line.get(number, 0.0) + (row[column] or 0) / self._seconds
        return line

    def _busiest(
        self, rows: list[Row], name: str, volume: str, column: str
    ) -> dict[str, dict[str, Line]]:
        by_name: dict[str, int] = {}
        for row in rows:
            by_name[row[name]] = by_name.get(row[name], 0) + row[volume]
        found: dict[str, dict[str, Line]] = {}
        for each in sorted(by_name, key=lambda key: -by_name[key])[:_BUSIEST]:
            lines: dict[str, Line] = {"p50": {}, "p95": {}, "p99": {}}
            for row in (row for row in rows if row[name] == each):
                for word, line in lines.items():
                    if row[f"{column}_{word}"] is not None:
                        line[self._number(row)] = row[f"{column}_{word}"]
            if lines["p50"]:
                found[f"{name} {each}"] = lines
        return found

    def _heat(self, rows: list[Row], name: Any, value: Any) -> Heat:
        """Shares where there is a whole, else plain numbers; several slots make a column."""
        per_column = -(-self._slots // _COLUMNS_MAX)
        parts: dict[str, dict[int, list[float]]] = {}
        for row in rows:
            cell = parts.setdefault(name(row), {}).setdefault(
                self._number(row) // per_column, [0.0, 0.0]
            )
            part, whole = value(row)
            cell[0] += part
            cell[1] += whole or 0
        order = sorted(parts, key=lambda key: -sum(cell[0] for cell in parts[key].values()))
        return Heat(
            rows=[
                (key, {at: a / b if b else a for at, (a, b) in parts[key].items()})
                for key in sorted(order[:_ROWS_MAX])
            ],
            slots=-(-self._slots // per_column),
            slot_seconds=self._seconds * per_column,
        )

    def _missing(self) -> dict[str, Any]:
        rows = self._spark.sql(
            "select cause, sum(rows) rows from waystation.gaps group by cause"
        ).collect()
        gaps = {row.cause: int(row.rows) for row in rows}
        return {"lost": gaps.pop("lost", 0), "gaps": gaps}


def _totals(
    pipelines: list[Row], subscriptions: list[Row], produced: list[Row]
) -> dict[str, float]:
    ended = ("success", "failed", "aborted", "internal_error", "timeout", "cancelled")
    ends = sum(row[each] for row in pipelines for each in ended)
    return {
        "messages": sum(row.messages for row in produced),
        "bytes": sum(row.bytes or 0 for row in produced),
        "delivered": sum(row.delivered for row in subscriptions),
        "dead": sum(row.dead + row.parked for row in subscriptions),
        "started": sum(row.started for row in pipelines),
        "ended": ends,
        "succeeded": sum(row.success for row in pipelines),
    }


def _failures(
    pipelines: list[Row], subscriptions: list[Row], endpoints: list[Row]
) -> dict[str, dict[str, int]]:
    def total(rows: list[Row], column: str) -> int:
        return sum(row[column] for row in rows)

    refused, timed_out = total(endpoints, "refused"), total(endpoints, "timed_out")
    return {
        "transactions": {
            each.replace("_", " "): total(pipelines, each)
            for each in ("failed", "aborted", "internal_error", "timeout", "cancelled", "rescued")
        },
        "requests": {
            "refused": refused,
            "timed out": timed_out,
            "other answers": total(endpoints, "failed") - refused - timed_out,
        },
        "messages": {
            "dead": total(subscriptions, "dead"),
            "parked": total(subscriptions, "parked"),
        },
    }


def _endpoint_list(rows: list[Row]) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row.slot):
        known = found.setdefault(
            row.endpoint,
            {"endpoint": row.endpoint, "attempts": 0, "failed": 0, "p95": 0.0, "last_failure": ""},
        )
        known["attempts"] += row.attempts
        known["failed"] += row.failed
        known["p95"] = max(known["p95"], row.seconds_p95 or 0.0)
        known["last_failure"] = row.last_failure or known["last_failure"]
    worst = sorted(found.values(), key=lambda each: (-each["failed"], -each["attempts"]))
    return worst[:_ROWS_MAX]


def _slowest(rows: list[Row]) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        known = found.setdefault(
            row.pipeline, {"pipeline": row.pipeline, "started": 0, "p50": 0.0, "p95": 0.0}
        )
        known["started"] += row.started
        if (row.seconds_p95 or 0.0) >= known["p95"]:
            known["p95"], known["p50"] = row.seconds_p95 or 0.0, row.seconds_p50 or 0.0
    return sorted(found.values(), key=lambda each: -each["p95"])[:_ROWS_MAX]


def _skew(rows: list[Row]) -> float:
    """Of the subscription whose busiest shard is farthest from the mean."""
    by_shard: dict[str, dict[int, int]] = {}
    for row in rows:
        shards = by_shard.setdefault(row.subscription, {})
        shards[row.shard] = shards.get(row.shard, 0) + row.messages
    found = [
        max(each.values()) * len(each) / sum(each.values())
        for each in by_shard.values()
        if sum(each.values())
    ]
    return max(found, default=0.0)


def _fitting(first: datetime, last: datetime, most: int) -> int:
    """The shortest slots of which there are not too many."""
    span = (last - first).total_seconds()
    return next((each for each in SLOT_SECONDS if span / each < most), SLOT_SECONDS[-1])


def _floor(moment: datetime, seconds: int) -> datetime:
    return datetime.fromtimestamp(moment.timestamp() // seconds * seconds, UTC)


def _utc(moment: datetime) -> datetime:
    """Spark gives times without a zone, in that of the process."""
    return moment.astimezone(UTC)
