"""Crashes of cluster nodes: calls, leases, wake-ups and a server continue."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.helpers.clusters import RealCluster, real_cluster
from tests.helpers.store_faults import store_at
from tests.store.test_pubsub import pubsub_at, settled, woken
from waystation.config import StoreConfig
from waystation.errors import OutcomeUnknownError, StoreError, StoreUnavailableError
from waystation.store.client import Store
from waystation.store.leases import LeaseRenewer, Leases
from waystation.store.scripts import script
from waystation.testing.station import quick_settings, serving

ACQUIRE = script("waystation.store", "lease_acquire")


@pytest.fixture
def cluster() -> Iterator[RealCluster]:
    with real_cluster(replicas=1) as cluster:
        yield cluster


async def next_problem(store: Store) -> str:
    """Ping the store until it fails. Return the error."""
    async with asyncio.timeout(20):
        while True:
            try:
                await store.ping()
            except StoreError as error:
                return str(error)
            await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_failover_to_replica_continues_calls_leases_and_wake_ups(
    cluster: RealCluster,
) -> None:
    dying, replica = cluster.primaries[0], cluster.replicas[0]
    name, lease_key = cluster.key_of(dying, "value"), cluster.key_of(dying, "lease")
    async with store_at(cluster.address, call_seconds_max=20) as store:
        renewer = LeaseRenewer(store.address)
        async with pubsub_at(store.address) as ours:
            leases = Leases(store, renewer, owner="me", lease_ms=20_000)
            lease = await leases.acquire(lease_key)
            assert lease is not None
            await store.call("SET", name, "kept")
            # Durability `memory` guarantees only data that the replica has.
            await asyncio.to_thread(
                cluster.wait, lambda: replica.ask("DBSIZE") == dying.ask("DBSIZE")
            )

            # The primary crashes while calls are in flight.
            dying.kill()
            waiting = [store.call("GET", name, repeatable=True) for _ in range(20)]
            elsewhere = cluster.key_of(cluster.primaries[1], "other")
            assert await store.call("SET", elsewhere, 1) == b"OK"

            # The calls get their replies from the new primary.
            assert await asyncio.gather(*waiting) == [b"kept"] * 20
            assert store.address.cluster is not None
            assert replica.address in store.address.cluster.primaries().values()
            assert await leases.acquire(lease_key) == lease
            until = await store.call("HGET", lease_key, "until_ms", repeatable=True)
            async with asyncio.timeout(10):
                while await store.call("HGET", lease_key, "until_ms", repeatable=True) == until:
                    renewer.renew_soon()
                    await asyncio.sleep(0.02)
            assert not lease.lost
            with ours.waiting(b"{topic}") as waiter:
                await settled(waiter)
                await store.call("PUBLISH", b"{topic}", "new")
                assert await woken(waiter)

            # The old primary restarts as a replica. The client does not use it.
            await asyncio.to_thread(dying.start)
            await asyncio.to_thread(cluster.wait, cluster.settled)
            assert await store.run(ACQUIRE, [cluster.key_of(dying, "new")], ["me", 1000]) == [1]
        renewer.close()


async def test_node_without_replica_is_used_after_its_restart(cluster: RealCluster) -> None:
    dying = cluster.primaries[1]
    name = cluster.key_of(dying, "value")
    async with store_at(cluster.address, call_seconds_max=20) as store:
        await store.call("RPUSH", name, 0)
        # The node crashes with a call in flight that is not repeatable.
        dying.ask("CLIENT", "PAUSE", 60_000, "ALL")
        lost = store.call("RPUSH", name, 1)
        repeated = store.call("LLEN", name, repeatable=True)
        while "2 sent" not in repr(store):
            await asyncio.sleep(0)
        dying.kill()
        with pytest.raises(OutcomeUnknownError):
            await lost
        # A ping fails as soon as the other nodes have noticed the crash.
        problem = await next_problem(store)
        assert "does not serve all" in problem
        await asyncio.to_thread(dying.start)
        assert await repeated == 1
        assert await store.call("RPUSH", name, 2) == 2
        await asyncio.to_thread(cluster.wait, cluster.settled)
        await store.ping()


async def connected(store: Store) -> None:
    """Wait for a connection to each node. A busy machine needs more time than one call has."""
    async with asyncio.timeout(20):
        while True:
            with suppress(StoreUnavailableError):
                await store.call_each("PING")
                return


async def test_call_to_unavailable_node_ends_within_its_deadline(
    cluster: RealCluster,
) -> None:
    dying = cluster.primaries[2]
    async with store_at(cluster.address, call_seconds_max=0.5) as store:
        await connected(store)
        dying.kill()
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises((StoreUnavailableError, OutcomeUnknownError)):
            await store.call("SET", cluster.key_of(dying), 1, repeatable=True)
        with pytest.raises(StoreUnavailableError):
            await store.call("SET", cluster.key_of(dying), 1)
        assert loop.time() - began < 5


async def test_pubsub_after_crash_of_its_node_subscribes_at_another(
    cluster: RealCluster,
) -> None:
    async with store_at(cluster.address) as store:
        await store.ping()
        async with pubsub_at(store.address) as ours:
            with ours.waiting(b"{topic}") as waiter:
                await settled(waiter)
                at = next(node for node in cluster.nodes if node.address == ours._node)
                at.kill()
                # The new subscription wakes the waiter, and so does a publish on it.
                assert await woken(waiter)
                waiter.clear()
                alive = next(node for node in cluster.nodes if node is not at)
                await asyncio.to_thread(alive.ask, "PUBLISH", "{topic}", "new")
                assert await woken(waiter)


async def test_pubsub_at_node_that_left_the_cluster_moves_to_another(
    cluster: RealCluster,
) -> None:
    # The node still answers pings but receives no messages of the cluster.
    replica = cluster.replicas[0]
    async with store_at(cluster.address) as store:
        await store.ping()
        assert store.address.cluster is not None
        async with pubsub_at(replica.address.clustered()) as ours:
            with ours.waiting(b"{topic}") as waiter:
                await settled(waiter)
                assert ours.address.cluster is not None
                rows = await store.call("CLUSTER", "SLOTS")
                ours.address.cluster.learn([row[:3] for row in rows], cluster.primaries[0].address)
                waiter.clear()
                await asyncio.wait_for(waiter.wait(20), 20)
                assert ours._node != replica.address


@pytest.mark.slow
async def test_server_on_cluster_serves_after_crash_of_a_node(
    cluster: RealCluster, tmp_path: Path
) -> None:
    store = StoreConfig(url=cluster.url, durability="memory", call_seconds_max=15.0)
    async with serving(quick_settings(str(tmp_path), store=store)) as running:
        channels = running.node.channels
        names = [f"orders{n}" for n in range(12)]
        for name in names:
            await channels.subscribe("default", name, "me")
            await channels.publish("default", name, "m-1", b"1")
        replica, dying = cluster.replicas[0], cluster.primaries[0]
        await asyncio.to_thread(cluster.wait, lambda: replica.ask("DBSIZE") == dying.ask("DBSIZE"))
        dying.kill()
        await asyncio.gather(*(channels.publish("default", name, "m-2", b"2") for name in names))
        for name in names:
            fetched = await channels.fetch("default", name, "me", limit=10)
            assert [each.id for each in fetched.messages] == ["m-1", "m-2"]
        await running.node.opened.store.ping()
