"""The archive in PostgreSQL, shared by all nodes of an installation.

A batch goes by COPY into a temporary table, and from there over the rows that are there, in one
transaction.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import psycopg

from waystation.archive.batch import PoisonedError, is_fit, write_batch
from waystation.archive.columns import ASSIGNMENTS, COLUMNS, FACTS, TYPES, facts_of, state_of
from waystation.archive.protocol import ArchivedFacts, ArchivedState, Mark, Upserted
from waystation.archive.trouble import fail
from waystation.database import read_migrations
from waystation.database.postgres import Connection, Postgres, first_line

_CALL_SECONDS_MAX = 30.0
_TYPE_NAMES = {str: "text", int: "int8", bytes: "bytea"}
_COPY_TYPES = [_TYPE_NAMES[each] for each in TYPES]
_ALL = ", ".join(COLUMNS)

#: Made once per session; a session that a pooler lends us may not have it yet.
_INCOMING = (
    b"CREATE TEMPORARY TABLE IF NOT EXISTS incoming"
    b" (LIKE state INCLUDING DEFAULTS) ON COMMIT DELETE ROWS"
)
_COPY = f"COPY pg_temp.incoming ({_ALL}) FROM STDIN (FORMAT BINARY)".encode()
#: In the order of ids, as every other who writes the same: nobody waits in a circle.
_MERGE = (
    f"INSERT INTO state ({_ALL}) SELECT {_ALL} FROM pg_temp.incoming ORDER BY id"  # noqa: S608
    f" ON CONFLICT (id) DO UPDATE SET {ASSIGNMENTS} WHERE excluded.version > state.version"
).encode()
_STATES = f"SELECT {_ALL} FROM state WHERE id = ANY(%s)".encode()  # noqa: S608
_FACTS = f"SELECT {', '.join(FACTS)} FROM state".encode()  # noqa: S608
_FIND = _FACTS + (
    b" WHERE owner = %s AND external_id = %s AND external_id <> ''"
    b" ORDER BY started_ms DESC, id DESC LIMIT 1"
)
#: Of one status: what is asked for of several is put together from such ranges of one index.
_RANGE = (
    (b"SELECT * FROM (" + _FACTS)
    + b" WHERE owner = %(owner)s AND status = %(status)s AND updated_ms >= %(since)s"
    b" AND (updated_ms, id) < (%(updated)s, %(id)s)"
    b" AND (%(pipeline)s = '' OR pipeline = %(pipeline)s)"
    b" ORDER BY updated_ms DESC, id DESC LIMIT %(limit)s) AS range"
)
_COUNTS = (
    b"SELECT status, count(*) FROM state"
    b" WHERE %(owner)s::text IS NULL OR owner = %(owner)s GROUP BY status"
)
_OLDEST = b"SELECT coalesce(min(completed_ms), 0) FROM state WHERE completed_ms > 0"
#: The condition twice: a row may have changed since it was chosen.
_DELETE = (
    b"DELETE FROM state WHERE id = ANY(ARRAY(SELECT id FROM state"
    b" WHERE completed_ms > 0 AND completed_ms < %(before)s ORDER BY completed_ms LIMIT %(most)s))"
    b" AND completed_ms > 0 AND completed_ms < %(before)s"
)
#: Behind all that there can be.
_LAST = Mark(2**63 - 1, "")


class PostgresArchive:
    """An `Archive` in a database server."""

    def __init__(self, url: str, *, call_seconds_max: float = _CALL_SECONDS_MAX) -> None:
        self._database = Postgres(
            url,
            name="archive",
            fail=fail,
            migrations=read_migrations("waystation.archive", "postgres"),
            call_seconds_max=call_seconds_max,
        )

    async def open(self) -> None:
        await self._database.open()

    async def close(self) -> None:
        await self._database.close()

    async def ping(self) -> None:
        await self._database.query("SELECT 1")

    async def identity(self) -> str:
        rows = await self._database.query("SELECT name FROM identity")
        return str(rows[0][0])

    async def upsert(self, states: Sequence[ArchivedState]) -> Upserted:
        return await write_batch(states, self._upsert)

    async def get(self, ids: Sequence[str]) -> dict[str, ArchivedState]:
        fit = [each for each in ids if is_fit(each)]
        rows = await self._database.query(_STATES, (fit,)) if fit else []
        return {row[0]: state_of(row) for row in rows}

    async def find(self, owner: str, external_id: str) -> ArchivedFacts | None:
        if not is_fit(owner + external_id):
            return None
        rows = await self._database.query(_FIND, (owner, external_id))
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
        values: dict[str, object] = {"owner": owner, "pipeline": pipeline, "limit": limit}
        values |= {"since": since_ms, "updated": mark.updated_ms, "id": mark.id}
        ranges = []
        for number, status in enumerate(statuses):
            values[f"status{number}"] = status
            ranges.append(_RANGE.replace(b"%(status)s", b"%%(status%d)s" % number))
        statement = b" UNION ALL ".join(ranges)
        statement += b" ORDER BY updated_ms DESC, id DESC LIMIT %(limit)s"
        return [facts_of(row) for row in await self._database.query(statement, values)]

    async def counts(self, owner: str | None = None) -> dict[str, int]:
        return dict(await self._database.query(_COUNTS, {"owner": owner}))

    async def oldest_completed(self) -> int:
        return int((await self._database.query(_OLDEST))[0][0])

    async def delete_completed(self, *, before_ms: int, most: int) -> int:
        return await self._database.write((_DELETE, {"before": before_ms, "most": most}))

    async def _upsert(self, states: Sequence[ArchivedState]) -> int:
        async def upsert(connection: Connection) -> int:
            async with connection.transaction(), connection.cursor() as cursor:
                await cursor.execute(_INCOMING)
                async with cursor.copy(_COPY) as copy:
                    copy.set_types(_COPY_TYPES)
                    for state in states:
                        await copy.write_row(msgspec.structs.astuple(state))
                await cursor.execute(_MERGE)
                return cursor.rowcount

        try:
            return await self._database.do(upsert)
        except psycopg.Error as error:
            # Not `from error`: it knows the row, which is nobody's to read in a log.
            raise PoisonedError(first_line(error)) from None
