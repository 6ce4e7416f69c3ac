"""A SQLite file with write-ahead logging, shared by local processes.

A single connection, in a thread of its own, so that a slow disk never blocks the event loop.
What the content of a statement is to blame for is raised as sqlite3 says it (IntegrityError,
DataError, and what is no error of SQLite); all else is trouble of the file.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from waystation.database.migrations import Migrations
from waystation.database.trouble import Fail, Trouble
from waystation.runtime.data_files import create_private, make_private, protect_data_dir, tighten

_T = TypeVar("_T")

#: A statement and its values.
Statement = tuple[str, tuple[object, ...]]

#: How long a write waits for another process's write.
_BUSY_SECONDS = 10.0
_ATTEMPT_SECONDS = 0.01
#: Of the database, its write-ahead log, the log's index and the journal of older modes.
_FILE_SUFFIXES = ("", "-wal", "-shm", "-journal")


class SqliteFile:
    """One connection to a file; all of its methods may be called from any task."""

    def __init__(
        self,
        file: Path,
        *,
        name: str,
        fail: Fail,
        migrations: Migrations,
        busy_seconds: float = _BUSY_SECONDS,
    ) -> None:
        self._file = file
        self._name = f"The {name} {file}"
        self._fail = fail
        self._migrations = migrations
        self._busy_seconds = busy_seconds
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._database: sqlite3.Connection | None = None
        self._closed = False

    async def open(self) -> None:
        """Opens the file and brings its schema up to date, one process at a time."""
        await self.do(self._open)

    async def close(self) -> None:
        """Lets go of the file, after what was asked before."""
        if not self._closed:
            await self.do(self._close)
            self._closed = True
            self._thread.shutdown()

    async def query(self, sql: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        """All rows of a statement that only reads."""
        return await self.do(lambda: self._connected().execute(sql, values).fetchall())

    async def write(self, *statements: Statement) -> int:
        """Statements in one transaction; how many rows the first one changed."""

        def write(database: sqlite3.Connection) -> int:
            changed, *_ = [database.execute(*each).rowcount for each in statements]
            return changed

        return await self.change(write)

    async def change(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Does the work in the thread, in one transaction."""

        def change() -> _T:
            database = self._connected()
            with _transaction(database):
                return work(database)

        return await self.do(change)

    async def do(self, work: Callable[[], _T]) -> _T:
        """Does the work in the thread; trouble of the file becomes an error of its user."""
        if self._closed:
            raise self._fail(Trouble.AWAY, f"{self._name} is closed.")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except (sqlite3.IntegrityError, sqlite3.DataError):
            raise
        except (sqlite3.Error, OSError) as error:
            full = getattr(error, "sqlite_errorname", "") == "SQLITE_FULL"
            trouble = Trouble.FULL if full else Trouble.AWAY
            raise self._fail(trouble, f"{self._name}: {error}.") from error

    # -- In the thread -----------------------------------------------------------------------

    def _open(self) -> None:
        self._close()  # Whoever could not open all of what it needs may try again.
        self._protect()
        database = sqlite3.connect(self._file, timeout=self._busy_seconds, isolation_level=None)
        try:
            _use_wal(database)
            database.execute("PRAGMA synchronous = FULL")
            database.execute("PRAGMA foreign_keys = ON")
            # The write lock is taken before the version is read: processes that start together
            # migrate one after the other, and all but the first find nothing to do.
            with _transaction(database):
                self._migrate(database)
        except BaseException:
            database.close()
            raise
        self._database = database

    def _protect(self) -> None:
        """Create the file if it is missing, and make sure that its owner alone can read it.

        SQLite gives its write-ahead log and its index the mode of the database file.
        """
        make_private(self._file.parent)
        protect_data_dir(self._file.parent)
        create_private(self._file)
        tighten(self._file.with_name(f"{self._file.name}{each}") for each in _FILE_SUFFIXES)

    def _migrate(self, database: sqlite3.Connection) -> None:
        version = database.execute("PRAGMA user_version").fetchone()[0]
        newest = self._migrations[-1][0]
        if version > newest:
            raise self._fail(
                Trouble.NEWER, f"{self._name} has schema {version}; this release knows {newest}."
            )
        for number, sql in self._migrations:
            if number > version:
                # Not executescript: that would commit our transaction first.
                for statement in sql.split(";\n"):
                    database.execute(statement)
                database.execute(f"PRAGMA user_version = {number}")

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _connected(self) -> sqlite3.Connection:
        if self._database is None:
            raise self._fail(Trouble.AWAY, f"{self._name} is not open.")
        return self._database


def _use_wal(database: sqlite3.Connection) -> None:
    """Turns write-ahead logging on; SQLite does not wait for others who do the same, so we do."""
    attempts_left = round(_BUSY_SECONDS / _ATTEMPT_SECONDS)
    while True:
        try:
            database.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            attempts_left -= 1
            if error.sqlite_errorname != "SQLITE_BUSY" or not attempts_left:
                raise
            time.sleep(_ATTEMPT_SECONDS)
        else:
            return


@contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    """All or nothing, also when the commit itself fails."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        # Some errors end the transaction by themselves.
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise
