"""Load of archiving and waking: our archiver beside the bare statements, and what it leaves behind.

Whoever is compared writes the same rows, a thousand in a transaction, into the same schema of the
same database; and everything is on disk when it is counted.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from waystation.archive import Archive
from waystation.archive.columns import ASSIGNMENTS, COLUMNS, TYPES
from waystation.runtime.clock import Clock
from waystation.store.client import Store
from waystation.store.pubsub import PubSub
from waystation.transactions import names
from waystation.transactions.archive_row import row_of
from waystation.transactions.cells import BATCH_MAX
from waystation.transactions.count_slots import CountSlots
from waystation.transactions.holding import Holding
from waystation.transactions.limits import Limits
from waystation.transactions.loader import Loader
from waystation.transactions.restoring import Restoring
from waystation.transactions.signals import Signals
from waystation.transactions.timekeeper import Timekeeper
from waystation_bench.benchmark import BenchmarkError
from waystation_bench.log_load import used_bytes
from waystation_bench.report import Sample
from waystation_bench.sleepers import ROWS, TERMS, Sleepers, opened_archive, opened_sleepers
from waystation_bench.target import Target, Window

_Rows = Sequence[tuple[Any, ...]]
_ALL = ", ".join(COLUMNS)
_MERGE = f" ON CONFLICT (id) DO UPDATE SET {ASSIGNMENTS} WHERE excluded.version > state.version"
_SQLITE_UPSERT = f"INSERT INTO state ({_ALL}) VALUES ({', '.join('?' * len(COLUMNS))}){_MERGE}"  # noqa: S608
_PG_COPY = f"COPY pg_temp.incoming ({_ALL}) FROM STDIN (FORMAT BINARY)"
_PG_UPSERT = f"INSERT INTO state ({_ALL}) SELECT {_ALL} FROM pg_temp.incoming{_MERGE}"  # noqa: S608
_PG_TYPES = [{str: "text", int: "int8", bytes: "bytea"}[each] for each in TYPES]


async def archive_ours(target: Target, amount: list[Any]) -> Sample:
    """One operation = one state that has left the store, confirmed; the last one included."""
    count, url = amount
    async with opened_sleepers(target) as sleepers, opened_archive(url) as (archive, _):
        await _forget(archive, url)
        await sleepers.fill(count)
        window = Window(target, os.getpid())
        async with sleepers.archiver(archive):
            await sleepers.until(sleepers.unarchived, 0)
            sample = window.close(count)
        await _verify(sleepers, archive, count)
        return sample


async def archive_bare(target: Target, amount: list[Any]) -> Sample:
    """The same rows by the database's own means: COPY and upsert, or executemany."""
    count, url = amount
    async with opened_sleepers(target) as sleepers, opened_archive(url) as (archive, folder):
        await _forget(archive, url)
        await sleepers.fill(count)
        rows = await _rows(sleepers)
        # It blocks the loop, on which nothing else runs: that is what makes it the limit.
        sample = _pg_bare(target, url, rows) if url else _sqlite_bare(target, folder, rows)
        if sum((await archive.counts()).values()) != count:
            raise BenchmarkError("Not all rows are there.")
        return sample


async def archive_weigh(target: Target, amount: list[int]) -> Sample:
    """What the store needs for one that sleeps and is archived; the record log has a bound."""
    count, external = amount
    async with opened_sleepers(target) as sleepers, opened_archive() as (archive, _):
        before = await _bytes_without_log(sleepers.store)
        await sleepers.fill(count, external=bool(external))
        window = Window(target, os.getpid())
        async with sleepers.archiver(archive):
            await sleepers.until(sleepers.unarchived, 0)
            sample = window.close(count)
        await _verify(sleepers, archive, count)
        grown = await _bytes_without_log(sleepers.store) - before
    return msgspec.structs.replace(sample, figures={"sleeper_bytes": grown / count})


async def wake_archived(target: Target, count: int) -> Sample:
    """One operation = one that was archived, was due, and is queued. All are due at once."""
    wakeups, clock = PubSub(target.store_address), Clock()
    async with opened_sleepers(target) as sleepers, opened_archive() as (archive, _):
        store = sleepers.store
        await sleepers.fill(count, delay_ms=1)
        async with sleepers.archiver(archive):
            await sleepers.until(sleepers.unarchived, 0)
        await _verify(sleepers, archive, count)
        loader = Loader(Restoring(store, TERMS), archive, load_ms=TERMS.load_ms, clock=clock)
        timekeeper = Timekeeper(
            Signals(store, TERMS, loader),
            Holding(store, TERMS),
            CountSlots(store),
            wakeups,
            clock=clock,
            cells=1,
            limits=Limits(),
            loader=loader,
        )
        await wakeups.start()
        window = Window(target, os.getpid())
        timekeeper.start()
        try:
            await sleepers.until(lambda: _queued(store), count)
            return window.close(count)
        finally:
            await timekeeper.stop()
            await loader.stop()
            await wakeups.stop()


JOBS: dict[str, Callable[[Target, Any], Awaitable[Sample]]] = {
    "archive_bare": archive_bare,
    "archive_ours": archive_ours,
    "archive_weigh": archive_weigh,
    "wake_archived": wake_archived,
}


async def _forget(archive: Archive, url: str) -> None:
    """Every round begins with no rows; sleepers are not deleted by their age."""
    if url:
        import psycopg  # noqa: PLC0415 (an extra)

        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            await connection.execute("TRUNCATE waystation_archive.state")
    if await archive.counts():
        raise BenchmarkError("The archive is not empty.")


async def _rows(sleepers: Sleepers) -> _Rows:
    """The rows of all that is to be archived."""
    rows, store = list[tuple[Any, ...]](), sleepers.store
    ids = await store.call("ZRANGE", names.sorted_set(0, "toArchiveZ"), 0, -1)
    for first in range(0, len(ids), BATCH_MAX):
        page = [each.decode() for each in ids[first : first + BATCH_MAX]]
        found = await asyncio.gather(*(store.call("HGETALL", names.state(each)) for each in page))
        for each, flat in zip(page, found, strict=True):
            fields = dict(zip(flat[::2], flat[1::2], strict=True))
            rows.append(msgspec.structs.astuple(row_of(each, fields)))
    return rows


def _sqlite_bare(target: Target, folder: Path, rows: _Rows) -> Sample:
    connection = sqlite3.connect(folder / "archive.db", isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        window = Window(target, os.getpid())
        for first in range(0, len(rows), ROWS):
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(_SQLITE_UPSERT, rows[first : first + ROWS])
            connection.execute("COMMIT")
        return window.close(len(rows))
    finally:
        connection.close()


def _pg_bare(target: Target, url: str, rows: _Rows) -> Sample:
    import psycopg  # noqa: PLC0415 (an extra)

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET search_path TO waystation_archive")
        connection.execute("CREATE TEMPORARY TABLE incoming (LIKE state) ON COMMIT DELETE ROWS")
        window = Window(target, os.getpid())
        for first in range(0, len(rows), ROWS):
            with connection.transaction(), connection.cursor() as cursor:
                with cursor.copy(_PG_COPY.encode()) as copy:
                    copy.set_types(_PG_TYPES)
                    for row in rows[first : first + ROWS]:
                        copy.write_row(row)
                cursor.execute(_PG_UPSERT.encode())
        return window.close(len(rows))


async def _verify(sleepers: Sleepers, archive: Archive, count: int) -> None:
    """All rows are there, no state is, and everybody has a time to wake."""
    rows = sum((await archive.counts()).values())
    asleep = await sleepers.count("sleepingZ")
    cursor, states = b"0", 0
    while True:
        cursor, keys = await sleepers.store.call(
            "SCAN", cursor, "MATCH", f"{names.tag(0)}stateH:*", "COUNT", 10_000
        )
        states += len(keys)
        if cursor == b"0":
            break
    if (rows, asleep, states) != (count, count, 0):
        raise BenchmarkError(
            f"Of {count}, {rows} are archived, {asleep} asleep, and {states} in the store."
        )


async def _queued(store: Store) -> int:
    return int(await store.call("LLEN", names.queue_in(0, "master")))


async def _bytes_without_log(store: Store) -> int:
    """Memory of the store, the record log left out, once what was let go of is free."""
    while b"lazyfree_pending_objects:0" not in await store.call("INFO", "memory"):
        await asyncio.sleep(0.01)
    log = await store.call("MEMORY", "USAGE", names.log(0), "SAMPLES", 0)
    return await used_bytes(store) - int(log or 0)
