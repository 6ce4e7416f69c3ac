"""Tables of the lake: columns, types, partitions, and columns with statistics."""

from __future__ import annotations

from typing import Final, Literal

import msgspec
import pyarrow as pa

from waystation.history.decoders.envelopes import HEADERS
from waystation.history.decoders.messages import MESSAGE_SCHEMA, TIME

#: State of a row. `live`: row of an entry of a log. `gap`: range of offsets without rows, from
#: `log_offset` up to `gap_end`. `lost`: former `live` or `gap` row; a store that was restored
#: lost its entries.
RowState = Literal["live", "gap", "lost"]
ROW_STATES: tuple[RowState, ...] = ("live", "gap", "lost")

#: First columns of all tables that ingest writes: the entry and the state of a row.
STAMP = pa.schema(
    [
        ("day", pa.date32()),
        ("row_state", pa.string()),
        ("dataset", pa.string()),
        ("log", pa.string()),
        ("log_partition", pa.int32()),
        ("log_offset", pa.int64()),
        ("item", pa.int32()),
        ("time", TIME),
        ("ingested", TIME),
        ("gap_end", pa.int64()),
        ("gap_cause", pa.string()),
    ]
)
#: Value of `recorded` of a row whose payload `lake/forget.py` has deleted.
FORGOTTEN: Final = "forgotten"
#: Causes of gaps: rows that were deleted because of their age, and a data set that the store lost.
EXPIRED: Final = "expired"
STORE_LOST: Final = "store-lost"
#: Columns of the stamp that only rows of gaps have.
GAP_COLUMNS = ("gap_end", "gap_cause")
DAY, ROW_STATE = "day", "row_state"
#: Columns that tables are partitioned by. They are in the path of a file, and not in the file.
PARTITIONS = (DAY, ROW_STATE)


class TableSchema(msgspec.Struct, frozen=True):
    """A table that ingest writes, or a view with the same stamp."""

    name: str
    schema: pa.Schema

    @property
    def measured(self) -> list[str]:
        """Columns with smallest and largest value in the Delta log, by which readers skip files.

        All scalar columns have them. If a file has statistics of some columns only, delta-rs takes
        the others for columns of nulls, so that a filter on them finds nothing.
        """
        return [
            field.name
            for field in self.file_schema
            if not pa.types.is_binary(field.type) and not pa.types.is_nested(field.type)
        ]

    @property
    def file_schema(self) -> pa.Schema:
        """Columns of a file."""
        return pa.schema([field for field in self.schema if field.name not in PARTITIONS])

    @property
    def columns(self) -> list[str]:
        """Columns of the view of live rows."""
        return [name for name in self.schema.names if name not in (ROW_STATE, *GAP_COLUMNS)]


def _spec(name: str, fields: list[pa.Field]) -> TableSchema:
    return TableSchema(name, pa.schema([*STAMP, *fields]))


#: A row for each message. The stamp replaces the columns `time` and `gap` of the data source.
MESSAGES = _spec(
    "messages",
    [
        *(field for field in MESSAGE_SCHEMA if field.name not in {"time", "gap"}),
        pa.field("recorded", pa.string()),
    ],
)


def _fields(text: str) -> list[pa.Field]:
    """Return columns written as `name type, …`, with the types of Spark."""
    return [
        pa.field(name, _TYPES[kind])
        for name, kind in (each.split() for each in text.replace("\n", " ").split(","))
    ]


_TYPES = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "timestamp": TIME,
}
#: A call of a step.
ATTEMPT = pa.schema(
    _fields(
        """item int, place string, step_type string, attempt int, outcome string,
        started_at timestamp, ended_at timestamp, begun_after bigint, node string, note string"""
    )
)
#: A row for each change of a transaction, with the calls of the step that it settles.
TRANSACTIONS = _spec(
    "transactions",
    [
        *_fields(
            """project string, transaction_id string, kind string, version bigint, epoch bigint,
        state string, status string, cause string, pipeline string, pipeline_version string,
        external_id string, parent_id string, parent_round bigint, parent_item int,
        caused_by string, traceparent string, metadata string, data string, output string,
        delay_ms bigint, switch string, snapshot binary, malformed boolean, recorded string"""
        ),
        pa.field("attempts", pa.list_(pa.field("element", pa.struct(list(ATTEMPT))))),
    ],
)
#: A row for each call of a step: a view of `transactions` (`lake/projections.py`).
STEPS = _spec(
    "steps",
    [
        *_fields("transaction_id string, version bigint, epoch bigint"),
        *(field for field in ATTEMPT if field.name != "item"),
    ],
)
#: A row for each transition of a message in a shard, and for each range that a shard did not read.
DELIVERIES = _spec(
    "deliveries",
    _fields(
        """position string, project string, subscription string, generation int, shard int,
        incarnation bigint, topic string, storage int, partition int, offset bigint,
        message_id string, group string, kind string, from_place string, to_place string,
        attempt int, epoch bigint, outcome string, endpoint string, status int, failure string,
        cause string, started_at timestamp, ended_at timestamp, begun_after bigint, node string,
        policy string, operation string, excerpt binary, malformed boolean, recorded string"""
    ),
)
#: A row for each action of an operator that no subscription records. The view of this name also
#: has the ranges and actions that subscriptions record (`lake/projections.py`).
OPERATIONS = _spec(
    "operations",
    _fields(
        """project string, kind string, subject string, generation int, shard int,
        from_position string, to_position string, detail string"""
    ),
)
#: A row for each request to a webhook.
WEBHOOK_ATTEMPTS = _spec(
    "webhook_attempts",
    _fields(
        """project string, channel string, endpoint string, lane string, delivery_id string,
        attempt int, verdict string, status int, failure string, ended_at timestamp,
        seconds double, excerpt binary, malformed boolean, recorded string"""
    ),
)
#: A row for each event of a channel.
CHANNELS = _spec(
    "channels",
    _fields(
        """project string, channel string, kind string, clock bigint, to_clock bigint,
        expires timestamp, subscriber string, message_id string, content binary,
        malformed boolean, recorded string"""
    ),
)
#: A row for each event of a pool.
POOLS = _spec(
    "pools",
    [
        *_fields(
            """project string, pool string, kind string, number bigint, new_number bigint,
            epoch bigint, attempts int, recipient_key string, worker string, reason string,
            message_id string, payload binary, cause string, traceparent string,
            malformed boolean, recorded string"""
        ),
        pa.field("headers", HEADERS),
    ],
)
#: All tables that ingest writes.
BASE = (
    MESSAGES,
    DELIVERIES,
    TRANSACTIONS,
    CHANNELS,
    POOLS,
    WEBHOOK_ATTEMPTS,
    OPERATIONS,
)
