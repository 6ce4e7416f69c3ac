"""The embedded catalogue: one SQLite file, shared by local processes."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from waystation.catalogue.protocol import DefinitionRecord, KeyRecord, ProjectRecord
from waystation.catalogue.rows import (
    DEFINITION_COLUMNS,
    KEY_COLUMNS,
    definition_of,
    key_of,
    key_row,
)
from waystation.catalogue.trouble import fail
from waystation.database import Migrations, SqliteFile, read_migrations
from waystation.database.sqlite import Statement
from waystation.errors import ConflictError, NotFoundError


def migrations() -> Migrations:
    """All migrations as (version, SQL), oldest first."""
    return read_migrations("waystation.catalogue")


#: Steps the number by which processes notice that projects or keys have changed.
_STEP: Statement = ("UPDATE generation SET number = number + 1", ())
_DEFINITION = f"SELECT {DEFINITION_COLUMNS} FROM definition"  # noqa: S608 (constants)
_INSERT_KEY = "INSERT INTO api_key VALUES (?, ?, ?, ?, ?, ?, ?, ?)"


class SqliteCatalogue:
    """A `Catalogue` in a file."""

    def __init__(self, file: Path) -> None:
        self._file = SqliteFile(file, name="catalogue", fail=fail, migrations=migrations())

    async def open(self) -> None:
        await self._file.open()

    async def close(self) -> None:
        await self._file.close()

    async def ping(self) -> None:
        await self._file.query("SELECT 1")

    async def generation(self) -> int:
        rows = await self._file.query("SELECT number FROM generation")
        return int(rows[0][0])

    async def data_sets(self) -> tuple[str, ...]:
        rows = await self._file.query("SELECT ids FROM data_set")
        return tuple(rows[0][0].split())

    async def change_data_sets(self, before: tuple[str, ...], after: tuple[str, ...]) -> bool:
        sql = "UPDATE data_set SET ids = ? WHERE ids = ?"
        return await self._file.write((sql, (" ".join(after), " ".join(before)))) > 0

    async def add_project(self, project: ProjectRecord, *, key: KeyRecord | None = None) -> None:
        statements: list[Statement] = [
            ("INSERT INTO project VALUES (?, ?)", (project.name, project.created_ms))
        ]
        if key is not None:
            statements.append((_INSERT_KEY, key_row(key)))
        try:
            await self._file.write(*statements, _STEP)
        except sqlite3.IntegrityError as error:
            if key is not None and "api_key" in str(error):
                raise ConflictError(f"There is a key {key.id} already.") from error
            raise ConflictError(f"There is a project {project.name} already.") from error

    async def projects(self) -> list[ProjectRecord]:
        rows = await self._file.query("SELECT name, created_ms FROM project ORDER BY name")
        return [ProjectRecord(name=name, created_ms=created) for name, created in rows]

    async def add_key(self, key: KeyRecord) -> None:
        try:
            await self._file.write((_INSERT_KEY, key_row(key)), _STEP)
        except sqlite3.IntegrityError as error:
            if error.sqlite_errorname != "SQLITE_CONSTRAINT_FOREIGNKEY":
                raise ConflictError(f"There is a key {key.id} already.") from error
            raise NotFoundError(
                f"There is no project {key.project}.",
                hint="`waystation keys create --new-project` creates the project too.",
            ) from error

    async def keys(self, project: str | None = None) -> list[KeyRecord]:
        rows = await self._file.query(
            f"SELECT {KEY_COLUMNS}"  # noqa: S608 (constants)
            " FROM api_key WHERE ? IS NULL OR project = ? ORDER BY created_ms, id",
            (project, project),
        )
        return [key_of(row) for row in rows]

    async def revoke_key(self, project: str | None, key_id: str, *, now_ms: int) -> bool:
        sql = (
            "UPDATE api_key SET revoked_ms = CASE revoked_ms WHEN 0 THEN ? ELSE revoked_ms END"
            " WHERE id = ? AND (? IS NULL OR project = ?)"
        )
        return await self._file.write((sql, (now_ms, key_id, project, project)), _STEP) > 0

    async def add_definition(self, record: DefinitionRecord) -> None:
        values = (record.kind, record.project, record.name)
        rest = (record.version, record.body, record.changed_ms)
        try:
            await self._file.write(
                ("INSERT INTO definition VALUES (?, ?, ?, ?, ?, ?)", values + rest)
            )
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
        if not await self._file.write((sql, changed + named)):
            raise ConflictError(f"The {record.kind} {record.name} was changed by another.")

    async def definition(self, kind: str, project: str, name: str) -> DefinitionRecord | None:
        where = " WHERE kind = ? AND project = ? AND name = ?"
        rows = await self._file.query(_DEFINITION + where, (kind, project, name))
        return definition_of(rows[0]) if rows else None

    async def definitions(
        self, kind: str, project: str, *, after: str = "", limit: int
    ) -> list[DefinitionRecord]:
        where = " WHERE kind = ? AND project = ? AND name > ? ORDER BY name LIMIT ?"
        rows = await self._file.query(_DEFINITION + where, (kind, project, after, limit))
        return [definition_of(row) for row in rows]
