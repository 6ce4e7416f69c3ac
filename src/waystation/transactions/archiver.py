"""The archiver: takes what is due to the archive, and tells the store what has arrived there.

A task per cell asks, writes and confirms; while a batch is being written the next one is read. The
store hands out work to one node at a time, see `archiving`. Nothing leaves the store before it is
confirmed, so a death at any moment costs a repetition and nothing else. One state that the archive
refuses is set aside; an archive that is away keeps everything where it is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from waystation.archive import Archive
from waystation.errors import ArchiveError, BusyError, StoreError
from waystation.runtime.clock import Clock
from waystation.runtime.logging import logger
from waystation.runtime.service import Wakeup
from waystation.store.pubsub import RECHECK_S
from waystation.telemetry import metrics
from waystation.transactions.archive_writing import Batch, write
from waystation.transactions.archiving import (
    TURN_BYTES_MAX,
    ArchiveTurn,
    Archiving,
    Confirmed,
    Flight,
)
from waystation.transactions.cells import BATCH_MAX

_log = logger("archiver")

#: After a failure of the store.
_STORE_PAUSE_SECONDS = 0.5
#: After a failure of the archive; doubled with each, up to the most.
_AWAY_SECONDS = 1.0
_AWAY_SECONDS_MAX = 30.0
#: What the last call gets when the process ends.
_LEAVE_SECONDS_MAX = 2.0


class ArchivePace(msgspec.Struct, frozen=True, kw_only=True):
    """How much at a time, and how often."""

    #: Rows of one upsert; 0: this process does not archive.
    batch: int = 1000
    #: Between two batches.
    pause_ms: int = 0
    #: When little is due.
    idle_ms: int = 1000


@dataclass
class ArchiverState:
    """How it goes, for those who watch."""

    #: The last error of the archive; empty once it has taken something again.
    error: str = ""
    #: States that the archive has taken, had, or refused.
    rows: int = 0


class Archiver:
    """Archives all cells, from `start` to `stop`."""

    def __init__(
        self,
        archiving: Archiving,
        archive: Archive,
        *,
        node: str,
        cells: int,
        pace: Callable[[], ArchivePace],
        clock: Clock,
    ) -> None:
        self.state = ArchiverState()
        self._cells = [
            _Cell(each, archiving, archive, self.state, node=node, pace=pace, clock=clock)
            for each in range(cells)
        ]

    def start(self) -> None:
        """Begins."""
        for each in self._cells:
            each.start()

    async def stop(self, *, grace_seconds: float) -> None:
        """Asks for nothing more, lets a batch be written for so long, confirms it, and leaves."""
        await asyncio.gather(*(each.stop(grace_seconds=grace_seconds) for each in self._cells))

    def look(self) -> None:
        """The pace may be another."""
        for each in self._cells:
            each.look()


class _Cell:
    """The archiver of one cell."""

    def __init__(
        self,
        cell: int,
        archiving: Archiving,
        archive: Archive,
        state: ArchiverState,
        *,
        node: str,
        pace: Callable[[], ArchivePace],
        clock: Clock,
    ) -> None:
        self._cell = cell
        self._archiving = archiving
        self._archive = archive
        self._state = state
        self._node = node
        self._pace = pace
        self._clock = clock
        self._waiter = Wakeup(recheck_s=RECHECK_S)
        self._task: asyncio.Task[None] | None = None
        #: The batch that is being written: its ids, and who writes it.
        self._ids: Collection[str] = ()
        self._writing: asyncio.Task[list[Confirmed]] | None = None
        #: What the store is to be told yet.
        self._confirmed: list[Confirmed] = []
        #: Whether the last ask has brought as much as it could.
        self._plenty = False
        #: Whether the store may believe that we have the role.
        self._engaged = False
        self._away_seconds = _AWAY_SECONDS

    def start(self) -> None:
        """Begins."""
        self._task = asyncio.get_running_loop().create_task(self._keep())

    def look(self) -> None:
        """Ends a pause."""
        self._waiter.set()

    async def stop(self, *, grace_seconds: float) -> None:
        """Confirms what is being written, if that ends in time; gives the role to others."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._writing is not None:
            await asyncio.wait([self._writing], timeout=grace_seconds)
            if not self._writing.done():
                self._writing.cancel()
            # What has failed, or has not ended, is for the next archiver.
            with contextlib.suppress(Exception, asyncio.CancelledError):
                await self._written()
        await self._leave()

    async def _keep(self) -> None:
        forget = self._clock.on_jump(self._waiter.set)
        try:
            while True:
                self._waiter.clear()
                await self._waiter.wait(await self._tried(self._step()))
        finally:
            forget()

    async def _tried(self, step: Coroutine[Any, Any, float]) -> float:
        """The pause after a step, whatever became of it."""
        try:
            return await step
        except (StoreError, BusyError) as error:
            _log.warning("the store cannot be asked", cell=self._cell, problem=str(error))
            return _STORE_PAUSE_SECONDS
        except ArchiveError as error:
            problem = str(error)
            _log.warning("the archive takes nothing", cell=self._cell, problem=problem)
        except Exception as error:
            # Whatever it is, it must not end archiving for good, nor keep others from trying.
            problem = f"{type(error).__name__}: {error}"
            _log.error("the archive takes nothing", cell=self._cell, error=error)
        self._state.error = problem
        await self._leave()
        pause, self._away_seconds = (
            self._away_seconds,
            min(self._away_seconds * 2, _AWAY_SECONDS_MAX),
        )
        return pause

    async def _step(self) -> float:
        """Confirms, reads, and has the batch written; returns the seconds to pause."""
        pace = self._pace()
        if pace.batch <= 0:
            return await self._rest()
        size = pace.batch if self._plenty else min(pace.batch, BATCH_MAX)
        turn, batch = await self._ask(size)
        self._plenty = len(batch.read_ms) >= size or batch.bytes >= TURN_BYTES_MAX
        await self._written()
        if batch.read_ms:
            self._write(batch)
        if self._plenty:
            return min(pace.pause_ms, turn.wait_ms) / 1000
        if self._confirmed or self._writing is not None:
            return 0.0  # To confirm it, and to look for more meanwhile.
        if turn.role == "grace":
            # There is nothing in our hands, so nobody need wait for us.
            turn = await self._call(flight="idle")
        return min(pace.idle_ms, turn.wait_ms) / 1000 if turn.role == "archiver" else _wait(turn)

    # -- The store ---------------------------------------------------------------------------

    async def _ask(self, size: int) -> tuple[ArchiveTurn, Batch]:
        """Reads the next batch behind those that are in our hands, and confirms what is written.

        What reads leaves first, in one write: the store works on it while we put down what is to be
        confirmed, then on that while rows are made of its replies, and the database on the batch
        before.
        """
        self._engaged = True
        # What was scheduled anew meanwhile shifts the others, so one may come twice.
        in_hand = {*self._ids, *(each.id for each in self._confirmed)}
        batch = Batch(besides=in_hand)
        reads = [
            self._read(batch, most=min(BATCH_MAX, size - first), skip=len(in_hand) + first)
            for first in range(0, size, BATCH_MAX)
        ]
        turns = await asyncio.gather(*reads, *map(_behind, self._confirming()))
        self._confirmed = []
        return turns[len(reads) - 1], batch

    async def _read(self, batch: Batch, *, most: int, skip: int) -> ArchiveTurn:
        turn = await self._call(most=most, skip=skip)
        batch.add(turn.items, turn.now_ms)
        return turn

    def _confirming(self) -> list[Coroutine[Any, Any, ArchiveTurn]]:
        firsts = range(0, len(self._confirmed), BATCH_MAX)
        return [self._call(self._confirmed[first : first + BATCH_MAX]) for first in firsts]

    def _call(
        self,
        confirmed: Sequence[Confirmed] = (),
        *,
        most: int = 0,
        skip: int = 0,
        flight: Flight = "",
    ) -> Coroutine[Any, Any, ArchiveTurn]:
        return self._archiving.turn(
            self._cell, node=self._node, most=most, skip=skip, confirmed=confirmed, flight=flight
        )

    async def _rest(self) -> float:
        """This process does not archive, or does so no more."""
        await self._written()
        await self._leave()
        return RECHECK_S

    async def _leave(self) -> None:
        """Confirms, and gives the role to whoever asks next; who cannot be told sees it run out."""
        self._plenty = False
        if not self._engaged:
            return
        with contextlib.suppress(StoreError, BusyError, TimeoutError):
            async with asyncio.timeout(_LEAVE_SECONDS_MAX):
                await asyncio.gather(*self._confirming(), self._call(flight="leave"))
            self._confirmed, self._engaged = [], False

    # -- The archive -------------------------------------------------------------------------

    def _write(self, batch: Batch) -> None:
        self._ids = batch.read_ms.keys()
        self._writing = asyncio.get_running_loop().create_task(self._upsert(batch))

    async def _written(self) -> None:
        """Waits for the batch that is being written; what comes of it is to be confirmed."""
        if self._writing is None:
            return
        # Not the task itself: who waits may be cancelled, and it goes on.
        await asyncio.wait([self._writing])
        writing, self._writing, self._ids = self._writing, None, ()
        self._confirmed += writing.result()
        self._state.error, self._away_seconds = "", _AWAY_SECONDS

    async def _upsert(self, batch: Batch) -> list[Confirmed]:
        begun = self._clock.uptime_s()
        confirmed = await write(self._archive, batch)
        metrics.archive_batch_seconds.note(self._clock.uptime_s() - begun)
        self._state.rows += len(confirmed)
        return confirmed


def _wait(turn: ArchiveTurn) -> float:
    return max(turn.wait_ms, 1) / 1000


async def _behind(call: Coroutine[Any, Any, ArchiveTurn]) -> ArchiveTurn:
    """Sends a call behind those of this turn of the event loop, which have left by then."""
    await asyncio.sleep(0)
    return await call
