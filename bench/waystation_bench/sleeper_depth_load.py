"""What a look, a switch and a wake-up of an archived sleeper cost beside many others.

Two cells of one store, each with an archive of its own, one with few sleepers and one with many,
are measured in turn: a pair of measurements is one beside the other in time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec

from waystation.archive import Archive
from waystation.runtime.clock import Clock
from waystation.store.keys import DEFAULT_PROJECT
from waystation.transactions.archive_writing import Batch, write
from waystation.transactions.archiving import Confirmed, Given
from waystation.transactions.cells import BATCH_MAX
from waystation.transactions.loader import Loader
from waystation.transactions.restoring import Restoring
from waystation.transactions.signals import Signals
from waystation_bench.benchmark import BenchmarkError
from waystation_bench.depth_load import FEW
from waystation_bench.report import Sample
from waystation_bench.sleepers import TERMS, Sleepers, opened_archive, opened_sleepers
from waystation_bench.target import Target, Window

#: Of each verb, in each measurement.
_IDS = 30
#: Calls of the script for one upsert.
_CALLS = 10


class _Cell:
    """A cell, its archive, and who reaches its transactions."""

    def __init__(self, sleepers: Sleepers, archive: Archive, cell: int) -> None:
        self._sleepers = sleepers
        self._archive = archive
        self._cell = cell
        self._clock = Clock()
        self.loader = Loader(
            Restoring(sleepers.store, TERMS), archive, load_ms=TERMS.load_ms, clock=self._clock
        )
        self._signals = Signals(sleepers.store, TERMS, self.loader)

    async def fill(self, count: int) -> None:
        """So many that sleep, in the archive alone."""
        await self._sleepers.fill(count, cell=self._cell)
        await self._archive_all()

    async def turn(self) -> float:
        """New ones come and are archived; then each is reached. The seconds of that alone."""
        ids = await self._sleepers.start(3 * _IDS, cell=self._cell)
        await self._archive_all()
        looked, switched, woken = ids[:_IDS], ids[_IDS : 2 * _IDS], ids[2 * _IDS :]
        begun = self._clock.monotonic()
        found = await self._signals.get(DEFAULT_PROJECT, looked)
        await asyncio.gather(
            *(self._signals.set_switch(DEFAULT_PROJECT, each, "go", True) for each in switched)
        )
        await asyncio.gather(*(self._signals.wake(DEFAULT_PROJECT, each) for each in woken))
        took = self._clock.monotonic() - begun
        if not all(found):
            raise BenchmarkError("One that sleeps was not found.")
        return took

    async def _archive_all(self) -> None:
        # Not by an archiver, which waits now and then: this is not what is measured.
        confirmed: list[Confirmed] = []
        while True:
            for first in range(0, len(confirmed), BATCH_MAX):
                await self._turn(0, confirmed=confirmed[first : first + BATCH_MAX])
            reads = (self._turn(BATCH_MAX, skip=n * BATCH_MAX) for n in range(_CALLS))
            turns = await asyncio.gather(*reads)
            items: list[Given] = [each for turn in turns for each in turn.items]
            if not items:
                return
            confirmed = await write(self._archive, Batch.of(items, turns[0].now_ms))

    def _turn(self, most: int, **more: Any) -> Any:
        return self._sleepers.archiving.turn(self._cell, node="bench", most=most, **more)


async def depth_archived(target: Target, amount: list[int]) -> Sample:
    """One operation = one look, switch or wake-up, in a cell with many sleepers or with few."""
    many, pairs = amount
    times: list[tuple[float, float]] = []
    async with _opened(target) as (little, large):
        await asyncio.gather(little.fill(FEW), large.fill(many))
        window = Window(target, os.getpid())
        for _ in range(pairs + 1):
            times.append((await little.turn(), await large.turn()))
        sample = window.close((pairs + 1) * 2 * 3 * _IDS)
    # The first pair warms the interpreter up.
    measured, each_us = times[1:], 1e6 / (3 * _IDS)
    figures = {
        "few_us": statistics.median(few for few, _ in measured) * each_us,
        "many_us": statistics.median(many for _, many in measured) * each_us,
        "many_vs_few": statistics.median(many / few for few, many in measured),
    }
    return msgspec.structs.replace(sample, figures=figures)


JOBS: dict[str, Callable[[Target, Any], Awaitable[Sample]]] = {"depth_archived": depth_archived}


@contextlib.asynccontextmanager
async def _opened(target: Target) -> AsyncIterator[tuple[_Cell, _Cell]]:
    async with (
        opened_sleepers(target, cells=2) as sleepers,
        opened_archive() as (first, _),
        opened_archive() as (second, _),
    ):
        little, large = _Cell(sleepers, first, 0), _Cell(sleepers, second, 1)
        try:
            yield little, large
        finally:
            await little.loader.stop()
            await large.loader.stop()
