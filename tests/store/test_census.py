"""The census: who is there is counted, who stops or falls silent is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.kit.topic_client import BATCH
from tests.kit.wire import async_ask
from tests.proxy import Fate, proxy_to
from waystation.config import StoreConfig
from waystation.runtime.clock import Clock
from waystation.store import keys, writer
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.membership import Census
from waystation.testing import private_server, serving
from waystation.testing.station import Serving, quick_settings
from waystation.topics.model import RateLimit, TopicOptions


class QuickClock(Clock):
    """Beats come a hundred times as often."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 100)


class Counted:
    """A process that is counted, and what it was told last."""

    def __init__(self, store: Store, name: str) -> None:
        self.count = 0
        self.census = Census(store, clock=QuickClock(), process=name, on_count=self._hear)

    def _hear(self, count: int) -> None:
        self.count = count

    async def hears(self, count: int) -> None:
        async with asyncio.timeout(10):
            while self.count != count:
                await asyncio.sleep(0.002)


async def test_every_process_is_counted_until_it_stops_or_falls_silent(
    store_server: EmbeddedServer,
) -> None:
    store = Store(store_server.address)
    await store.call("FLUSHALL")
    one, two = Counted(store, "one"), Counted(store, "two")
    await one.census.start()
    assert one.count == 1
    await two.census.start()
    assert two.count == 2, "at once, for whoever comes"
    await one.hears(2)
    # One that was killed: the last that it said is long ago.
    await store.call("ZADD", keys.PROCESSES, "1", "killed")
    await one.census.close()
    await two.hears(1)
    await two.census.close()
    assert await store.call("EXISTS", keys.PROCESSES) == 0
    await store.close()


async def test_while_the_store_is_away_the_last_count_stays() -> None:
    with private_server() as server:
        async with proxy_to(server.address) as proxy:
            store, direct = Store(proxy.address, call_seconds_max=0.2), Store(server.address)
            one = Counted(store, "one")
            await direct.call("ZADD", keys.PROCESSES, "9" * 13, "other")
            await one.census.start()
            assert one.count == 2
            await proxy.set_fates(requests=Fate.CUT)
            proxy.cut()
            await asyncio.sleep(0.3)
            assert one.count == 2
            await direct.call("ZREM", keys.PROCESSES, "other")
            await proxy.set_fates()
            await one.hears(1)
            await one.census.close()
            await store.close()
            await direct.close()


async def test_a_store_that_is_busy_or_full_does_not_end_the_census(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with private_server() as server:
        store, direct = Store(server.address), Store(server.address)
        one = Counted(store, "one")
        await one.census.start()
        # Given that no call is taken for a while
        monkeypatch.setattr(writer, "CALLS_MAX", 0)
        await asyncio.sleep(0.1)
        assert one.count == 1
        monkeypatch.undo()
        # And that the store takes no more data
        await direct.call("CONFIG", "SET", "maxmemory", "1")
        two = Counted(direct, "two")
        await two.census.start()
        # Then all are counted again
        assert two.count == 2
        await one.hears(2)
        await one.census.close()
        await two.census.close()
        await store.close()
        await direct.close()


@asynccontextmanager
async def two_stations(folder: Path) -> AsyncIterator[tuple[Serving, Serving]]:
    """On one store and one catalogue."""
    with private_server(cluster=False) as server:
        store = StoreConfig(durability="memory", url=f"unix://{server.address.path}")
        settings = quick_settings(str(folder), store=store)
        async with serving(settings) as first, serving(settings) as second:
            yield first, second


@pytest.mark.slow
async def test_two_stations_share_the_limit_of_a_topic(tmp_path: Path) -> None:
    async with two_stations(tmp_path) as (first, second):
        options = TopicOptions(rate=RateLimit(mode="enforced", qps=50))
        await first.node.topics.create("default", "orders", options=options)
        path, batch = "/v1/topics/orders/messages", b'{"messages": [{}, {}]}'
        for station in (second, first):
            async with asyncio.timeout(10):
                while True:
                    answer = await async_ask(
                        station.url, "POST", path, batch, {"Content-Type": BATCH}
                    )
                    if answer.header("ratelimit-policy") == '"messages";q=25;w=1':
                        break
