"""What moves states between a real store and a real archive, opened for one test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.kit.postgres import PostgresServer
from tests.kit.transaction_store import (
    ARCHIVE_MS,
    CELL,
    LOAD_MS,
    TERMS,
    TransactionStore,
    open_transactions,
)
from waystation.archive import Archive, archive_at
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.transactions import names
from waystation.transactions.archiver import ArchivePace, Archiver
from waystation.transactions.loader import Loader
from waystation.transactions.progress import Finish, Sleep
from waystation.transactions.restoring import Restoring
from waystation.transactions.signals import Signals
from waystation.transactions.states import Status

DAY_MS = 86_400_000
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
