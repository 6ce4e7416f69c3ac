"""What clients get to see of topics: receipts, messages with their places, topics themselves."""

from __future__ import annotations

from base64 import b64decode
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

import msgspec

from waystation.client.codec import Codec, codings_of
from waystation.client.messages import error_from
from waystation.errors import WaystationError
from waystation.runtime.json_text import load_json
from waystation.types.common import Problem


class RateLimit(TypedDict, total=False):
    """How much may be produced in a second; None: no bound."""

    mode: Literal["disabled", "shadow", "enforced"]
    qps: float | None
    bytes_per_second: float | None


class TopicOptions(TypedDict, total=False):
    """What a user decides about a topic; what is left out stays, or is as by default."""

    #: Every message needs a group.
    grouped: bool
    #: Limit of each partition in bytes, by default 256 MiB; None: no limit.
    max_bytes: int | None
    #: Age at which messages are deleted, by default seven days; None: never.
    max_age_seconds: float | None
    full_policy: Literal["refuse", "drop_and_count"]
    #: How long a message id is remembered; 0: not at all.
    dedup_seconds: float
    json_schema: dict[str, Any] | None
    rate: RateLimit
    #: What history keeps of its messages.
    record: Literal["full", "headers", "none"]
    #: JSON pointers of values in payloads that history does not keep.
    redact: list[str]


class StorageTopic(msgspec.Struct, frozen=True, kw_only=True):
    """One log of a topic."""

    partitions: int
    #: How many times it has the partitions with which its chain began.
    factor: int


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic as it is now."""

    name: str
    version: int
    #: active, blocked or deleted.
    state: str
    options: dict[str, Any]
    storage: list[StorageTopic]
    #: Index of the storage topic that is produced to.
    produce_pointer: int
    created_ms: int
    #: What is allowed, but not advised.
    warning: str | None = None


class TopicPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of a list of topics."""

    topics: list[Topic]
    cursor: str


class Receipt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Where a message is."""

    id: str
    #: Index of the storage topic.
    storage: int
    partition: int
    offset: int
    time_ms: int
    #: Its id was known: this is where the first one is, and nothing was written.
    duplicate: bool
    durability: str


Produced = Receipt | WaystationError
#: Of several messages, in their order.
Results = list[Produced]


class Result(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One row of the reply to a batch: a receipt or a problem."""

    id: str
    storage: int = 0
    partition: int = 0
    offset: int = 0
    time_ms: int = 0
    duplicate: bool = False
    durability: str = ""
    error: Problem | None = None

    def outcome(self) -> Produced:
        """What it tells."""
        if self.error is not None:
            return error_from(self.error)
        return Receipt(
            id=self.id,
            storage=self.storage,
            partition=self.partition,
            offset=self.offset,
            time_ms=self.time_ms,
            duplicate=self.duplicate,
            durability=self.durability,
        )


class ResultPage(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to a batch."""

    results: list[Result]


@dataclass(frozen=True, kw_only=True)
class TopicMessage:
    """A message of a topic and its place."""

    id: str
    group: str | None
    #: Index of the storage topic.
    storage: int
    partition: int
    offset: int
    time_ms: int
    content_type: str
    #: All others, in their order.
    headers: list[tuple[str, str]]
    not_before_ms: int
    cause: str | None
    traceparent: str | None
    #: Whether the payload is JSON, by its content type and in fact.
    is_json: bool
    #: The payload as the station has it; JSON is on one line.
    stored: bytes = field(repr=False)
    codec: Codec | None = field(default=None, repr=False, compare=False)

    @property
    def payload(self) -> bytes:
        """The payload, through the codec if it was encoded by that one; whatever this raises."""
        codings = codings_of(self.headers)
        if self.codec is not None and codings[-1:] == [self.codec.name]:
            return self.codec.decode(self.stored)
        return self.stored

    @property
    def content(self) -> Any:
        """The payload as what it says it is: JSON decoded, text, else bytes."""
        kind = self.content_type.partition(";")[0].strip().lower()
        if kind == "application/json" or kind.endswith("+json"):
            return load_json(self.payload)
        return self.payload.decode() if kind == "text/plain" else self.payload


class ShownMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message as a station shows it, and so it is shown again: what it lacks is left out."""

    id: str
    group: str | None = None
    data: msgspec.Raw = msgspec.Raw()
    text: str | None = None
    base64: str | None = None
    content_type: str = ""
    headers: list[tuple[str, str]] = []
    not_before_ms: int = 0
    cause: str | None = None
    traceparent: str | None = None

    @property
    def payload(self) -> bytes:
        """The payload as the station has it; JSON is on one line."""
        if self.text is not None:
            return self.text.encode()
        return bytes(self.data) if self.base64 is None else b64decode(self.base64)


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A message and its place as a station tells them."""

    storage: int
    partition: int
    offset: int
    time_ms: int
    message: ShownMessage

    def as_message(self, codec: Codec | None) -> TopicMessage:
        """The message."""
        shown = self.message
        return TopicMessage(
            id=shown.id,
            group=shown.group,
            storage=self.storage,
            partition=self.partition,
            offset=self.offset,
            time_ms=self.time_ms,
            content_type=shown.content_type,
            headers=shown.headers,
            not_before_ms=shown.not_before_ms,
            cause=shown.cause,
            traceparent=shown.traceparent,
            is_json=bytes(shown.data) != b"",
            stored=shown.payload,
            codec=codec,
        )


class MissingRange(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets of a partition that are missing, though retention did not remove them."""

    storage: int
    partition: int
    #: From the first one up to, but not including, `to_offset`.
    from_offset: int
    to_offset: int


class FoundPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of messages as a station tells it."""

    messages: list[Found]
    cursor: str
    ended: bool
    damaged: list[MissingRange] = []


@dataclass(frozen=True, kw_only=True)
class MessagePage:
    """Some messages, and what leads on, also at the end: new ones may follow."""

    messages: list[TopicMessage]
    cursor: str
    #: Whether everything that is there now was seen.
    ended: bool
    #: Messages that are missing from the log (`log.damaged`); those behind them follow.
    damaged: list[MissingRange] = field(default_factory=list)


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """Where a group is in one storage topic."""

    storage: int
    partition: int
    #: None where no number of shards was given.
    shard: int | None
    #: Whether this is the storage topic that is produced to.
    current: bool


class Whereabouts(msgspec.Struct, frozen=True, kw_only=True):
    """Where a group is in all storage topics."""

    group: str
    hash: int
    positions: list[Position]
    #: Whether the number of shards leaves every group in one shard; None where none was given.
    consistent: bool | None


class PartitionStanding(msgspec.Struct, frozen=True, kw_only=True):
    """One partition of a storage topic."""

    storage: int
    partition: int
    #: Offset of the oldest message that is kept, and of the next one that will come.
    first: int
    end: int
    bytes: int
    #: Time of the newest message; 0 before the first.
    last_ms: int
    #: Messages that were dropped although somebody still needed them.
    dropped: int
    #: Whether it takes nothing more.
    sealed: bool
    #: Since when it has been nearly full; 0: it is not.
    warned_ms: int


class TopicStanding(msgspec.Struct, frozen=True, kw_only=True):
    """What a topic holds, and what a person should know of it."""

    messages: int
    bytes: int
    dropped: int
    partitions: list[PartitionStanding]
    warnings: list[str]
