"""The decoder of each kind of log: the table that the log feeds, and the rows of its entries.

A log feeds one table, and each of its entries becomes one row or more. A decoder returns rows with
`log_offset`, `item`, `time` and the table's own columns; ingest adds the rest of the stamp.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pyarrow as pa

from waystation.history.decoders.cells import cell_rows
from waystation.history.decoders.channels import channel_rows
from waystation.history.decoders.messages import message_batch
from waystation.history.decoders.operations import operation_rows
from waystation.history.decoders.partitions import LogKind, log_kind, topic_place
from waystation.history.decoders.pools import pool_rows
from waystation.history.decoders.shards import shard_rows
from waystation.history.decoders.webhooks import webhook_rows
from waystation.history.lake.schema import (
    CHANNELS,
    DELIVERIES,
    MESSAGES,
    OPERATIONS,
    POOLS,
    TRANSACTIONS,
    WEBHOOK_ATTEMPTS,
    TableSchema,
)
from waystation.history.offsets import OffsetRange
from waystation.logs.protocol import LogBatch
from waystation.messages.redaction import FULL


class LogDecoder(msgspec.Struct, frozen=True):
    """Decoder of one kind of log."""

    table: TableSchema
    #: Return the rows of a block of a range, in the order of their offsets.
    decode: Callable[[OffsetRange, LogBatch], pa.RecordBatch]


def decoder_for(log: str) -> LogDecoder | None:
    """Return the decoder of a log by its name; None if history does not ingest the log."""
    kind = log_kind(log)
    return None if kind is None else _DECODERS[kind]


def _message_rows(offsets: OffsetRange, block: LogBatch) -> pa.RecordBatch:
    place = topic_place(offsets.log, offsets.partition)
    assert place is not None, "only logs of topics have this decoder"
    batch = message_batch(place, block).drop_columns(["gap"])
    added = {
        "log_offset": batch.column("offset"),
        "item": pa.repeat(pa.scalar(0, pa.int32()), batch.num_rows),
        "recorded": pa.repeat(pa.scalar(FULL.label), batch.num_rows),
    }
    for name, column in added.items():
        batch = batch.append_column(name, column)
    return batch


_DECODERS: dict[LogKind, LogDecoder] = {
    "cells": LogDecoder(TRANSACTIONS, cell_rows),
    "channels": LogDecoder(CHANNELS, channel_rows),
    "operations": LogDecoder(OPERATIONS, operation_rows),
    "pools": LogDecoder(POOLS, pool_rows),
    "shards": LogDecoder(DELIVERIES, shard_rows),
    "topics": LogDecoder(MESSAGES, _message_rows),
    "webhooks": LogDecoder(WEBHOOK_ATTEMPTS, webhook_rows),
}
