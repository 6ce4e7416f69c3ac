"""Logs as streams in the store: one stream a partition, all of a partition's keys in one slot.

The id of an entry is `<offset>-<ms>`: offsets are dense and time can be searched. An entry has one
field with the packed message. What else is known of a partition is in its head, a hash.

An append whose reply was lost may have been applied: the caller decides whether to repeat it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from waystation.errors import (
    LogFullError,
    LogNotFoundError,
    LogSealedError,
    OffsetOutOfRangeError,
)
from waystation.logs.protocol import Appended, Entry, LogState, Retention, Trimmed
from waystation.store import Store, keys, script
from waystation.store.connection import Reply

_APPEND = script(__package__, "append")
_CREATE = script(__package__, "create")
_HOLD = script(__package__, "hold")
_OFFSET_AT = script(__package__, "offset_at")
_SEAL = script(__package__, "seal")
_TRIM = script(__package__, "trim")

#: Messages that one step of trimming looks at; a step stays below a millisecond or two.
TRIM_STEP = 500
#: A read asks for as many messages as these bytes have room for.
READ_BYTES_MAX = 4 * 1_048_576
#: What a message is thought to weigh before the first was read.
_FIRST_GUESS_BYTES = 16_384
_SIZES_KEPT = 10_000


class StreamLogs:
    """Logs in the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        #: What messages of a partition weigh, from what was read of it lately.
        self._sizes: dict[str, int] = {}

    async def create(self, log: str, partitions: int, retention: Retention) -> bool:
        limits = [
            "" if value is None else value for value in (retention.max_bytes, retention.max_age_ms)
        ]
        # The register first: a log that was created half can be found, and created again.
        await self._store.call("HSETNX", keys.LOG_REGISTER, log, partitions, repeatable=True)
        created = await asyncio.gather(
            *(
                self._store.run(
                    _CREATE, [keys.log_head(log, partition)], [*limits, retention.policy]
                )
                for partition in range(partitions)
            )
        )
        return any(created)

    async def append(self, log: str, partition: int, payloads: Sequence[bytes]) -> Appended:
        names = (keys.log_entries(log, partition), keys.log_head(log, partition))
        reply = await self._store.run(_APPEND, names, payloads)
        raise_refusal(reply, log, partition)
        return Appended(int(reply[1]), int(reply[2]))

    async def read(
        self,
        log: str,
        partition: int,
        offset: int,
        *,
        limit: int,
        bytes_max: int = READ_BYTES_MAX,
    ) -> list[Entry]:
        name = keys.log_entries(log, partition)
        count = max(1, min(limit, bytes_max // self._sizes.get(name, _FIRST_GUESS_BYTES)))
        reply = await self._store.call(
            "XRANGE", name, max(offset, 0), "+", "COUNT", count, repeatable=True
        )
        entries = [_entry(identity, fields) for identity, fields in reply]
        if not entries or entries[0].offset != offset:
            return await self._explain(log, partition, offset)
        self._note_sizes(name, entries)
        return _within(entries, bytes_max)

    async def state(self, log: str, partition: int) -> LogState:
        fields = ("first", "end", "bytes", "ms", "sealed", "sealed_ms", "dropped")
        reply = await self._store.call(
            "HMGET", keys.log_head(log, partition), *fields, repeatable=True
        )
        if reply[0] is None:
            raise _missing(log, partition)
        return LogState(
            first=int(reply[0]),
            end=int(reply[1]),
            bytes=int(reply[2]),
            last_ms=int(reply[3]),
            sealed=None if reply[4] is None else int(reply[4]),
            sealed_ms=int(reply[5] or 0),
            dropped=int(reply[6]),
        )

    async def offset_at(self, log: str, partition: int, ms: int) -> int:
        names = (keys.log_entries(log, partition), keys.log_head(log, partition))
        reply = await self._store.run(_OFFSET_AT, names, (ms,))
        if not reply:
            raise _missing(log, partition)
        return int(reply[0])

    async def hold(self, log: str, partition: int, reader: str, offset: int) -> None:
        names = (keys.log_head(log, partition), keys.log_holds(log, partition))
        reply = await self._store.run(_HOLD, names, (reader, offset))
        if reply[0] == b"range":
            raise _out_of_range(offset, int(reply[1]), int(reply[2]))
        if not reply[0]:
            raise _missing(log, partition)

    async def release(self, log: str, partition: int, reader: str) -> None:
        await self._store.call("HDEL", keys.log_holds(log, partition), reader, repeatable=True)

    async def trim(self, log: str, partition: int) -> Trimmed:
        names = (
            keys.log_entries(log, partition),
            keys.log_head(log, partition),
            keys.log_holds(log, partition),
        )
        reply = await self._store.run(_TRIM, names, (TRIM_STEP,))
        if not reply:
            raise _missing(log, partition)
        return Trimmed(int(reply[0]), bool(reply[1]))

    async def seal(self, log: str, partition: int, following: int) -> LogState:
        if not await self._store.run(_SEAL, [keys.log_head(log, partition)], [following]):
            raise _missing(log, partition)
        return await self.state(log, partition)

    async def delete(self, log: str, partitions: int) -> None:
        for partition in range(partitions):
            await self._store.call(
                "UNLINK",
                keys.log_head(log, partition),
                keys.log_entries(log, partition),
                keys.log_holds(log, partition),
                repeatable=True,
            )
        # Last: a deletion that died half-way is found, and done again.
        await self._store.call("HDEL", keys.LOG_REGISTER, log, repeatable=True)

    async def _explain(self, log: str, partition: int, offset: int) -> list[Entry]:
        """Why nothing begins at an offset: it is the end, or outside of the log."""
        state = await self.state(log, partition)
        if offset < state.first or offset > state.end:
            raise _out_of_range(offset, state.first, state.end)
        # At the end; or the first message came between the two looks, and is read next time.
        return []

    def _note_sizes(self, name: str, entries: list[Entry]) -> None:
        if len(self._sizes) >= _SIZES_KEPT:
            self._sizes.clear()
        # The heaviest of the last read: too few at a time is better than too much memory.
        self._sizes[name] = max(len(entry.payload) for entry in entries) or 1


def raise_refusal(reply: list[Reply], log: str, partition: int) -> None:
    """Raises what a script says that appends through the include "log_append", if it refused."""
    match reply[0]:
        case b"appended":
            return
        case b"sealed":
            raise LogSealedError(following=int(reply[1]))
        case b"full":
            raise LogFullError(f"Partition {partition} of {log} is full.")
        case _:
            raise _missing(log, partition)


def _entry(identity: bytes, fields: list[Reply]) -> Entry:
    offset, _, ms = identity.partition(b"-")
    return Entry(int(offset), int(ms), fields[1])


def _within(entries: list[Entry], bytes_max: int) -> list[Entry]:
    size = 0
    for index, entry in enumerate(entries):
        size += len(entry.payload)
        if size > bytes_max:
            return entries[: max(1, index)]
    return entries


def _missing(log: str, partition: int) -> LogNotFoundError:
    return LogNotFoundError(f"There is no partition {partition} of a log {log}.")


def _out_of_range(offset: int, first: int, end: int) -> OffsetOutOfRangeError:
    return OffsetOutOfRangeError(
        f"Offset {offset} is outside of what is kept.", first=first, end=end
    )
