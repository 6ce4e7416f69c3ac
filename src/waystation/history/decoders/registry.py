"""Feeds: which tables a log is the source of, and how its entries become their rows.

A feed gives rows with `log_offset`, `item`, `time` and the columns of the table's own; ingest adds
the rest of the stamp. An entry may become no row of a table, or several.
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
    STEPS,
    TRANSACTIONS,
    WEBHOOK_ATTEMPTS,
    TableSchema,
)
from waystation.history.offsets import OffsetRange
from waystation.logs.protocol import LogBatch
from waystation.messages.redaction import FULL


class Feed(msgspec.Struct, frozen=True):
    """One kind of log."""

    #: The first has a row of every entry.
    tables: tuple[TableSchema, ...]
    #: Table -> rows of a block, in the order of their offsets.
    rows: Callable[[OffsetRange, LogBatch], dict[str, pa.RecordBatch]]


def feed_of(log: str) -> Feed | None:
    """The feed of a log, told by its name; None for what is not recorded."""
    kind = log_kind(log)
    return None if kind is None else _FEEDS[kind]


def _message_rows(span: OffsetRange, block: LogBatch) -> dict[str, pa.RecordBatch]:
    place = topic_place(span.log, span.partition)
    assert place is not None, "the feed of topics has their logs alone"
    batch = message_batch(place, block).drop_columns(["gap"])
    added = {
        "log_offset": batch.column("offset"),
        "item": pa.repeat(pa.scalar(0, pa.int32()), batch.num_rows),
        "recorded": pa.repeat(pa.scalar(FULL.label), batch.num_rows),
    }
    for name, column in added.items():
        batch = batch.append_column(name, column)
    return {MESSAGES.name: batch}


_FEEDS: dict[LogKind, Feed] = {
    "cells": Feed((TRANSACTIONS, STEPS), cell_rows),
    "channels": Feed((CHANNELS,), channel_rows),
    "operations": Feed((OPERATIONS,), operation_rows),
    "pools": Feed((POOLS,), pool_rows),
    "shards": Feed((DELIVERIES, OPERATIONS), shard_rows),
    "topics": Feed((MESSAGES,), _message_rows),
    "webhooks": Feed((WEBHOOK_ATTEMPTS,), webhook_rows),
}
