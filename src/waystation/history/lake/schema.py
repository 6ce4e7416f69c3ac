"""The tables of the lake: columns and types, and of which columns files have statistics."""

from __future__ import annotations

import msgspec
import pyarrow as pa

from waystation.history.decoders.messages import HEADERS, MESSAGE_SCHEMA, TIME

#: First in all tables that are made from logs: which entry a row is of, and when it came.
STAMP = pa.schema(
    [
        ("day", pa.date32()),
        ("dataset", pa.string()),
        ("log", pa.string()),
        ("log_partition", pa.int32()),
        ("log_offset", pa.int64()),
        ("item", pa.int32()),
        ("time", TIME),
        ("ingested", TIME),
        ("lost", pa.bool_()),
    ]
)
#: The column that tables are partitioned by; it is in the path of a file, and not in the file.
DAY = "day"


class TableSchema(msgspec.Struct, frozen=True):
    """One table."""

    name: str
    schema: pa.Schema

    @property
    def measured(self) -> list[str]:
        """Columns with least and greatest value in the log of the table, to skip files by.

        All that can be: what has none where others do, some readers take for a column of nulls, and
        skip the file for any other value.
        """
        return [
            field.name
            for field in self.file_schema
            if not pa.types.is_binary(field.type) and not pa.types.is_nested(field.type)
        ]

    @property
    def file_schema(self) -> pa.Schema:
        """What is in a file."""
        return pa.schema([field for field in self.schema if field.name != DAY])


def _spec(name: str, fields: list[pa.Field]) -> TableSchema:
    return TableSchema(name, pa.schema([*STAMP, *fields]))


#: What a message has in the lake and not in the source is its stamp; a gap is no message.
MESSAGES = _spec(
    "messages",
    [
        *(field for field in MESSAGE_SCHEMA if field.name not in {"time", "gap"}),
        pa.field("recorded", pa.string()),
    ],
)
GAPS = _spec(
    "gaps",
    [
        pa.field("from_offset", pa.int64()),
        pa.field("to_offset", pa.int64()),
        pa.field("rows", pa.int64()),
        pa.field("cause", pa.string()),
    ],
)


def _fields(text: str) -> list[pa.Field]:
    """Columns written as `name type, …`, with the types of Spark."""
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
#: A row for each change of a transaction.
TRANSACTIONS = _spec(
    "transactions",
    _fields(
        """project string, transaction_id string, kind string, version bigint, epoch bigint,
        state string, status string, cause string, pipeline string, pipeline_version string,
        external_id string, parent_id string, parent_round bigint, parent_item int,
        caused_by string, traceparent string, metadata string, data string, output string,
        delay_ms bigint, switch string, snapshot binary, malformed boolean, recorded string"""
    ),
)
#: A row for each call of a step.
STEPS = _spec(
    "steps",
    _fields(
        """transaction_id string, version bigint, epoch bigint, place string, step_type string,
        attempt int, outcome string, started_at timestamp, ended_at timestamp, begun_after bigint,
        node string, note string"""
    ),
)
#: A row for each hop of a message through a shard, and for each range that a shard did not read.
DELIVERIES = _spec(
    "deliveries",
    _fields(
        """position string, project string, subscription string, generation int, shard int,
        incarnation bigint, topic string, storage int, partition int, offset bigint,
        message_id string, group string, kind string, from_place string, to_place string,
        attempt int, epoch bigint, outcome string, endpoint string, status int, failure string,
        cause string, started_at timestamp, ended_at timestamp, begun_after bigint, node string,
        policy string, operation string, excerpt binary, malformed boolean"""
    ),
)
#: A row for each thing that was done to a range, or by an operator.
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
        seconds double, excerpt binary, malformed boolean"""
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
#: All tables that are made from logs.
BASE = (
    MESSAGES,
    DELIVERIES,
    TRANSACTIONS,
    STEPS,
    CHANNELS,
    POOLS,
    WEBHOOK_ATTEMPTS,
    OPERATIONS,
    GAPS,
)
