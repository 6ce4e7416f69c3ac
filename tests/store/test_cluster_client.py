"""Store client on a cluster of three nodes: shared writes, seeds, scripts, errors, scans."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.helpers.clusters import RealCluster, real_cluster, refusals
from tests.helpers.store_faults import store_at
from waystation.errors import (
    InvalidInputError,
    StoreReplyError,
    StoreUnavailableError,
)
from waystation.runtime.metrics import registry
from waystation.store.address import Address
from waystation.store.client import Store
from waystation.store.scripts import script
from waystation.store.slots import SLOTS

ACQUIRE = script("waystation.store", "lease_acquire")


@pytest.fixture(scope="module")
def cluster() -> Iterator[RealCluster]:
    with real_cluster() as cluster:
        yield cluster


async def test_cluster_calls_of_one_turn_share_one_write_per_node(
    cluster: RealCluster,
) -> None:
    async with store_at(cluster.address) as store:
        await store.call_each("PING")
        writes = registry.get_sample_value("waystation_store_writes_total")
        assert writes is not None
        lists = [cluster.key_of(node, "order") for node in cluster.primaries]
        calls = [store.call("RPUSH", lists[n % 3], n) for n in range(300)]
        await asyncio.gather(*calls)
        made = (registry.get_sample_value("waystation_store_writes_total") or 0) - writes
        # At least three, because a server of another test in this process may write too.
        assert 3 <= made < 30
        for first, name in enumerate(lists):
            found = await store.call("LRANGE", name, 0, -1)
            assert found == [str(n).encode() for n in range(first, 300, 3)]


async def test_cluster_client_with_one_seed_finds_all_nodes(cluster: RealCluster) -> None:
    async with store_at(cluster.primaries[2].address.clustered()) as store:
        replies = await store.call_each("PING")
        assert set(replies) == {f"127.0.0.1:{node.port}" for node in cluster.primaries}
        before = refusals(*cluster.primaries, kind="MOVED")
        await store.call("SET", cluster.key_of(cluster.primaries[0], "any"), "1")
        assert refusals(*cluster.primaries, kind="MOVED") == before


async def test_cluster_client_with_unavailable_seed_uses_the_next(cluster: RealCluster) -> None:
    gone = Address(host="127.0.0.1", port=1)
    async with store_at(gone.clustered(cluster.primaries[1].address)) as store:
        await store.ping()


async def test_cluster_script_is_loaded_by_each_node_and_after_flush(
    cluster: RealCluster,
) -> None:
    names = [cluster.key_of(node, "scripts") for node in cluster.primaries]
    async with store_at(cluster.address) as store:
        for name in names:
            assert await store.run(ACQUIRE, [name], ["me", 1000]) == [1]
        found = await store.call_each("SCRIPT", "EXISTS", ACQUIRE.shas[2].decode())
        assert list(found.values()) == [[1]] * 3
        cluster.primaries[1].ask("SCRIPT", "FLUSH")
        for name in names:
            assert await store.run(ACQUIRE, [name], ["me", 1000]) == [1]


async def test_cluster_call_with_error_reply_raises_for_its_caller_only(
    cluster: RealCluster,
) -> None:
    async with store_at(cluster.address) as store:
        with pytest.raises(StoreReplyError, match="CROSSSLOT"):
            await store.call("UNLINK", "a", "b")
        with pytest.raises(StoreReplyError, match="CROSSSLOT"):
            await store.run(ACQUIRE, ["{a}:lease", "{b}:lease"], ["me", 1000])
        await store.ping()


async def test_cluster_scan_returns_keys_of_all_nodes(
    cluster: RealCluster,
) -> None:
    async with store_at(cluster.address) as store:
        wanted = {f"page.{n}".encode() for n in range(2000)}
        await asyncio.gather(*(store.call("SET", name, 1) for name in wanted))
        found, cursor, pages = set(), "", 0
        while cursor != "0":
            cursor, names = await store.scan(cursor or "0", match="page.*", count=100)
            found |= set(names)
            pages += 1
        assert found == wanted
        assert pages > 10
        await store.unlink(list(found))
        assert await store.scan("0", match="page.*", count=100_000) != ("0", list(found))
        assert await store.call("EXISTS", "page.7") == 0
        for bad in ("", "-1", "x", "1" * 25, str(2**64 * SLOTS)):
            with pytest.raises(InvalidInputError):
                await store.scan(bad, match="*", count=1)


async def test_cluster_client_close_ends_calls_that_wait_for_a_node() -> None:
    nobody = Store(Address(host="127.0.0.1", port=1).clustered())
    waiting = asyncio.ensure_future(nobody.ping())
    await asyncio.sleep(0)
    await nobody.close()
    with pytest.raises(StoreUnavailableError, match="closed"):
        await waiting
    with pytest.raises(StoreUnavailableError, match="closed"):
        await nobody.ping()
