"""The definition of a subscription: what a user decides, and what became of it.

The truth is in the catalogue. The store has a working copy, which every process reads.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from waystation.delivery.schedule import Schedule
from waystation.errors import EndpointInvalidError, ShardsInvalidError
from waystation.messages.envelope import Headers
from waystation.runtime.ids import is_name
from waystation.subscriptions.names import Place, record_log
from waystation.subscriptions.shards import SHARDS_MAX
from waystation.subscriptions.states import Poison
from waystation.subscriptions.terms import Terms
from waystation.topics.model import StorageTopicDefinition
from waystation.types.common import FullPolicy

#: Lua and JavaScript count safely up to here.
_WHOLE_MAX = 2**53 - 1

#: Where it begins: at the end of its topic, at its beginning, or at a time in ms.
StartAt = Literal["end", "beginning"] | Annotated[int, Meta(ge=0, le=_WHOLE_MAX)]
SubscriptionState = Literal["creating", "active", "deleting", "deleted"]

_Bytes = Annotated[int, Meta(ge=1, le=_WHOLE_MAX)]
_Codes = tuple[Annotated[int, Meta(ge=100, le=599)], ...]


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often, and how long apart, a message is tried again."""

    #: After the first attempt; 0: it is tried once.
    attempts: Annotated[int, Meta(ge=0, le=100)] = 5
    backoff: Literal["linear", "exponential"] = "exponential"
    first_seconds: Annotated[float, Meta(ge=0, le=86400)] = 3.0
    max_seconds: Annotated[float, Meta(gt=0, le=30 * 86400)] = 3600.0
    multiplier: Annotated[float, Meta(ge=1, le=100)] = 2.0
    #: A wait varies by this share of itself.
    jitter: Annotated[float, Meta(ge=0, le=1)] = 0.2
    #: Status codes that end it at once, and codes that never do.
    fatal_codes: _Codes = ()
    retry_codes: _Codes = ()

    @property
    def schedule(self) -> Schedule:
        """The same, as delivery has it."""
        return Schedule(
            attempts=self.attempts + 1,
            first_seconds=self.first_seconds,
            growth=self.backoff,
            multiplier=self.multiplier,
            maximum_seconds=self.max_seconds,
            jitter=self.jitter,
            fatal_codes=self.fatal_codes,
            retry_codes=self.retry_codes,
        )


class SubscriptionOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a user decides about a subscription, and may change."""

    #: Messages of a group keep their order; None: as the topic has it.
    grouped: bool | None = None
    retry: RetryPolicy = RetryPolicy()
    poison: Poison = "park"
    #: Per shard: what is read ahead.
    in_flight_messages: Annotated[int, Meta(ge=1, le=10_000)] = 1000
    in_flight_bytes: Annotated[int, Meta(ge=1024, le=1_073_741_824)] = 8 * 1_048_576
    #: Requests at a time, of all shards in one process.
    concurrency_max: Annotated[int, Meta(ge=1, le=10_000)] = 128
    #: Messages in a second, of all shards; None: no bound.
    rate: Annotated[float, Meta(gt=0, le=1_000_000)] | None = None
    #: Failures in a second, as a share of deliveries; None: no bound of its own.
    error_percent: Annotated[float, Meta(gt=0, le=100)] | None = None
    #: Per shard; None: no bound but the memory of the store.
    retry_max_bytes: _Bytes | None = 64 * 1_048_576
    dead_max_bytes: _Bytes | None = 64 * 1_048_576
    dead_full_policy: FullPolicy = "refuse"
    timeout_seconds: Annotated[float, Meta(gt=0, le=3600)] = 30.0
    method: Literal["POST", "PUT", "PATCH"] = "POST"
    headers: Headers = ()


class NewSubscription(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A subscription as it is asked for."""

    topic: str
    endpoint: str
    #: None: as many as suit the topic.
    shards: int | None = None
    start: StartAt = msgspec.field(name="from", default="end")
    options: SubscriptionOptions = SubscriptionOptions()


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription as it is now."""

    project: str
    name: str
    version: int
    topic: str
    endpoint: str
    shards: int
    options: SubscriptionOptions
    state: SubscriptionState
    generation: int = 0
    incarnation: int = 1
    #: Retry and dead-letter topic: storage topic n is that of generation n.
    retry: tuple[StorageTopicDefinition, ...]
    dead: tuple[StorageTopicDefinition, ...]
    start: StartAt
    #: Number of the storage topic that it reads first. What came before is not its own, so it is
    #: no matter whether a group had the same shard there.
    first_storage: int = 0
    #: By the store's clock; 0: until somebody resumes it.
    paused_until_ms: int = 0
    paused_reason: str = ""
    paused: bool = False
    created_ms: int = 0
    #: 0: it is not deleted.
    deleted_ms: int = 0

    @property
    def record_log(self) -> str:
        """The record log of its generation."""
        return self.record_log_of(self.generation)

    def record_log_of(self, generation: int) -> str:
        """The record log of a generation that it has, or had."""
        return record_log(self.project, self.name, generation)

    def is_paused(self, now_ms: int) -> bool:
        """Whether it rests at a time of the store's clock."""
        return self.paused and not 0 < self.paused_until_ms <= now_ms

    def changed(self, **changes: object) -> Subscription:
        """The next version."""
        return msgspec.structs.replace(self, version=self.version + 1, **changes)

    def place(self, shard: int) -> Place:
        """Where a shard of its generation has its keys."""
        return Place(self.project, self.name, self.generation, shard)

    def terms(self, dataset: str, epoch: int) -> Terms:
        """What its scripts are told under an epoch."""
        return Terms(
            dataset=dataset,
            epoch=epoch,
            incarnation=self.incarnation,
            policy=self.options.poison,
            retry_bytes_max=self.options.retry_max_bytes,
            dead_bytes_max=self.options.dead_max_bytes,
            dead_full_policy=self.options.dead_full_policy,
        )


_ADDRESSES = ("http://", "https://")
_NAMED = ("pipeline:", "channel:", "pool:")


def is_address(endpoint: str) -> bool:
    """Whether requests go to it, which are signed."""
    return endpoint.startswith(_ADDRESSES)


def check_new(new: NewSubscription) -> NewSubscription:
    """What was asked for, if there can be such a subscription; the endpoint itself is not asked."""
    check_endpoint(new.endpoint)
    if new.shards is not None and not 1 <= new.shards <= SHARDS_MAX:
        raise ShardsInvalidError(f"A subscription has 1 to {SHARDS_MAX} shards.", field="shards")
    return new


def check_endpoint(endpoint: str) -> None:
    """Refuses what cannot be an endpoint, wherever it leads."""
    if is_address(endpoint):
        valid = endpoint not in _ADDRESSES
    else:
        scheme = next((each for each in _NAMED if endpoint.startswith(each)), None)
        valid = scheme is not None and is_name(endpoint.removeprefix(scheme))
    if not valid:
        raise EndpointInvalidError(
            "An endpoint is https://…, pipeline:<name>, channel:<name> or pool:<name>.",
            field="endpoint",
        )


encode_subscription = msgspec.json.Encoder().encode
decode_subscription = msgspec.json.Decoder(Subscription).decode
