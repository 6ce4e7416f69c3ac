"""What tests of definitions share: a bench of catalogue, store and pools, as one process has it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from waystation.catalogue import SqliteCatalogue
from waystation.config import PoolConfig
from waystation.pools import Pool, PoolOptions, Pools
from waystation.pools.held import Enqueued, Letter, Nack, Session, Taken
from waystation.pools.upkeep import PoolUpkeep
from waystation.runtime.clock import Clock
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.pubsub import PubSub

PROJECT = "default"
NAME = "agents"


@dataclass
class PoolBench:
    """One process's view of all pools."""

    catalogue: SqliteCatalogue
    store: Store
    pools: Pools
    upkeep: PoolUpkeep
    calls: int = 0
    sessions: dict[str, Session] = field(default_factory=dict)

    def fresh(self, word: str = "t") -> str:
        """A name that was not used yet, by any bench."""
        self.calls += 1
        return f"{word}-{id(self):x}-{self.calls}"

    async def create(self, name: str = NAME, **options: Any) -> Pool:
        """A pool."""
        return await self.pools.create(PROJECT, name, PoolOptions(**options))

    async def send(self, *keys: str, name: str = NAME) -> list[Enqueued]:
        """A message to each key."""
        letters = [Letter(self.fresh("m"), key, key.encode()) for key in keys]
        return await self.pools.enqueue(PROJECT, name, letters)

    async def register(self, pool: Pool, uid: str) -> None:
        """A worker comes."""
        terms = self.pools.terms(pool)
        self.sessions[uid] = await self.pools.members.register(
            pool.place, terms, uid, nonce=self.fresh("n")
        )

    async def take(self, pool: Pool, uid: str) -> list[Taken]:
        """What a worker is given."""
        takings = await self.pools.mail.take(
            pool.place,
            self.pools.terms(pool),
            self.sessions[uid],
            token=self.fresh(),
            most=100,
            bytes_max=10**6,
            lease_ms=pool.lease_ms,
        )
        return takings.items

    async def kill(self, pool: Pool, uid: str, *keys: str) -> list[int]:
        """Dead letters, one of each key; their numbers."""
        await self.send(*keys)
        taken = await self.take(pool, uid)
        nacks = [Nack(taken=each, verdict="dead", cause="no use") for each in taken]
        terms = self.pools.terms(pool)
        await self.pools.mail.nack(pool.place, terms, self.sessions[uid], nacks)
        return sorted(each.number for each in taken)

    async def everything(self) -> dict[str, Any]:
        """All that the store has of pools, but for ids that are remembered."""
        found: dict[str, Any] = {}
        for key in await self.store.call("KEYS", "{p*"):
            name = key.decode()
            if ":id:" in name:
                continue
            match (await self.store.call("TYPE", key)).decode():
                case "hash":
                    pairs = await self.store.call("HGETALL", key)
                    found[name] = dict(zip(pairs[::2], pairs[1::2], strict=True))
                case "list":
                    found[name] = await self.store.call("LRANGE", key, 0, -1)
                case _:
                    found[name] = await self.store.call("ZRANGE", key, 0, -1)
        return found


def bench_on(catalogue: SqliteCatalogue, store: Store, wakeups: PubSub) -> PoolBench:
    """All parts on a catalogue and a store that are open."""
    clock = Clock()
    pools = Pools(catalogue, store, wakeups, clock=clock, settings=PoolConfig())
    return PoolBench(catalogue, store, pools, PoolUpkeep(pools, clock=clock, sweep_seconds=1.0))


@asynccontextmanager
async def open_bench(
    server: EmbeddedServer, folder: Path, *, empty: bool = True, store: Store | None = None
) -> AsyncIterator[PoolBench]:
    """A bench on an empty store, or one more beside it, as another process would have it."""
    catalogue = SqliteCatalogue(folder / "catalogue.db")
    await catalogue.open()
    ours = store or Store(server.address)
    bench = bench_on(catalogue, ours, PubSub(server.address))
    try:
        if empty:
            await ours.call("FLUSHALL")
        yield bench
    finally:
        await bench.upkeep.stop()
        # Most tests never start it, and others would see its gauges.
        bench.upkeep.rest()
        await bench.pools.close()
        if store is None:
            await ours.close()
        await catalogue.close()
