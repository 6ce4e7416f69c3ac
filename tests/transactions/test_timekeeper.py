"""The timekeeper: every verb gets its turn, whatever the others have to do."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from tests.transactions.helpers import CELL, GRACE_MS, TERMS, TransactionStore, open_transactions
from tests.transactions.test_children import waiting_parent
from waystation.errors import StoreError
from waystation.runtime.clock import Clock
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.pubsub import PubSub
from waystation.transactions.cells import BATCH_MAX
from waystation.transactions.count_slots import CountSlots
from waystation.transactions.held import Due
from waystation.transactions.holding import Holding
from waystation.transactions.limits import Limits
from waystation.transactions.progress import Sleep
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


class Recorded(Signals):
    """The real verbs; in the middle of a flood of one of them a sleeper becomes due."""

    def __init__(self, tx: TransactionStore, flood: str) -> None:
        super().__init__(tx.store, TERMS)
        self._tx, self._flood = tx, flood
        #: Transactions that each batch of the flood handled; batches at each of two moments.
        self.batches: list[int] = []
        self.due_at = self.woken_at = 0
        self.ended = asyncio.Event()

    async def wake_due(self, cell: int, **more: int) -> Due:
        due = await super().wake_due(cell, **more)
        if due.done:
            self.woken_at = len(self.batches)
        return due

    async def expire(self, cell: int, **more: int) -> Due:
        return await self._note("expire", await super().expire(cell, **more))

    async def sweep(self, cell: int, **more: Any) -> Due:
        return await self._note("sweep", await super().sweep(cell, **more))

    async def _note(self, verb: str, due: Due) -> Due:
        if verb == self._flood and due.done:
            self.batches.append(due.done)
            if len(self.batches) == 3:
                await self._let_a_sleeper_become_due()
            if due.next_ms:
                self.ended.set()
        return due

    async def _let_a_sleeper_become_due(self) -> None:
        held = await self._tx.running()
        move = Sleep(held=held, state=b"asleep", delay_ms=1)
        await self._tx.progress.sleep(CELL, [move])
        wake_ms = (await self._tx.head(held.id)).wake
        assert wake_ms is not None
        while await self._tx.now_ms() <= wake_ms:
            pass
        self.due_at = len(self.batches)


async def flood_of_children(tx: TransactionStore) -> None:
    parents = [await waiting_parent(tx, 10) for _ in range(100)]
    await tx.signals.cancel("default", parents, cause="by hand", grace_ms=GRACE_MS)


async def flood_of_deadlines(tx: TransactionStore) -> None:
    for _ in range(1000):
        await tx.start(delay_ms=600_000, deadline_in_ms=60_000)
    await tx.machine.advance(61)


@pytest.mark.parametrize(
    ("flood", "verb"), [(flood_of_children, "sweep"), (flood_of_deadlines, "expire")]
)
async def test_timekeeper_flood_of_one_verb_delays_a_sleeper_by_one_batch(
    store_server: EmbeddedServer,
    flood: Callable[[TransactionStore], Awaitable[None]],
    verb: str,
) -> None:
    """100 x 10 children cancelled, or 1,000 deadlines at once: turns, because seconds vary."""
    async with open_transactions(store_server) as tx:
        await flood(tx)
        signals = Recorded(tx, verb)
        timekeeper = Timekeeper(
            signals,
            tx.holding,
            CountSlots(tx.store),
            tx.wakeups,
            clock=tx.clock,
            cells=1,
            limits=Limits(cancel_grace_ms=GRACE_MS),
        )
        timekeeper.start()
        try:
            async with asyncio.timeout(30):
                await signals.ended.wait()
        finally:
            await timekeeper.stop()

    assert sum(signals.batches) == 1000
    assert max(signals.batches) <= BATCH_MAX
    assert 0 < signals.due_at <= signals.woken_at <= signals.due_at + 1
