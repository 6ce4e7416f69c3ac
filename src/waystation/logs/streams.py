"""Logs as streams of the store.

A partition is one stream. Its entry ids are `<offset>-<ms>`, so that searches by offset and by time
are possible. The only field of an entry is the packed message. A hash, the *head*, stores the state
of the partition. All keys of a partition are in one cluster slot.

The scripts of this package never leave gaps between offsets. A gap means that another program
deleted entries. A read ends before a gap. A read that starts inside a gap raises LogDamagedError
with the missing range. Entries after a gap keep their offsets.

If the reply of an append is lost, its outcome is unknown. The caller decides whether to repeat it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from waystation.errors import (
    LogDamagedError,
    LogFullError,
    LogNotFoundError,
    LogSealedError,
    OffsetOutOfRangeError,
    StoreDamagedError,
)
from waystation.logs import keys
from waystation.logs.protocol import Appended, LogBatch, LogState, Retention, TrimResult
from waystation.runtime.logging import logger
from waystation.runtime.tasks import for_each
from waystation.store.client import Store
from waystation.store.connection import Reply
from waystation.store.scripts import script

_log = logger("logs")

_APPEND = script(__package__, "append")
_CREATE = script(__package__, "create")
_ENTRY_AT = script(__package__, "entry_at")
_HOLD = script(__package__, "hold")
_OFFSET_AT = script(__package__, "offset_at")
_RETAIN = script(__package__, "retain")
_SEAL = script(__package__, "seal")
_TRIM = script(__package__, "trim")
_WATCH = script(__package__, "watch")

#: Maximum number of messages that one step of a trim deletes. A step blocks the store for up to
#: about two milliseconds.
TRIM_STEP = 500
#: Percentage of the byte limit at which messages that readers need cause a warning.
WARNING_PERCENT = 70
#: Default of `bytes_max` for reads.
READ_BYTES_MAX = 4 * 1_048_576
#: Assumed size of a message before the first read of its partition.
_UNKNOWN_SIZE_BYTES = 16_384
#: Maximum number of partitions whose message sizes are cached.
_SIZES_MAX = 10_000
#: Number of entries in a run. `_times` compares the first and the last time of each run.
_RUN = 25
#: COUNT of a SCAN. With it, one call blocks the store for less than a millisecond.
_SCAN_STEP = 1000
_STATE_FIELDS = (
    *("first", "end", "bytes", "ms", "sealed", "sealed_ms", "dropped", "warned_ms"),
    *("unrecorded", "unread"),
)


class StreamLogs:
    """Logs in the store, as streams. The only state is a cache of message sizes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        #: Key of a stream -> size of the largest message that was read recently.
        self._sizes: dict[str, int] = {}

    async def create(self, log: str, partitions: int, retention: Retention) -> bool:
        limits = _limits(retention)
        # Register the log first, so that maintenance finds it after a crash between the calls.
        await self._store.call("HSETNX", keys.REGISTER, log, partitions, repeatable=True)
        created = []

        async def create(partition: int) -> None:
            head = keys.head(log, partition)
            created.append(await self._store.run(_CREATE, [head], limits))

        await for_each(range(partitions), create)
        return any(created)

    async def append(self, log: str, partition: int, payloads: Sequence[bytes]) -> Appended:
        reply = await self._store.run(_APPEND, keys.all_of(log, partition), payloads)
        raise_refusal(reply, log, partition)
        offset = int(reply[1])
        return Appended(range(offset, offset + len(payloads)), int(reply[2]))

    async def read(
        self,
        log: str,
        partition: int,
        offset: int,
        *,
        limit: int,
        bytes_max: int = READ_BYTES_MAX,
    ) -> LogBatch:
        stream = keys.entries(log, partition)
        count = max(1, min(limit, bytes_max // self._sizes.get(stream, _UNKNOWN_SIZE_BYTES)))
        reply = await self._store.call(
            "XRANGE", stream, max(offset, 0), "+", "COUNT", count, repeatable=True
        )
        if not reply or not reply[0][0].startswith(b"%d-" % offset):
            if await self._is_at_end(log, partition, offset):
                return LogBatch(offset, offset, [], [])
            # Read again: the entry was appended after XRANGE and before `_is_at_end`.
            return await self.read(log, partition, offset, limit=limit, bytes_max=bytes_max)
        reply = _up_to_gap(reply, offset)
        payloads = [entry[1][1] for entry in reply]
        largest = max(map(len, payloads))
        self._cache_size(stream, largest)
        if largest * len(payloads) > bytes_max:
            payloads = payloads[: _count_within(payloads, bytes_max)]
        times_ms = _times(reply[: len(payloads)])
        return LogBatch(offset, offset + len(payloads), times_ms, payloads)

    async def state(self, log: str, partition: int) -> LogState:
        reply = await self._store.call(
            "HMGET", keys.head(log, partition), *_STATE_FIELDS, repeatable=True
        )
        return _state(reply, log, partition)

    async def watch(self, log: str, partition: int) -> LogState:
        head = keys.head(log, partition)
        reply = await self._store.call("HMGET", head, *_STATE_FIELDS, "watched", repeatable=True)
        if reply.pop() is None:
            # Write the request only if no reader has requested a hint since the last append.
            reply = await self._store.run(_WATCH, [head], _STATE_FIELDS)
        return _state(reply, log, partition)

    async def offset_at(self, log: str, partition: int, ms: int) -> int:
        used = (keys.entries(log, partition), keys.head(log, partition))
        reply = await self._store.run(_OFFSET_AT, used, (max(ms, 0),))
        if not reply:
            raise _missing(log, partition)
        return int(reply[0])

    async def hold(
        self, log: str, partition: int, reader: str, offset: int, *, incarnation: int = 0
    ) -> None:
        used = (keys.head(log, partition), keys.holds(log, partition))
        reply = await self._store.run(_HOLD, used, (reader, offset, incarnation))
        if reply[0] == b"range":
            raise _out_of_range(offset, int(reply[1]), int(reply[2]))
        if not reply[0]:
            raise _missing(log, partition)

    async def release(self, log: str, partition: int, reader: str) -> bool:
        holds = keys.holds(log, partition)
        return bool(await self._store.call("HDEL", holds, reader, repeatable=True))

    async def set_retention(self, log: str, partition: int, retention: Retention) -> None:
        head = keys.head(log, partition)
        if not await self._store.run(_RETAIN, [head], _limits(retention)):
            raise _missing(log, partition)

    async def trim(
        self, log: str, partition: int, retention: Retention | None = None, *, short: bool = False
    ) -> TrimResult:
        limits = _limits(retention) if retention else ()
        arguments = [TRIM_STEP, WARNING_PERCENT, "1" if short else "", *limits]
        reply = await self._store.run(_TRIM, keys.all_of(log, partition), arguments)
        if not reply:
            raise _missing(log, partition)
        return TrimResult(
            removed=int(reply[0]),
            more=bool(reply[1]),
            bytes=int(reply[2]),
            needed_bytes=int(reply[3]),
            retention=Retention(
                max_bytes=int(reply[4]) if reply[4] else None,
                max_age_ms=int(reply[5]) if reply[5] else None,
                policy=reply[6].decode(),
                version=int(reply[7]),
            ),
            dropped=int(reply[8]),
            warning=reply[9].decode(),
            slowest=reply[10].decode(),
        )

    async def seal(self, log: str, partition: int, next_index: int) -> LogState:
        arguments = (next_index, *_STATE_FIELDS)
        reply = await self._store.run(_SEAL, [keys.head(log, partition)], arguments)
        return _state(reply, log, partition)

    async def delete(self, log: str, partitions: int) -> None:
        async def delete(partition: int) -> None:
            # Use UNLINK, because it frees the memory of a long stream in the background.
            await self._store.call("UNLINK", *keys.all_of(log, partition), repeatable=True)

        await for_each(range(partitions), delete)
        # Delete the deduplication entries last, because appends to a partition create new ones.
        await self._delete_message_ids(log)
        # Unregister the log last, so that maintenance can finish the deletion after a crash.
        await self._store.call("HDEL", keys.REGISTER, log, repeatable=True)

    async def names(self) -> dict[str, int]:
        found: dict[str, int] = {}
        cursor = b"0"
        while True:
            cursor, pairs = await self._store.call(
                "HSCAN", keys.REGISTER, cursor, "COUNT", 500, repeatable=True
            )
            for index in range(0, len(pairs), 2):
                found |= _registered(pairs[index], pairs[index + 1])
            if cursor == b"0":
                return found

    async def _delete_message_ids(self, log: str) -> None:
        """Delete the deduplication entries of a log.

        Find them with SCAN, because no key lists them.
        """
        # Check each key, because the SCAN pattern matches keys of some other logs too.
        own_key = re.compile(rb"\{%b\.\d+\}:log:id:" % re.escape(log.encode()))
        cursor, match = "0", keys.message_ids(log)
        while True:
            cursor, found = await self._store.scan(cursor, match=match, count=_SCAN_STEP)
            await self._store.unlink([key for key in found if own_key.match(key)])
            if cursor == "0":
                return

    async def _is_at_end(self, log: str, partition: int, offset: int) -> bool:
        """Return True if `offset` is the end of the partition. Return False if its entry exists.

        Raise OffsetOutOfRangeError if the offset is below `first` or above `end`, LogDamagedError
        if its entry is missing.
        """
        used = (keys.entries(log, partition), keys.head(log, partition))
        reply = await self._store.run(_ENTRY_AT, used, (max(offset, 0),))
        if not reply:
            raise _missing(log, partition)
        first, end, found = map(int, reply)
        if offset < first or offset > end:
            raise _out_of_range(offset, first, end)
        if offset < min(found, end):
            raise _damaged(log, partition, offset, min(found, end))
        return offset == end

    def _cache_size(self, stream: str, largest: int) -> None:
        if len(self._sizes) >= _SIZES_MAX:
            self._sizes.clear()
        # Reduce a cached size only by half per read. A size that is too high makes the next batch
        # small, but a size that is too low would make it use too much memory.
        self._sizes[stream] = max(largest, self._sizes.get(stream, 0) // 2, 1)


def raise_refusal(reply: list[Reply], log: str, partition: int) -> None:
    """Raise the error for an append that the script rejected.

    `reply` comes from a script that includes `logs/_append`.
    """
    match reply[0]:
        case b"appended":
            return
        case b"sealed":
            raise LogSealedError(next_index=int(reply[1]))
        case b"full":
            raise LogFullError(
                f"The messages do not fit into partition {partition} of log '{log}', which stores"
                f" at most {int(reply[1]):,} bytes."
            )
        case _:
            raise _missing(log, partition)


def _up_to_gap(reply: list[Reply], offset: int) -> list[Reply]:
    """Return the entries before the first gap."""
    # Check only the last entry first: ids increase, so its offset shows whether there is a gap.
    if _offset(reply[-1]) == offset + len(reply) - 1:
        return reply
    dense = itertools.takewhile(lambda pair: _offset(pair[1]) == pair[0], enumerate(reply, offset))
    return [entry for _, entry in dense]


def _times(reply: list[Reply]) -> list[int]:
    """Return the times of entries.

    Times never decrease. If the first and the last entry of a run have the same time, all entries
    of the run have it, and the function does not parse them.
    """
    times: list[int] = []
    for start in range(0, len(reply), _RUN):
        run = reply[start : start + _RUN]
        first = _ms(run[0])
        if first == _ms(run[-1]):
            times += [first] * len(run)
        else:
            times += map(_ms, run)
    return times


def _offset(entry: list[Reply]) -> int:
    return int(entry[0].partition(b"-")[0])


def _ms(entry: list[Reply]) -> int:
    return int(entry[0].partition(b"-")[2])


def _count_within(payloads: list[bytes], bytes_max: int) -> int:
    """Return the number of messages that fit into `bytes_max`. Return 1 if the first is larger."""
    for index, size in enumerate(itertools.accumulate(map(len, payloads))):
        if size > bytes_max:
            return max(1, index)
    return len(payloads)


def _registered(name: bytes, partitions: bytes) -> dict[str, int]:
    """Return a log of the register and its number of partitions.

    If the field is invalid, write a log line and return an empty dict, because one damaged field
    must not stop the maintenance of all other logs.
    """
    try:
        return {name.decode(): int(partitions)}
    except ValueError:
        _log.error("log register damaged", field=repr(name), value=repr(partitions))
        return {}


def _limits(retention: Retention) -> list[str | int]:
    bounds = (retention.max_bytes, retention.max_age_ms)
    limits = ("" if bound is None else bound for bound in bounds)
    unread = "" if retention.unread_max_bytes is None else retention.unread_max_bytes
    return [*limits, retention.policy, retention.version, unread]


def _state(reply: list[Reply], log: str, partition: int) -> LogState:
    if not reply or reply[0] is None:
        raise _missing(log, partition)
    first, end, size, ms, sealed, sealed_ms, dropped, warned_ms, unrecorded, unread = reply
    try:
        return LogState(
            first=int(first),
            end=int(end),
            bytes=int(size),
            last_ms=int(ms),
            sealed=None if sealed is None else int(sealed),
            sealed_ms=int(sealed_ms or 0),
            dropped=int(dropped),
            warned_ms=int(warned_ms or 0),
            unrecorded=int(unrecorded or 0),
            unread=int(unread or 0),
        )
    except (TypeError, ValueError):
        raise StoreDamagedError.of_log(keys.head(log, partition)) from None


def _missing(log: str, partition: int) -> LogNotFoundError:
    return LogNotFoundError(f"Partition {partition} of log '{log}' does not exist.")


def _out_of_range(offset: int, first: int, end: int) -> OffsetOutOfRangeError:
    return OffsetOutOfRangeError(f"Offset {offset} is not stored.", first=first, end=end)


def _damaged(log: str, partition: int, start: int, end: int) -> LogDamagedError:
    return LogDamagedError(
        f"Offsets {start} to {end - 1} of partition {partition} of log '{log}' are missing,"
        " although retention has not deleted them.",
        start=start,
        end=end,
        hint="Another program deleted entries. `waystation history audit` lists all gaps.",
    )
