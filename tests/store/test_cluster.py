"""Hash tags from the first day: every script runs on a real cluster of one node."""

from __future__ import annotations

import socket
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import PlainServer, plain_server
from tests.stores import store_at
from waystation.catalogue import SqliteCatalogue
from waystation.channel_settings import ChannelRule, WebhookRule
from waystation.channels import Channels
from waystation.channels.handles import encode_handle
from waystation.channels.webhooks import endpoints
from waystation.clock import Clock
from waystation.delivery.addresses import AddressGuard
from waystation.delivery.desk import Desk, Selection
from waystation.delivery.notices import Notice
from waystation.delivery.outbox import Outbox
from waystation.delivery.request import Outcome
from waystation.delivery.schedule import Decision, Verdict
from waystation.delivery.states import EndpointStates
from waystation.envelope import Envelope
from waystation.errors import StoreReplyError
from waystation.ids import RandomIdentity
from waystation.logs.streams import StreamLogs
from waystation.settings import ChannelSettings
from waystation.store import Census, Wakeups, keeper, keys
from waystation.topics import Deduplication, Producer, Receipt, Topics
from waystation.topics.routing import hash_of
from waystation.topics.topic import TopicOptions
from waystation.transactions import names
from waystation.transactions.cells import Terms, open_cells
from waystation.transactions.entry import Entry, NewTransaction
from waystation.transactions.holding import Holding


@pytest.fixture(scope="module")
def cluster() -> Iterator[PlainServer]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        bus = str(probe.getsockname()[1])
    options = ("--cluster-enabled", "yes", "--bind", "127.0.0.1", "--cluster-port", bus)
    with plain_server(*options) as server:
        path = server.address.path
        assert keeper.ask(path, b"CLUSTER ADDSLOTSRANGE 0 16383") == b"+OK\r\n"
        # A primary waits two seconds of its own before it takes writes.
        while b"cluster_state:ok" not in keeper.ask(path, b"CLUSTER INFO"):
            time.sleep(0.02)
        yield server


@pytest.mark.parametrize("project", [keys.DEFAULT_PROJECT, "shop"])
async def test_every_verb_of_a_channel_runs_in_one_slot(cluster: PlainServer, project: str) -> None:
    async with store_at(cluster.address) as store:
        channels = Channels(
            store, Wakeups(store.address), clock=Clock(), settings=ChannelSettings()
        )

        # When every verb is used
        assert await channels.subscribe(project, "orders", "me")
        await channels.publish(project, "orders", "m-1", b"1")
        assert (await channels.publish(project, "orders", "m-1", b"1")).duplicate
        fetched = await channels.fetch(project, "orders", "me", limit=10)
        assert [message.id for message in fetched.messages] == ["m-1"]
        assert fetched.last is not None
        handle = encode_handle("orders", "me", fetched.last)
        assert await channels.ack(project, "orders", "me", handle)
        await channels.publish_many(project, "orders", [("m-1", b"1"), ("m-2", b"2")])
        assert await channels.seek(project, "orders", "me", "beginning", 0) == (0, 2)
        await channels.subscribe(project, "orders", "other")
        assert await channels.unsubscribe(project, "orders", "other")

        # Then all keys of the channel lie in one slot
        tag = keys.channel_tag(project, "orders")
        found = await store.call("KEYS", f"c.{tag}.*")
        assert len(found) == 6
        slots = {await store.call("CLUSTER", "KEYSLOT", key) for key in found}
        assert slots == {await store.call("CLUSTER", "KEYSLOT", keys.channel_topic(tag))}


async def test_two_projects_have_different_channels_of_the_same_name(cluster: PlainServer) -> None:
    async with store_at(cluster.address) as store:
        ours = await store.call("CLUSTER", "KEYSLOT", keys.channel_tag("default", "orders"))
        theirs = await store.call("CLUSTER", "KEYSLOT", keys.channel_tag("shop", "orders"))
        assert ours != theirs


async def test_the_cluster_would_notice_a_script_that_leaves_its_slot(cluster: PlainServer) -> None:
    """The proof that the test above can fail."""
    stray = "#!lua\nreturn redis.call('SET', 'c.{elsewhere}.clock', '1')"
    async with store_at(cluster.address) as store:
        with pytest.raises(StoreReplyError, match=r"(?i)slot|node"):
            await store.call("EVAL", stray, 1, "c.{orders}.clock")


@pytest.mark.parametrize("project", [keys.DEFAULT_PROJECT, "shop"])
async def test_webhooks_go_through_the_outbox_in_the_channel_s_own_slot(
    cluster: PlainServer, project: str
) -> None:
    rule = ChannelRule(pattern=".+", webhooks=(WebhookRule(name="crm", url="http://127.0.0.1/"),))
    settings = ChannelSettings(rules=(rule,))
    guard = AddressGuard(loopback=True)
    async with store_at(cluster.address) as store:
        channels = Channels(
            store, Wakeups(store.address), clock=Clock(), settings=settings, guard=guard
        )
        await channels.publish(project, "hooked", "m-1", b"1")
        await channels.publish_many(project, "hooked", [("m-2", b"2"), ("m-3", b"3")])
        lane = keys.outbox_lane(keys.channel_tag(project, "hooked"), "crm")
        outbox, states = Outbox(store), EndpointStates(store)

        # When everything that a deliverer and an operator do is done
        claim = await outbox.claim(lane, most=2, claim_ms=1000, token="t")
        done, failed = Decision(Verdict.DONE), Decision(Verdict.FAILED, 0.0, "no")
        assert await outbox.settle(lane, claim.items[0], done, Outcome(status=200), at_ms=0)
        assert await outbox.settle(lane, claim.items[1], failed, Outcome(status=500), at_ms=0)
        notice = Notice(kind="disabled", endpoint="crm", lane=lane, cause="gone", at_ms=0)
        await states.disable("crm", notice)
        await states.hold("crm", 1)
        desk = Desk(outbox, endpoints(settings.rules, guard))
        (row,) = await desk.endpoints(project)
        assert (row.state, row.waiting, row.failed) == ("disabled", 1, 1)
        assert await desk.enable("crm")
        assert await desk.redrive(Selection(project, "crm")) == 1
        assert await desk.discard(Selection(project, "crm"), waiting=True) == 2

        # Then the lane is empty and off the register, and all its keys lay in the channel's slot
        assert lane not in await outbox.lanes()
        found = await store.call("KEYS", f"{lane}.*")
        slots = {await store.call("CLUSTER", "KEYSLOT", key) for key in (*found, lane)}
        assert len(slots) == 1


@pytest.mark.parametrize("cell", [0, 1])
async def test_everything_that_holds_a_transaction_works_in_the_slot_of_its_cell(
    cluster: PlainServer, cell: int
) -> None:
    terms = Terms(dataset="ds-1", archive_delay_ms=1, external_id_ms=1000)
    async with store_at(cluster.address) as store:
        await open_cells(store, StreamLogs(store), 2)
        await store.call("HSET", names.pipeline(cell, "shop", "refund"), "active", "v", "type", 1)
        await store.call("RPUSH", names.queue_admin("main"), "set workers 3")
        entry, holding = Entry(store, terms), Holding(store, terms)
        items = [
            NewTransaction(
                id=names.new_id(cell, RandomIdentity()),
                owner="shop",
                pipeline="refund",
                version="v",
                group="main",
                state=b"packed",
                external_id=f"r-{number}",
                deadline_in_ms=60_000,
                delay_ms=60_000 if number == 2 else 0,
            )
            for number in range(3)
        ]
        started = await entry.start(cell, items)
        assert [each.outcome for each in started] == ["started"] * 3
        terms_of_claim = {"node": "n", "most": 10, "lease_ms": 0}
        claim = await holding.claim(cell, "main", number=1, **terms_of_claim)  # type: ignore[arg-type]
        assert len(claim.items) == 2
        found = await holding.reclaim(cell, node="n", number=1, since_ms=0)
        assert len(found.items) == 2
        assert (await holding.begin(claim.items[0].held)).outcome == "done"
        (verdict,) = await holding.release(cell, [claim.items[0].held])
        assert verdict.outcome == "done"
        assert (await holding.rescue(cell, most=10, rescues_max=3)).done == 1

        keys_of_cell = await store.call("KEYS", f"{names.tag(cell)}*")
        assert len(keys_of_cell) > 8
        slots = {await store.call("CLUSTER", "KEYSLOT", key) for key in keys_of_cell}
        assert slots == {await store.call("CLUSTER", "KEYSLOT", names.log(cell))}


async def test_every_verb_of_a_topic_runs_in_the_slot_of_its_partition(
    cluster: PlainServer, tmp_path: Path
) -> None:
    catalogue, clock = SqliteCatalogue(tmp_path / "catalogue.db"), Clock()
    await catalogue.open()
    async with store_at(cluster.address) as store:
        logs = StreamLogs(store)
        topics = Topics(catalogue, store, logs, clock=clock)
        producer = Producer(topics, logs, Deduplication(store, clock=clock))

        async def produce(message_id: str) -> bool:
            envelope = Envelope(id=message_id, project="default", data=b"x", group="}g{")
            (result,) = await producer.produce("default", "orders", [envelope])
            assert isinstance(result, Receipt)
            return result.duplicate

        # When every verb is used, with and without deduplication, over a switch
        topic = await topics.create("default", "orders", partitions=2)
        assert not await produce("plain")
        options = TopicOptions(dedup_seconds=60, max_bytes=1000, full_policy="drop_and_count")
        topic = await topics.change_options("default", "orders", options, version=topic.version)
        assert not await produce("{a}")
        await topics.add_storage_topic("default", "orders", 6)
        topic = await topics.switch_produce("default", "orders")
        assert await produce("{a}")
        assert not await produce("{b}")
        log, partition = topic.log(topic.target), topic.target.spread.partition_of(hash_of("}g{"))
        await logs.hold(log, partition, "reader", 0)
        assert await logs.offset_at(log, partition, 1) == 0
        assert (await logs.trim(log, partition)).removed == 0
        await logs.release(log, partition, "reader")
        census = Census(store, clock=clock, process="me", on_count=lambda _: None)
        await census.start()
        await census.close()

        # Then all keys of a partition lie in one slot, and partitions lie in several
        slots = defaultdict(set)
        for key in await store.call("KEYS", "{t.default.orders*"):
            tag = key.partition(b"}")[0]
            slots[tag].add(await store.call("CLUSTER", "KEYSLOT", key))
        assert all(len(found) == 1 for found in slots.values())
        assert len(set().union(*slots.values())) > 2
        await topics.delete("default", "orders")
        await topics.purge("default", "orders")
        assert await store.call("KEYS", "{t.default.orders.*:log") == []
    await catalogue.close()
