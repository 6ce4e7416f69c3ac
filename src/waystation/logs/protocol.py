"""Protocol of logs, with the values that its methods take and return.

A log has a name and a fixed number of partitions. Each partition numbers its messages 0, 1, 2, …;
such a number is an *offset*. `first` is the oldest stored offset of a partition, `end` the offset
that the next message gets.

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
    """Limits of a partition. None: unlimited."""

    max_bytes: int | None = None
    max_age_ms: int | None = None
    policy: FullPolicy = "refuse"
    #: Byte limit while no reader has a hold; only with `drop_and_count`. Messages that it deletes
    #: are counted in `LogState.unread`. None: `max_bytes` applies.
    unread_max_bytes: int | None = None
    #: Version of the definition that sets these limits. Lower versions never replace higher ones.
    #: 0: unversioned; the last call wins.
    version: int = 0


#: Bytes that all record logs of a kind store together while no reader has a hold.
UNREAD_BYTES_MAX = 16 * 1_048_576
#: Lower bound for each of several record logs, because a busy log with less would drop entries
#: within a second.
_RECORD_BYTES_MIN = 1_048_576


def record_retention(max_bytes: int, policy: FullPolicy, *, logs: int = 1) -> Retention:
    """Return the limits of a record log, if `logs` record logs share `max_bytes`.

    With `drop_and_count` they share only 16 MiB until history reads them. With `refuse` an entry
    is never deleted before history has read it.
    """
    max_bytes = max(max_bytes // logs, _RECORD_BYTES_MIN) if logs > 1 else max_bytes
    unread_max = max(UNREAD_BYTES_MAX // logs, _RECORD_BYTES_MIN)
    unread = min(max_bytes, unread_max) if policy == "drop_and_count" else None
    return Retention(max_bytes=max_bytes, policy=policy, unread_max_bytes=unread)


class Appended(msgspec.Struct, frozen=True):
    """Offsets of the appended messages in order, and the time that all of them have."""

    offsets: Sequence[int]
    ms: int


class LogEntry(msgspec.Struct, frozen=True, gc=False):
    """One message of a partition."""

    offset: int
    ms: int
    payload: bytes


class LogBatch(msgspec.Struct, frozen=True, gc=False):
    """Consecutive messages of one partition, column by column."""

    #: Offset of the first message; of an empty batch, the offset that was read.
    offset: int
    #: Offset from which to read the following batch.
    next_offset: int
    times_ms: list[int]
    payloads: list[bytes]

    def __len__(self) -> int:
        return len(self.payloads)

    def entries(self) -> Iterator[LogEntry]:
        """Return the messages one by one. Reading the columns is faster for many messages."""
        return map(LogEntry, count(self.offset), self.times_ms, self.payloads)


class LogState(msgspec.Struct, frozen=True, kw_only=True):
    """State of a partition."""

    #: Offset of the oldest stored message.
    first: int
    #: Offset of the next message.
    end: int
    #: Size of the stored messages.
    bytes: int
    #: Time of the newest message; 0 if the partition never had one.
    last_ms: int
    #: Index of the storage topic that continues a sealed partition; None: not sealed.
    sealed: int | None
    #: Time of the seal; 0: not sealed.
    sealed_ms: int
    #: Number of messages that were deleted although a reader needed them.
    dropped: int
    #: Time since when needed messages fill at least 70 % of the byte limit; 0: they do not.
    warned_ms: int = 0
    #: Number of facts that were not recorded because of the setting `history.record`.
    unrecorded: int = 0
    #: Number of entries that were deleted while no reader had a hold.
    unread: int = 0


class TrimResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one trimming step, with the state of the partition after it."""

    #: Number of messages that the step deleted.
    removed: int
    #: Whether another step would delete more.
    more: bool
    #: Size of the messages that are left.
    bytes: int
    #: Estimated part of `bytes` that must stay: the messages that some reader has not passed. All
    #: of `bytes` if no reader has a hold and the policy is `refuse`.
    needed_bytes: int
    #: Limits that the step applied.
    retention: Retention
    #: Number of messages that were deleted although a reader needed them, over all steps.
    dropped: int
    #: Whether `needed_bytes` is close to the limit. Only the step that detects the change returns
    #: `begins` or `ends`.
    warning: Literal["", "begins", "lasts", "ends"]
    #: Reader with the lowest hold; empty: no reader has a hold.
    slowest: str = ""


class Logs(Protocol):
    """All logs of one backend.

    A method that gets a log or a partition that does not exist raises LogNotFoundError, unless its
    docstring states another result.
    """

    async def create(self, log: str, partitions: int, retention: Retention) -> bool:
        """Create a log. Return False if all its partitions existed; they stay unchanged."""
        ...

    async def append(self, log: str, partition: int, payloads: Sequence[bytes]) -> Appended:
        """Append messages atomically.

        Raise LogSealedError or LogFullError if the partition rejects them.
        """
        ...

    async def read(
        self, log: str, partition: int, offset: int, *, limit: int, bytes_max: int = ...
    ) -> LogBatch:
        """Return messages from an offset on; an empty batch at the end of the partition.

        A batch has at most `limit` messages and about `bytes_max` bytes, but at least one message
        if there is one. It ends before a missing message. Raise LogDamagedError with the missing
        range if the first message is missing, OffsetOutOfRangeError if the offset is below `first`
        or above `end`.
        """
        ...

    async def state(self, log: str, partition: int) -> LogState:
        """Return the state of a partition."""
        ...

    async def watch(self, log: str, partition: int) -> LogState:
        """Return the state, and request one hint when the next message is appended.

        The implementation defines how it sends the hint. A hint may be lost.
        """
        ...

    async def offset_at(self, log: str, partition: int, ms: int) -> int:
        """Return the offset of the first message at or after a time; `end` if all are older."""
        ...

    async def hold(
        self, log: str, partition: int, reader: str, offset: int, *, incarnation: int = 0
    ) -> None:
        """Set the retention hold of a reader: trimming keeps messages from `offset` on.

        If a later incarnation of the reader has set a hold, change nothing. Raise
        OffsetOutOfRangeError if the offset is below `first` or above `end`.

        The hold of a reader whose name starts with `~` protects messages from the age limit only.
        The byte limit deletes them and counts them as dropped. With policy `refuse`, the byte limit
        treats a partition whose readers all start with `~` as one without readers.
        """
        ...

    async def release(self, log: str, partition: int, reader: str) -> bool:
        """Delete the retention hold of a reader. Return False if it had none."""
        ...

    async def set_retention(self, log: str, partition: int, retention: Retention) -> None:
        """Change the limits of a partition, unless its limits have a higher version."""
        ...

    async def trim(
        self, log: str, partition: int, retention: Retention | None = None, *, short: bool = False
    ) -> TrimResult:
        """Delete a bounded number of messages that the limits do not keep.

        Change the limits to `retention` first, unless the partition has limits of a higher version.
        With `short`, also delete messages within the limits that all readers have passed, because
        the store is short of memory. With policy `refuse` this needs a reader whose name does not
        start with `~`.
        """
        ...

    async def seal(self, log: str, partition: int, following: int) -> LogState:
        """Seal a partition, so that it rejects appends; return its state.

        `following` is the index of the storage topic that continues it. A second seal changes
        nothing.
        """
        ...

    async def delete(self, log: str, partitions: int) -> None:
        """Delete a log with its partitions, holds and deduplication entries, if it exists."""
        ...

    async def names(self) -> dict[str, int]:
        """Return all logs with their number of partitions, also partly created or deleted ones."""
        ...
