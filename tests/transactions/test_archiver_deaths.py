"""Archivers that are killed, and disks that are full: real processes, and what is left behind."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.helpers.postgres import PostgresServer, postgres_server
from tests.transactions.archive_helpers import DATABASES, Movers, archive_url, open_movers
from tests.transactions.archiver_process import MOMENTS, ArchiverProcess
from tests.transactions.helpers import CELL, ROLE_GRACE_MS, ROLE_MS, TERMS
from waystation.archive import SqliteArchive
from waystation.runtime.clock import Clock
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.testing.crash_points import CrashPoint, crash_points
from waystation.transactions import names
from waystation.transactions.archiver import ArchivePace, Archiver
from waystation.transactions.archiving import Archiving


async def role_passes(movers: Movers) -> None:
    """The time of a dead archiver is over."""
    await movers.tx.machine.advance((ROLE_MS + ROLE_GRACE_MS) / 1000)


async def all_arrive(movers: Movers, ids: list[str]) -> None:
    """The next archiver takes everything to the archive, in the version that it has."""
    versions = {each: (await movers.tx.head(each)).version for each in await movers.cached(ids)}
    await role_passes(movers)
    archiver = movers.archiver("next")
    await movers.drained()
    await archiver.stop(grace_seconds=1.0)
    rows = await movers.archive.get(ids)
    assert set(rows) == set(ids)
    assert {key: rows[key].version for key in versions} == versions, "nothing was counted twice"
    assert await movers.cached(ids) == []


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("database", DATABASES)
async def test_an_archiver_that_dies_between_two_lines_loses_nothing(
    store_server: EmbeddedServer,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    database: str,
    moment: str,
) -> None:
    """F-04: after it has read, and after it has written, before it confirms."""
    url = archive_url(request, database)
    async with open_movers(store_server, tmp_path, url) as movers:
        ids = await movers.sleepers(130)
        await movers.due()
        with ArchiverProcess(store_server.address, tmp_path, url, moment=moment) as process:
            assert await process.ended() == -signal.SIGKILL
        assert await movers.cached(ids) == ids, "nothing leaves before it is confirmed"
        assert sorted(await movers.scheduled()) == sorted(ids)
        assert len(await movers.archive.get(ids)) == (0 if moment == "read" else 100)
        await all_arrive(movers, ids)


async def test_an_archiver_that_is_killed_in_the_middle_of_a_write_loses_nothing(
    store_server: EmbeddedServer, tmp_path: Path, postgres: PostgresServer
) -> None:
    """F-04: while the server commits."""
    database = postgres.empty_database()
    url = postgres.url(database)
    async with open_movers(store_server, tmp_path, url) as movers:
        ids = await movers.sleepers(2)
        await movers.due()
        postgres.slow_commits(database, "waystation_archive.state")
        with ArchiverProcess(store_server.address, tmp_path, url):
            async with asyncio.timeout(20):
                await postgres.until_asleep(database)
        assert await movers.cached(ids) == ids
        await all_arrive(movers, ids)


async def steps(store: Store, file: Path, node: str, count: int) -> None:
    """What an archiver does in so many turns of its loop, and when it leaves."""
    archive = SqliteArchive(file)
    await archive.open()
    archiver = Archiver(
        Archiving(store, TERMS, role_ms=ROLE_MS, grace_ms=ROLE_GRACE_MS),
        archive,
        node=node,
        cells=1,
        pace=lambda: ArchivePace(batch=200),
        clock=Clock(),
    )
    (cell,) = archiver._cells
    for _ in range(count):
        await cell._step()
    await cell._leave()
    await archive.close()


@pytest.mark.slow
def test_an_archiver_that_dies_at_any_call_to_the_store_loses_nothing(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """F-04: before, within and after each call of asking, confirming and leaving."""
    file, ids = tmp_path / "archive.db", list[str]()

    async def prepare(store: Store) -> None:
        for each in tmp_path.glob("archive.db*"):
            each.unlink()
        async with open_movers(store_server, tmp_path, store=store) as movers:
            ids[:] = await movers.sleepers(130)
            now_ms = await movers.tx.now_ms()
            due = [word for each in ids for word in (now_ms, each)]
            await store.call("ZADD", names.sorted_set(CELL, "toArchiveZ"), *due)

    async def after(store: Store, point: CrashPoint) -> None:
        # Their time would pass, too.
        await store.call("DEL", names.archive_lock(CELL, 1), names.archive_lock(CELL, 2))
        left = await store.call("ZRANGE", names.sorted_set(CELL, "toArchiveZ"), 0, -1)
        there = [each for each in ids if await store.call("EXISTS", names.state(each))]
        assert {each.decode() for each in left} == set(there)
        await steps(store, file, "next", 4)
        for each in ids:
            assert not await store.call("EXISTS", names.state(each))
        with closing(sqlite3.connect(file)) as database:
            rows = dict(database.execute("SELECT id, version FROM state").fetchall())
        assert rows == dict.fromkeys(ids, 3)

    points = crash_points(
        store_server.address,
        lambda store: steps(store, file, "doomed", 4),
        after,
        prepare=prepare,
        test_mode=True,
    )
    assert len(points) >= 3 * 8


@pytest.mark.slow
async def test_three_processes_share_the_role_and_the_work(
    store_server: EmbeddedServer, tmp_path: Path, postgres: PostgresServer
) -> None:
    url = postgres.url(postgres.empty_database())
    async with open_movers(store_server, tmp_path, url) as movers:
        nodes = [f"process-{number}" for number in (1, 2, 3)]
        processes = [
            ArchiverProcess(store_server.address, tmp_path, url, node=node) for node in nodes
        ]
        try:
            for each in processes:
                assert await each.told()
            archivers = set()
            ids: list[str] = []
            async with asyncio.timeout(60):
                while len(archivers) < 2:
                    ids += await movers.sleepers(30)
                    await movers.due()
                    await movers.drained()
                    held = await movers.tx.store.call("GET", names.archive_lock(CELL, 1))
                    archivers |= {held.decode().split()[0]} if held else set()
            assert archivers <= set(nodes)
            assert len(await movers.archive.get(ids)) == len(ids)
            assert await movers.cached(ids) == []
            # One that is told to end gives the role back; another goes on at once.
            for each in processes[:2]:
                each.process.send_signal(signal.SIGTERM)
                assert await each.ended() == 0
            more = await movers.sleepers(10)
            await movers.due()
            await movers.drained()
            assert await movers.cached(more) == []
        finally:
            for each in processes:
                each.kill()


async def test_a_full_disk_of_the_archive_loses_nothing_and_it_goes_on_when_there_is_room(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """F-32, by a limit on the size of files."""
    async with open_movers(store_server, tmp_path) as movers:
        ids = await movers.sleepers(200, state=os.urandom(10_000))
        await movers.due()
        with ArchiverProcess(store_server.address, tmp_path, batch=20) as process:
            limit = (400_000, resource.RLIM_INFINITY)
            resource.prlimit(process.process.pid, resource.RLIMIT_FSIZE, limit)
            assert await process.told()
            # It tries again, and again, with what has failed; what went through is confirmed.
            failed = 0
            async with asyncio.timeout(30):
                while failed < 2:
                    before = len(await movers.scheduled())
                    assert (await process.told()).startswith("writing")
                    await asyncio.sleep(0.2)
                    failed = failed + 1 if len(await movers.scheduled()) == before else 0
            left = await movers.scheduled()
            assert 0 < len(left) < 200, "the limit was met in the middle"
            assert await movers.cached(ids) == [each for each in ids if each in set(left)]
            there = await movers.archive.get(ids)
            assert set(ids) - set(left) <= set(there), "what has left the store is in the archive"
            resource.prlimit(
                process.process.pid,
                resource.RLIMIT_FSIZE,
                (resource.RLIM_INFINITY, resource.RLIM_INFINITY),
            )
            await movers.drained(seconds=60)
        assert await movers.cached(ids) == []
        assert len(await movers.archive.get(ids)) == 200


@pytest.mark.slow
async def test_a_full_disk_of_a_server_loses_nothing_and_it_goes_on_when_there_is_room(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """F-32, by a limit on the size of files of the server."""
    with postgres_server("wal_recycle=off") as server:
        url = server.url(server.empty_database())
        async with open_movers(store_server, tmp_path, url) as movers:
            await movers.archive.ping()
            # Small enough to stay in the table itself, so that this fills a file fast.
            ids = await movers.sleepers(3_000, state=os.urandom(1900))
            await movers.due()
            server.limit_files(4_000_000)
            archiver = movers.archiver(pace=lambda: ArchivePace(batch=200, idle_ms=10))
            async with asyncio.timeout(60):
                while not archiver.state.error:
                    await asyncio.sleep(0.01)
            left = await movers.scheduled()
            assert 0 < len(left) < 3_000, "the limit was met in the middle"
            assert set(await movers.cached(ids)) == set(left)
            assert len(await movers.archive.get(ids)) >= 3_000 - len(left)
            server.limit_files(2**40)
            await movers.drained(seconds=60)
            assert await movers.cached(ids) == []
            assert len(await movers.archive.get(ids)) == 3_000
