"""Logs as streams in the store: one stream a partition, all of a partition's keys in one slot.

The id of an entry is `<offset>-<ms>`: offsets are dense and time can be searched. An entry has one
field with the packed message. What else is known of a partition is in its head, a hash.

Only damage makes a hole in the offsets: somebody removed entries from the stream, past these
scripts. A read returns the entries up to a hole. A read that begins in a hole raises
LogDamagedError with the range that is missing; the entries behind it keep their offsets.

An append whose reply was lost may have been applied: the caller decides whether to repeat it.
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
)
from waystation.logs import keys
from waystation.logs.protocol import Appended, Block, Entry, LogState, Retention, Trimmed
from waystation.runtime.tasks import for_each
from waystation.store.client import Store
from waystation.store.connection import Reply
from waystation.store.scripts import script

_APPEND = script(__package__, "append")
_CREATE = script(__package__, "create")
_ENTRY_AT = script(__package__, "entry_at")
_HOLD = script(__package__, "hold")
_OFFSET_AT = script(__package__, "offset_at")
_RETAIN = script(__package__, "retain")
_SEAL = script(__package__, "seal")
_TRIM = script(__package__, "trim")
_WATCH = script(__package__, "watch")

#: Messages that one step of trimming removes at most; a step stays below a millisecond or two.
TRIM_STEP = 500
#: Share of a limit from which on there is a warning.
WARNING_PERCENT = 70
#: A read asks for as many messages as these bytes have room for.
READ_BYTES_MAX = 4 * 1_048_576
#: What a message is thought to weigh before the first was read.
_FIRST_GUESS_BYTES = 16_384
_SIZES_KEPT = 10_000
#: Entries whose times are parsed together.
_RUN = 25
#: Keys that one step of a walk through the store looks at; it stays below a millisecond.
_WALK_STEP = 1000
_STATE_FIELDS = (
    *("first", "end", "bytes", "ms", "sealed", "sealed_ms", "dropped", "warned_ms"),
    *("unrecorded", "unread"),
)


class StreamLogs:
    """Logs in the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        #: What messages of a partition weigh, from what was read of it lately.
        self._sizes: dict[str, int] = {}

    async def create(self, log: str, partitions: int, retention: Retention) -> bool:
        limits = _limits(retention)
        # The register first: a log that was created half can be found, and created again.
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
    ) -> list[Entry]:
        block = await self.read_block(log, partition, offset, limit=limit, bytes_max=bytes_max)
        return list(map(Entry, itertools.count(offset), block.times_ms, block.payloads))

    async def read_block(
        self,
        log: str,
        partition: int,
        offset: int,
        *,
        limit: int,
        bytes_max: int = READ_BYTES_MAX,
    ) -> Block:
        name = keys.entries(log, partition)
        count = max(1, min(limit, bytes_max // self._sizes.get(name, _FIRST_GUESS_BYTES)))
        reply = await self._store.call(
            "XRANGE", name, max(offset, 0), "+", "COUNT", count, repeatable=True
        )
        if not reply or not reply[0][0].startswith(b"%d-" % offset):
            if await self._is_at_end(log, partition, offset):
                return Block(offset, [], [])
            # The entry was appended between the two looks.
            return await self.read_block(log, partition, offset, limit=limit, bytes_max=bytes_max)
        reply = _up_to_hole(reply, offset)
        payloads = [entry[1][1] for entry in reply]
        largest = max(map(len, payloads))
        self._note_size(name, largest)
        if largest * len(payloads) > bytes_max:
            payloads = payloads[: _fitting(payloads, bytes_max)]
        return Block(offset, _times(reply[: len(payloads)]), payloads)

    async def state(self, log: str, partition: int) -> LogState:
        reply = await self._store.call(
            "HMGET", keys.head(log, partition), *_STATE_FIELDS, repeatable=True
        )
        return _state(reply, log, partition)

    async def watch(self, log: str, partition: int) -> LogState:
        head = keys.head(log, partition)
        reply = await self._store.call("HMGET", head, *_STATE_FIELDS, "watched", repeatable=True)
        if reply.pop() is None:
            # Nobody has asked yet: only then something is written.
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
    ) -> Trimmed:
        limits = _limits(retention) if retention else ()
        arguments = [TRIM_STEP, WARNING_PERCENT, "1" if short else "", *limits]
        reply = await self._store.run(_TRIM, keys.all_of(log, partition), arguments)
        if not reply:
            raise _missing(log, partition)
        return Trimmed(
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

    async def seal(self, log: str, partition: int, following: int) -> LogState:
        arguments = (following, *_STATE_FIELDS)
        reply = await self._store.run(_SEAL, [keys.head(log, partition)], arguments)
        return _state(reply, log, partition)

    async def delete(self, log: str, partitions: int) -> None:
        async def delete(partition: int) -> None:
            # UNLINK frees long streams in the background.
            await self._store.call("UNLINK", *keys.all_of(log, partition), repeatable=True)

        await for_each(range(partitions), delete)
        # When nothing can be appended any more, so that none comes after.
        await self._forget_ids(log)
        # Last: a deletion that died half-way is found, and done again.
        await self._store.call("HDEL", keys.REGISTER, log, repeatable=True)

    async def names(self) -> dict[str, int]:
        found: dict[str, int] = {}
        cursor = b"0"
        while True:
            cursor, pairs = await self._store.call(
                "HSCAN", keys.REGISTER, cursor, "COUNT", 500, repeatable=True
            )
            found |= {pairs[i].decode(): int(pairs[i + 1]) for i in range(0, len(pairs), 2)}
            if cursor == b"0":
                return found

    async def _forget_ids(self, log: str) -> None:
        """Deletes what deduplication remembers of a log; nothing lists it, so all keys are seen."""
        ours = re.compile(rb"\{%b\.\d+\}:log:id:" % re.escape(log.encode()))
        cursor, match = "0", keys.message_ids(log)
        while True:
            cursor, found = await self._store.scan(cursor, match=match, count=_WALK_STEP)
            await self._store.unlink([key for key in found if ours.match(key)])
            if cursor == "0":
                return

    async def _is_at_end(self, log: str, partition: int, offset: int) -> bool:
        """Return whether an offset is the end of a partition; false if it has an entry by now.

        Raise OffsetOutOfRangeError outside of the log, LogDamagedError for a missing entry.
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

    def _note_size(self, name: str, largest: int) -> None:
        if len(self._sizes) >= _SIZES_KEPT:
            self._sizes.clear()
        # Too few at a time is better than too much memory: a large one is remembered for a while.
        self._sizes[name] = max(largest, self._sizes.get(name, 0) // 2, 1)


def raise_refusal(reply: list[Reply], log: str, partition: int) -> None:
    """Raises what a script says that appends through the include "log_append", if it refused."""
    match reply[0]:
        case b"appended":
            return
        case b"sealed":
            raise LogSealedError(following=int(reply[1]))
        case b"full":
            raise LogFullError(
                f"Partition {partition} of {log} has no room for this: it keeps {int(reply[1])}"
                f" bytes at most, its policy is refuse, and nothing more may be let go."
            )
        case _:
            raise _missing(log, partition)


def _up_to_hole(reply: list[Reply], offset: int) -> list[Reply]:
    """Return the entries that follow each other without a gap, from the first one on.

    Ids grow, so none is missing if the last one has the offset that it must have.
    """
    if _offset(reply[-1]) == offset + len(reply) - 1:
        return reply
    dense = itertools.takewhile(lambda pair: _offset(pair[1]) == pair[0], enumerate(reply, offset))
    return [entry for _, entry in dense]


def _times(reply: list[Reply]) -> list[int]:
    """Times of entries. They never run backwards: where two are the same, all between are too."""
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


def _fitting(payloads: list[bytes], bytes_max: int) -> int:
    """How many messages fit; one at least."""
    for index, size in enumerate(itertools.accumulate(map(len, payloads))):
        if size > bytes_max:
            return max(1, index)
    return len(payloads)


def _limits(retention: Retention) -> list[str | int]:
    bounds = (retention.max_bytes, retention.max_age_ms)
    kept = ("" if bound is None else bound for bound in bounds)
    unread = "" if retention.unread_max_bytes is None else retention.unread_max_bytes
    return [*kept, retention.policy, retention.version, unread]


def _state(reply: list[Reply], log: str, partition: int) -> LogState:
    if not reply or reply[0] is None:
        raise _missing(log, partition)
    first, end, size, ms, sealed, sealed_ms, dropped, warned_ms, unrecorded, unread = reply
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


def _missing(log: str, partition: int) -> LogNotFoundError:
    return LogNotFoundError(f"There is no partition {partition} of a log {log}.")


def _out_of_range(offset: int, first: int, end: int) -> OffsetOutOfRangeError:
    return OffsetOutOfRangeError(
        f"Offset {offset} is outside of what is kept.", first=first, end=end
    )


def _damaged(log: str, partition: int, start: int, end: int) -> LogDamagedError:
    return LogDamagedError(
        f"Offsets {start} to {end - 1} of partition {partition} of {log} are missing, and retention"
        " has not removed them.",
        start=start,
        end=end,
        hint="Somebody removed entries from the store. `waystation history audit` lists the gaps.",
    )
