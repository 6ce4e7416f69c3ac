"""Log reader: blocking access to logs, for Spark tasks and planners without an event loop.

A reader belongs to one thread, and cannot be sent to another process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from types import TracebackType
from typing import Any, TypeVar

import uvloop
import xxhash

from waystation.errors import (
    LogDamagedError,
    LogNotFoundError,
    OffsetOutOfRangeError,
    StoreDamagedError,
    StoreWentBackError,
    TrimmedError,
)
from waystation.history.offsets import Gap, OffsetRange, OnGap
from waystation.logs import keys
from waystation.logs.protocol import LogBatch, LogState
from waystation.logs.streams import StreamLogs
from waystation.runtime.logging import logger
from waystation.store.address import parse_address
from waystation.store.client import Store
from waystation.store.dataset import Stamp, has_lost, lost_error
from waystation.store.keys import FORMAT

_log = logger("history")

#: Entries of one request. The store serves no other client meanwhile, for about 3 ms.
_BLOCK_ROWS = 8_192
#: Requests that are sent at once.
_AT_ONCE = 512
_CALL_SECONDS_MAX = 30.0

_T = TypeVar("_T")


class DamageReports:
    """Keys of damaged logs. Each is logged once, because maintenance finds it again each second."""

    def __init__(self) -> None:
        self._keys: set[str] = set()

    def add(self, error: StoreDamagedError) -> None:
        """Log a damaged key, unless it was logged before."""
        if error.key not in self._keys:
            self._keys.add(error.key)
            _log.error("log skipped", code=error.code, key=error.key, reason=str(error))


class LogReader:
    """Logs of a store. A context manager; `close` ends its connections.

    With the id of a data set, the reader reads from no other one: it raises StoreDataLostError if
    the store has lost that data set. An empty store would otherwise look like deleted logs.

    Scripts see real time, or the time of the data if `follows_time` is set: a time machine may have
    moved it.

    `states` leaves out partitions whose state is damaged and reports them to `damage`. Without
    `damage` it raises StoreDamagedError, so that no reader takes them for deleted ones.
    """

    def __init__(
        self,
        url: str,
        *,
        dataset: str = "",
        follows_time: bool = False,
        damage: DamageReports | None = None,
    ) -> None:
        # Not asyncio.Runner, because it formats the reply of each call for its debug output.
        self._loop = uvloop.new_event_loop()
        self._store = Store(
            parse_address(url), call_seconds_max=_CALL_SECONDS_MAX, test_mode=follows_time
        )
        self._store.data_set.known = self._known = dataset
        # A data set that replaces this one has other entries at the same offsets.
        self._store.data_set.adopts = False
        self._logs = StreamLogs(self._store)
        self._damage = damage

    def __enter__(self) -> LogReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._run(self._store.close())
        self._loop.close()

    def dataset(self) -> str:
        """Return the id of the data set; empty if no server has used the store."""
        (found,) = self.fields([FORMAT], "dataset")
        return found.decode() if found else ""

    def check_dataset(self) -> None:
        """Raise StoreDataLostError if the store has lost the data set of this reader.

        New connections check this themselves; a store that FLUSHALL emptied keeps the others.
        """
        if self._known and self._run(has_lost(self._store, self._known)):
            found = self.dataset()
            # A cluster of which another node lost its data still has the stamp.
            raise lost_error(self._known, Stamp("" if found == self._known else found))

    def replaced_datasets(self) -> list[str]:
        """Return the ids of lost data sets that this one replaces, newest first."""
        (found,) = self.fields([FORMAT], "replaces")
        return found.decode().split() if found else []

    def stamp_history(self, reader: str) -> None:
        """Store the name under which history holds logs; with an empty name, remove it."""
        if reader:
            self._run(self._ask("HSET", FORMAT, "history", reader))
        else:
            self._run(self._ask("HDEL", FORMAT, "history"))

    def fields(self, keys: Iterable[str], field: str) -> list[bytes | None]:
        """Return a field of each hash; None if the hash or the field does not exist."""
        return self._each(self._ask("HGET", key, field) for key in keys)

    def replies(self, commands: Iterable[tuple[str, ...]]) -> list[Any]:
        """Return the replies of the store to commands that only read."""
        return self._each(self._ask(*command) for command in commands)

    def use(self, work: Callable[[Store], Coroutine[Any, Any, _T]]) -> _T:
        """Return the result of a coroutine that uses the store of the logs."""
        return self._run(work(self._store))

    def run_id(self) -> str:
        """Return the id of the store process, which changes with a restart."""
        info = self._run(self._ask("INFO", "server")).decode()
        return next((line[7:] for line in info.splitlines() if line.startswith("run_id:")), "")

    def names(self) -> dict[str, int]:
        """Return all logs in the order of their names, with their numbers of partitions."""
        return dict(sorted(self._run(self._logs.names()).items()))

    def states(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], LogState]:
        """Return the states of partitions. Leave out deleted and incompletely created ones."""

        async def read_state(log: str, partition: int) -> LogState | None:
            try:
                return await self._logs.state(log, partition)
            except LogNotFoundError:
                return None
            except StoreDamagedError as error:
                if self._damage is None:
                    raise
                self._damage.add(error)
                return None

        requested = list(partitions)
        found = self._each(read_state(*each) for each in requested)
        return {each: state for each, state in zip(requested, found, strict=True) if state}

    def offsets_at(self, moments: Iterable[tuple[str, int, int]]) -> list[int]:
        """Return the offset of the first entry at or after each moment.

        A moment is a log, a partition and a time in milliseconds.
        """
        return self._each(self._logs.offset_at(*each) for each in moments)

    def holes(self, partitions: Iterable[tuple[str, int]]) -> list[Gap]:
        """Return the ranges that are missing from partitions, and that retention did not remove.

        Read only partitions of which the stream has fewer entries than the offsets of the head
        imply. Write no log lines, because the caller reports the ranges.
        """
        states = self.states(partitions)
        streams = [("XLEN", keys.entries(*each)) for each in states]
        found: list[Gap] = []
        for ((log, partition), state), count in zip(
            states.items(), self.replies(streams), strict=True
        ):
            if count < state.end - state.first:
                span = OffsetRange(log, partition, state.first, state.end)
                parts = self.blocks(span, on_gap="count", log_gaps=False)
                found += [each for each in parts if isinstance(each, Gap)]
        # Gaps with another cause are entries that were trimmed between the two reads.
        return [gap for gap in found if gap.cause == "damaged"]

    def hold(self, span: OffsetRange, reader: str) -> None:
        """Keep entries from the start of a range on for a reader, or those that are left."""

        async def hold() -> None:
            try:
                await self._logs.hold(span.log, span.partition, reader, span.start)
            except OffsetOutOfRangeError as error:
                # Retention removed the first entries meanwhile; hold the others.
                if span.start < error.first:
                    await self._logs.hold(span.log, span.partition, reader, error.first)
            except LogNotFoundError:
                pass

        self._run(hold())

    def release(self, span: OffsetRange, reader: str) -> bool:
        """Remove the hold of a reader. Return whether there was one."""
        return self._run(self._logs.release(span.log, span.partition, reader))

    def fingerprint_before(self, span: OffsetRange) -> int:
        """Return the fingerprint of the last entry of a range; 0 if the entry is gone."""
        if not span.end:
            return 0
        last = OffsetRange(span.log, span.partition, span.end - 1, span.end)
        (block,) = self.blocks(last, on_gap="count")
        if isinstance(block, Gap):
            return 0
        return fingerprint(block.times_ms[0], block.payloads[0])

    def blocks(
        self, span: OffsetRange, *, on_gap: OnGap, log_gaps: bool = True
    ) -> Iterator[LogBatch | Gap]:
        """Yield the entries of a range in blocks, and with `on_gap="count"` gaps in their order.

        With `on_gap="fail"`, raise TrimmedError if retention removed entries, LogDamagedError if
        entries are missing. Raise StoreWentBackError if the log ends before the range, and
        StoreDataLostError if the log is missing because the store lost the data set of the reader.
        """
        offset = span.start
        while offset < span.end:
            try:
                block = self._read(span, offset)
            except OffsetOutOfRangeError as error:
                if offset > error.end:
                    raise went_back(span, error.end) from error
                gap = Gap(span.log, span.partition, offset, min(error.first, span.end))
                if on_gap == "fail":
                    raise _trimmed(gap) from error
                yield gap
                offset = gap.end
                continue
            except LogDamagedError as hole:
                gap = Gap(
                    span.log, span.partition, offset, min(hole.end, span.end), cause="damaged"
                )
                if log_gaps:
                    log_damaged(gap)
                if on_gap == "fail":
                    hole.hint = "Say on_gap=count to read the messages around the gap."
                    raise
                yield gap
                offset = gap.end
                continue
            except LogNotFoundError as error:
                self.check_dataset()
                gap = Gap(span.log, span.partition, offset, span.end)
                if on_gap == "fail":
                    raise _trimmed(gap) from error
                yield gap
                return
            if not block:
                raise went_back(span, offset)
            yield block
            offset = block.next_offset

    def _read(self, span: OffsetRange, offset: int) -> LogBatch:
        limit = min(_BLOCK_ROWS, span.end - offset)
        return self._run(self._logs.read(span.log, span.partition, offset, limit=limit))

    async def _ask(self, *command: str) -> Any:
        return await self._store.call(*command, repeatable=True)

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return self._loop.run_until_complete(work)

    def _each(self, calls: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
        async def gathered(some: list[Coroutine[Any, Any, _T]]) -> list[_T]:
            return await asyncio.gather(*some)

        found: list[_T] = []
        waiting = list(calls)
        for start in range(0, len(waiting), _AT_ONCE):
            found += self._run(gathered(waiting[start : start + _AT_ONCE]))
        return found


def fingerprint(ms: int, payload: bytes) -> int:
    """Return a hash that tells an entry apart from another one at the same offset; never 0.

    It has 63 bits, because a Delta table stores it as the version of an application.
    """
    return (xxhash.xxh64_intdigest(b"%d:%b" % (ms, payload)) >> 1) or 1


def log_damaged(gap: OffsetRange) -> None:
    """Log that entries of a partition are missing."""
    _log.error(
        "log damaged",
        code=LogDamagedError.code,
        log=gap.log,
        partition=gap.partition,
        from_offset=gap.start,
        to_offset=gap.end,
    )


def went_back(span: OffsetRange, end: int) -> StoreWentBackError:
    """Return the error for a log that ends before a range that it once had."""
    return StoreWentBackError(
        f"Partition {span.partition} of {span.log} ends at offset {end}, and {span.end} was there"
        " before.",
        hint="The store was restored from a backup, or has lost its tail.",
    )


def _trimmed(gap: Gap) -> TrimmedError:
    return TrimmedError(
        f"Offsets {gap.start} to {gap.end - 1} of partition {gap.partition} of {gap.log} are gone:"
        " retention has trimmed them.",
        hint="Read from a later offset, or say on_gap=count.",
    )
