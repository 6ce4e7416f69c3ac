"""A few connections to a PostgreSQL database, which outlive its restarts.

Connections are made when needed and kept. One that the server has closed while it was idle is seen
before it is used, and one that broke is not used again: the next call connects at once. A call has
an end, also if the server does not answer at all. What the content of a statement is to blame for
is raised as psycopg says it; all else is trouble of the database. No text has the password.
"""

from __future__ import annotations

import asyncio
import re
import select
import zlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, LiteralString, TypeVar

import psycopg
from psycopg import AsyncConnection, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus

from waystation.database.migrations import Migrations
from waystation.database.trouble import Fail, Trouble
from waystation.errors import SettingsError

_T = TypeVar("_T")

Connection = AsyncConnection[tuple[Any, ...]]
#: Bytes are for what was put together from names of our own.
Sql = LiteralString | bytes
Work = Callable[[Connection], Awaitable[_T]]

_CONNECTIONS_MAX = 4
#: Unless the URL says otherwise.
_DEFAULTS: dict[str, Any] = {"connect_timeout": 5, "application_name": "waystation"}
#: What a server that does answer gets beyond the time that it was told, to say so itself.
_ANSWER_SECONDS = 2.0
#: A migration may have to build an index over all there is.
_MIGRATION_SECONDS_MAX = 600.0
#: How long a process waits for another one's migrations.
_MIGRATION_LOCK = "60s"
#: SQLSTATE classes of what was asked for: data, constraints, limits, and what triggers raise.
_OF_CONTENT = ("21", "22", "23", "54", "P0")
_DISK_FULL = "53100"

#: What a connection is told first. A commit that is not on disk is none, whatever the server's
#: default says; one that waits for a replica too stays so.
_SET_UP = """
SELECT set_config('search_path', %(schema)s, false),
  set_config('client_min_messages', 'warning', false),
  set_config('statement_timeout', %(limit)s, false),
  set_config('idle_in_transaction_session_timeout', %(limit)s, false),
  set_config('synchronous_commit', CASE current_setting('synchronous_commit')
    WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, false)
"""


class Postgres:
    """A database, or rather one schema of it; all of its methods may be called from any task."""

    def __init__(
        self,
        url: str,
        *,
        name: str,
        fail: Fail,
        migrations: Migrations,
        call_seconds_max: float,
        connections_max: int = _CONNECTIONS_MAX,
    ) -> None:
        self._facts = _facts(name, url)
        self._name = f"The {name} {self._facts.get('dbname', '')}@{_host(self._facts)}"
        self._schema = f"waystation_{name}"
        self._fail = fail
        self._migrations = migrations
        self._call_seconds_max = call_seconds_max
        self._slots = asyncio.Semaphore(connections_max)
        self._idle: list[Connection] = []
        #: Calls under way, and those that were given up and are still being cancelled.
        self._calls: set[asyncio.Task[Any]] = set()
        self._opened = False
        self._closed = False

    async def open(self) -> None:
        """Connects and brings the schema up to date, one process at a time."""
        await self._within(_MIGRATION_SECONDS_MAX, self._with_connection(self._migrate))
        self._opened = True

    async def close(self) -> None:
        """Ends all calls and connections."""
        self._closed = True
        for task in self._calls:
            task.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        while self._idle:
            await self._idle.pop().close()

    async def do(self, work: Work[_T]) -> _T:
        """Does the work on a connection, each statement a transaction unless it begins one."""
        if not (self._opened or self._closed):
            raise self._fail(Trouble.AWAY, f"{self._name} is not open.")
        seconds = self._call_seconds_max + _ANSWER_SECONDS
        return await self._within(seconds, self._with_connection(work))

    async def query(self, statement: Sql, values: Any = ()) -> list[tuple[Any, ...]]:
        """All rows of a statement that only reads."""

        async def query(connection: Connection) -> list[tuple[Any, ...]]:
            return await (await connection.execute(statement, values)).fetchall()

        return await self.do(query)

    async def write(self, *statements: tuple[Sql, Any]) -> int:
        """Statements in one transaction; how many rows the first one changed."""

        async def write(connection: Connection) -> int:
            async with connection.transaction():
                changed = [(await connection.execute(*each)).rowcount for each in statements]
            return changed[0]

        return await self.do(write)

    # -- Calls ---------------------------------------------------------------------------------

    async def _within(self, seconds: float, call: Coroutine[Any, Any, _T]) -> _T:
        """A call that does not end in time is given up, without waiting for its cancelling."""
        if self._closed:
            call.close()
            raise self._fail(Trouble.AWAY, f"{self._name} is closed.")
        task = asyncio.ensure_future(call)
        self._calls.add(task)
        task.add_done_callback(self._forget)
        try:
            done, _ = await asyncio.wait([task], timeout=seconds)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not done:
            task.cancel()
            raise self._fail(Trouble.AWAY, f"{self._name} does not answer.")
        try:
            return task.result()
        except asyncio.CancelledError:
            raise self._fail(Trouble.AWAY, f"{self._name} is closed.") from None
        except psycopg.Error as error:
            if (trouble := _trouble(error)) is None:
                raise
            # Not `from error`: a log would then tell what psycopg has beside the first line.
            raise self._fail(trouble, f"{self._name}: {self._told(error)}.") from None
        except OSError as error:
            raise self._fail(Trouble.AWAY, f"{self._name}: {error}.") from error

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._calls.discard(task)
        if not task.cancelled():
            # Of a call that was given up nobody asks: the event loop must not log what it said.
            task.exception()

    async def _with_connection(self, work: Work[_T]) -> _T:
        async with self._slots:
            connection = await self._connected()
            try:
                return await work(connection)
            finally:
                # Whoever was cancelled, or died in a transaction, leaves nothing for another.
                idle = connection.pgconn.transaction_status == TransactionStatus.IDLE
                if idle and not self._closed:
                    self._idle.append(connection)
                else:
                    await connection.close()

    async def _connected(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if _is_quiet(connection):
                return connection
            await connection.close()
        # No prepared statements: a pooler in between would not know them.
        connection = await AsyncConnection.connect(
            make_conninfo("", **(_DEFAULTS | self._facts)), autocommit=True, prepare_threshold=None
        )
        try:
            limit = str(round(self._call_seconds_max * 1000))
            await connection.execute(_SET_UP, {"schema": self._schema, "limit": limit})
        except BaseException:
            await connection.close()
            raise
        return connection

    def _told(self, error: psycopg.Error) -> str:
        """What is wrong, without the password, whoever repeats it."""
        text, password = first_line(error), self._facts.get("password")
        return text.replace(str(password), "•••") if password else text

    # -- Schema --------------------------------------------------------------------------------

    async def _migrate(self, connection: Connection) -> None:
        newest = self._migrations[-1][0]
        schema = sql.Identifier(self._schema)
        async with connection.transaction():
            await connection.execute(
                "SELECT set_config('statement_timeout', '0', true),"
                " set_config('lock_timeout', %s, true)",
                [_MIGRATION_LOCK],
            )
            lock = zlib.crc32(self._schema.encode())
            await connection.execute("SELECT pg_advisory_xact_lock(%s)", [lock])
            known = await connection.execute("SELECT to_regnamespace(%s)", [self._schema])
            if await known.fetchone() == (None,):
                # Only then: it needs a right that the role of a prepared schema may lack.
                await connection.execute(sql.SQL("CREATE SCHEMA {}").format(schema))
            await connection.execute(
                "CREATE TABLE IF NOT EXISTS migration (version integer PRIMARY KEY,"
                " applied timestamptz NOT NULL DEFAULT now())"
            )
            found = await connection.execute("SELECT coalesce(max(version), 0) FROM migration")
            version = (await found.fetchall())[0][0]
            if version > newest:
                text = f"{self._name} has schema {version}; this release knows {newest}."
                raise self._fail(Trouble.NEWER, text)
            for number, statements in self._migrations:
                if number > version:
                    await connection.execute(statements.encode())
                    await connection.execute("INSERT INTO migration VALUES (%s)", [number])


def _is_of_content(error: psycopg.Error) -> bool:
    """Whether what was asked for is to blame, and not the database."""
    # What psycopg itself cannot send has no SQLSTATE.
    refused_here = error.sqlstate is None and isinstance(error, psycopg.DataError)
    return refused_here or (error.sqlstate or "").startswith(_OF_CONTENT)


def first_line(error: psycopg.Error) -> str:
    """What the database says is wrong; not what it says more, which may tell the row."""
    lines = (error.diag.message_primary or str(error)).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def _trouble(error: psycopg.Error) -> Trouble | None:
    if _is_of_content(error):
        return None
    return Trouble.FULL if error.sqlstate == _DISK_FULL else Trouble.AWAY


def _facts(name: str, url: str) -> dict[str, Any]:
    """The parts of a URL. What is wrong with one is not told: it may be a part of the password."""
    try:
        facts = conninfo_to_dict(url)
    except psycopg.Error:
        facts = {"port": "?"}
    # A password with a `/` or `@` that is not a %-code ends up in these two.
    if "@" in str(facts.get("host")) or not re.fullmatch("[0-9,]*", str(facts.get("port", ""))):
        raise SettingsError(
            f"Setting {name} is no URL that PostgreSQL understands.",
            hint="Write postgresql://user:password@host/database, with %-codes where needed.",
        )
    return facts


def _host(facts: dict[str, Any]) -> str:
    host = facts.get("host") or "local"
    return f"{host}:{facts['port']}" if "port" in facts else str(host)


def _is_quiet(connection: Connection) -> bool:
    """Whether the server has said nothing since: all it could have to say is farewell."""
    if connection.closed:
        return False
    poll = select.poll()
    poll.register(connection.pgconn.socket, select.POLLIN)
    return not poll.poll(0)
