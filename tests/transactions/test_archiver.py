"""The archiver: all that is due reaches the archive, once, whatever happens to either side."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from tests.helpers.postgres import PostgresServer
from tests.helpers.waiting import eventually
from tests.transactions.archive_helpers import DATABASES, QUICK, Movers, archive_url, open_movers
from tests.transactions.helpers import CACHE_MS, CELL
from waystation.archive import Archive, ArchivedState, Upserted, join_hash
from waystation.errors import ArchiveUnavailableError
from waystation.store.embedded.server import EmbeddedServer
from waystation.transactions import names
from waystation.transactions.archiver import ArchivePace
from waystation.transactions.progress import Commit
from waystation.transactions.states import State


class Passed:
    """An archive in front of another, that notes what is written, and can be told to fail."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self.batches: list[list[str]] = []
        self.times: list[float] = []
        self.reads = 0
        #: Awaited before each upsert, and after it.
        self.before = asyncio.Event()
        self.after = asyncio.Event()
        self.before.set()
        self.after.set()
        self.begun = asyncio.Event()
        self.failure: Exception | None = None

    def __getattr__(self, name: str) -> object:
        return getattr(self._archive, name)

    async def get(self, ids: Sequence[str]) -> dict[str, ArchivedState]:
        self.reads += 1
        return await self._archive.get(ids)

    async def upsert(self, states: Sequence[ArchivedState]) -> Upserted:
        self.batches.append([each.id for each in states])
        self.times.append(asyncio.get_running_loop().time())
        self.begun.set()
        await self.before.wait()
        if self.failure is not None:
            raise self.failure
        kept = await self._archive.upsert(states)
        await self.after.wait()
        return kept


async def lock(movers: Movers) -> str:
    """Who has the role."""
    held = await movers.tx.store.call("GET", names.archive_lock(CELL, 1))
    return held.decode().split()[0] if held else ""


async def until_archiver(movers: Movers, node: str) -> None:
    """Wait until `node` archives; empty: until no node does."""

    async def is_archiver() -> bool:
        return await lock(movers) == node

    await eventually(is_archiver, timeout=10)


@pytest.mark.parametrize("database", DATABASES)
async def test_all_that_is_due_is_archived_byte_for_byte_and_leaves_the_store(
    store_server: EmbeddedServer, tmp_path: Path, request: pytest.FixtureRequest, database: str
) -> None:
    url = archive_url(request, database)
    async with open_movers(store_server, tmp_path, url) as movers:
        asleep = await movers.sleepers(2_345)
        ended = await movers.complete(external_id="r-1")
        running = (await movers.tx.running()).id
        was = await movers.tx.store.call("HGETALL", names.state(asleep[7]))
        await movers.due()
        later = (await movers.sleepers(1))[0]
        archiver = movers.archiver()
        await movers.drained(but=1)

        assert await movers.cached([*asleep, ended, running, later]) == [ended, running, later]
        assert await movers.tx.store.call("PTTL", names.state(ended)) > CACHE_MS - 60_000
        rows = await movers.archive.get([*asleep, ended, running, later])
        assert set(rows) == {*asleep, ended}
        row = rows[asleep[7]]
        assert join_hash(row.packed, row.fields) == dict(zip(was[::2], was[1::2], strict=True))
        assert archiver.state.rows == 2_346
        assert await movers.archive.find("default", "r-1")
        assert len((await movers.tx.picture()).sets["sleepingZ"]) == 2_346, "they are to wake"


async def test_a_batch_is_read_while_the_one_before_it_is_written(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_movers(store_server, tmp_path) as movers:
        ids = await movers.sleepers(500)
        await movers.due()
        passed = Passed(movers.archive)
        movers.archiver(
            archive=passed,  # type: ignore[arg-type]
            pace=lambda: ArchivePace(batch=200, idle_ms=10),
        )
        await movers.drained()
        written = [each for batch in passed.batches for each in batch]
        assert sorted(written) == sorted(ids), "each was written once"
        assert [len(batch) for batch in passed.batches] == [100, 200, 200]
        assert passed.reads == 0, "nothing had to be compared"


async def test_a_pause_between_batches_is_kept(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_movers(store_server, tmp_path) as movers:
        ids = await movers.sleepers(400)
        await movers.due()
        passed = Passed(movers.archive)
        movers.archiver(
            archive=passed,  # type: ignore[arg-type]
            pace=lambda: ArchivePace(batch=100, pause_ms=200, idle_ms=10),
        )
        await movers.drained()
        assert [len(batch) for batch in passed.batches] == [100] * 4
        assert all(later - sooner >= 0.19 for sooner, later in pairwise(passed.times))
        assert await movers.cached(ids) == []


async def test_a_state_that_changes_while_it_is_written_stays(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_movers(store_server, tmp_path) as movers:
        one, other = await movers.sleepers(2)
        await movers.due()
        passed = Passed(movers.archive)
        passed.after.clear()
        movers.archiver(archive=passed)  # type: ignore[arg-type]
        await passed.begun.wait()
        await movers.tx.signals.wake("default", one)
        passed.after.set()
        await movers.drained()
        assert await movers.cached([one, other]) == [one]
        assert (await movers.tx.head(one)).state is State.QUEUED
        # What was written is of an older version: it takes nobody's place.
        assert (await movers.archive.get([one]))[one].version == 3


async def test_a_snapshot_is_archived_and_the_transaction_goes_on(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_movers(store_server, tmp_path) as movers:
        held = await movers.tx.running()
        commit = Commit(held=held, state=b"half", snapshot=True)
        await movers.tx.progress.commit(CELL, [commit])
        movers.archiver()
        await movers.drained()
        row = (await movers.archive.get([held.id]))[held.id]
        assert (row.status, row.packed) == ("running", b"half")
        assert await movers.cached([held.id]) == [held.id]
        assert await movers.tx.store.call("PTTL", names.state(held.id)) == -1


# -- An archive that fails -------------------------------------------------------------------


def refuse(folder: Path, condition: str) -> None:
    """A rule of the database that somebody has added."""
    with closing(sqlite3.connect(folder / "archive.db")) as database:
        database.execute(
            f"CREATE TRIGGER rule BEFORE INSERT ON state WHEN {condition}"
            " BEGIN SELECT RAISE(ABORT, 'not on a Friday'); END"
        )


def allow(folder: Path) -> None:
    """The rule is gone."""
    with closing(sqlite3.connect(folder / "archive.db")) as database:
        database.execute("DROP TRIGGER rule")


async def one_of_a_thousand(movers: Movers, poison: str, ids: list[str]) -> None:
    """It alone is set aside."""
    await movers.due()
    movers.archiver()
    await movers.drained(but=1)
    assert await movers.cached(ids) == [poison]
    (aside,), _ = await movers.tx.archiving.set_aside(CELL)
    assert (aside.id, aside.tries) == (poison, 1)
    assert aside.cause
    assert await movers.scheduled() == [poison], "it is tried again"


async def healed(movers: Movers, ids: list[str]) -> None:
    """Once a minute is over, it goes like the others."""
    await movers.tx.machine.advance(61)
    await movers.drained()
    assert await movers.cached(ids) == []
    assert await movers.tx.archiving.set_aside(CELL) == ([], "")


async def test_one_poisonous_state_among_a_thousand_is_set_aside_and_stops_no_other(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_movers(store_server, tmp_path) as movers:
        ids = await movers.sleepers(1_000)
        refuse(tmp_path, f"new.id = '{ids[321]}'")
        await one_of_a_thousand(movers, ids[321], ids)
        allow(tmp_path)
        await healed(movers, ids)


async def test_the_same_with_a_server(
    store_server: EmbeddedServer, tmp_path: Path, postgres: PostgresServer
) -> None:
    database = postgres.empty_database()
    async with open_movers(store_server, tmp_path, postgres.url(database)) as movers:
        ids = await movers.sleepers(1_000)
        table = "ALTER TABLE waystation_archive.state"
        postgres.execute(database, f"{table} ADD CONSTRAINT rule CHECK (id <> '{ids[321]}')")
        await one_of_a_thousand(movers, ids[321], ids)
        postgres.execute(database, f"{table} DROP CONSTRAINT rule")
        await healed(movers, ids)


async def test_where_all_are_refused_all_are_set_aside_and_none_is_lost(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_movers(store_server, tmp_path) as movers:
        ids = await movers.sleepers(30)
        refuse(tmp_path, "1")
        await movers.due()
        movers.archiver()
        async with asyncio.timeout(10):
            while len((await movers.tx.archiving.set_aside(CELL))[0]) < 30:
                await asyncio.sleep(0.005)
        assert await movers.cached(ids) == ids
        allow(tmp_path)
        assert await movers.tx.archiving.retry(CELL) == 30
        await movers.drained()
        assert await movers.cached(ids) == []


async def test_an_archive_that_is_away_keeps_all_in_the_store_and_gives_the_role_to_others(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_movers(store_server, tmp_path) as movers:
        ids = await movers.sleepers(300)
        await movers.due()
        away = Passed(movers.archive)
        away.failure = ArchiveUnavailableError("no route to it")
        archiver = movers.archiver("node-a", archive=away)  # type: ignore[arg-type]
        async with asyncio.timeout(5):
            while not archiver.state.error:
                await asyncio.sleep(0.002)
        async with asyncio.timeout(5):
            while await lock(movers):
                await asyncio.sleep(0.002)
        assert await movers.cached(ids) == ids
        # One with a better line takes it at once.
        movers.archiver("node-b")
        await movers.drained(seconds=5)
        assert await movers.cached(ids) == []
        assert archiver.state.error == "no route to it"


async def test_a_server_that_was_killed_gets_everything_once_it_is_back(
    store_server: EmbeddedServer, tmp_path: Path, postgres: PostgresServer
) -> None:
    database = postgres.empty_database()
    async with open_movers(store_server, tmp_path, postgres.url(database)) as movers:
        ids = await movers.sleepers(150)
        await movers.due()
        await asyncio.to_thread(postgres.kill)
        archiver = movers.archiver()
        async with asyncio.timeout(20):
            while not archiver.state.error:
                await asyncio.sleep(0.01)
        assert await movers.cached(ids) == ids
        await asyncio.to_thread(postgres.start)
        await movers.drained(seconds=40)
        assert await movers.cached(ids) == []
        assert archiver.state.error == ""
        assert len(await movers.archive.get(ids)) == 150


async def test_a_slow_server_holds_nothing_up_but_the_archive(
    store_server: EmbeddedServer, tmp_path: Path, postgres: PostgresServer
) -> None:
    database = postgres.empty_database()
    async with open_movers(store_server, tmp_path, postgres.url(database)) as movers:
        ids = await movers.sleepers(3)
        await movers.due()
        postgres.slow_commits(database, "waystation_archive.state")
        movers.archiver()
        async with asyncio.timeout(10):
            await postgres.until_asleep(database)
        assert await movers.cached(ids) == ids, "nothing goes before it is written"
        await movers.tx.signals.wake("default", ids[0])
        await movers.drained()
        assert await movers.cached(ids) == [ids[0]]
        assert len(await movers.archive.get(ids)) == 3


# -- Who archives ----------------------------------------------------------------------------


async def test_the_role_passes_from_node_to_node_and_nothing_is_archived_twice(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_movers(store_server, tmp_path) as movers:
        passed = {node: Passed(movers.archive) for node in ("node-a", "node-b", "node-c")}
        archivers = {
            node: movers.archiver(node, archive=archive)  # type: ignore[arg-type]
            for node, archive in passed.items()
        }
        seen, ids = set(), []
        async with asyncio.timeout(30):
            while len(seen) < 2:
                ids += await movers.sleepers(20)
                await movers.due()  # The role is over then, too.
                await movers.drained()
                seen = {node for node, archive in passed.items() if archive.batches}
                if len(seen) == 1 and len(ids) == 100:
                    # Chance gave it to the same one each time.
                    await archivers[seen.copy().pop()].stop(grace_seconds=1.0)
        written = [each for archive in passed.values() for one in archive.batches for each in one]
        assert sorted(written) == sorted(ids)
        assert sum(archive.reads for archive in passed.values()) == 0


async def test_whoever_is_told_not_to_archive_lets_another_do_it(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_movers(store_server, tmp_path) as movers:
        pace = [QUICK]
        first = movers.archiver("node-a", pace=lambda: pace[0])
        await until_archiver(movers, "node-a")
        pace[0] = ArchivePace(batch=0)
        first.look()
        await until_archiver(movers, "")
        ids = await movers.sleepers(5)
        await movers.due()
        assert len(await movers.scheduled()) == 5
        pace[0] = QUICK
        first.look()
        await movers.drained()
        assert await movers.cached(ids) == []


async def test_a_process_that_ends_confirms_what_it_writes_and_asks_for_no_more(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_movers(store_server, tmp_path) as movers:
        ids = await movers.sleepers(250)
        await movers.due()
        passed = Passed(movers.archive)
        passed.after.clear()
        archiver = movers.archiver(
            archive=passed,  # type: ignore[arg-type]
            pace=lambda: ArchivePace(batch=100, idle_ms=10),
        )
        await passed.begun.wait()
        stopping = asyncio.create_task(archiver.stop(grace_seconds=5.0))
        await asyncio.sleep(0.05)
        assert not stopping.done(), "a batch is being written"
        passed.after.set()
        await stopping
        assert len(passed.batches) == 1
        assert set(await movers.cached(ids)) == set(ids) - set(passed.batches[0])
        assert await lock(movers) == "", "another may begin at once"


async def test_a_write_that_does_not_end_in_time_is_left_to_the_next_archiver(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_movers(store_server, tmp_path) as movers:
        ids = await movers.sleepers(50)
        await movers.due()
        passed = Passed(movers.archive)
        passed.after.clear()
        archiver = movers.archiver(archive=passed)  # type: ignore[arg-type]
        await passed.begun.wait()
        await archiver.stop(grace_seconds=0.05)
        assert await movers.cached(ids) == ids
        second = Passed(movers.archive)
        movers.archiver("node-b", archive=second)  # type: ignore[arg-type]
        await movers.drained()
        assert await movers.cached(ids) == []
        assert second.reads == 1, "they were there already, as they are"


async def test_what_the_store_has_lost_is_lifted_over_what_the_archive_has(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """A store that lost a second, or came from an older backup, must be able to go on."""
    async with open_movers(store_server, tmp_path) as movers:
        higher, other, same = await movers.sleepers(3)
        before = {}
        for each in (higher, other, same):
            before[each] = await movers.tx.store.call("DUMP", names.state(each))
        await movers.tx.signals.set_switch("default", higher, "paid", "yes")
        await movers.due()
        first = movers.archiver()
        await movers.drained()
        await first.stop(grace_seconds=1.0)
        for each, dump in before.items():
            await movers.tx.store.call("RESTORE", names.state(each), 0, dump)
            key = names.sorted_set(CELL, "toArchiveZ")
            await movers.tx.store.call("ZADD", key, await movers.tx.now_ms(), each)
        await movers.tx.store.call("HSET", names.state(other), "state", "another")

        movers.archiver("node-b")
        await movers.drained()
        rows = await movers.archive.get([higher, other, same])
        assert [rows[each].version for each in (higher, other, same)] == [5, 4, 3]
        assert rows[other].packed == b"another"
        lifted = [fact.id for fact in await movers.tx.facts() if fact.kind == "lifted"]
        assert sorted(lifted) == sorted([higher, other])


async def test_a_head_that_is_none_is_set_aside(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_movers(store_server, tmp_path) as movers:
        odd, fine = await movers.sleepers(2)
        line = await movers.tx.store.call("HGET", names.state(odd), "head")
        words = line.split(b" ")
        words[11] = b"soon"
        await movers.tx.store.call("HSET", names.state(odd), "head", b" ".join(words))
        await movers.due()
        movers.archiver()
        await movers.drained(but=1)
        (aside,), _ = await movers.tx.archiving.set_aside(CELL)
        assert aside.id == odd
        assert await movers.cached([odd, fine]) == [odd]
