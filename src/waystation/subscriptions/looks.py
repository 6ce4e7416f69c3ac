"""What can be seen of a shard, its groups and its dead letters; nothing of it takes anything."""

from __future__ import annotations

from typing import Literal

import msgspec

from waystation.subscriptions.record import RetryRecord
from waystation.subscriptions.states import GroupState, MessageState

#: The queues of a shard.
Queue = Literal["retry", "dead"]


class ShardLook(msgspec.Struct, frozen=True, kw_only=True):
    """A shard at one moment."""

    now_ms: int
    #: Who holds the lease, or held it last; empty: nobody ever did.
    owner: str
    #: The end of the lease; 0: it was given back, or fenced by a reset.
    until_ms: int
    epoch: int
    incarnation: int
    #: By partition (`positions.at_of`): all below is acknowledged.
    low: dict[str, int]
    #: Why it is frozen; empty: it is not.
    frozen: str
    retry_count: int
    retry_bytes: int
    dead_count: int
    dead_bytes: int
    #: Groups that are not clean.
    groups: int
    #: Those of them that wait for an operator; of some, others are still to follow.
    parked: int
    #: Dead letters that belong to no parked group.
    alone: int
    #: Heads that wait for their time, and heads that somebody works on.
    due: int
    taken: int
    #: Dead letters that were dropped for room, where that is allowed.
    dropped: int
    #: When the next head is due, and when the oldest failure was; 0: there is none.
    next_due_ms: int
    oldest_failed_ms: int
    log_end: int


class GroupLook(msgspec.Struct, frozen=True, kw_only=True):
    """A group at one moment."""

    state: GroupState
    #: How many it has in retry, and among dead letters.
    retry: int = 0
    dead: int = 0
    #: What `skip` calls its head, such as `r5` or `d2`; empty for a clean group.
    head_name: str = ""
    #: Attempts of the head that were counted so far.
    tries: int = 0
    #: When the head is due; 0: it is not waiting for its time.
    due_ms: int = 0
    #: Whether somebody works on the head.
    taken: bool = False
    #: When the head of a parked group failed; else 0.
    failed_ms: int = 0
    #: Who redrives it; empty: no operation.
    operation: str = ""
    head: RetryRecord | None = None


class GroupRow(msgspec.Struct, frozen=True, kw_only=True):
    """A group in a list of groups."""

    group: str
    state: GroupState
    retry: int
    dead: int
    tries: int
    operation: str


class GroupPage(msgspec.Struct, frozen=True):
    """Some groups; the cursor is empty at the end. A group may be told twice, none is left out."""

    groups: list[GroupRow]
    cursor: str


class DeadQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which dead letters are asked for."""

    #: With all that waits behind the head; without a group heads alone are told.
    group: str = ""
    failed_after_ms: int = 0
    #: Exclusive; 0: whenever.
    failed_before_ms: int = 0
    #: A status code or the name of a failure, or words of the cause.
    cause: str = ""
    cursor: str = ""
    limit: int = 100


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A message that was not delivered, and will not be by itself."""

    number: int
    #: Parked (the head of its group), behind it, or alone.
    state: MessageState
    #: When it failed; of one behind a head, when the head did.
    failed_ms: int
    #: How many of its group wait behind a head.
    behind: int
    record: RetryRecord


class DeadPage(msgspec.Struct, frozen=True):
    """Some dead letters, the oldest failure first; the cursor is empty at the end.

    Fewer than were asked for, even none, does not mean that it is the end.
    """

    letters: list[DeadLetter]
    cursor: str


class PositionLook(msgspec.Struct, frozen=True):
    """Where a message of the topic is, by its position alone."""

    #: Settled, or in retry or among dead letters.
    acknowledged: bool
    #: Another worker than the owner has it, or may take it.
    taken: bool
    #: All below is acknowledged.
    low: int


class SingleLook(msgspec.Struct, frozen=True, kw_only=True):
    """A message that waits for no other, in retry or redriven alone."""

    #: Attempts so far; when the next is due, 0 if it is not waiting for its time.
    tries: int
    due_ms: int
    #: Whether somebody works on it.
    taken: bool
    #: Who redrives it; empty: no operation.
    operation: str


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A message in retry or among dead letters."""

    queue: Queue
    number: int
    state: MessageState
    #: How many of its group are before it in the same queue.
    ahead: int
    record: RetryRecord


class OperationLook(msgspec.Struct, frozen=True, kw_only=True):
    """How far an operation is in one shard."""

    #: What is asked, as it was enlisted; empty where it was not.
    asked: bytes = b""
    #: Where the next step goes on; empty: at the beginning, unless it has ended.
    cursor: str = ""
    #: Whether all steps were done.
    ended: bool = False
    #: Groups that it has met, and dead letters that stand alone.
    groups: int = 0
    #: Messages that it has marked.
    marked: int = 0
    #: Messages of those that were settled.
    settled: int = 0
    #: Heads that have failed again.
    parked_again: int = 0
    #: Heads that are not settled yet as far as was asked.
    open: int = 0
    #: What its driver has noted.
    notes: dict[str, str] = {}
