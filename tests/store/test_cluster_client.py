"""Store client on a cluster of three nodes: calls, moved slots, opening, and slots of keys."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, cast

import pytest

from tests.helpers.clusters import Node, RealCluster, real_cluster, refusals
from tests.helpers.records import register_reader
from tests.helpers.store_faults import plain_server, store_at
from tests.store.test_pubsub import pubsub_at, settled, woken
from waystation.channels import keys as channel_keys
from waystation.channels.model import encode_handle
from waystation.channels.service import ChannelService
from waystation.config import ChannelConfig, Config, StoreConfig
from waystation.errors import (
    InvalidInputError,
    SettingsError,
    StoreRefusedError,
    StoreReplyError,
    StoreUnavailableError,
)
from waystation.logs.records import RecordLogs, log_key, record_log, unpack_entry
from waystation.logs.streams import StreamLogs
from waystation.runtime.clock import Clock
from waystation.runtime.ids import RandomIds
from waystation.runtime.metrics import registry
from waystation.store.address import Address
from waystation.store.client import Store
from waystation.store.connection import pack
from waystation.store.keys import key_beside
from waystation.store.leases import LeaseRenewer, Leases
from waystation.store.opening import open_store, stamp_dataset
from waystation.store.pubsub import PubSub
from waystation.store.scripts import script
from waystation.store.slots import SLOTS, slot_of, slot_of_command

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
        # One write per node, and a few more by other tests' servers in this process.
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


# -- Slot migration in a cluster -------------------------------------------------------------


RENEW = script("waystation.store", "lease_renew")


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
        await stamp_dataset(store, RandomIds())
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


# -- Opening of a cluster --------------------------------------------------------------------


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


# -- Slots -----------------------------------------------------------------------------------


def test_slot_of_key_is_that_of_the_server(cluster: RealCluster) -> None:
    names = ["", "a", "{a}b", "{}a", "{a", "}a{", "a{b}{c}", "{{a}}b", "ä{ö}ü", "x" * 3000]
    for name in names:
        assert (
            slot_of(name)
            == slot_of(name.encode())
            == cluster.primaries[0].ask("CLUSTER", "KEYSLOT", name)
        ), name


@pytest.mark.parametrize(
    ("command", "key"),
    [
        (("GET", "a"), "a"),
        (("get", "a"), "a"),
        (("EVALSHA", "0" * 40, 2, "a", "b", "x"), "a"),
        (("EVAL", "return 1\r\n", 1, "{a\r\n}"), "{a\r\n}"),
        (("EVAL", "return 1", 0), None),
        (("MEMORY", "USAGE", "a"), "a"),
        (("PUBLISH", "topic", "a"), "topic"),
        (("UNLINK", "{a}1", "{a}2"), "{a}1"),
        (("PING",), None),
        (("CONFIG", "GET", "a"), None),
        (("SCAN", 0, "MATCH", "a"), None),
    ],
)
def test_slot_of_command_is_that_of_its_first_key(
    command: tuple[str | int, ...], key: str | None
) -> None:
    assert slot_of_command(pack(command)) == (None if key is None else slot_of(key))


@pytest.mark.parametrize("name", ["a", "a b", "a{b", "{t}a", "a{t}b", "{t}{u}", "{{t}", "a{t}}"])
def test_key_beside_returns_key_in_slot_of_given_key(name: str) -> None:
    beside = key_beside(name, "taken")
    assert slot_of(beside) == slot_of(name)
    assert beside != name


@pytest.mark.parametrize("name", ["a}", "{}a", "}a{b", "a{}b{c}"])
def test_key_beside_name_with_closing_brace_and_no_hash_tag_raises(name: str) -> None:
    with pytest.raises(ValueError, match="closing brace"):
        key_beside(name, "taken")


def test_key_beside_name_without_tag_keeps_its_known_form() -> None:
    assert key_beside("acapy_outbound", "taken") == "{acapy_outbound}.taken"
