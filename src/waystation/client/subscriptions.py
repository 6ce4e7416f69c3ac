"""What clients get to see of subscriptions: definitions, shards, groups, dead letters, operations.

Times are milliseconds since 1970; 0 where there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, TypedDict

import msgspec

from waystation.types.message import JsonMessage

#: Where a subscription begins: at the end of its topic, at its beginning, or at a time.
Start = Literal["end", "beginning"] | datetime
OperationKind = Literal["redrive", "skip", "purge", "reset"]


class RetryPolicy(TypedDict, total=False):
    """How often, and how long apart, a message is tried again; what is left out is as usual."""

    #: After the first attempt; 0: it is tried once.
    attempts: int
    backoff: Literal["linear", "exponential"]
    first_seconds: float
    max_seconds: float
    multiplier: float
    #: A wait varies by this share of itself.
    jitter: float
    #: Status codes that end it at once, and codes that never do.
    fatal_codes: Sequence[int]
    retry_codes: Sequence[int]


class SubscriptionOptions(TypedDict, total=False):
    """What a user decides about a subscription; what is left out stays, or is as by default."""

    #: Messages of a group keep their order; None: as the topic has it.
    grouped: bool | None
    retry: RetryPolicy
    #: What becomes of a group whose message will never be delivered.
    poison: Literal["park", "skip"]
    #: Per shard: what is read ahead.
    in_flight_messages: int
    in_flight_bytes: int
    #: Requests at a time, of all shards in one process.
    concurrency_max: int
    #: Messages in a second, of all shards; None: no bound.
    rate: float | None
    #: Failures in a second, as a share of deliveries; None: no bound of its own.
    error_percent: float | None
    #: Per shard; None: no bound.
    retry_max_bytes: int | None
    dead_max_bytes: int | None
    dead_full_policy: Literal["refuse", "drop_and_count"]
    timeout_seconds: float
    method: Literal["POST", "PUT", "PATCH"]
    headers: Sequence[tuple[str, str]]


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription as it is now."""

    name: str
    version: int
    topic: str
    endpoint: str
    shards: int
    options: dict[str, Any]
    #: creating, active or deleting.
    state: str
    #: One more with every reset.
    incarnation: int
    paused: bool
    #: 0: until somebody resumes it.
    paused_until_ms: int
    paused_reason: str
    created_ms: int
    #: Signs its requests; told once, when it is created. None where nothing is signed.
    secret: str | None = None
    #: Why its number of shards cannot follow when its topic grows; told when it is created.
    warning: str | None = None


class SubscriptionPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of a list of subscriptions."""

    subscriptions: list[Subscription]
    cursor: str


class ShardStanding(msgspec.Struct, frozen=True, kw_only=True):
    """A shard at one moment."""

    shard: int
    #: unowned, running, paused, full, at_barrier, held or frozen.
    state: str
    #: Code of what keeps it from delivering, as `why` tells it; empty: nothing does.
    reason: str
    #: The node that delivers it; empty: none.
    owner: str
    #: Messages of the topic that are not acknowledged, and when the oldest was produced.
    lag: int
    oldest_ms: int
    #: How many wait in retry, and how many are dead letters.
    retry: int
    retry_bytes: int
    dead: int
    dead_bytes: int
    #: Groups that are not clean, those of them that are parked, and dead letters of no group.
    groups: int
    parked: int
    alone: int
    #: Heads that wait for their time, and heads that somebody works on.
    due: int
    under_way: int
    #: Dead letters that were dropped for room.
    dropped: int
    next_due_ms: int
    oldest_failed_ms: int


class SubscriptionStanding(msgspec.Struct, frozen=True, kw_only=True):
    """All shards of a subscription, and their sums."""

    name: str
    #: active, paused, creating or deleting.
    state: str
    lag: int
    retry: int
    dead: int
    groups: int
    parked: int
    #: What is kept of dead letters and retries together.
    bytes: int
    shards: list[ShardStanding]


class FailedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that was not delivered yet, and why."""

    id: str
    #: None: it has none.
    group: str | None
    #: Number of the storage topic, partition and offset, such as `0.3.17`.
    position: str
    #: Attempts up to when this was written down.
    attempts: int
    first_failure_ms: int
    last_failure_ms: int
    #: A status code or the name of a failure; empty without an attempt.
    failure: str
    cause: str
    #: The beginning of what the endpoint replied.
    excerpt: str
    bytes: int
    #: Of a delayed message: when it is to be delivered.
    not_before_ms: int = 0


class GroupInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A group in a list."""

    group: str
    shard: int
    #: clean, retrying, parked or redriving.
    state: str
    #: How many it has in retry, and among dead letters.
    retry: int
    dead: int
    #: Attempts of its head so far.
    tries: int
    #: The operation that redrives it; empty: none.
    operation: str


class GroupStanding(GroupInfo, frozen=True, kw_only=True):
    """A group at one moment."""

    #: When its head is due, or failed.
    due_ms: int
    failed_ms: int
    #: Whether its head is under way.
    under_way: bool
    #: What all others of it wait for.
    head: FailedMessage | None


class GroupPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of a list of groups."""

    groups: list[GroupInfo]
    cursor: str


class DeadLetter(FailedMessage, frozen=True, kw_only=True):
    """A message that was not delivered, and will not be by itself."""

    shard: int
    number: int
    #: parked (the head of its group), behind, or alone.
    state: str
    failed_ms: int
    #: How many of its group wait behind a head.
    behind: int
    #: The message itself, where it was asked for.
    message: JsonMessage | None = None


class DeadLetterPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of dead letters; what leads on is empty at the end."""

    dead_letters: list[DeadLetter]
    cursor: str


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far an operation is, over all shards."""

    #: Groups, and dead letters that stand alone, that it has met.
    matched: int
    #: Messages that it has marked, and those of them that are settled.
    marked: int
    settled: int
    #: Heads that have failed again.
    parked_again: int
    #: Heads that are marked and not settled yet.
    open: int
    #: Shards that it has gone over.
    shards_done: int


class OperationInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An operation as it was when it was looked at."""

    #: Empty for a dry run, of which nothing is kept.
    id: str
    kind: OperationKind
    #: What was asked for; what was not is left out.
    asked: dict[str, Any]
    #: begun, paused, cancelled or done.
    state: str
    begun_ms: int
    ended_ms: int
    #: Messages: that it is about, in a dry run; else that it has marked, or settled.
    count: int
    progress: Progress
    #: Of a dry run, the first ones.
    sample: list[FailedMessage] = []

    @property
    def ended(self) -> bool:
        """Whether it does nothing any more."""
        return self.state in ("cancelled", "done")


class OperationPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of a list of operations, the newest first."""

    operations: list[OperationInfo]
    cursor: str


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One made-up message that was sent to an endpoint, and what came of it."""

    #: Method and URL; or the endpoint alone.
    request: str
    headers: list[tuple[str, str]]
    body: str
    #: Of the reply; 0 without one.
    status: int
    #: Why it failed; empty if it was accepted.
    problem: str
    excerpt: str
    seconds: float


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a message, a group, a shard or a subscription is where it is."""

    #: What was asked about: message, group, shard or subscription.
    subject: str
    code: str
    text: str
    facts: dict[str, Any]


class RotatedSecret(msgspec.Struct, frozen=True, kw_only=True):
    """The secret that signs from now on."""

    secret: str
