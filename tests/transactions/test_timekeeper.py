"""The timekeeper: every verb gets its turn, whatever the others have to do."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

from waystation.errors import StoreError
from waystation.runtime.clock import Clock
from waystation.store.pubsub import PubSub
from waystation.transactions.count_slots import CountSlots
from waystation.transactions.held import Due
from waystation.transactions.holding import Holding
from waystation.transactions.limits import Limits
from waystation.transactions.signals import Look, Signals
from waystation.transactions.timekeeper import Timekeeper

CALLS = 50


class Verbs:
    """All verbs of a cell, each with work that never ends; some fail each time."""

    def __init__(self, failing: dict[str, Exception] | None = None) -> None:
        self.calls: Counter[tuple[int, str]] = Counter()
        self.order: list[str] = []
        self.failing = failing or {}
        self.enough = asyncio.Event()

    async def _batch(self, cell: int, verb: str) -> Due:
        await asyncio.sleep(0)
        self.calls[cell, verb] += 1
        self.order.append(verb)
        if len(self.order) >= CALLS:
            self.enough.set()
            await asyncio.Event().wait()
        if verb in self.failing:
            raise self.failing[verb]
        return Due(100, 0)

    async def look(self, cell: int) -> Look:
        return Look(
            now_ms=1000, sleeping_ms=1, lease_ms=1, deadline_ms=1, sweep_ms=1, archive_ms=None
        )

    async def rescue(self, cell: int, **_: object) -> Due:
        return await self._batch(cell, "rescue")

    async def wake_due(self, cell: int, **_: object) -> Due:
        return await self._batch(cell, "wake")

    async def expire(self, cell: int, **_: object) -> Due:
        return await self._batch(cell, "expire")

    async def sweep(self, cell: int, **_: object) -> Due:
        return await self._batch(cell, "sweep")

    async def roll_up(self, cell: int, now_ms: int) -> None:
        pass

    def listen(self, _: bytes, __: object) -> Callable[[], None]:
        return lambda: None


@asynccontextmanager
async def timekeeper_of(verbs: Verbs, *, cells: int = 1) -> AsyncIterator[Timekeeper]:
    timekeeper = Timekeeper(
        cast(Signals, verbs),
        cast(Holding, verbs),
        cast(CountSlots, verbs),
        cast(PubSub, verbs),
        clock=Clock(),
        cells=cells,
        limits=Limits(),
    )
    timekeeper.start()
    try:
        async with asyncio.timeout(30):
            await verbs.enough.wait()
        yield timekeeper
    finally:
        await timekeeper.stop()


async def test_timekeeper_endless_work_of_every_verb_serves_all_in_turn() -> None:
    verbs = Verbs()
    async with timekeeper_of(verbs):
        turn = ["rescue", "wake", "expire", "sweep"]
        assert verbs.order == (turn * CALLS)[:CALLS]


async def test_timekeeper_endless_work_in_every_cell_serves_all_cells() -> None:
    verbs = Verbs()
    async with timekeeper_of(verbs, cells=3):
        counts = [verbs.calls[cell, verb] for cell in range(3) for verb in ("wake", "sweep")]
        assert min(counts) >= 3


async def test_timekeeper_verb_that_fails_leaves_the_others_their_turns() -> None:
    """One that the store refuses, and one that meets something that is not ours."""
    verbs = Verbs({"rescue": StoreError("no"), "wake": ValueError("not a number")})
    async with timekeeper_of(verbs):
        assert verbs.calls[0, "expire"] >= 10
        assert verbs.calls[0, "sweep"] >= 10
