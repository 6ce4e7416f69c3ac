"""The catalogue in PostgreSQL, shared by all nodes of an installation."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.errors import ForeignKeyViolation, UniqueViolation

from waystation.catalogue.protocol import DefinitionRecord, KeyRecord, ProjectRecord
from waystation.catalogue.rows import (
    DEFINITION_COLUMNS,
    KEY_COLUMNS,
    definition_of,
    key_of,
    key_row,
)
from waystation.catalogue.trouble import fail
from waystation.database import Migrations, read_migrations
from waystation.database.postgres import Postgres, Sql
from waystation.errors import ConflictError, InvalidInputError, NotFoundError

_CALL_SECONDS_MAX = 5.0

#: Steps the number by which processes notice that projects or keys have changed.
_STEP = ("UPDATE generation SET number = number + 1", ())
_INSERT_KEY = "INSERT INTO api_key VALUES (%s, %s, %s, %s, %s, %s, %s, %s)"


def migrations() -> Migrations:
    """All migrations as (version, SQL), oldest first."""
    return read_migrations("waystation.catalogue", "postgres")


class PostgresCatalogue:
    """A `Catalogue` in a database server."""

    def __init__(self, url: str, *, call_seconds_max: float = _CALL_SECONDS_MAX) -> None:
        self._database = Postgres(
            url,
            name="catalogue",
            fail=fail,
            migrations=migrations(),
            call_seconds_max=call_seconds_max,
        )

    async def open(self) -> None:
        await self._database.open()

    async def close(self) -> None:
        await self._database.close()

    async def ping(self) -> None:
        await self._database.query("SELECT 1")

    async def generation(self) -> int:
        rows = await self._database.query("SELECT number FROM generation")
        return int(rows[0][0])

    async def data_sets(self) -> tuple[str, ...]:
        rows = await self._database.query("SELECT ids FROM data_set")
        return tuple(rows[0][0].split())

    async def change_data_sets(self, before: tuple[str, ...], after: tuple[str, ...]) -> bool:
        sql = "UPDATE data_set SET ids = %s WHERE ids = %s"
        return await self._write((sql, (" ".join(after), " ".join(before)))) > 0

    async def add_project(self, project: ProjectRecord, *, key: KeyRecord | None = None) -> None:
        statements: list[tuple[Sql, Any]] = [
            ("INSERT INTO project VALUES (%s, %s)", (project.name, project.created_ms))
        ]
        if key is not None:
            statements.append((_INSERT_KEY, key_row(key)))
        try:
            await self._write(*statements, _STEP)
        except UniqueViolation as error:
            if key is not None and error.diag.table_name == "api_key":
                raise ConflictError(f"There is a key {key.id} already.") from error
            raise ConflictError(f"There is a project {project.name} already.") from error

    async def projects(self) -> list[ProjectRecord]:
        rows = await self._database.query("SELECT name, created_ms FROM project ORDER BY name")
        return [ProjectRecord(name=name, created_ms=created) for name, created in rows]

    async def add_key(self, key: KeyRecord) -> None:
        try:
            await self._write((_INSERT_KEY, key_row(key)), _STEP)
        except UniqueViolation as error:
            raise ConflictError(f"There is a key {key.id} already.") from error
        except ForeignKeyViolation as error:
            raise NotFoundError(
                f"There is no project {key.project}.",
                hint="`waystation keys create --new-project` creates the project too.",
            ) from error

    async def keys(self, project: str | None = None) -> list[KeyRecord]:
        rows = await self._database.query(
            f"SELECT {KEY_COLUMNS}"  # noqa: S608 (constants)
            " FROM api_key WHERE %(project)s::text IS NULL OR project = %(project)s"
            " ORDER BY created_ms, id",
            {"project": project},
        )
        return [key_of(row) for row in rows]

    async def revoke_key(self, project: str | None, key_id: str, *, now_ms: int) -> bool:
        sql = (
            "UPDATE api_key SET revoked_ms = CASE revoked_ms WHEN 0 THEN %(now)s"
            " ELSE revoked_ms END"
            " WHERE id = %(id)s AND (%(project)s::text IS NULL OR project = %(project)s)"
        )
        values = {"now": now_ms, "id": key_id, "project": project}
        return await self._write((sql, values), _STEP) > 0

    async def add_definition(self, record: DefinitionRecord) -> None:
        values = (record.kind, record.project, record.name)
        rest = (record.version, record.body, record.changed_ms)
        sql = "INSERT INTO definition VALUES (%s, %s, %s, %s, %s, %s)"
        try:
            await self._write((sql, values + rest))
        except UniqueViolation as error:
            raise ConflictError(f"There is a {record.kind} {record.name} already.") from error
        except ForeignKeyViolation as error:
            raise NotFoundError(f"There is no project {record.project}.") from error

    async def change_definition(self, record: DefinitionRecord, *, over: int | None = None) -> None:
        sql = (
            "UPDATE definition SET version = %s, body = %s, changed_ms = %s"
            " WHERE kind = %s AND project = %s AND name = %s AND version = %s"
        )
        before = record.version - 1 if over is None else over
        named = (record.kind, record.project, record.name, before)
        changed = (record.version, record.body, record.changed_ms)
        if not await self._write((sql, changed + named)):
            raise ConflictError(f"The {record.kind} {record.name} was changed by another.")

    async def definition(self, kind: str, project: str, name: str) -> DefinitionRecord | None:
        rows = await self._database.query(
            f"SELECT {DEFINITION_COLUMNS} FROM definition"  # noqa: S608 (constants)
            " WHERE kind = %s AND project = %s AND name = %s",
            (kind, project, name),
        )
        return definition_of(rows[0]) if rows else None

    async def definitions(
        self, kind: str, project: str, *, after: str = "", limit: int
    ) -> list[DefinitionRecord]:
        rows = await self._database.query(
            f"SELECT {DEFINITION_COLUMNS} FROM definition"  # noqa: S608 (constants)
            " WHERE kind = %s AND project = %s AND name > %s ORDER BY name LIMIT %s",
            (kind, project, after, limit),
        )
        return [definition_of(row) for row in rows]

    async def _write(self, *statements: tuple[Sql, Any]) -> int:
        try:
            return await self._database.write(*statements)
        except psycopg.DataError:
            # A NUL in a label, say: SQLite would keep it.
            raise InvalidInputError("PostgreSQL cannot keep a NUL in a text.") from None
