"""Protocol of logs, with the values that its methods take and return.

A log has a name and a fixed number of partitions. Each partition numbers its messages 0, 1, 2, …;
such a number is an *offset*. `first` is the lowest stored offset of a partition, `end` the offset
of the next message. A *retention hold* of a reader is the offset from which the reader still needs
the messages.

Every implementation must pass the suite in `tests/logs/conformance.py`. Callers may have several
appends in flight. Appends of one caller to one partition keep their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Literal, Protocol

import msgspec

from waystation.types.common import FullPolicy


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a partition. A limit of None is no limit."""

    max_bytes: int | None = None
    max_age_ms: int | None = None
    policy: FullPolicy = "refuse"
    #: Byte limit while no reader has a hold, with policy `drop_and_count` only. `LogState.unread`
    #: counts the messages that it deletes. None: `max_bytes` applies.
    unread_max_bytes: int | None = None
    #: Version of the definition that sets these limits. A lower version never replaces a higher
    #: one. 0: no version; these limits replace any others.
    version: int = 0

    def divided(self, logs: int) -> Retention:
        """Return these limits for one of `logs` record logs that divide UNREAD_BYTES_MAX equally.

        `unread_max_bytes` becomes at most the share of the log, which is 1 MiB or more. A limit of
        None stays None.
        """
        if self.unread_max_bytes is None:
            return self
        unread = min(self.unread_max_bytes, max(UNREAD_BYTES_MAX // logs, _RECORD_BYTES_MIN))
        return msgspec.structs.replace(self, unread_max_bytes=unread)


#: Byte limit for the sum of all record logs of one kind, while no reader has a hold.
UNREAD_BYTES_MAX = 16 * 1_048_576
#: Lowest byte limit of a record log that shares a limit with others. With less, a busy log would
#: drop entries within a second.
_RECORD_BYTES_MIN = 1_048_576


def record_retention(max_bytes: int, policy: FullPolicy, *, logs: int = 1) -> Retention:
    """Return the limits of one record log. `logs` such logs together may have `max_bytes`.

    With `drop_and_count`, they may have 16 MiB together until history starts to read them. With
    `refuse`, trimming never deletes an entry that history has not read.
    """
    max_bytes = max(max_bytes // logs, _RECORD_BYTES_MIN) if logs > 1 else max_bytes
    unread_max = max(UNREAD_BYTES_MAX // logs, _RECORD_BYTES_MIN)
    unread = min(max_bytes, unread_max) if policy == "drop_and_count" else None
    return Retention(max_bytes=max_bytes, policy=policy, unread_max_bytes=unread)


class Appended(msgspec.Struct, frozen=True):
    """Result of an append: the offsets of the messages, in order, and their common time."""

    offsets: Sequence[int]
    ms: int


class LogEntry(msgspec.Struct, frozen=True, gc=False):
    """One message of a partition."""

    offset: int
    ms: int
    payload: bytes


class LogBatch(msgspec.Struct, frozen=True, gc=False):
    """Consecutive messages of one partition, column by column."""

    #: Offset of the first message. For an empty batch, the offset that the caller requested.
    offset: int
    #: Offset to request for the next batch.
    next_offset: int
    times_ms: list[int]
    payloads: list[bytes]

    def __len__(self) -> int:
        return len(self.payloads)

    def entries(self) -> Iterator[LogEntry]:
        """Return the messages one by one. Code that reads the columns directly is faster."""
        return map(LogEntry, count(self.offset), self.times_ms, self.payloads)


class LogState(msgspec.Struct, frozen=True, kw_only=True):
    """State of a partition. All times are in milliseconds since 1970."""

    #: Offset of the oldest stored message.
    first: int
    #: Offset of the next message.
    end: int
    #: Size of the stored messages, in bytes.
    bytes: int
    #: Time of the newest message; 0: the partition never had a message.
    last_ms: int
    #: Index of the storage topic that continues the sealed partition; None: not sealed.
    sealed: int | None
    #: Time of the seal; 0: not sealed.
    sealed_ms: int
    #: Number of messages that trimming deleted although a reader needed them.
    dropped: int
    #: Time at which the messages that readers need reached 70 % of the byte limit; 0: below it.
    warned_ms: int = 0
    #: Number of events that the setting `history.record` excluded from this record log.
    unrecorded: int = 0
    #: Number of messages that trimming deleted while no reader had a hold.
    unread: int = 0


class TrimResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one trimming step, with the state of the partition after it."""

    #: Number of messages that the step deleted.
    removed: int
    #: True if another step would delete more messages.
    more: bool
    #: Size of the remaining messages, in bytes.
    bytes: int
    #: Estimated size of the remaining messages that at least one reader has not passed. With policy
    #: `refuse` and no hold, all remaining messages count.
    needed_bytes: int
    #: Limits that the step applied.
    retention: Retention
    #: Number of messages that all steps so far deleted although a reader needed them.
    dropped: int
    #: Set while `needed_bytes` is close to the byte limit. The first step of this period returns
    #: `begins`, the first step after it returns `ends`.
    warning: Literal["", "begins", "lasts", "ends"]
    #: Name of the reader with the lowest hold; empty: no reader has a hold.
    slowest: str = ""


class Logs(Protocol):
    """The logs of one backend.

    A method raises LogNotFoundError if its log or partition does not exist, unless its docstring
    states another result.
    """

    async def create(self, log: str, partitions: int, retention: Retention) -> bool:
        """Create the missing partitions of a log. Return False if all of them existed.

        Existing partitions stay unchanged.
        """
        ...

    async def append(self, log: str, partition: int, payloads: Sequence[bytes]) -> Appended:
        """Append messages atomically.

        Raise LogSealedError or LogFullError if the partition rejects them.
        """
        ...

    async def read(
        self, log: str, partition: int, offset: int, *, limit: int, bytes_max: int = ...
    ) -> LogBatch:
        """Return messages from `offset` on. Return an empty batch at the end of the partition.

        A batch has at most `limit` messages and about `bytes_max` bytes. It has one message if that
        message alone is larger. It ends before a missing message. Raise LogDamagedError with the
        missing range if the message at `offset` is missing, OffsetOutOfRangeError if `offset` is
        below `first` or above `end`.
        """
        ...

    async def state(self, log: str, partition: int) -> LogState:
        """Return the state of a partition."""
        ...

    async def watch(self, log: str, partition: int) -> LogState:
        """Return the state of a partition, and request a wake-up hint from its next append.

        The implementation defines how it sends the hint. A hint can be lost.
        """
        ...

    async def offset_at(self, log: str, partition: int, ms: int) -> int:
        """Return the offset of the first message at or after a time.

        Return `end` if all messages are older.
        """
        ...

    async def hold(
        self, log: str, partition: int, reader: str, offset: int, *, incarnation: int = 0
    ) -> None:
        """Set the retention hold of a reader: trimming keeps messages from `offset` on.

        Do nothing if a later incarnation of the reader has set the hold. Raise
        OffsetOutOfRangeError if the offset is below `first` or above `end`.

        A reader whose name starts with `~` is a *yielding reader*. Its hold protects messages from
        the age limit only. The byte limit deletes them and counts them as dropped. With policy
        `refuse`, the byte limit ignores the holds of yielding readers.
        """
        ...

    async def release(self, log: str, partition: int, reader: str) -> bool:
        """Delete the retention hold of a reader. Return False if it had no hold."""
        ...

    async def set_retention(self, log: str, partition: int, retention: Retention) -> None:
        """Set the limits of a partition. Do nothing if its limits have a higher version."""
        ...

    async def trim(
        self, log: str, partition: int, retention: Retention | None = None, *, short: bool = False
    ) -> TrimResult:
        """Delete a bounded number of old messages that exceed the limits of the partition.

        First set the limits to `retention`, as `set_retention` does. With `short` the store is
        short of memory: also delete messages within the limits that all readers have passed. With
        policy `refuse`, `short` has this effect only if a reader that does not yield has a hold.
        """
        ...

    async def seal(self, log: str, partition: int, next_index: int) -> LogState:
        """Seal a partition: make it reject appends permanently. Return its state.

        `next_index` is the index of the storage topic that continues the partition. A second seal
        changes nothing.
        """
        ...

    async def delete(self, log: str, partitions: int) -> None:
        """Delete the partitions, holds and deduplication entries of a log, if it exists."""
        ...

    async def names(self) -> dict[str, int]:
        """Return the names of all logs, each with its number of partitions.

        Include logs whose creation or deletion is incomplete.
        """
        ...
