"""The SQLite archive: the common suite, and what only a file can suffer."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.archive.conformance import ArchiveConformance, Make, archived, opened
from waystation.archive import SqliteArchive, archive_at
from waystation.errors import ArchiveFullError, ArchiveRefusedError, ArchiveUnavailableError


class TestSqlite(ArchiveConformance):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        return lambda: SqliteArchive(tmp_path / "deep" / "archive.db")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "archive.db"


def versions_in(file: Path) -> dict[str, int]:
    with closing(sqlite3.connect(file)) as database:
        return dict(database.execute("SELECT id, version FROM state").fetchall())


def test_without_a_url_it_is_a_file_of_the_data_directory(tmp_path: Path) -> None:
    assert isinstance(archive_at("", folder=tmp_path), SqliteArchive)


async def test_a_rule_of_the_database_refuses_one_state_and_no_other(file: Path) -> None:
    async with opened(lambda: SqliteArchive(file)) as archive:
        with closing(sqlite3.connect(file)) as database:
            database.execute(
                "CREATE TRIGGER rule BEFORE INSERT ON state WHEN new.id = 'tx-13'"
                " BEGIN SELECT RAISE(ABORT, 'not on a Friday'); END"
            )
        kept = await archive.upsert([archived(f"tx-{number}") for number in range(40)])
        assert [(each.id, each.reason) for each in kept.refused] == [("tx-13", "not on a Friday")]
        assert kept.applied == 39


# -- A disk that is full -------------------------------------------------------------------------


def _on_a_small_disk(file: Path) -> None:
    """In a process of its own: fills a file up to a limit, and goes on when that is lifted."""

    async def fill() -> None:
        async with opened(lambda: SqliteArchive(file)) as archive:
            confirmed = 0
            resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
            try:
                while confirmed < 100:
                    batch = [
                        archived(f"tx-{confirmed + n:03}", packed=os.urandom(20_000))
                        for n in range(5)
                    ]
                    await archive.upsert(batch)
                    confirmed += 5
            except ArchiveUnavailableError:
                pass
            assert 0 < confirmed < 100, "the limit was met in the middle"
            # All that was confirmed can be read, and nothing else is there
            names = [f"tx-{number:03}" for number in range(100)]
            assert len(await archive.get(names)) == confirmed
            for _ in range(3):
                with pytest.raises(ArchiveUnavailableError):
                    await archive.upsert([archived("tx-x", packed=os.urandom(900_000))])
            # And with room again it goes on, without being opened anew
            resource.setrlimit(
                resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
            )
            assert (await archive.upsert(batch)).applied == 5
            assert len(await archive.get(names)) == confirmed + 5

    asyncio.run(fill())


def test_a_full_disk_loses_nothing_and_the_archive_goes_on_when_there_is_room(file: Path) -> None:
    """F-32, by a limit on the size of files."""
    assert _in_a_process(partial(_on_a_small_disk, file)) == 0
    with closing(sqlite3.connect(file)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


async def test_no_room_is_told_as_such(file: Path) -> None:
    """F-32, by a limit on the size of the database."""
    archive = SqliteArchive(file)
    await archive.open()
    await archive._writer.query("PRAGMA max_page_count = 30")
    with pytest.raises(ArchiveFullError, match=r"archive\.db.*full"):
        await archive.upsert([archived("tx-1", packed=os.urandom(500_000)), archived("tx-2")])
    assert await archive.counts() == {}
    await archive._writer.query("PRAGMA max_page_count = 100000")
    await archive.upsert([archived("tx-1", packed=os.urandom(500_000)), archived("tx-2")])
    assert await archive.counts() == {"sleeping": 2}
    await archive.close()


# -- Deaths and others ---------------------------------------------------------------------------


def test_a_process_killed_at_any_statement_of_an_upsert_leaves_all_of_it_or_nothing(
    file: Path,
) -> None:
    """F-04: the archiver dies before, in and after the write; what is sent again ends the same."""
    before = [archived(f"tx-{number}", version=1) for number in range(3)]
    after = [archived(f"tx-{number}", version=2) for number in range(6)]
    old, new = {each.id: 1 for each in before}, {each.id: 2 for each in after}
    found, killed, statement = [], True, 0
    while killed:
        statement += 1
        file.unlink(missing_ok=True)
        for side in ("-wal", "-shm"):
            file.with_name(file.name + side).unlink(missing_ok=True)
        asyncio.run(_upsert(file, before))

        killed = _in_a_process(partial(_upsert_and_die, file, after, statement)) == -signal.SIGKILL

        found.append(versions_in(file))
        assert found[-1] in (old, new), f"half a batch at statement {statement}"
        asyncio.run(_upsert(file, after))
        assert versions_in(file) == new
    assert old in found
    assert found[-1] == new


async def test_a_look_does_not_wait_for_another_program_that_writes(file: Path) -> None:
    async with opened(lambda: SqliteArchive(file)) as archive:
        await archive.upsert([archived("tx-1")])
        with _writing(file) as other:
            upsert = asyncio.ensure_future(archive.upsert([archived("tx-2")]))
            assert await archive.get(["tx-1", "tx-2"]) == {"tx-1": archived("tx-1")}
            done, _ = await asyncio.wait([upsert], timeout=0.1)
            assert not done
            other.execute("ROLLBACK")
            assert (await upsert).applied == 1


async def test_a_file_that_is_locked_for_too_long_is_an_error_that_may_pass(file: Path) -> None:
    async with opened(lambda: SqliteArchive(file, busy_seconds=0.05)) as archive:
        with _writing(file), pytest.raises(ArchiveUnavailableError, match="locked"):
            await archive.upsert([archived("tx-1")])
        assert (await archive.upsert([archived("tx-1")])).applied == 1


async def test_a_newer_schema_is_refused_and_left_alone(file: Path) -> None:
    async with opened(lambda: SqliteArchive(file)):
        pass
    with closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA user_version = 99")
    archive = SqliteArchive(file)
    with pytest.raises(ArchiveRefusedError, match=r"schema 99; this release knows 2\."):
        await archive.open()
    await archive.close()


async def test_a_file_that_is_no_database_is_an_error_that_names_it(file: Path) -> None:
    file.write_bytes(b"this is not a database, it only has its name" * 100)
    archive = SqliteArchive(file)
    with pytest.raises(ArchiveUnavailableError, match=r"archive\.db.*not a database"):
        await archive.open()
    await archive.close()


# ------------------------------------------------------------------------------------------------


@contextmanager
def _writing(file: Path) -> Iterator[sqlite3.Connection]:
    """Another program that has begun to write."""
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield other


async def _upsert(file: Path, states: list[Any]) -> None:
    async with opened(lambda: SqliteArchive(file)) as archive:
        await archive.upsert(states)


def _upsert_and_die(file: Path, states: list[Any], statement: int) -> None:
    """Kills its process before that statement, counted from the opened archive on."""
    count = 0

    class Mortal(sqlite3.Connection):
        def execute(self, *arguments: Any) -> sqlite3.Cursor:
            _maybe_die()
            return super().execute(*arguments)

        def executemany(self, sql: str, rows: Any) -> sqlite3.Cursor:
            def mortal_rows() -> Iterator[Any]:
                for row in rows:
                    _maybe_die()
                    yield row

            return super().executemany(sql, mortal_rows())

    def _maybe_die() -> None:
        nonlocal count
        count += 1
        if count == statement:
            os.kill(os.getpid(), signal.SIGKILL)

    sqlite3.connect = partial(sqlite3.connect, factory=Mortal)  # type: ignore[assignment]

    async def upsert() -> None:
        nonlocal count
        async with opened(lambda: SqliteArchive(file)) as archive:
            count = 0
            await archive.upsert(states)

    # A death while it opens is another matter.
    count = -1000
    asyncio.run(upsert())


def _in_a_process(work: Any) -> int:
    """Does it in a child; its exit code, or minus the signal that killed it."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    return os.waitstatus_to_exitcode(status)
