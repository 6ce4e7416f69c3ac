"""Slot migration in a cluster: calls, scripts and leases follow, and scripts stay atomic."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, cast

import pytest

from tests.helpers.clusters import Node, RealCluster, real_cluster, refusals
from tests.helpers.records import register_reader
from tests.helpers.store_faults import store_at
from waystation.channels import keys as channel_keys
from waystation.channels.model import encode_handle
from waystation.channels.service import ChannelService
from waystation.config import ChannelConfig
from waystation.errors import (
    StoreUnavailableError,
)
from waystation.logs.records import RecordLogs, log_key, record_log, unpack_entry
from waystation.logs.streams import StreamLogs
from waystation.runtime.clock import Clock
from waystation.store.leases import LeaseRenewer, Leases
from waystation.store.pubsub import PubSub
from waystation.store.scripts import script
from waystation.store.slots import slot_of

ACQUIRE = script("waystation.store", "lease_acquire")
RENEW = script("waystation.store", "lease_renew")


@pytest.fixture(scope="module")
def cluster() -> Iterator[RealCluster]:
    with real_cluster() as cluster:
        yield cluster


async def refused_again(node: Node) -> None:
    """Wait until the node has refused four more calls."""
    before = refusals(node)
    async with asyncio.timeout(10):
        while refusals(node) < before + 4:
            await asyncio.sleep(0.02)


async def test_call_to_moved_slot_runs_once_on_its_new_node(cluster: RealCluster) -> None:
    source, target = cluster.primaries[:2]
    name = cluster.key_of(source, "moved")
    slot = slot_of(name)
    async with store_at(cluster.address) as store:
        await store.call("SET", name, 1)
        cluster.move(slot, source, target)
        try:
            # The calls are not repeatable. A call with the reply MOVED did not run.
            replies = await asyncio.gather(*(store.call("INCR", name) for _ in range(50)))
            assert sorted(replies) == list(range(2, 52))
            assert await store.run(ACQUIRE, [name.replace("x", "lease")], ["me", 1000]) == [1]
            before = refusals(*cluster.primaries, kind="MOVED")
            assert before > 0
            await store.call("INCR", name)
            assert refusals(*cluster.primaries, kind="MOVED") == before
            assert store.address.cluster is not None
            assert store.address.cluster.node_of(slot) == target.address
            async with asyncio.timeout(10):
                # The client reads the whole slot map after a MOVED reply.
                while store.address.cluster.primaries()[0] != source.address:
                    await asyncio.sleep(0.01)
        finally:
            cluster.move(slot, target, source)


async def test_call_to_moving_slot_reaches_source_and_target(cluster: RealCluster) -> None:
    source, target = cluster.primaries[1:]
    name = cluster.key_of(source, "asked")
    here, there, fresh = (name.replace("x", each) for each in ("here", "there", "new"))
    slot = slot_of(name)
    async with store_at(cluster.address) as store:
        await store.call("SET", there, "there")
        cluster.begin_move(slot, source, target)
        cluster.move_keys(slot, source, target)
        try:
            # The target has one key, while the slot map names the source.
            assert await store.call("GET", there) == b"there"
            replies = await asyncio.gather(*(store.call("INCR", fresh) for _ in range(20)))
            assert sorted(replies) == list(range(1, 21))
            assert await store.call("GET", here) is None
            assert source.ask("CLUSTER", "COUNTKEYSINSLOT", slot) == 0
            assert target.ask("CLUSTER", "COUNTKEYSINSLOT", slot) == 2
        finally:
            cluster.end_move(slot, target)
            cluster.move(slot, target, source)


async def test_script_in_moving_slot_waits_and_runs_atomically(
    cluster: RealCluster,
) -> None:
    # The source and the target each have some keys of the script, some of them undeclared.
    source, target = cluster.primaries[:2]
    number = next(n for n in range(99) if cluster.home(f"c.{{moving{n}}}.clock") is source)
    channel = f"moving{number}"
    slot = slot_of(channel_keys.channel_tag("default", channel))
    async with store_at(cluster.address) as store:
        channels = ChannelService(
            store, PubSub(store.address), clock=Clock(), settings=ChannelConfig()
        )
        await channels.subscribe("default", channel, "me")
        for n in range(10):
            await channels.publish("default", channel, f"m-{n}", b"1")
        # Move the slot in three steps: the target has no key, then some keys, then all keys.
        cluster.begin_move(slot, source, target)
        calls = []
        for most in (0, 12, 1000):
            cluster.move_keys(slot, source, target, most=most)
            calls += [
                asyncio.create_task(channels.publish("default", channel, f"late-{most}", b"1")),
                asyncio.create_task(channels.fetch("default", channel, "me", limit=64)),
            ]
            await refused_again(source)
            assert not any(call.done() for call in calls)
        assert target.ask("CLUSTER", "COUNTKEYSINSLOT", slot) == 22
        cluster.end_move(slot, target)
        try:
            # All calls run, and no call sees part of another one's writes.
            await asyncio.gather(*calls)
            fetched = await channels.fetch("default", channel, "me", limit=64)
            ids = [each.id for each in fetched.messages]
            assert ids[:10] == [f"m-{n}" for n in range(10)]
            assert sorted(ids[10:]) == ["late-0", "late-1000", "late-12"]
            for call in calls[1::2]:
                assert [each.id for each in call.result().messages][:10] == ids[:10]
        finally:
            cluster.move(slot, target, source)


async def test_script_sent_to_moving_slot_stops_in_its_middle(cluster: RealCluster) -> None:
    """Show that the client must check the slot before it sends a script."""
    source, target = cluster.primaries[:2]
    name = cluster.key_of(source, "halves")
    halves = "#!lua\nredis.call('INCR', KEYS[1])\nreturn redis.call('SET', KEYS[1] .. '.new', '1')"
    cluster.begin_move(slot_of(name), source, target)
    try:
        source.ask("CLUSTER", "SETSLOT", slot_of(name), "STABLE")
        source.ask("SET", name, 1)
        source.ask("CLUSTER", "SETSLOT", slot_of(name), "MIGRATING", target.id)
        with pytest.raises(Exception, match="non local key"):
            source.ask("EVAL", halves, 1, name)
        assert source.ask("GET", name) == "2"
    finally:
        cluster.move_keys(slot_of(name), source, target)
        cluster.end_move(slot_of(name), target)
        cluster.move(slot_of(name), target, source)


async def test_script_in_slot_that_moves_beyond_the_deadline_raises_unavailable(
    cluster: RealCluster,
) -> None:
    source, target = cluster.primaries[:2]
    name = cluster.key_of(source, "long")
    cluster.begin_move(slot_of(name), source, target)
    try:
        async with store_at(cluster.address, call_seconds_max=0.3) as store:
            with pytest.raises(StoreUnavailableError, match="ASK"):
                await store.run(ACQUIRE, [name], ["me", 1000])
            # Scripts in other slots do not wait.
            other = cluster.key_of(source, "quick")
            assert await store.run(ACQUIRE, [other], ["me", 1000]) == [1]
    finally:
        cluster.end_move(slot_of(name), target)
        assert target.ask("EXISTS", name) == 0
        cluster.move(slot_of(name), target, source)


async def test_atomic_slot_migration_under_load_loses_no_call(cluster: RealCluster) -> None:
    # Valkey 9 moves a slot in one step, so no call has to wait for its keys.
    source, target = cluster.primaries[:2]
    name = cluster.key_of(source, "whole")
    slot = slot_of(name)
    ends = asyncio.Event()
    count = 0
    async with store_at(cluster.address) as store:

        async def load() -> None:
            nonlocal count
            while not ends.is_set():
                await store.call("INCR", name)
                count += 1

        loads = [asyncio.create_task(load()) for _ in range(8)]
        for giver, taker in ((source, target), (target, source)):
            order = ("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", taker.id)
            await asyncio.to_thread(giver.ask, *order)
            has = ("CLUSTER", "COUNTKEYSINSLOT", slot)
            await asyncio.to_thread(
                cluster.wait,
                lambda taker=taker, has=has: taker.ask(*has) == 1 and _owns(taker, slot),
            )
        ends.set()
        await asyncio.gather(*loads)
        assert await store.call("GET", name) == str(count).encode()
        assert count > 8
    cluster.wait(cluster.settled)


def _owns(node: Node, slot: int) -> bool:
    rows = cast(list[Any], node.ask("CLUSTER", "SLOTS"))
    return any(low <= slot <= high and at[1] == node.port for low, high, at, *_ in rows)


async def test_lease_renewer_on_cluster_renews_leases_of_all_nodes_and_moved_slots(
    cluster: RealCluster,
) -> None:
    source, target = cluster.primaries[:2]
    names = [cluster.key_of(node, "lease") for node in cluster.primaries]
    renewer = LeaseRenewer(cluster.address)
    async with store_at(cluster.address) as store:
        leases = Leases(store, renewer, owner="me", lease_ms=30_000)
        acquired = [await leases.acquire(name) for name in names]
        assert all(acquired)

        async def renewed(*which: int) -> None:
            """Wait until the leases with these indexes were renewed after this call."""
            now = renewer.now()
            async with asyncio.timeout(10):
                while any(each.asked_at < now for n, each in enumerate(acquired) if n in which):  # type: ignore[union-attr]
                    renewer.renew_soon()
                    await asyncio.sleep(0.02)

        await renewed(0, 1, 2)
        slot = slot_of(names[0])
        cluster.begin_move(slot, source, target)
        cluster.move_keys(slot, source, target)
        try:
            # The renewal of a lease does not follow ASK. Leases on other nodes are renewed.
            await renewed(1, 2)
        finally:
            cluster.end_move(slot, target)
        await renewed(0, 1, 2)
        assert not any(each.lost for each in acquired)  # type: ignore[union-attr]
        cluster.move(slot, target, source)
    renewer.close()


async def test_events_of_channels_are_recorded_in_slots_of_channels(cluster: RealCluster) -> None:
    async with store_at(cluster.address) as store:
        await register_reader(store)
        async with RecordLogs(store, StreamLogs(store), clock=Clock()) as records:
            channels = ChannelService(
                store,
                PubSub(store.address),
                clock=Clock(),
                settings=ChannelConfig(),
                records=records,
            )
            names = [f"recorded{number}" for number in range(6)]
            for name in names:
                await channels.subscribe("default", name, "me")
                await channels.publish("default", name, "m-1", b"1")
                await channels.publish_many("default", name, [("m-2", b"2")])
                assert await channels.ack("default", name, "me", encode_handle(name, "me", 1))
                await channels.seek("default", name, "me", "end")

        for name in names:
            tag = channel_keys.channel_tag("default", name)
            log = record_log("channels", tag, cluster=True)
            assert slot_of(log_key(log)) == slot_of(tag)
            words = [
                facts.partition(" ")[0]
                for _, fields in await store.call("XRANGE", log_key(log), "-", "+")
                for facts, _ in unpack_entry(fields[1]).events
            ]
            assert words == ["published", "published", "acknowledged", "sought"]
