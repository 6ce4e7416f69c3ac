"""Topics as the API returns them: definitions, options, stored messages, partitions."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from waystation.types.common import FullPolicy, Pointers, Record
from waystation.types.message import JsonMessage

#: Default limits of a topic. The limit of bytes is lower than in other logs, because messages are
#: in memory.
MAX_BYTES_DEFAULT = 256 * 1_048_576
MAX_AGE_SECONDS_DEFAULT = 7 * 86_400.0

#: Largest integer that Lua and JavaScript represent exactly.
_INTEGER_MAX = 2**53 - 1
_AGE_SECONDS_MAX = 100 * 365 * 86400

RateMode = Literal["disabled", "shadow", "enforced"]
#: A deleted topic can be restored. Of a purged topic only the row in the database is left; it
#: remembers which numbers of storage topics were used, so that a new topic does not reuse them.
TopicState = Literal["active", "blocked", "deleted", "purged"]


class RateLimit(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of what clients produce per second; None: unlimited."""

    mode: RateMode = "disabled"
    qps: Annotated[float, Meta(gt=0)] | None = None
    bytes_per_second: Annotated[float, Meta(gt=0)] | None = None


class TopicOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of a topic that a user sets."""

    #: Whether every message needs a group. Messages of one group keep their order.
    grouped: bool = False
    #: Limit of each partition in bytes. Above it, the oldest messages that all readers have passed
    #: are deleted; if that is not enough, `full_policy` decides. None: unlimited.
    max_bytes: Annotated[int, Meta(ge=1, le=_INTEGER_MAX)] | None = MAX_BYTES_DEFAULT
    #: Age after which messages are deleted unless a reader still needs them. None: never.
    max_age_seconds: Annotated[float, Meta(ge=0.001, le=_AGE_SECONDS_MAX)] | None = (
        MAX_AGE_SECONDS_DEFAULT
    )
    full_policy: FullPolicy = "refuse"
    #: Time for which message ids are remembered; 0: no deduplication.
    dedup_seconds: Annotated[float, Meta(ge=0, le=7 * 86400)] = 0.0
    #: JSON Schema that every payload must match.
    json_schema: dict[str, object] | None = None
    rate: RateLimit = RateLimit()
    #: Part of each message that history keeps.
    record: Record = "full"
    #: JSON pointers of values in payloads that history replaces.
    redact: Pointers = ()


class StorageTopic(Struct, frozen=True, kw_only=True):
    """One log of a topic."""

    partitions: int
    #: Number of partitions, divided by that of the first storage topic in the same chain.
    factor: int


class Topic(Struct, frozen=True, kw_only=True):
    """A topic."""

    name: str
    version: int
    state: TopicState
    options: TopicOptions
    storage: list[StorageTopic]
    #: Index of the storage topic that producers append to.
    produce_pointer: int
    created_ms: int
    #: Advice about the number of partitions, or None.
    warning: str | None = None


class TopicPage(Struct, frozen=True, kw_only=True):
    """A page of topics."""

    topics: list[Topic]
    #: Cursor of the next page; empty on the last page.
    cursor: str


class StoredMessage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message with its location, or an unreadable entry of a topic."""

    #: Index of the storage topic.
    storage: int
    partition: int
    offset: int
    #: Time of the append in milliseconds since 1970, by the store's clock.
    time_ms: int
    #: The message. An unreadable entry has an empty id, and the stored bytes as payload.
    message: JsonMessage
    #: Problem of an unreadable entry; empty for a message.
    unreadable: str = ""


class MissingRange(Struct, frozen=True, kw_only=True):
    """Offsets that are missing from a partition although retention did not delete them."""

    #: Index of the storage topic.
    storage: int
    partition: int
    from_offset: int
    #: First offset after the range.
    to_offset: int


class StoredMessagePage(Struct, frozen=True, kw_only=True):
    """A page of messages."""

    messages: list[StoredMessage]
    #: Cursor of the next page, also at the end, where new messages may follow.
    cursor: str
    #: Whether the query has seen all messages that exist now.
    ended: bool
    #: Missing offsets that this page skipped (`log.damaged`).
    damaged: list[MissingRange]


class GroupPartition(Struct, frozen=True, kw_only=True):
    """Location of a group in one storage topic."""

    #: Index of the storage topic.
    storage: int
    partition: int
    #: Shard of the group; None if the query did not name the number of shards.
    shard: int | None
    #: Whether producers append to this storage topic.
    current: bool


class GroupLocation(Struct, frozen=True, kw_only=True):
    """Location of a group in all storage topics."""

    group: str
    hash: int
    positions: list[GroupPartition]
    #: Whether every group stays in one shard; None if the query did not name the number of shards.
    consistent: bool | None


class Partition(Struct, frozen=True, kw_only=True):
    """State of one partition of a topic."""

    #: Index of the storage topic.
    storage: int
    partition: int
    #: Offset of the oldest stored message.
    first: int
    #: Offset of the next message.
    end: int
    bytes: int
    #: Time of the newest message; 0 if the partition never had one.
    last_ms: int
    #: Messages that were dropped although a reader needed them.
    dropped: int
    #: Whether the partition accepts no more messages.
    sealed: bool
    #: Time at which needed messages reached 70 % of the limit; 0: they are below it.
    warned_ms: int


class TopicPartitions(Struct, frozen=True, kw_only=True):
    """State of all partitions of a topic, with totals and warnings."""

    messages: int
    bytes: int
    dropped: int
    partitions: list[Partition]
    warnings: list[str]
