"""Topics in the client: arguments of options, messages with decoded content, batch results."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypedDict

import msgspec

from waystation.client.codec import Codec, codings_of
from waystation.client.messages import error_from
from waystation.errors import WaystationError
from waystation.runtime.json_text import load_json
from waystation.types.common import FullPolicy, Problem, Record
from waystation.types.message import Durability, Receipt
from waystation.types.topic import (
    MissingRange,
    RateLimit,
    RateMode,
    StoredMessage,
    Topic,
    TopicOptions,
)


class RateLimitArgs(TypedDict, total=False):
    """`RateLimit` as a dict."""

    mode: RateMode
    qps: float | None
    bytes_per_second: float | None


class TopicOptionArgs(TypedDict, total=False):
    """`TopicOptions` as keyword arguments. Options that are left out keep their value."""

    grouped: bool
    max_bytes: int | None
    max_age_seconds: float | None
    full_policy: FullPolicy
    dedup_seconds: float
    json_schema: dict[str, Any] | None
    rate: RateLimitArgs
    record: Record
    redact: list[str]


class ReceivedRateLimit(RateLimit, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """Rate limit from a server, which may be newer and have more fields."""


class ReceivedOptions(TopicOptions, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """Options from a server, which may be newer and have more options."""

    rate: ReceivedRateLimit = ReceivedRateLimit()


class ReceivedTopic(Topic, frozen=True, kw_only=True):
    """A topic from a server, which may be newer and have more options."""

    options: ReceivedOptions


class ReceivedTopicPage(msgspec.Struct, frozen=True, kw_only=True):
    """`TopicPage` from a server, which may be newer and have more options."""

    topics: list[ReceivedTopic]
    cursor: str


class VersionedOptions(msgspec.Struct, frozen=True, kw_only=True):
    """All options of one version of a topic, including those that this release does not know."""

    version: int
    options: dict[str, Any]


Produced = Receipt | WaystationError
#: Results of several messages, in their order.
Results = list[Produced]


class BatchResult(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Result of one message of a batch: the fields of a receipt, or an error.

    msgspec cannot decode a union of two structs that have no tag.
    """

    id: str
    storage: int = 0
    partition: int = 0
    offset: int = 0
    time_ms: int = 0
    duplicate: bool = False
    durability: Durability = "memory"
    error: Problem | None = None

    def outcome(self) -> Produced:
        """Return the receipt or the error."""
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


class BatchResults(msgspec.Struct, frozen=True, kw_only=True):
    """Reply to a batch, with one result per message in the order of the batch."""

    results: list[BatchResult]


@dataclass(frozen=True, kw_only=True)
class TopicMessage:
    """A message of a topic with its location, or an unreadable entry of the topic."""

    id: str
    group: str | None
    #: Index of the storage topic.
    storage: int
    partition: int
    offset: int
    #: Time of the append in milliseconds since 1970, by the store's clock.
    time_ms: int
    #: Empty: the message has no content type.
    content_type: str
    #: All other headers, in their order.
    headers: list[tuple[str, str]]
    #: Time before which the message is not delivered; 0: none.
    not_before_ms: int
    #: Id of the message or transaction that led to this message.
    cause: str | None
    traceparent: str | None
    #: Whether the payload is JSON, by its content type and its content.
    is_json: bool
    #: The payload as the server returned it; JSON is on one line.
    stored: bytes = field(repr=False)
    #: Reason for which the entry is not a message; empty if it is one. An unreadable entry has an
    #: empty id, no group, and the stored bytes as payload.
    unreadable: str = ""
    codec: Codec | None = field(default=None, repr=False, compare=False)

    @property
    def payload(self) -> bytes:
        """The payload, decoded by the codec if the codec encoded it. Errors of the codec pass."""
        codings = codings_of(self.headers)
        if self.codec is not None and codings[-1:] == [self.codec.name]:
            return self.codec.decode(self.stored)
        return self.stored

    @property
    def content(self) -> Any:
        """The payload by its content type: decoded JSON, text, else bytes."""
        kind = self.content_type.partition(";")[0].strip().lower()
        if kind == "application/json" or kind.endswith("+json"):
            return load_json(self.payload)
        return self.payload.decode() if kind == "text/plain" else self.payload


def topic_message(found: StoredMessage, codec: Codec | None) -> TopicMessage:
    """Return a stored message in the form that clients use."""
    message = found.message
    return TopicMessage(
        id=message.id,
        group=message.group,
        storage=found.storage,
        partition=found.partition,
        offset=found.offset,
        time_ms=found.time_ms,
        content_type=message.content_type or "",
        headers=message.headers,
        not_before_ms=message.not_before_ms,
        cause=message.cause,
        traceparent=message.traceparent,
        is_json=message.is_json,
        stored=message.payload,
        unreadable=found.unreadable,
        codec=codec,
    )


@dataclass(frozen=True, kw_only=True)
class MessagePage:
    """A page of messages."""

    messages: list[TopicMessage]
    #: Cursor of the next page, also at the end, where new messages may follow.
    cursor: str
    #: Whether all messages that exist now were returned.
    ended: bool
    #: Offsets that are missing from the log (`log.damaged`); the messages after them follow.
    damaged: list[MissingRange] = field(default_factory=list)
