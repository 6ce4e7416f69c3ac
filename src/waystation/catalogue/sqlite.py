"""The embedded catalogue: one SQLite file with write-ahead logging, shared by local processes.

A single connection serves the process, in a thread of its own, so that a slow disk never blocks
the event loop.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from waystation.catalogue.protocol import DefinitionRecord, KeyRecord, ProjectRecord
from waystation.errors import CatalogueError, ConflictError, NotFoundError
from waystation.settings import make_private

_T = TypeVar("_T")

#: How long a write waits for another process's write.
_BUSY_SECONDS = 10.0
_ATTEMPT_SECONDS = 0.01
_MIGRATION_NAME = re.compile(r"(\d{4})_[a-z_]+\.sql")


def migrations() -> list[tuple[int, str]]:
    """All migrations as (version, SQL), oldest first."""
    found = []
    for file in (resources.files("waystation.catalogue") / "migrations").iterdir():
        if match := _MIGRATION_NAME.fullmatch(file.name):
            found.append((int(match.group(1)), file.read_text(encoding="utf-8")))
    return sorted(found)


_Statement = tuple[str, tuple[object, ...]]
#: Steps the number by which processes notice that projects or keys have changed.
_STEP: _Statement = ("UPDATE generation SET number = number + 1", ())
_DEFINITION = "SELECT kind, project, name, version, body, changed_ms FROM definition"
_INSERT_KEY = "INSERT INTO api_key VALUES (?, ?, ?, ?, ?, ?, ?, ?)"


class SqliteCatalogue:
    """A `Catalogue` in a file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="catalogue")
        self._database: sqlite3.Connection | None = None
        self._closed = False

    async def open(self) -> None:
        await self._do(self._open)

    async def close(self) -> None:
        if not self._closed:
            await self._do(self._close)
            self._closed = True
            self._thread.shutdown()

    async def ping(self) -> None:
        await self._query("SELECT 1")

    async def generation(self) -> int:
        rows = await self._query("SELECT number FROM generation")
        return int(rows[0][0])

    async def add_project(self, project: ProjectRecord, *, key: KeyRecord | None = None) -> None:
        statements: list[_Statement] = [
            ("INSERT INTO project VALUES (?, ?)", (project.name, project.created_ms))
        ]
        if key is not None:
            statements.append((_INSERT_KEY, _key_row(key)))
        try:
            await self._write(*statements, _STEP)
        except sqlite3.IntegrityError as error:
            if key is not None and "api_key" in str(error):
                raise ConflictError(f"There is a key {key.id} already.") from error
            raise ConflictError(f"There is a project {project.name} already.") from error

    async def projects(self) -> list[ProjectRecord]:
        rows = await self._query("SELECT name, created_ms FROM project ORDER BY name")
        return [ProjectRecord(name=name, created_ms=created) for name, created in rows]

    async def add_key(self, key: KeyRecord) -> None:
        try:
            await self._write((_INSERT_KEY, _key_row(key)), _STEP)
        except sqlite3.IntegrityError as error:
            if error.sqlite_errorname != "SQLITE_CONSTRAINT_FOREIGNKEY":
                raise ConflictError(f"There is a key {key.id} already.") from error
            raise NotFoundError(
                f"There is no project {key.project}.",
                hint="`waystation keys create --new-project` creates the project too.",
            ) from error

    async def keys(self, project: str | None = None) -> list[KeyRecord]:
        rows = await self._query(
            "SELECT id, project, scopes, secret_hash, label, created_ms, expires_ms, revoked_ms"
            " FROM api_key WHERE ? IS NULL OR project = ? ORDER BY created_ms, id",
            (project, project),
        )
        return [
            KeyRecord(
                id=row[0],
                project=row[1],
                scopes=tuple(row[2].split()),
                secret_hash=row[3],
                label=row[4],
                created_ms=row[5],
                expires_ms=row[6],
                revoked_ms=row[7],
            )
            for row in rows
        ]

    async def revoke_key(self, project: str | None, key_id: str, *, now_ms: int) -> bool:
        sql = (
            "UPDATE api_key SET revoked_ms = CASE revoked_ms WHEN 0 THEN ? ELSE revoked_ms END"
            " WHERE id = ? AND (? IS NULL OR project = ?)"
        )
        return await self._write((sql, (now_ms, key_id, project, project)), _STEP) > 0

    async def add_definition(self, record: DefinitionRecord) -> None:
        values = (record.kind, record.project, record.name)
        rest = (record.version, record.body, record.changed_ms)
        try:
            await self._write(("INSERT INTO definition VALUES (?, ?, ?, ?, ?, ?)", values + rest))
        except sqlite3.IntegrityError as error:
            if error.sqlite_errorname != "SQLITE_CONSTRAINT_FOREIGNKEY":
                raise ConflictError(f"There is a {record.kind} {record.name} already.") from error
            raise NotFoundError(f"There is no project {record.project}.") from error

    async def change_definition(self, record: DefinitionRecord, *, over: int | None = None) -> None:
        sql = (
            "UPDATE definition SET version = ?, body = ?, changed_ms = ?"
            " WHERE kind = ? AND project = ? AND name = ? AND version = ?"
        )
        before = record.version - 1 if over is None else over
        named = (record.kind, record.project, record.name, before)
        changed = (record.version, record.body, record.changed_ms)
        if not await self._write((sql, changed + named)):
            raise ConflictError(f"The {record.kind} {record.name} was changed by another.")

    async def definition(self, kind: str, project: str, name: str) -> DefinitionRecord | None:
        where = " WHERE kind = ? AND project = ? AND name = ?"
        rows = await self._query(_DEFINITION + where, (kind, project, name))
        return _definition(rows[0]) if rows else None

    async def definitions(
        self, kind: str, project: str, *, after: str = "", limit: int
    ) -> list[DefinitionRecord]:
        where = " WHERE kind = ? AND project = ? AND name > ? ORDER BY name LIMIT ?"
        rows = await self._query(_DEFINITION + where, (kind, project, after, limit))
        return [_definition(row) for row in rows]

    # -- In the thread -----------------------------------------------------------------------

    def _open(self) -> None:
        make_private(self._file.parent)
        database = sqlite3.connect(self._file, timeout=_BUSY_SECONDS, isolation_level=None)
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

    def _migrate(self, database: sqlite3.Connection) -> None:
        version = database.execute("PRAGMA user_version").fetchone()[0]
        known = migrations()
        if version > known[-1][0]:
            raise CatalogueError(
                f"The catalogue {self._file} has schema {version}; this release knows "
                f"{known[-1][0]}.",
                hint="Use the release that wrote it, or a newer one.",
            )
        for number, sql in known:
            if number > version:
                # Not executescript: that would commit our transaction first.
                for statement in sql.split(";\n"):
                    database.execute(statement)
                database.execute(f"PRAGMA user_version = {number}")

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    async def _query(self, sql: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        return await self._do(lambda: self._connected().execute(sql, values).fetchall())

    async def _write(self, *statements: _Statement) -> int:
        """Statements in one transaction; how many rows the first one changed."""

        def write() -> int:
            database = self._connected()
            with _transaction(database):
                changed, *_ = [database.execute(*each).rowcount for each in statements]
            return changed

        return await self._do(write)

    def _connected(self) -> sqlite3.Connection:
        if self._database is None:
            raise CatalogueError(f"The catalogue {self._file} is not open.")
        return self._database

    async def _do(self, work: Callable[[], _T]) -> _T:
        if self._closed:
            raise CatalogueError(f"The catalogue {self._file} is closed.")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except sqlite3.IntegrityError:
            raise
        except (sqlite3.Error, OSError) as error:
            raise CatalogueError(f"The catalogue {self._file}: {error}.") from error


def _definition(row: tuple[Any, ...]) -> DefinitionRecord:
    kind, project, name, version, body, changed_ms = row
    return DefinitionRecord(
        kind=kind, project=project, name=name, version=version, body=body, changed_ms=changed_ms
    )


def _key_row(key: KeyRecord) -> tuple[object, ...]:
    return (
        key.id,
        key.project,
        " ".join(key.scopes),
        key.secret_hash,
        key.label,
        key.created_ms,
        key.expires_ms,
        key.revoked_ms,
    )


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
