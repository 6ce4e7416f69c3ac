"""What every log can do. A log is a name with partitions; offsets are dense integers from 0.

An implementation passes the suite in tests/logs/conformance.py. The protocol leaves room for a
broker that owns its offsets and confirms batches later: to append is to wait for a receipt, and
several appends may be under way at once; those of one caller to one partition keep their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

#: `refuse`: a full log lets go what all its readers have passed, and takes nothing more if that is
#: not enough. `drop_and_count`: it drops its oldest, needed or not, and counts what was needed.
FullPolicy = Literal["refuse", "drop_and_count"]


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a partition is kept; None: no bound."""

    max_bytes: int | None = None
    max_age_ms: int | None = None
    policy: FullPolicy = "refuse"
    #: Most bytes while no reader has registered, with policy `drop_and_count`: what goes then is
    #: counted in `LogState.unread`. None: `max_bytes`.
    unread_max_bytes: int | None = None
    #: Of the definition that it comes from: an older one never replaces a newer one. 0: nobody
    #: counts, and the last one stays.
    version: int = 0


#: What record logs keep until a reader of history has registered; one of many keeps its part.
UNREAD_BYTES_MAX = 16 * 1_048_576
#: What each of many keeps at least, so that a busy one does not drop entries within a second.
_RECORD_BYTES_MIN = 1_048_576


def record_retention(max_bytes: int, policy: FullPolicy, *, logs: int = 1) -> Retention:
    """Return how much a record log keeps: little until history reads it, then more.

    `logs` record logs share both limits: 16 MiB until history reads them, then `max_bytes`. With
    policy `refuse`, nothing is dropped that history has not read, registered or not.
    """
    max_bytes = max(max_bytes // logs, _RECORD_BYTES_MIN) if logs > 1 else max_bytes
    unread_max = max(UNREAD_BYTES_MAX // logs, _RECORD_BYTES_MIN)
    unread = min(max_bytes, unread_max) if policy == "drop_and_count" else None
    return Retention(max_bytes=max_bytes, policy=policy, unread_max_bytes=unread)


class Appended(msgspec.Struct, frozen=True):
    """Offsets of the appended messages in order, and the time that all of them have."""

    offsets: Sequence[int]
    ms: int


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One message of a partition."""

    offset: int
    ms: int
    payload: bytes


class Block(msgspec.Struct, frozen=True, gc=False):
    """Messages of a partition that follow each other, column by column: for those who read much."""

    #: Of the first; the others follow without a gap.
    offset: int
    times_ms: list[int]
    payloads: list[bytes]


class LogState(msgspec.Struct, frozen=True, kw_only=True):
    """A partition as it is now."""

    #: Offset of the oldest message that is kept, and of the next one that will come.
    first: int
    end: int
    bytes: int
    #: Time of the newest message; 0 before the first.
    last_ms: int
    #: What comes after this log, once it takes nothing more; None while it does.
    sealed: int | None
    #: When that was; 0 while it takes messages.
    sealed_ms: int
    #: Messages that were dropped although somebody still needed them.
    dropped: int
    #: Since when what is needed has been close to the limit of bytes; 0: it is not.
    warned_ms: int = 0
    #: Facts that a record log does not have, as the settings of stations said.
    unrecorded: int = 0
    #: Entries that were dropped while no reader had registered.
    unread: int = 0


class Trimmed(msgspec.Struct, frozen=True, kw_only=True):
    """What a step of trimming did, and what it left."""

    removed: int
    #: Whether another step would find something.
    more: bool
    bytes: int
    #: About how many of these bytes may not be let go: what readers have not passed; all of them
    #: where nobody reads and the policy is to refuse.
    needed_bytes: int
    retention: Retention
    #: Messages that were dropped although somebody still needed them, since ever.
    dropped: int
    #: Whether what is needed comes close to the limit; `begins` and `ends` are told once.
    warning: Literal["", "begins", "lasts", "ends"]
    #: Who needs the oldest; empty: nobody reads.
    slowest: str = ""


class Logs(Protocol):
    """All logs of one kind. Methods raise LogNotFoundError for a log or partition that is none."""

    async def create(self, log: str, partitions: int, retention: Retention) -> bool:
        """Creates a log; false when it is there already, and then as it was."""
        ...

    async def append(self, log: str, partition: int, payloads: Sequence[bytes]) -> Appended:
        """Appends a batch, all or nothing: LogSealedError or LogFullError write nothing."""
        ...

    async def read(
        self, log: str, partition: int, offset: int, *, limit: int, bytes_max: int = ...
    ) -> list[Entry]:
        """Messages from an offset on; none at the end. OffsetOutOfRangeError outside of the log.

        Stops after about `bytes_max`, but returns one message at least where there is one. Stops
        before messages that are missing; LogDamagedError with their range if the first one is.
        """
        ...

    async def read_block(
        self, log: str, partition: int, offset: int, *, limit: int, bytes_max: int = ...
    ) -> Block:
        """The same messages, column by column."""
        ...

    async def state(self, log: str, partition: int) -> LogState:
        """First and end offset, size, seal."""
        ...

    async def watch(self, log: str, partition: int) -> LogState:
        """The same; and the next append from then on is told, once, to who listens for it.

        A hint that may be lost: where it is told, and by what, is the implementation's own.
        """
        ...

    async def offset_at(self, log: str, partition: int, ms: int) -> int:
        """Offset of the first kept message at or after a time; the end offset if there is none."""
        ...

    async def hold(
        self, log: str, partition: int, reader: str, offset: int, *, incarnation: int = 0
    ) -> None:
        """Says that a reader still needs everything from an offset on; trimming spares it.

        One of a later incarnation of the reader stays as it is: it is not the caller's any more.
        A reader whose name begins with `~` yields: it spares what is old, and stops nothing where
        bytes have to go, by which it loses what is then counted as dropped. Where nobody else
        reads, a log that refuses when it is full does so as if nobody read.
        """
        ...

    async def release(self, log: str, partition: int, reader: str) -> bool:
        """Says that a reader needs nothing any more; whether it had held anything."""
        ...

    async def set_retention(self, log: str, partition: int, retention: Retention) -> None:
        """Changes how much of a partition is kept, unless that is newer."""
        ...

    async def trim(
        self, log: str, partition: int, retention: Retention | None = None, *, short: bool = False
    ) -> Trimmed:
        """Removes some of what retention lets go; a bounded step.

        With a retention, it is that one, unless the partition has a newer one.
        With `short`, the step also deletes messages within the limits that all readers have passed,
        because the store is short of memory. A log that refuses when it is full keeps them if all
        its readers yield.
        """
        ...

    async def seal(self, log: str, partition: int, following: int) -> LogState:
        """Ends a partition: it takes nothing more. The first seal stays; returns the state."""
        ...

    async def delete(self, log: str, partitions: int) -> None:
        """Deletes a log with all its partitions, and all that is remembered of them."""
        ...

    async def names(self) -> dict[str, int]:
        """All logs with their numbers of partitions, those half created or half deleted too."""
        ...
