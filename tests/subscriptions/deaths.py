"""Verbs of subscriptions that die at every call to the store; then upkeep comes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from tests.subscriptions.subscription_bench import PROJECT, SubscriptionBench, bench_on
from waystation.catalogue import SqliteCatalogue
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.testing.crash_points import CrashPoint, crash_points

Verb = Callable[[SubscriptionBench], Awaitable[object]]
Check = Callable[[SubscriptionBench], Awaitable[None]]


class Deaths:
    """A verb that dies at every call to the store, on a topic with messages; then upkeep comes."""

    def __init__(self, folder: Path, server: EmbeddedServer) -> None:
        self._file = folder / "catalogue.db"
        self._server = server

    def run(
        self, verb: Verb, check: Check, *, subscribed: bool = True, before: Verb | None = None
    ) -> None:
        """Checks what is there after each death, once upkeep has passed.

        Before it there is a subscription, or none; and what `before` does.
        """

        async def prepare(store: Store) -> None:
            for file in self._file.parent.glob("catalogue.db*"):
                file.unlink()
            async with self._bench(store) as bench:
                await bench.topics.create(PROJECT, "orders", partitions=3)
                await bench.produce(9)
                if subscribed:
                    await bench.create(shards=2)
                    await bench.produce(9, first=9)
                if before is not None:
                    await before(bench)

        async def scenario(store: Store) -> None:
            async with self._bench(store) as bench:
                await verb(bench)

        async def after(store: Store, _: CrashPoint) -> None:
            async with self._bench(store) as bench:
                await nothing_can_be_lost(bench)
                await bench.upkeep.mend()
                await check(bench)
                found = await everything(bench)
                await bench.upkeep.mend()
                assert await everything(bench) == found, "a second pass has nothing to do"

        points = crash_points(self._server.address, scenario, after, prepare=prepare)
        assert len(points) >= 9

    @asynccontextmanager
    async def _bench(self, store: Store) -> AsyncIterator[SubscriptionBench]:
        catalogue = SqliteCatalogue(self._file)
        await catalogue.open()
        try:
            yield bench_on(catalogue, store)
        finally:
            await catalogue.close()


async def everything(bench: SubscriptionBench) -> dict[str, object]:
    """All that the store has of subscriptions and holds."""
    found: dict[str, object] = {}
    for key in await bench.keys("{s*"):
        kind = (await bench.store.call("TYPE", key)).decode()
        found[key] = await bench.store.call("HGETALL", key) if kind == "hash" else kind
    for key in await bench.keys("*:log:holds"):
        found[key] = await bench.store.call("HGETALL", key)
    return found


async def nothing_can_be_lost(bench: SubscriptionBench) -> None:
    """Whatever died: what a shard has not read yet is held."""
    row = await bench.subscriptions._definitions.read_row(PROJECT, "crm")
    if row is not None:
        holds = await bench.holds(await bench.topics.get(PROJECT, "orders"))
        for at, position in (await bench.positions(row)).items():
            assert holds[at] <= position, f"{at} is read from {position} on, held from {holds[at]}"
