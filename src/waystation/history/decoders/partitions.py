"""Names of logs: the kind of a log, and the topic or subscription that it belongs to."""

from __future__ import annotations

from typing import Literal

import msgspec

from waystation.delivery.attempt_log import LOG as WEBHOOKS
from waystation.logs.operations import LOG as OPERATIONS
from waystation.logs.records import is_record_log
from waystation.transactions.names import LOG as CELLS

#: Kinds of logs that history ingests.
LogKind = Literal["cells", "channels", "operations", "pools", "shards", "topics", "webhooks"]

_SINGLE_LOGS: dict[str, LogKind] = {
    CELLS: "cells",
    OPERATIONS: "operations",
    WEBHOOKS: "webhooks",
}


def log_kind(log: str) -> LogKind | None:
    """Return the kind of a log, which its name determines; None if history does not ingest it."""
    if kind := _SINGLE_LOGS.get(log):
        return kind
    if shard_place(log, 0) is not None:
        return "shards"
    if is_record_log(log, "channels"):
        return "channels"
    if is_record_log(log, "pools"):
        return "pools"
    return "topics" if topic_place(log, 0) is not None else None


class TopicPlace(msgspec.Struct, frozen=True, gc=False):
    """Partition of a topic."""

    project: str
    topic: str
    #: Number of the storage topic. A topic never uses a number twice.
    storage: int
    partition: int

    @property
    def prefix(self) -> str:
        """Positions of messages, without the offset."""
        return f"{self.project}/{self.topic}/{self.storage}/{self.partition}/"


def topic_place(log: str, partition: int) -> TopicPlace | None:
    """Return the partition of a log `t.<project>.<topic>.<number>`; None for other logs."""
    match log.split("."):
        case ["t", project, topic, number] if number.isdigit():
            return TopicPlace(project, topic, int(number), partition)
        case _:
            return None


class ShardPlace(msgspec.Struct, frozen=True, gc=False):
    """Shard of a generation of a subscription."""

    project: str
    subscription: str
    generation: int
    shard: int


def shard_place(log: str, partition: int) -> ShardPlace | None:
    """Return the shard of a log `s.<project>.<subscription>.<generation>`; None for others."""
    match log.split("."):
        case ["s", project, subscription, generation] if generation.isdigit():
            return ShardPlace(project, subscription, int(generation), partition)
        case _:
            return None
