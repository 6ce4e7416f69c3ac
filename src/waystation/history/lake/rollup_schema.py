"""Rollups: tables with the counts and percentiles of time buckets, computed from the base tables.

Buckets have 5, 100 and 1,000 seconds, an hour, or a day, in UTC. A row of a base table belongs to
the buckets that contain its `time`, which is the store's time at commit.
"""

from __future__ import annotations

import msgspec
import pyarrow as pa

from waystation.history.decoders.messages import TIME
from waystation.history.lake.schema import (
    DELIVERIES,
    MESSAGES,
    TRANSACTIONS,
    WEBHOOK_ATTEMPTS,
    TableSchema,
)

#: Lengths of the buckets.
BUCKET_SECONDS = (5, 100, 1_000, 3_600, 86_400)
#: Partition columns of a rollup. Not the day, because each day would add five files at least.
PARTITIONS = ("bucket_seconds",)
_TYPES = {"string": pa.string(), "int": pa.int32(), "bigint": pa.int64(), "double": pa.float64()}
_LARGEST = pa.list_(pa.struct([("group", pa.string()), ("messages", pa.int64())]))


class RollupSchema(msgspec.Struct, frozen=True):
    """Name and columns of a rollup."""

    name: str
    schema: pa.Schema
    #: The tables that the rollup is computed from.
    bases: tuple[TableSchema, ...]


def _rollup(
    name: str, bases: tuple[TableSchema, ...], columns: str, *more: pa.Field
) -> RollupSchema:
    bucket = [("bucket_seconds", pa.int32()), ("day", pa.date32()), ("bucket", TIME)]
    pairs = (each.split() for each in columns.replace("\n", " ").split(","))
    own = [pa.field(column, _TYPES[kind]) for column, kind in pairs]
    return RollupSchema(name, pa.schema([*bucket, *own, *more]), bases)


PIPELINE_METRICS = _rollup(
    "pipeline_metrics",
    (TRANSACTIONS,),
    """project string, pipeline string, started bigint, success bigint, failed bigint,
    aborted bigint, internal_error bigint, timeout bigint, cancelled bigint, steps bigint,
    step_failures bigint, rescued bigint, seconds_p50 double, seconds_p95 double,
    seconds_p99 double""",
)
SUBSCRIPTION_METRICS = _rollup(
    "subscription_metrics",
    (DELIVERIES, MESSAGES),
    """project string, subscription string, delivered bigint, failed bigint, dead bigint,
    parked bigint, filtered bigint, latency_p50 double, latency_p95 double, latency_p99 double,
    attempts_p50 double, attempts_p95 double, attempts_p99 double""",
)
ENDPOINT_METRICS = _rollup(
    "endpoint_metrics",
    (DELIVERIES, WEBHOOK_ATTEMPTS),
    """project string, endpoint string, attempts bigint, failed bigint, refused bigint,
    timed_out bigint, seconds_p50 double, seconds_p95 double, seconds_p99 double,
    last_failure string""",
)
#: Messages produced to a partition of a topic, or, if `subscription` and `shard` are not null,
#: messages that this shard took from it.
GROUP_LOAD = _rollup(
    "group_load",
    (MESSAGES, DELIVERIES),
    """project string, topic string, partition int, subscription string, shard int,
    messages bigint, bytes bigint, groups bigint""",
    pa.field("largest", _LARGEST),
)
ROLLUPS = (PIPELINE_METRICS, SUBSCRIPTION_METRICS, ENDPOINT_METRICS, GROUP_LOAD)
