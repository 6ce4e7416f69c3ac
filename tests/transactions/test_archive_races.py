"""Archivers, loaders and signals at once: in every order of their calls the newest state wins."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.interleavings import all_orders, some_orders
from tests.transactions.archive_helpers import DAY_MS, Movers, open_movers
from tests.transactions.helpers import (
    CELL,
    GROUP,
    LEASE_MS,
    LOAD_MS,
    ROLE_GRACE_MS,
    ROLE_MS,
    TERMS,
)
from waystation.archive import Archive, ArchivedState, Upserted
from waystation.errors import WaystationError
from waystation.store.embedded.server import EmbeddedServer
from waystation.transactions import names
from waystation.transactions.archive_writing import Batch, write
from waystation.transactions.archiving import Archiving
from waystation.transactions.found import Found
from waystation.transactions.holding import Holding
from waystation.transactions.loader import Loader
from waystation.transactions.progress import Progress, Sleep
from waystation.transactions.restoring import Restoring
from waystation.transactions.signals import Signals
from waystation.transactions.states import State, Status


class SteppedArchive:
    """An archive whose calls take their turn, too."""

    def __init__(self, archive: Archive, store: Any) -> None:
        self._archive = archive
        self._store = store

    async def get(self, ids: Sequence[str]) -> dict[str, ArchivedState]:
        await self._store.call("PING")
        return await self._archive.get(ids)

    async def upsert(self, states: Sequence[ArchivedState]) -> Upserted:
        await self._store.call("PING")
        return await self._archive.upsert(states)


class Race:
    """One transaction, and those who want something of it."""

    def __init__(self, movers: Movers) -> None:
        self.movers = movers
        self.id = ""
        self.seen: list[Found | None] = []
        self.problems: list[WaystationError] = []

    async def asleep(self, *, archived: bool = True, due: bool = False) -> None:
        """A new one that sleeps: in the store, to be archived now, or in the archive alone."""
        await self.movers.tx.store.call("DEL", names.queue_in(CELL, GROUP))
        (self.id,) = await self.movers.sleepers(1, delay_ms=1 if due else DAY_MS)
        self.seen, self.problems = [], []
        await self._due_now(self.movers.tx.store)
        if archived:
            await self.archiver(self.movers.tx.store, node="first")
            assert not await self.movers.cached([self.id])
        if due:
            # The store can get here within the millisecond for which the transaction sleeps.
            slept_ms = await self.movers.tx.now_ms() + 1
            while await self.movers.tx.now_ms() < slept_ms:
                await asyncio.sleep(0)

    async def _due_now(self, store: Any) -> None:
        key = names.sorted_set(CELL, "toArchiveZ")
        await store.call("ZADD", key, "XX", await self.movers.tx.now_ms(), self.id)

    # -- The actors: each with its own store -------------------------------------------------

    def loader(self, store: Any) -> Loader:
        archive: Any = SteppedArchive(self.movers.archive, store)
        clock = self.movers.tx.clock
        return Loader(Restoring(store, TERMS), archive, load_ms=LOAD_MS, clock=clock)

    def signals(self, store: Any) -> Signals:
        return Signals(store, TERMS, self.loader(store))

    async def get(self, store: Any) -> None:
        self.seen += await self.signals(store).get("default", [self.id])

    async def switch(self, store: Any) -> None:
        await self.tried(self.signals(store).set_switch("default", self.id, "paid", "yes"))

    async def cancel(self, store: Any) -> None:
        await self.signals(store).cancel("default", [self.id], cause="enough", grace_ms=1000)

    async def wake(self, store: Any) -> None:
        """What a timekeeper does, and its loader."""
        due = await Signals(store, TERMS).wake_due(CELL, loads=10)
        await self.loader(store)._wake(CELL, list(due.missing))

    async def archiver(self, store: Any, *, node: str = "node-a") -> None:
        """Reads, writes, confirms, leaves."""
        archiving = Archiving(store, TERMS, role_ms=ROLE_MS, grace_ms=ROLE_GRACE_MS)
        turn = await archiving.turn(CELL, node=node, most=100)
        archive: Any = SteppedArchive(self.movers.archive, store)
        confirmed = await write(archive, Batch.of(turn.items, turn.now_ms))
        await archiving.turn(CELL, node=node, most=0, confirmed=confirmed, flight="leave")

    async def life(self, store: Any) -> None:
        """It wakes, runs, sleeps, is archived, and is gone again."""
        await self.signals(store).wake("default", self.id)
        claim = await Holding(store, TERMS).claim(
            CELL, GROUP, node="n", number=1, most=1, lease_ms=LEASE_MS
        )
        (claimed,) = claim.items
        move = Sleep(held=claimed.held, state=b"newer", delay_ms=DAY_MS)
        await Progress(store, TERMS).sleep(CELL, [move])
        await self._due_now(store)
        await self.archiver(store, node="node-b")

    async def tried(self, work: Awaitable[object]) -> None:
        try:
            await work
        except WaystationError as error:
            self.problems.append(error)

    # -- The end -----------------------------------------------------------------------------

    async def end(self) -> Found:
        """It as anybody would find it now."""
        (found,) = await self.movers.signals.get("default", [self.id])
        assert found is not None, "it is lost"
        return found

    async def is_kept(self) -> None:
        """Store and archive agree as the table of phases says."""
        store, key = self.movers.tx.store, names.state(self.id)
        row = (await self.movers.archive.get([self.id])).get(self.id)
        if not await self.movers.cached([self.id]):
            assert row is not None
            return
        head = await self.movers.tx.head(self.id)
        assert row is None or row.version <= head.version, "the archive is ahead"
        mortal = await store.call("PTTL", key) >= 0
        scheduled = self.id in await self.movers.scheduled()
        if mortal:
            assert row is not None
            assert row.version == head.version, "it would be lost with its key"
        if head.state in (State.QUEUED, State.RUNNING):
            assert not mortal
        elif not mortal:
            assert scheduled, f"{head} would stay for ever"
        queued = await store.call("LRANGE", names.queue_in(CELL, head.group), 0, -1)
        assert queued.count(self.id.encode()) == int(head.state is State.QUEUED)
        asleep = await store.call("ZSCORE", names.sorted_set(CELL, "sleepingZ"), self.id)
        is_asleep = head.state in (State.SLEEPING, State.WAITING_SWITCH, State.SCHEDULED)
        assert (asleep is not None) == is_asleep


async def test_two_that_get_one_id(store_server: EmbeddedServer, tmp_path: Path) -> None:
    async with open_movers(store_server, tmp_path) as movers:
        race = Race(movers)

        async def check(order: str) -> None:
            assert [found and found.state for found in race.seen] == [b"asleep"] * 2, order
            await race.is_kept()

        orders = await all_orders(movers.tx.store, race.asleep, [race.get, race.get], check)
        assert orders > 20


@pytest.mark.slow
async def test_a_load_that_is_late_never_brings_back_an_old_state(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """Meanwhile it was woken, ran, slept, was archived and left."""
    async with open_movers(store_server, tmp_path) as movers:
        race = Race(movers)

        async def check(order: str) -> None:
            await race.is_kept()
            found = await race.end()
            assert (found.state, found.head.state) == (b"newer", State.SLEEPING), order
            (seen,) = race.seen
            assert seen is not None, order

        actors = [race.get, race.life]
        await some_orders(movers.tx.store, race.asleep, actors, check, seed=5, count=200)


async def test_a_timekeeper_and_a_switch_load_the_same(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_movers(store_server, tmp_path) as movers:
        race = Race(movers)

        async def prepare() -> None:
            await race.asleep(due=True)

        async def check(order: str) -> None:
            await race.is_kept()
            found = await race.end()
            assert b'paid="yes"' in found.extras[b"switches"], order
            # If the switch came first, it was put back; its time comes again.
            assert found.head.state in (State.QUEUED, State.SLEEPING), order
            assert not race.problems, order

        orders = await all_orders(movers.tx.store, prepare, [race.wake, race.switch], check)
        assert orders > 20


async def test_a_timekeeper_and_a_cancel_load_the_same(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_movers(store_server, tmp_path) as movers:
        race = Race(movers)

        async def prepare() -> None:
            await race.asleep(due=True)

        async def check(order: str) -> None:
            found = await race.end()
            assert found.head.status is Status.CANCELLED, order

        orders = await all_orders(movers.tx.store, prepare, [race.wake, race.cancel], check)
        assert orders > 20


async def test_a_switch_while_it_is_archived_is_not_lost(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_movers(store_server, tmp_path) as movers:
        race = Race(movers)

        async def prepare() -> None:
            await race.asleep(archived=False)

        async def check(order: str) -> None:
            assert not race.problems, order
            await race.is_kept()
            assert b'paid="yes"' in (await race.end()).extras[b"switches"], order

        orders = await all_orders(movers.tx.store, prepare, [race.archiver, race.switch], check)
        assert orders >= 4, "before and after each call of the archiver"


async def test_two_archivers_and_a_get(store_server: EmbeddedServer, tmp_path: Path) -> None:
    """The grace time was too short: both have read, and one is late with its confirm."""
    async with open_movers(store_server, tmp_path) as movers:
        race = Race(movers)

        async def prepare() -> None:
            await race.asleep(archived=False)

        async def second(store: Any) -> None:
            # As if the role had passed: it reads, too.
            await store.call("DEL", names.archive_lock(CELL, 1), names.archive_lock(CELL, 2))
            await race.archiver(store, node="node-b")

        async def check(order: str) -> None:
            await race.is_kept()
            assert (await race.end()).state == b"asleep", order
            assert all(found is not None for found in race.seen), order

        actors = [race.archiver, second, race.get]
        await some_orders(movers.tx.store, prepare, actors, check, seed=6, count=150)


@pytest.mark.slow
async def test_a_stalled_archiver_a_life_and_a_switch(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """It has read an old version, and writes and confirms it after all that."""
    async with open_movers(store_server, tmp_path) as movers:
        race = Race(movers)

        async def prepare() -> None:
            await race.asleep(archived=False)

        async def check(order: str) -> None:
            await race.is_kept()
            found = await race.end()
            assert found.state == b"newer", order
            assert b'paid="yes"' in found.extras[b"switches"], order

        async def life(store: Any) -> None:
            await store.call("DEL", names.archive_lock(CELL, 1), names.archive_lock(CELL, 2))
            await race.life(store)

        actors = [race.archiver, life, race.switch]
        await some_orders(movers.tx.store, prepare, actors, check, seed=7, count=200)
