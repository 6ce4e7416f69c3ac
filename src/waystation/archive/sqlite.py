"""The embedded archive: one SQLite file, shared by local processes.

Two connections, each in a thread of its own: a look at a state does not wait for a batch.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

import msgspec

from waystation.archive.batch import PoisonedError, is_fit, write_batch
from waystation.archive.columns import ASSIGNMENTS, COLUMNS, FACTS, facts_of, state_of
from waystation.archive.protocol import ArchivedFacts, ArchivedState, Mark, Upserted
from waystation.archive.trouble import fail
from waystation.database import SqliteFile, read_migrations

#: Ids in one statement.
_IDS_MAX = 500
#: How long a write waits for another process's write.
_BUSY_SECONDS = 10.0

_UPSERT = (
    f"INSERT INTO state ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"  # noqa: S608
    f" ON CONFLICT (id) DO UPDATE SET {ASSIGNMENTS} WHERE excluded.version > state.version"
)
_STATES = f"SELECT {', '.join(COLUMNS)} FROM state WHERE id IN "  # noqa: S608
_FACTS = f"SELECT {', '.join(FACTS)} FROM state"  # noqa: S608
#: Of one status: what is asked for of several is put together from such ranges of one index.
_RANGE = (
    f"SELECT * FROM ({_FACTS} WHERE owner = ? AND status = ? AND updated_ms >= ?"  # noqa: S608
    " AND (updated_ms, id) < (?, ?) AND (? = '' OR pipeline = ?)"
    " ORDER BY updated_ms DESC, id DESC LIMIT ?)"
)
_OLDEST = "SELECT coalesce(min(completed_ms), 0) FROM state WHERE completed_ms > 0"
_DELETE = (
    "DELETE FROM state WHERE id IN (SELECT id FROM state"
    " WHERE completed_ms > 0 AND completed_ms < ? ORDER BY completed_ms LIMIT ?)"
)
#: Behind all that there can be.
_LAST = Mark(2**63 - 1, "")


class SqliteArchive:
    """An `Archive` in a file."""

    def __init__(self, file: Path, *, busy_seconds: float = _BUSY_SECONDS) -> None:
        migrations = read_migrations("waystation.archive")
        self._writer, self._reader = (
            SqliteFile(
                file,
                name="archive",
                fail=fail,
                migrations=migrations,
                busy_seconds=busy_seconds,
            )
            for _ in range(2)
        )

    async def open(self) -> None:
        await self._writer.open()
        await self._reader.open()

    async def close(self) -> None:
        await self._writer.close()
        await self._reader.close()

    async def ping(self) -> None:
        await self._reader.query("SELECT 1")

    async def identity(self) -> str:
        rows = await self._reader.query("SELECT name FROM identity")
        return str(rows[0][0])

    async def upsert(self, states: Sequence[ArchivedState]) -> Upserted:
        return await write_batch(states, self._upsert)

    async def get(self, ids: Sequence[str]) -> dict[str, ArchivedState]:
        found, fit = {}, [each for each in ids if is_fit(each)]
        for first in range(0, len(fit), _IDS_MAX):
            some = tuple(fit[first : first + _IDS_MAX])
            places = ", ".join("?" * len(some))
            for row in await self._reader.query(f"{_STATES} ({places})", some):
                found[row[0]] = state_of(row)
        return found

    async def find(self, owner: str, external_id: str) -> ArchivedFacts | None:
        if not is_fit(owner + external_id):
            return None
        rows = await self._reader.query(
            f"{_FACTS} WHERE owner = ? AND external_id = ? AND external_id <> ''"
            " ORDER BY started_ms DESC, id DESC LIMIT 1",
            (owner, external_id),
        )
        return facts_of(rows[0]) if rows else None

    async def page(
        self,
        owner: str,
        statuses: Sequence[str],
        *,
        pipeline: str = "",
        since_ms: int = 0,
        before: Mark | None = None,
        limit: int,
    ) -> list[ArchivedFacts]:
        if not statuses:
            return []
        mark = before or _LAST
        values: list[object] = []
        for status in statuses:
            values += owner, status, since_ms, *mark, pipeline, pipeline, limit
        ranges = " UNION ALL ".join([_RANGE] * len(statuses))
        sql = f"{ranges} ORDER BY updated_ms DESC, id DESC LIMIT ?"
        return [facts_of(row) for row in await self._reader.query(sql, (*values, limit))]

    async def counts(self, owner: str | None = None) -> dict[str, int]:
        rows = await self._reader.query(
            "SELECT status, count(*) FROM state WHERE ? IS NULL OR owner = ? GROUP BY status",
            (owner, owner),
        )
        return dict(rows)

    async def oldest_completed(self) -> int:
        return int((await self._reader.query(_OLDEST))[0][0])

    async def delete_completed(self, *, before_ms: int, most: int) -> int:
        return await self._writer.write((_DELETE, (before_ms, most)))

    async def _upsert(self, states: Sequence[ArchivedState]) -> int:
        rows = [msgspec.structs.astuple(state) for state in states]
        try:
            return await self._writer.change(lambda file: file.executemany(_UPSERT, rows).rowcount)
        except (sqlite3.IntegrityError, sqlite3.DataError) as error:
            raise PoisonedError(str(error)) from error
