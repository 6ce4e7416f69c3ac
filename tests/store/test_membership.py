"""Membership: registered processes are counted until they stop or have not registered in time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.helpers.http import async_ask
from tests.helpers.server import BATCH
from tests.helpers.store_faults import Fate, proxy_to
from waystation.config import StoreConfig
from waystation.runtime.clock import Clock
from waystation.store import connection, keys, membership
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.membership import Membership
from waystation.testing import private_server, serving
from waystation.testing.station import Serving, quick_settings
from waystation.types.topic import RateLimit, TopicOptions


@pytest.fixture
def quick_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "BEAT_S", 0.02)


class Member(Membership):
    """A member that stores the last number of members that was reported to it."""

    def __init__(self, store: Store, name: str) -> None:
        self.count = 0
        super().__init__(store, keys.PROCESSES, name, on_change=self._set_count, clock=Clock())

    def _set_count(self, count: int) -> None:
        self.count = count

    async def counts(self, count: int) -> None:
        async with asyncio.timeout(10):
            while self.count != count:
                await asyncio.sleep(0.002)


@pytest.mark.usefixtures("quick_beats")
async def test_membership_counts_processes_until_they_stop_or_are_silent(
    store_server: EmbeddedServer,
) -> None:
    store = Store(store_server.address)
    await store.call("FLUSHALL")
    one, two = Member(store, "one"), Member(store, "two")
    await one.start()
    assert one.count == 1
    await two.start()
    assert two.count == 2, "counted before start returns"
    await one.counts(2)
    # A killed process: its last beat is long ago.
    await store.call("ZADD", keys.PROCESSES, "1", "killed")
    await one.stop()
    await two.counts(1)
    await two.stop()
    assert await store.call("EXISTS", keys.PROCESSES) == 0
    await store.close()


@pytest.mark.usefixtures("quick_beats")
async def test_membership_keeps_last_count_while_store_is_unavailable() -> None:
    with private_server() as server:
        async with proxy_to(server.address) as proxy:
            store, direct = Store(proxy.address, call_seconds_max=0.2), Store(server.address)
            one = Member(store, "one")
            await direct.call("ZADD", keys.PROCESSES, "9" * 13, "other")
            await one.start()
            assert one.count == 2
            await proxy.set_fates(requests=Fate.CUT)
            proxy.cut()
            await asyncio.sleep(0.3)
            assert one.count == 2
            await direct.call("ZREM", keys.PROCESSES, "other")
            await proxy.set_fates()
            await one.counts(1)
            await one.stop()
            await store.close()
            await direct.close()


@pytest.mark.usefixtures("quick_beats")
async def test_membership_continues_after_busy_client_and_full_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with private_server() as server:
        store, direct = Store(server.address), Store(server.address)
        one = Member(store, "one")
        await one.start()
        # Given that the client refuses all calls for a while
        with monkeypatch.context() as patch:
            patch.setattr(connection, "CALLS_MAX", 0)
            await asyncio.sleep(0.1)
            assert one.count == 1
        # And given that the store accepts no more data
        await direct.call("CONFIG", "SET", "maxmemory", "1")
        two = Member(direct, "two")
        await two.start()
        # Then all members are counted again
        assert two.count == 2
        await one.counts(2)
        await one.stop()
        await two.stop()
        await store.close()
        await direct.close()


async def test_membership_starts_and_stops_on_silent_store() -> None:
    with private_server() as server:
        async with proxy_to(server.address) as proxy:
            store = Store(proxy.address, call_seconds_max=0.2)
            await proxy.set_fates(requests=Fate.HOLD)
            member = Member(store, "one")
            await member.start()
            assert member.count == 0
            async with asyncio.timeout(1.5):
                await member.stop()
            await store.close()


@asynccontextmanager
async def two_stations(folder: Path) -> AsyncIterator[tuple[Serving, Serving]]:
    """Run two servers on one store and one database."""
    with private_server(cluster=False) as server:
        store = StoreConfig(durability="memory", url=f"unix://{server.address.path}")
        settings = quick_settings(str(folder), store=store)
        async with serving(settings) as first, serving(settings) as second:
            yield first, second


@pytest.mark.slow
async def test_rate_limit_of_topic_is_shared_by_two_nodes(tmp_path: Path) -> None:
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
