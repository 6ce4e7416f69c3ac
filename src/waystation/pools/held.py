"""What goes into the scripts of a pool, and what comes back."""

from __future__ import annotations

from typing import Literal

import msgspec

from waystation.pools.states import KeyState, Verdict, WorkerKind, WorkerState


class Session(msgspec.Struct, frozen=True):
    """Who calls: one registration of a worker."""

    uid: str
    #: 0: an operator, who may speak for any.
    number: int = 0


class Letter(msgspec.Struct, frozen=True):
    """A message to be enqueued."""

    id: str
    key: str
    #: As `envelope.pack` makes it; nobody here looks into it.
    packed: bytes


class Enqueued(msgspec.Struct, frozen=True):
    """What came of a message that was to be enqueued."""

    outcome: Literal["added", "duplicate", "full"]
    #: Of its first time, if it is a duplicate.
    number: int
    #: `-`: it waits for a worker.
    owner: str
    epoch: int
    #: Messages of its key that are not settled.
    pending: int


class FoundLetters(msgspec.Struct, frozen=True):
    """Result of a search for messages of a recipient key."""

    #: Messages up to this number can have been settled by calls that recorded nothing, because of
    #: `record` none.
    withheld: int
    #: For each message, where it is. `gone`: settled, or deleted.
    places: list[Literal["pending", "dead", "gone"]]


class Batch(msgspec.Struct, frozen=True):
    """What came of a call that enqueued."""

    items: list[Enqueued]
    #: Workers that were found stale and have keys left: `Assignments.reassign` moves them.
    unfinished: list[str]


class Taken(msgspec.Struct, frozen=True):
    """A message that a worker was given."""

    key: str
    epoch: int
    number: int
    token: str
    #: How often it was tried before, and how often a worker ended meanwhile.
    tries: int
    crashes: int
    enqueued_ms: int
    packed: bytes


class Takings(msgspec.Struct, frozen=True):
    """What a take brought."""

    state: WorkerState
    #: Until the next can be taken; -1: nothing waits.
    next_ms: int
    items: list[Taken]


class Acked(msgspec.Struct, frozen=True):
    """What came of an acknowledgement."""

    #: `known`: it was settled before. `lost`: it is another's, and comes again.
    outcome: Literal["done", "known", "lost"]
    #: The next of its key, taken for the caller.
    next: Taken | None


class Nack(msgspec.Struct, frozen=True, kw_only=True):
    """A message that is given back."""

    taken: Taken
    verdict: Verdict = "again"
    wait_ms: int = 0
    #: Why it is a dead letter, if it becomes one; cut to 1,000 letters.
    cause: str = ""


Nacked = Literal["done", "dead", "known", "lost"]


class Beat(msgspec.Struct, frozen=True):
    """What a worker hears."""

    state: WorkerState
    keys: int
    pending: int


class Swept(msgspec.Struct, frozen=True):
    """What one look after a pool did."""

    more: bool
    moved: int
    forgotten: int
    freed: int
    evicted: list[str]


class KeyLook(msgspec.Struct, frozen=True, kw_only=True):
    """A recipient key as it is now."""

    now_ms: int
    state: KeyState
    owner: str
    epoch: int
    pending: int
    tries: int
    crashes: int
    #: When and why its owner got it.
    since_ms: int
    reason: str
    #: When its first message was enqueued; 0: it has none.
    oldest_ms: int
    #: When that can be taken, or until when it is.
    due_ms: int
    last_access_ms: int | None
    worker: WorkerState | None
    kind: WorkerKind | None


class KeyRow(msgspec.Struct, frozen=True, kw_only=True):
    """A recipient key as a page of the map has it."""

    key: str
    state: KeyState
    owner: str
    epoch: int
    pending: int
    #: When and why its owner got it.
    since_ms: int
    reason: str


class MapPage(msgspec.Struct, frozen=True):
    """Some of the map. A key that is there all the time is on one page at least."""

    items: list[KeyRow]
    #: Where the next page begins; empty: this is the last one.
    cursor: str


class WorkerLook(msgspec.Struct, frozen=True, kw_only=True):
    """A worker as it is now, with its load."""

    uid: str
    state: WorkerState
    kind: WorkerKind
    keys: int
    pending: int
    taken: int
    last_access_ms: int | None
    registered_ms: int


class PoolLook(msgspec.Struct, frozen=True, kw_only=True):
    """A pool as it is now."""

    now_ms: int
    #: Rises with every change of the map.
    version: int
    keys: int
    pending: int
    #: Of these, what waits for a worker.
    waiting: int
    #: How long the oldest has waited that could be taken; 0: there is none.
    oldest_wait_ms: int
    bytes: int
    dead: int
    #: Dead letters that made room for newer ones.
    dropped: int
    workers: list[WorkerLook]
