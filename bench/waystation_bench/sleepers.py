"""Cells with transactions that sleep, and an archive: what the loads of archiving share."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec

from waystation.archive import Archive, archive_at
from waystation.logs.streams import StreamLogs
from waystation.runtime.clock import Clock
from waystation.store.client import Store
from waystation.store.keys import DEFAULT_PROJECT
from waystation.transactions import names
from waystation.transactions.archiver import ArchivePace, Archiver
from waystation.transactions.archiving import Archiving
from waystation.transactions.cells import BATCH_MAX, Terms, open_cells
from waystation.transactions.entry import Entry, NewTransaction
from waystation.transactions.order import Order
from waystation.transactions.start import Start
from waystation_bench.bench_app import NO_OP, app
from waystation_bench.benchmark import BenchmarkError
from waystation_bench.http_load import CONTENT
from waystation_bench.target import Target

#: What may be archived is due at once.
TERMS = Terms(dataset="ds-bench", archive_delay_ms=0, external_id_ms=60_000)
#: Rows of one upsert, ours and others'.
ROWS = 1_000
DAY_MS = 86_400_000
(_PIPELINE,) = (each for each in app.pipelines if each.name == NO_OP)
_STATE_BYTES_MAX = 1_048_576
_FILLERS = 4
_LOOK_SECONDS = 0.005
#: Without any progress for so long, somebody hangs.
_STUCK_SECONDS = 20.0


class Sleepers:
    """Starts transactions that sleep."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.archiving = Archiving(store, TERMS, role_ms=60_000, grace_ms=5_000)
        self._entry = Entry(store, TERMS)
        self._numbers = itertools.count()
        self._clock = Clock()
        start = Start(DEFAULT_PROJECT, Order(type=NO_OP, data=CONTENT), None)
        start.id, start.pipeline = _id(0, 0), _PIPELINE
        self._item = start.item(self._clock.now_ms(), state_bytes_max=_STATE_BYTES_MAX)

    async def fill(
        self, count: int, *, cell: int = 0, delay_ms: int = DAY_MS, external: bool = False
    ) -> None:
        """So many that sleep, by a hundred a call."""
        sizes = iter([BATCH_MAX] * (count // BATCH_MAX) + [count % BATCH_MAX] * (count % 100 > 0))

        async def fill() -> None:
            for size in sizes:
                await self.start(size, cell=cell, delay_ms=delay_ms, external=external)

        await asyncio.gather(*(fill() for _ in range(_FILLERS)))

    async def start(
        self,
        count: int,
        *,
        cell: int = 0,
        delay_ms: int = DAY_MS,
        external: bool = False,
        reply: str = "",
        state: bytes = b"",
    ) -> list[str]:
        """A hundred at most; their ids."""
        items = [self._new(cell, external=external) for _ in range(count)]
        items = [
            msgspec.structs.replace(
                each, delay_ms=delay_ms, reply=reply, state=state or self._item.state
            )
            for each in items
        ]
        for started in await self._entry.start(cell, items):
            if started.outcome != "started":
                raise BenchmarkError(f"A transaction could not be started: {started}.")
        return [each.id for each in items]

    def _new(self, cell: int, *, external: bool) -> NewTransaction:
        number = next(self._numbers)
        # Fourteen letters, as an order number may have.
        name = f"order-{number:08d}" if external else ""
        return msgspec.structs.replace(self._item, id=_id(cell, number), external_id=name)

    async def count(self, name: str, cell: int = 0) -> int:
        """Members of a sorted set of a cell."""
        return int(await self.store.call("ZCARD", names.sorted_set(cell, name)))

    @contextlib.asynccontextmanager
    async def archiver(self, archive: Archive) -> AsyncIterator[Archiver]:
        """An archiver of cell 0, as a node has it."""
        archiver = Archiver(
            self.archiving,
            archive,
            node="bench",
            cells=1,
            pace=lambda: ArchivePace(batch=ROWS),
            clock=self._clock,
        )
        archiver.start()
        try:
            yield archiver
        finally:
            await archiver.stop(grace_seconds=5.0)

    async def unarchived(self) -> int:
        """How many wait for the archiver."""
        return await self.count("toArchiveZ")

    async def until(self, seen: Callable[[], Awaitable[int]], wanted: int) -> None:
        """Waits until so many are seen; BenchmarkError where nothing moves."""
        last, since = -1, self._clock.monotonic()
        while (now := await seen()) != wanted:
            if now != last:
                last, since = now, self._clock.monotonic()
            if self._clock.monotonic() - since > _STUCK_SECONDS:
                raise BenchmarkError(f"It does not go on: {now}, and not {wanted}.")
            await asyncio.sleep(_LOOK_SECONDS)


def _id(cell: int, number: int) -> str:
    # As wide as others: what an id begins with says nothing about its neighbours.
    return f"tx-{cell:04x}{number * 0x9E3779B97F4A7C15 % 2**64:016x}{number:020x}"


@contextlib.asynccontextmanager
async def opened_sleepers(target: Target, *, cells: int = 1) -> AsyncIterator[Sleepers]:
    """Empty cells of a store."""
    store = Store(target.store_address, call_seconds_max=60.0)
    try:
        await open_cells(store, StreamLogs(store), cells)
        for cell in range(cells):
            # The pipeline, as far as scripts look at it.
            key = names.pipeline(cell, DEFAULT_PROJECT, NO_OP)
            await store.call("HSET", key, "active", _PIPELINE.version, "type", 1)
        yield Sleepers(store)
    finally:
        await store.close()


@contextlib.asynccontextmanager
async def opened_archive(url: str = "") -> AsyncIterator[tuple[Archive, Path]]:
    """An archive: of a URL, or empty in a folder that goes away."""
    with tempfile.TemporaryDirectory(prefix="waystation-bench-") as folder:
        archive = archive_at(url, folder=Path(folder))
        await archive.open()
        try:
            yield archive, Path(folder)
        finally:
            await archive.close()
