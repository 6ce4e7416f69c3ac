"""An archive of hashes in memory, for tests that choose what happens between two scripts.

It keeps to the archive's first rule, only a higher version applies; what is on it can be looked at.
Everything that needs no such choice is tested with real archives.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.helpers.postgres import PostgresServer
from tests.transactions.helpers import (
    ARCHIVE_MS,
    CELL,
    LOAD_MS,
    TERMS,
    TransactionStore,
    open_transactions,
)
from waystation.archive import Archive, ArchivedState, archive_at, split_hash
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.scripts import script
from waystation.transactions import names
from waystation.transactions.archiver import ArchivePace, Archiver
from waystation.transactions.archiving import ArchiveTurn, Confirmed, Given
from waystation.transactions.head import Head, parse
from waystation.transactions.loader import Loader
from waystation.transactions.progress import Finish, Sleep
from waystation.transactions.restoring import Loaded, LoadMode, Missing, Restoration, Restoring
from waystation.transactions.signals import Signals
from waystation.transactions.states import Status

NODE = "node-a"
DAY_MS = 86_400_000
_GET = script("waystation.transactions", "get")


class Shelf:
    """Rows by id; also who loads them for `Signals`."""

    def __init__(self, tx: TransactionStore) -> None:
        self.tx = tx
        self.rows: dict[str, dict[bytes, bytes]] = {}
        #: What was asked for, call by call.
        self.brought: list[tuple[str, ...]] = []

    def head(self, transaction_id: str) -> Head:
        """The head of a row."""
        return parse(self.rows[transaction_id][b"head"])

    def keep(self, items: Iterable[Given]) -> None:
        """Keeps what is newer than what is there."""
        for each in items:
            version = parse(each.fields[b"head"]).version
            if each.id not in self.rows or version > self.head(each.id).version:
                self.rows[each.id] = each.fields

    def found(self, missing: Iterable[Missing]) -> list[Restoration]:
        """What is on the shelf for each."""
        return [Restoration(each, self.rows.get(each.id)) for each in missing]

    async def bring(
        self, owner: str, missing: Sequence[Missing], *, mode: LoadMode = ""
    ) -> dict[str, Loaded]:
        """Loads and restores."""
        self.brought.append(tuple(each.id for each in missing))
        outcomes = await self.tx.restoring.restore(CELL, self.found(missing), mode=mode)
        return {each.id: Loaded(done) for each, done in zip(missing, outcomes, strict=True)}

    async def archive(self, *, node: str = NODE) -> ArchiveTurn:
        """All that is due goes onto the shelf, and is confirmed."""
        await self.tx.archiving.turn(CELL, node=node, most=0, flight="leave")
        turn = await self.tx.archiving.turn(CELL, node=node, most=100)
        assert turn.role == "archiver", turn
        self.keep(turn.items)
        done = confirms(turn)
        return await self.tx.archiving.turn(CELL, node=node, most=0, confirmed=done)

    async def sleeper(self, *, delay_ms: int = DAY_MS, switch: str = "", **fields: object) -> str:
        """One that sleeps, and is on the shelf alone."""
        held = await self.tx.running(**fields)
        sleep = Sleep(held=held, state=b"asleep", delay_ms=delay_ms, switch=switch)
        await self.tx.progress.sleep(CELL, [sleep])
        await self.tx.machine.advance(ARCHIVE_MS / 1000 + 1)
        await self.archive()
        assert await self.tx.store.call("EXISTS", names.state(held.id)) == 0
        return held.id


async def miss(tx: TransactionStore, *ids: str) -> list[Missing]:
    """What is told to somebody who wants what is not in the store."""
    words: list[str | int] = ["", 0, 0, "load", *ids]
    replies = await tx.store.run(_GET, [names.log(CELL)], words)
    return [Missing(each, reply[0].decode()) for each, reply in zip(ids, replies, strict=True)]


async def nonces(tx: TransactionStore) -> dict[str, str]:
    """All load nonces of the cell, by id."""
    found = {}
    for key in await tx.store.call("KEYS", f"{names.tag(CELL)}loadH:*"):
        flat = await tx.store.call("HGETALL", key)
        for each, nonce in zip(flat[::2], flat[1::2], strict=True):
            found[each.decode()] = nonce.decode()
    return found


def confirms(turn: ArchiveTurn) -> list[Confirmed]:
    """A confirm for all that a turn has given out."""
    return [Confirmed(each.id, version_of(each), turn.now_ms) for each in turn.items]


def version_of(given: Given) -> int:
    """The version that was read."""
    return parse(given.fields[b"head"]).version


def row_with(given: Given) -> ArchivedState:
    """A row as an archive gives it back; its facts are of no account here."""
    packed, fields = split_hash(given.fields)
    return ArchivedState(
        id=given.id,
        owner="default",
        external_id="",
        pipeline="p",
        status="sleeping",
        step="",
        version=version_of(given),
        wake_ms=0,
        deadline_ms=0,
        started_ms=0,
        updated_ms=0,
        completed_ms=0,
        packed=packed,
        fields=fields,
    )


QUICK = ArchivePace(batch=1000, pause_ms=0, idle_ms=10)
DATABASES = ("sqlite", "postgres")


def archive_url(request: pytest.FixtureRequest, database: str) -> str:
    """Of an empty database; '' is the file."""
    if database == "sqlite":
        return ""
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.url(server.empty_database())


@dataclass
class Movers:
    """A store and an archive, and all that goes between them."""

    tx: TransactionStore
    archive: Archive
    loader: Loader
    #: They load what is missing.
    signals: Signals
    archivers: list[Archiver] = field(default_factory=list)

    def archiver(
        self,
        node: str = "node-a",
        *,
        pace: Callable[[], ArchivePace] = lambda: QUICK,
        archive: Archive | None = None,
        start: bool = True,
    ) -> Archiver:
        """One more archiver, which works unless told otherwise."""
        made = Archiver(
            self.tx.archiving,
            archive or self.archive,
            node=node,
            cells=1,
            pace=pace,
            clock=self.tx.clock,
        )
        if start:
            made.start()
            self.archivers.append(made)
        return made

    async def sleepers(
        self, count: int, *, delay_ms: int = DAY_MS, state: bytes = b"asleep", **fields: object
    ) -> list[str]:
        """So many that sleep, in the store as yet."""
        ids: list[str] = []
        while len(ids) < count:
            some = min(100, count - len(ids))
            new = [self.tx.new(**fields) for _ in range(some)]
            started = await self.tx.entry.start(CELL, new)
            assert {each.outcome for each in started} == {"started"}
            claimed = await self.tx.claim(some)
            moves = [Sleep(held=each.held, state=state, delay_ms=delay_ms) for each in claimed]
            await self.tx.progress.sleep(CELL, moves)
            ids += [each.id for each in claimed]
        return ids

    async def complete(self, **fields: object) -> str:
        """One that has ended."""
        held = await self.tx.running(**fields)
        end = Finish(held=held, state=b"end", status=Status.SUCCESS, output=b"1")
        await self.tx.progress.finish(CELL, [end])
        return held.id

    async def due(self) -> None:
        """Time passes until all that is scheduled by now is to be archived."""
        await self.tx.machine.advance(ARCHIVE_MS / 1000 + 1)

    async def scheduled(self) -> list[str]:
        """Ids that are to be archived, the first first."""
        key = names.sorted_set(CELL, "toArchiveZ")
        return [each.decode() for each in await self.tx.store.call("ZRANGE", key, 0, -1)]

    async def cached(self, ids: Sequence[str]) -> list[str]:
        """Those that are in the store."""
        commands = [("EXISTS", names.state(each)) for each in ids]
        replies = await self.tx.store.pipeline(commands, repeatable=True)
        return [each for each, there in zip(ids, replies, strict=True) if there]

    async def drained(self, *, but: int = 0, seconds: float = 20.0) -> None:
        """Waits until all but so many are archived and confirmed."""
        async with asyncio.timeout(seconds):
            while len(await self.scheduled()) > but:
                await asyncio.sleep(0.005)

    async def asleep_in_the_archive(self, count: int, **fields: object) -> list[str]:
        """So many that sleep, and are in the archive alone."""
        ids = await self.sleepers(count, **fields)  # type: ignore[arg-type]
        await self.due()
        archiver = self.archiver()
        await self.drained()
        await archiver.stop(grace_seconds=1.0)
        assert await self.cached(ids) == []
        return ids


@asynccontextmanager
async def open_movers(
    server: EmbeddedServer, folder: Path, url: str = "", *, store: Store | None = None
) -> AsyncIterator[Movers]:
    """Opens an empty store of one cell, and an archive."""
    archive = archive_at(url, folder=folder)
    await archive.open()
    try:
        async with open_transactions(server, store=store) as tx:
            restoring = Restoring(tx.store, TERMS)
            loader = Loader(restoring, archive, load_ms=LOAD_MS, clock=tx.clock)
            movers = Movers(tx, archive, loader, Signals(tx.store, TERMS, loader))
            try:
                yield movers
            finally:
                for each in movers.archivers:
                    await each.stop(grace_seconds=1.0)
                await loader.stop()
    finally:
        await archive.close()
