"""The tables that are computed from others: counts and percentiles of time slots.

Slots are of 5, 100 and 1,000 seconds, hours and days, in UTC. A row's slot is that of its time,
which is the store's at commit.
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

#: Seconds of a slot.
SLOT_SECONDS = (5, 100, 1_000, 3_600, 86_400)
#: What the tables are partitioned by. Not by day: five files for each would soon be too many.
PARTITIONS = ("slot_seconds",)
_TYPES = {"string": pa.string(), "int": pa.int32(), "bigint": pa.int64(), "double": pa.float64()}
_LARGEST = pa.list_(pa.struct([("group", pa.string()), ("messages", pa.int64())]))


class RollupSchema(msgspec.Struct, frozen=True):
    """One table."""

    name: str
    schema: pa.Schema
    #: Tables that it is computed from.
    bases: tuple[TableSchema, ...]


def _spec(name: str, bases: tuple[TableSchema, ...], columns: str, *more: pa.Field) -> RollupSchema:
    slot = [("slot_seconds", pa.int32()), ("day", pa.date32()), ("slot", TIME)]
    pairs = (each.split() for each in columns.replace("\n", " ").split(","))
    own = [pa.field(column, _TYPES[kind]) for column, kind in pairs]
    return RollupSchema(name, pa.schema([*slot, *own, *more]), bases)


PIPELINE_SLOTS = _spec(
    "pipeline_slots",
    (TRANSACTIONS,),
    """project string, pipeline string, started bigint, success bigint, failed bigint,
    aborted bigint, internal_error bigint, timeout bigint, cancelled bigint, steps bigint,
    step_failures bigint, rescued bigint, seconds_p50 double, seconds_p95 double,
    seconds_p99 double""",
)
SUBSCRIPTION_SLOTS = _spec(
    "subscription_slots",
    (DELIVERIES, MESSAGES),
    """project string, subscription string, delivered bigint, failed bigint, dead bigint,
    parked bigint, filtered bigint, latency_p50 double, latency_p95 double, latency_p99 double,
    attempts_p50 double, attempts_p95 double, attempts_p99 double""",
)
ENDPOINT_HEALTH = _spec(
    "endpoint_health",
    (DELIVERIES, WEBHOOK_ATTEMPTS),
    """project string, endpoint string, attempts bigint, failed bigint, refused bigint,
    timed_out bigint, seconds_p50 double, seconds_p95 double, seconds_p99 double,
    last_failure string""",
)
#: What came into partitions of topics; with a subscription and a shard, what that has taken.
GROUP_LOAD = _spec(
    "group_load",
    (MESSAGES, DELIVERIES),
    """project string, topic string, partition int, subscription string, shard int,
    messages bigint, bytes bigint, groups bigint""",
    pa.field("largest", _LARGEST),
)
DERIVED = (PIPELINE_SLOTS, SUBSCRIPTION_SLOTS, ENDPOINT_HEALTH, GROUP_LOAD)
