"""What a transaction costs beside many others that are queued or asleep, script by script.

Two cells of one store, one with few and one with many, are measured in turn: a pair of measurements
is one beside the other in time, and the figure is the median of their ratios.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from waystation.catalogue import SqliteCatalogue
from waystation.logs.streams import StreamLogs
from waystation.runtime.clock import Clock
from waystation.runtime.ids import RandomIds
from waystation.store.client import Store
from waystation.store.keys import DEFAULT_PROJECT
from waystation.transactions import names
from waystation.transactions.cells import BATCH_MAX, Terms, open_cells
from waystation.transactions.entry import Entry, NewTransaction
from waystation.transactions.held import Held
from waystation.transactions.holding import Holding
from waystation.transactions.order import Order
from waystation.transactions.pipeline import Pipeline
from waystation.transactions.pipelines import Pipelines
from waystation.transactions.progress import Finish, Progress, Sleep
from waystation.transactions.signals import Signals
from waystation.transactions.start import Start
from waystation.transactions.states import Status
from waystation_bench.bench_app import NO_OP, app
from waystation_bench.http_load import CONTENT
from waystation_bench.report import Sample
from waystation_bench.target import Target, Window

#: Transactions in a cell with few.
FEW = 1_000
_FEW_CELL, _MANY_CELL = 0, 1
#: Of each measurement, so that one takes some milliseconds.
_BATCHES = 5
_FILLERS = 4
_DAY_MS = 86_400_000
_LEASE_MS = 600_000
_STATE_BYTES_MAX = 1_048_576
_TERMS = Terms(dataset="ds-bench", archive_delay_ms=60_000, external_id_ms=60_000)


class _Cells:
    """The scripts of a worker, called without one."""

    def __init__(self, store: Store, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._identity = RandomIds()
        self._entry = Entry(store, _TERMS)
        self._holding = Holding(store, _TERMS)
        self._progress = Progress(store, _TERMS)
        self._signals = Signals(store, _TERMS)
        self._number = 0

    async def start(self, cell: int, count: int = BATCH_MAX, *, delay_ms: int = 0) -> None:
        items = [self._item(cell, delay_ms) for _ in range(count)]
        for started in await self._entry.start(cell, items):
            assert started.outcome == "started", started

    async def turn(self, cell: int) -> None:
        """A hundred come, are claimed, and end."""
        await self.start(cell)
        await self._finish(cell)

    async def turn_with_sleep(self, cell: int) -> None:
        """The same, with a sleep between."""
        await self.start(cell)
        sleeps = [
            Sleep(held=each, state=state, delay_ms=0) for each, state in await self._claim(cell)
        ]
        await self._progress.sleep(cell, sleeps)
        due = await self._signals.wake_due(cell, most=BATCH_MAX)
        assert due.done == BATCH_MAX, due
        await self._finish(cell)

    async def _claim(self, cell: int) -> list[tuple[Held, bytes]]:
        self._number += 1
        claim = await self._holding.claim(
            cell,
            self._pipeline.group,
            node="bench",
            number=self._number,
            most=BATCH_MAX,
            lease_ms=_LEASE_MS,
        )
        assert len(claim.items) == BATCH_MAX, claim
        return [(each.held, each.state) for each in claim.items]

    async def _finish(self, cell: int) -> None:
        ends = [
            Finish(held=held, state=state, status=Status.SUCCESS, output=b"")
            for held, state in await self._claim(cell)
        ]
        for verdict in await self._progress.finish(cell, ends):
            assert verdict.outcome == "done", verdict

    def _item(self, cell: int, delay_ms: int) -> NewTransaction:
        start = Start(DEFAULT_PROJECT, Order(type=NO_OP, data=CONTENT), None)
        start.id, start.pipeline = names.new_id(cell, self._identity), self._pipeline
        item = start.item(0, state_bytes_max=_STATE_BYTES_MAX)
        return msgspec.structs.replace(item, delay_ms=delay_ms) if delay_ms else item


@contextlib.asynccontextmanager
async def _opened(target: Target) -> AsyncIterator[_Cells]:
    store = Store(target.store_address, call_seconds_max=60.0)
    with tempfile.TemporaryDirectory(prefix="waystation-bench-") as folder:
        catalogue = SqliteCatalogue(Path(folder) / "catalogue.db")
        await catalogue.open()
        try:
            await open_cells(store, StreamLogs(store), 2)
            book = Pipelines(catalogue, store, cells=2, terms=_TERMS, clock=Clock())
            (pipeline,) = (each for each in app.pipelines if each.name == NO_OP)
            await book.put(DEFAULT_PROJECT, pipeline)
            yield _Cells(store, pipeline)
        finally:
            await catalogue.close()
            await store.close()


async def _fill(cells: _Cells, many: int, *, delay_ms: int) -> None:
    await asyncio.gather(
        *(cells.start(_FEW_CELL, delay_ms=delay_ms) for _ in range(FEW // BATCH_MAX))
    )
    batches = iter(range(many // BATCH_MAX))

    async def fill() -> None:
        for _ in batches:
            await cells.start(_MANY_CELL, delay_ms=delay_ms)

    await asyncio.gather(*(fill() for _ in range(_FILLERS)))


async def grow(target: Target, amount: list[int], *, asleep: bool) -> Sample:
    """One operation = one transaction from start to end, in a cell with many or with few."""
    many, pairs = amount
    times: list[tuple[float, float]] = []
    async with _opened(target) as cells:
        await _fill(cells, many, delay_ms=_DAY_MS if asleep else 0)
        turn = cells.turn_with_sleep if asleep else cells.turn
        clock, window = Clock(), Window(target, os.getpid())
        for _ in range(pairs + 1):
            took = []
            for cell in (_FEW_CELL, _MANY_CELL):
                begun = clock.monotonic()
                for _ in range(_BATCHES):
                    await turn(cell)
                took.append((clock.monotonic() - begun) / _BATCHES / BATCH_MAX * 1e6)
            times.append((took[0], took[1]))
        sample = window.close((pairs + 1) * 2 * _BATCHES * BATCH_MAX)
    # The first pair warms the interpreter up.
    figures = {
        "few_us": statistics.median(few for few, _ in times[1:]),
        "many_us": statistics.median(many for _, many in times[1:]),
        "many_vs_few": statistics.median(many / few for few, many in times[1:]),
    }
    return msgspec.structs.replace(sample, figures=figures)


JOBS: dict[str, Callable[[Target, Any], Awaitable[Sample]]] = {
    "depth_queued": partial(grow, asleep=False),
    "depth_asleep": partial(grow, asleep=True),
}
