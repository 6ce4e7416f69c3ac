"""Opening of a cluster: its URL, checks of every node, and wake-ups from every node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.clusters import RealCluster, real_cluster
from tests.helpers.store_faults import plain_server, store_at
from tests.store.test_pubsub import pubsub_at, settled, woken
from waystation.config import Config, StoreConfig
from waystation.errors import (
    SettingsError,
    StoreRefusedError,
    StoreUnavailableError,
)
from waystation.runtime.clock import Clock
from waystation.store.opening import open_store


@pytest.fixture(scope="module")
def cluster() -> Iterator[RealCluster]:
    with real_cluster() as cluster:
        yield cluster


async def test_pubsub_receives_wake_ups_published_at_any_node(cluster: RealCluster) -> None:
    async with store_at(cluster.address) as store, pubsub_at(store.address) as ours:
        topics = [cluster.key_of(node, "topic").encode() for node in cluster.primaries]
        for topic in topics:
            with ours.waiting(topic) as waiter:
                await settled(waiter)
                await store.call("PUBLISH", topic, "new")
                assert await woken(waiter)


async def test_open_store_of_cluster_checks_every_node(cluster: RealCluster) -> None:
    wanted = StoreConfig(url=cluster.url, durability="memory")
    opened = await open_store(Config(store=wanted), clock=Clock())
    await opened.store.ping()
    await opened.close()
    strict = cluster.primaries[2]
    strict.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(StoreRefusedError, match="allkeys-lru"):
            await open_store(Config(store=wanted), clock=Clock())
    finally:
        strict.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")


async def test_open_store_of_cluster_node_by_plain_url_is_refused(cluster: RealCluster) -> None:
    alone = StoreConfig(url=f"redis://127.0.0.1:{cluster.primaries[0].port}", durability="memory")
    with pytest.raises(StoreRefusedError, match=r"redis\+cluster://"):
        await open_store(Config(store=alone), clock=Clock())


async def test_cluster_client_of_plain_server_raises_unavailable() -> None:
    with plain_server() as server:
        async with store_at(server.address.clustered(), call_seconds_max=0.5) as store:
            with pytest.raises(StoreUnavailableError, match="cluster support disabled"):
                await store.ping()


async def test_open_store_by_url_with_embedded_options_is_refused() -> None:
    for option in ({"cluster": True}, {"port": 6379}):
        wanted = StoreConfig(url="redis://127.0.0.1:1", **option)  # type: ignore[arg-type]
        with pytest.raises(SettingsError, match="embedded store"):
            await open_store(Config(store=wanted), clock=Clock())
