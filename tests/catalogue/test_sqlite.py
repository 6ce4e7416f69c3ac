"""The SQLite catalogue: the common suite, and what only a file can suffer."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.catalogue.conformance import CatalogueConformance, Make, opened
from waystation.catalogue import SqliteCatalogue, sqlite
from waystation.errors import CatalogueError

_NEWEST = sqlite.migrations()[-1][0]
#: A second migration that a later release might bring; each statement depends on the one before.
_NEXT = """\
CREATE TABLE later (name TEXT PRIMARY KEY) STRICT;
INSERT INTO later VALUES ('one');
ALTER TABLE later ADD COLUMN size INTEGER NOT NULL DEFAULT 0;
UPDATE later SET size = 7;
"""


class TestSqlite(CatalogueConformance):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        return lambda: SqliteCatalogue(tmp_path / "deep" / "catalogue.db")


def schema_of(file: Path) -> tuple[int, list[tuple[str, int]]]:
    """(version, content of the table of the second migration)"""
    database = sqlite3.connect(file)
    try:
        version = database.execute("PRAGMA user_version").fetchone()[0]
        names = {row[0] for row in database.execute("SELECT name FROM sqlite_schema")}
        later = list(database.execute("SELECT * FROM later")) if "later" in names else []
        return version, later
    finally:
        database.close()


async def open_and_close(file: Path) -> None:
    async with opened(lambda: SqliteCatalogue(file)):
        pass


def test_processes_that_start_together_migrate_once(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys; from pathlib import Path\n"
        "from waystation.catalogue import SqliteCatalogue\n"
        "async def main():\n"
        "    sys.stdin.read()\n"
        "    for number in range(8):\n"
        "        catalogue = SqliteCatalogue(Path(sys.argv[1]) / f'{number}.db')\n"
        "        await catalogue.open()\n"
        "        print(await catalogue.generation())\n"
        "        await catalogue.close()\n"
        "print('ready', flush=True)\n"
        "asyncio.run(main())\n"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    # When all of them open the same new files, each at the same moment as the others
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
    for process in processes:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read() == "1\n" * 8, process.stderr.read()
        process.wait()
        process.stdout.close()
        process.stderr.close()


async def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "catalogue.db"
    await open_and_close(file)
    database = sqlite3.connect(file)
    database.execute(f"PRAGMA user_version = {_NEWEST + 5}")
    database.close()
    with pytest.raises(CatalogueError, match=f"schema {_NEWEST + 5}; this release knows {_NEWEST}"):
        await SqliteCatalogue(file).open()
    assert schema_of(file)[0] == _NEWEST + 5


async def test_an_older_schema_is_brought_up_to_date_with_its_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "catalogue.db"
    async with opened(lambda: SqliteCatalogue(file)) as catalogue:
        generation = await catalogue.generation()
    monkeypatch.setattr(sqlite, "migrations", _with_next(sqlite.migrations()))
    async with opened(lambda: SqliteCatalogue(file)) as catalogue:
        assert await catalogue.generation() == generation
    assert schema_of(file) == (_NEWEST + 1, [("one", 7)])


def test_a_process_killed_at_any_statement_of_a_migration_leaves_old_or_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = (_NEWEST, []), (_NEWEST + 1, [("one", 7)])
    left, killed = [], True
    asyncio.run(open_and_close(tmp_path / "template.db"))
    monkeypatch.setattr(sqlite, "migrations", _with_next(sqlite.migrations()))
    statement = 0
    while killed:
        statement += 1
        file = tmp_path / f"{statement}.db"
        file.write_bytes((tmp_path / "template.db").read_bytes())

        killed = _open_and_die_at(statement, file)

        state = schema_of(file)
        assert state in (old, new), f"half a migration after statement {statement}"
        left.append(state)
        # And the next start finishes the work, whatever it finds
        asyncio.run(open_and_close(file))
        assert schema_of(file) == new
    # Then the deaths were early, in the middle and after the end
    assert left.count(old) >= 6
    assert left[-1] == new


async def test_a_file_that_is_no_database_is_an_error_that_names_it(tmp_path: Path) -> None:
    file = tmp_path / "catalogue.db"
    file.write_bytes(b"this is not a database, it only has its name" * 100)
    with pytest.raises(CatalogueError, match=r"catalogue\.db.*not a database"):
        await SqliteCatalogue(file).open()


async def test_a_place_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "occupied").write_text("a file where a folder should be")
    with pytest.raises(CatalogueError, match="occupied"):
        await SqliteCatalogue(tmp_path / "occupied" / "catalogue.db").open()


async def test_writers_wait_for_another_program_that_writes(tmp_path: Path) -> None:
    file = tmp_path / "catalogue.db"
    async with opened(lambda: SqliteCatalogue(file)) as catalogue:
        other = sqlite3.connect(file, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        waiting = asyncio.ensure_future(catalogue.revoke_key(None, "k", now_ms=1))
        done, _ = await asyncio.wait([waiting], timeout=0.2)
        assert not done
        other.execute("ROLLBACK")
        other.close()
        assert not await waiting


def _with_next(known: list[tuple[int, str]]) -> Callable[[], list[tuple[int, str]]]:
    return lambda: [*known, (_NEWEST + 1, _NEXT)]


def _open_and_die_at(statement: int, file: Path) -> bool:
    """Opens the catalogue in a process that kills itself before that statement; was it reached?"""
    child = os.fork()
    if child == 0:
        count = 0

        class Mortal(sqlite3.Connection):
            def execute(self, *arguments: Any) -> sqlite3.Cursor:
                nonlocal count
                count += 1
                if count == statement:
                    os.kill(os.getpid(), signal.SIGKILL)
                return super().execute(*arguments)

        sqlite3.connect = partial(sqlite3.connect, factory=Mortal)  # type: ignore[assignment]
        try:
            asyncio.run(open_and_close(file))
        finally:
            os._exit(0)
    status = os.waitpid(child, 0)[1]
    return os.WIFSIGNALED(status)
