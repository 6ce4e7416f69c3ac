"""Hash tags of keys: on a cluster of one node, each script uses keys of one slot."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.store_faults import PlainServer, plain_server, store_at
from tests.helpers.topics import open_topics
from tests.pools.pool_slot import LEASE_MS
from tests.subscriptions.shard_owner import own
from tests.subscriptions.shard_slot import TERMS, ShardSlot, ended, main
from tests.subscriptions.subscription_bench import bench_on
from waystation.catalogue import SqliteCatalogue
from waystation.channels import keys as channel_keys
from waystation.channels.model import encode_handle
from waystation.channels.service import ChannelService
from waystation.channels.webhooks import webhook_endpoints
from waystation.config import ChannelConfig, ChannelRule, WebhookRule
from waystation.delivery.addresses import AddressGuard
from waystation.delivery.desk import Desk, Selection
from waystation.delivery.notices import Notice
from waystation.delivery.outbox import Outbox
from waystation.delivery.request import Outcome
from waystation.delivery.schedule import Decision, Verdict
from waystation.delivery.states import EndpointStates
from waystation.errors import StoreReplyError, TransactionUnknownError
from waystation.logs.protocol import Retention
from waystation.logs.streams import StreamLogs
from waystation.messages.envelope import Envelope
from waystation.pools import Assignments, Mail, Members
from waystation.pools.held import Letter, Nack
from waystation.pools.names import Place as PoolPlace
from waystation.pools.terms import Terms as PoolTerms
from waystation.runtime.clock import Clock
from waystation.runtime.ids import RandomIds
from waystation.store import keys
from waystation.store.embedded.server import supervisor
from waystation.store.membership import Membership
from waystation.store.pubsub import PubSub
from waystation.store.time_machine import TimeMachine
from waystation.subscriptions.looks import DeadQuery
from waystation.subscriptions.names import Place
from waystation.subscriptions.operating import PurgeStep, RedriveStep
from waystation.subscriptions.operation import Asked
from waystation.topics.dedup import Deduplicator
from waystation.topics.producer import Producer
from waystation.topics.router import hash_of
from waystation.transactions import names
from waystation.transactions.archiving import Archiving, Confirmed
from waystation.transactions.cells import Terms, open_cells
from waystation.transactions.entry import Entry, NewTransaction
from waystation.transactions.holding import Holding
from waystation.transactions.nodes import Nodes
from waystation.transactions.restoring import Restoration, Restoring
from waystation.transactions.signals import Signals
from waystation.types.message import Receipt
from waystation.types.topic import TopicOptions


@pytest.fixture(scope="module")
def cluster() -> Iterator[PlainServer]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        bus = str(probe.getsockname()[1])
    options = ("--cluster-enabled", "yes", "--bind", "127.0.0.1", "--cluster-port", bus)
    with plain_server(*options) as server:
        path = server.address.path
        assert supervisor.ask(path, b"CLUSTER ADDSLOTSRANGE 0 16383") == b"+OK\r\n"
        # A primary accepts no writes in its first two seconds.
        while b"cluster_state:ok" not in supervisor.ask(path, b"CLUSTER INFO"):
            time.sleep(0.02)
        yield server


@pytest.mark.parametrize("project", [keys.DEFAULT_PROJECT, "shop"])
async def test_channel_keys_are_in_one_slot(cluster: PlainServer, project: str) -> None:
    async with store_at(cluster.address) as store:
        channels = ChannelService(
            store, PubSub(store.address), clock=Clock(), settings=ChannelConfig()
        )

        # Call every method of a channel.
        assert await channels.subscribe(project, "orders", "me")
        await channels.publish(project, "orders", "m-1", b"1")
        assert (await channels.publish(project, "orders", "m-1", b"1")).duplicate
        fetched = await channels.fetch(project, "orders", "me", limit=10)
        assert [message.id for message in fetched.messages] == ["m-1"]
        assert fetched.last is not None
        handle = encode_handle("orders", "me", fetched.last)
        assert await channels.ack(project, "orders", "me", handle)
        await channels.publish_many(project, "orders", [("m-1", b"1"), ("m-2", b"2")])
        sought = await channels.seek(project, "orders", "me", "beginning")
        assert (sought.cursor, sought.unread) == (0, 2)
        await channels.subscribe(project, "orders", "other")
        assert await channels.unsubscribe(project, "orders", "other")

        # All keys of the channel are in one slot.
        tag = channel_keys.channel_tag(project, "orders")
        found = await store.call("KEYS", f"c.{tag}.*")
        assert len(found) == 6
        slots = {await store.call("CLUSTER", "KEYSLOT", key) for key in found}
        assert slots == {await store.call("CLUSTER", "KEYSLOT", channel_keys.pubsub_topic(tag))}


async def test_channel_name_in_two_projects_names_two_channels(cluster: PlainServer) -> None:
    async with store_at(cluster.address) as store:
        ours = await store.call("CLUSTER", "KEYSLOT", channel_keys.channel_tag("default", "orders"))
        theirs = await store.call("CLUSTER", "KEYSLOT", channel_keys.channel_tag("shop", "orders"))
        assert ours != theirs


async def test_script_that_leaves_its_slot_is_refused_by_cluster(cluster: PlainServer) -> None:
    """Show that the cluster detects a script with keys of several slots."""
    stray = "#!lua\nreturn redis.call('SET', 'c.{elsewhere}.clock', '1')"
    async with store_at(cluster.address) as store:
        with pytest.raises(StoreReplyError, match=r"(?i)slot|node"):
            await store.call("EVAL", stray, 1, "c.{orders}.clock")


@pytest.mark.parametrize("project", [keys.DEFAULT_PROJECT, "shop"])
async def test_outbox_keys_of_webhook_are_in_slot_of_channel(
    cluster: PlainServer, project: str
) -> None:
    rule = ChannelRule(pattern=".+", webhooks=(WebhookRule(name="crm", url="http://127.0.0.1/"),))
    settings = ChannelConfig(rules=(rule,))
    guard = AddressGuard(loopback=True)
    async with store_at(cluster.address) as store:
        channels = ChannelService(
            store, PubSub(store.address), clock=Clock(), settings=settings, guard=guard
        )
        await channels.publish(project, "hooked", "m-1", b"1")
        await channels.publish_many(project, "hooked", [("m-2", b"2"), ("m-3", b"3")])
        lane = channel_keys.outbox_lane(channel_keys.channel_tag(project, "hooked"), "crm")
        outbox, states = Outbox(store), EndpointStates(store)

        # Call all methods that the delivery and an operator use.
        claim = await outbox.claim(lane, most=2, claim_ms=1000, token="t")
        done, failed = Decision(Verdict.DONE), Decision(Verdict.FAILED, 0.0, "no")
        assert await outbox.settle(lane, claim.items[0], done, Outcome(status=200), at_ms=0)
        assert await outbox.settle(lane, claim.items[1], failed, Outcome(status=500), at_ms=0)
        notice = Notice(kind="disabled", endpoint="crm", lane=lane, cause="gone", at_ms=0)
        await states.disable("crm", notice)
        await states.hold("crm", 1)
        desk = Desk(outbox, webhook_endpoints(settings.rules, guard))
        (row,) = await desk.endpoints(project)
        assert (row.state, row.waiting, row.failed) == ("disabled", 1, 1)
        assert await desk.enable("crm")
        assert await desk.redrive(Selection(project, "crm")) == 1
        assert await desk.discard(Selection(project, "crm"), waiting=True) == 2

        # The queue is empty and not registered, and its keys are in the slot of the channel.
        assert lane not in await outbox.lanes()
        found = await store.call("KEYS", f"{lane}.*")
        slots = {await store.call("CLUSTER", "KEYSLOT", key) for key in (*found, lane)}
        assert len(slots) == 1


@pytest.mark.parametrize("cell", [0, 1])
async def test_transaction_keys_are_in_slot_of_cell(cluster: PlainServer, cell: int) -> None:
    terms = Terms(dataset="ds-1", archive_delay_ms=1, external_id_ms=1000)
    async with store_at(cluster.address) as store:
        await open_cells(store, StreamLogs(store), 2)
        await store.call("HSET", names.pipeline(cell, "shop", "refund"), "active", "v", "type", 1)
        await store.call("RPUSH", names.queue_admin("main"), "set workers 3")
        entry, holding = Entry(store, terms), Holding(store, terms)
        items = [
            NewTransaction(
                id=names.new_id(cell, RandomIds()),
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


@pytest.mark.parametrize("cell", [0, 1])
async def test_archive_and_restore_use_slot_of_cell(cluster: PlainServer, cell: int) -> None:
    terms = Terms(dataset="ds-1", archive_delay_ms=0, external_id_ms=1000, load_ms=0)
    async with store_at(cluster.address) as store:
        await store.call("FLUSHALL")
        await open_cells(store, StreamLogs(store), 2)
        await store.call("HSET", names.pipeline(cell, "shop", "refund"), "active", "v", "type", 1)
        await store.call("RPUSH", names.queue_admin("main"), "set workers 3")
        archiving = Archiving(store, terms, role_ms=60_000, grace_ms=5_000)
        restoring, signals = Restoring(store, terms), Signals(store, terms)
        items = [
            NewTransaction(
                id=names.new_id(cell, RandomIds()),
                owner="shop",
                pipeline="refund",
                version="v",
                group="main",
                state=b"packed",
                delay_ms=delay_ms,
                deadline_in_ms=60_000,
            )
            for delay_ms in (1, 1, 60_000)
        ]
        await Entry(store, terms).start(cell, items)
        turn = await archiving.turn(cell, node="n", most=100)
        rows = {each.id: each.fields for each in turn.items}
        refused, due, late = (each.id for each in items)
        done = [Confirmed(each, 1, turn.now_ms) for each in (due, late)]
        done.append(Confirmed(refused, 1, turn.now_ms, 0, "no"))
        assert (await archiving.turn(cell, node="n", most=0, confirmed=done)).set_aside == 1
        assert await archiving.retry(cell) == 1

        # A signal, a switch, a cancel and a timer each request an archived transaction.
        for verb in (signals.wake("shop", late), signals.set_switch("shop", late, "go", 1)):
            with pytest.raises(TransactionUnknownError):
                await verb
        (told,) = await signals.cancel("shop", [late], cause="me", grace_ms=0)
        assert told.outcome == "unknown"
        while not (missing := (await signals.wake_due(cell, loads=10)).missing):
            await asyncio.sleep(0.001)
        assert [each.id for each in missing] == [due]
        found = Restoration(missing[0], rows[due])
        assert await restoring.restore(cell, [found], mode="wake") == ["woken"]
        assert (await signals.expire(cell, grace_ms=0, loads=10)).done == 0
        assert (await signals.sweep(cell, grace_ms=0)).done == 0
        assert (await Nodes(store, clock=Clock()).heed("main")) == 1

        keys_of_cell = await store.call("KEYS", f"{names.tag(cell)}*")
        assert len(keys_of_cell) > 8
        slots = {await store.call("CLUSTER", "KEYSLOT", key) for key in keys_of_cell}
        assert slots == {await store.call("CLUSTER", "KEYSLOT", names.log(cell))}


async def test_topic_keys_are_in_slot_of_partition(cluster: PlainServer, tmp_path: Path) -> None:
    catalogue, clock = SqliteCatalogue(tmp_path / "catalogue.db"), Clock()
    await catalogue.open()
    async with store_at(cluster.address) as store:
        logs = StreamLogs(store)
        topics = open_topics(catalogue, store, logs, clock=clock)
        producer = Producer(topics, logs, Deduplicator(store, clock=clock))

        async def produce(message_id: str) -> bool:
            envelope = Envelope(id=message_id, project="default", data=b"x", group="}g{")
            (result,) = await producer.produce("default", "orders", [envelope])
            assert isinstance(result, Receipt)
            return result.duplicate

        # Call every method, with and without deduplication, in two storage topics.
        topic = await topics.create("default", "orders", partitions=2)
        assert not await produce("plain")
        options = TopicOptions(dedup_seconds=60, max_bytes=1000, full_policy="drop_and_count")
        topic = await topics.change_options("default", "orders", options, version=topic.version)
        assert not await produce("{a}")
        await topics.add_storage_topic("default", "orders", 6)
        topic = await topics.switch_produce("default", "orders")
        assert await produce("{a}")
        assert not await produce("{b}")
        log, partition = topic.log(topic.target), topic.target.router.partition_of(hash_of("}g{"))
        await logs.hold(log, partition, "reader", 0)
        assert await logs.offset_at(log, partition, 1) == 0
        assert (await logs.trim(log, partition)).removed == 0
        await logs.release(log, partition, "reader")
        async with Membership(store, keys.PROCESSES, "me", on_change=lambda _: None, clock=clock):
            pass

        # All keys of a partition are in one slot. Partitions are in several slots.
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


@pytest.mark.parametrize("project", [keys.DEFAULT_PROJECT, "shop"])
async def test_shard_keys_are_in_slot_of_shard(cluster: PlainServer, project: str) -> None:
    place = Place(project, "crm", 0, 3)
    async with store_at(cluster.address) as store:
        logs, machine = StreamLogs(store), TimeMachine(store, PubSub(store.address), Clock())
        await logs.create(place.record_log, 4, Retention())
        slot = ShardSlot(store, logs, machine, place=place)
        assert await slot.shard.establish(place, TERMS, {"0.0": 0}, topic="orders")
        await slot.acquire("me")
        await slot.retrying(60)
        (head,) = await slot.heads()
        await slot.one(ended(head.member, verdict="dead"))
        assert await slot.shard.follow(place, slot.terms, "g") == 0
        await slot.commit(main(90, "w", "again"), main(91, "w", "behind"), main(95))
        (head,) = await slot.heads()
        assert await slot.shard.give_back(place, slot.terms, [head.member]) == 1
        assert await slot.shard.pass_over(place, slot.terms, "0.0", 60, 70, "trimmed")
        offered = [f"m0.0.{offset}" for offset in (80, 81, 82)]
        await slot.shard.offer(place, slot.terms, offered, most=9, seen=0)
        await slot.shard.take(place, most=2, lease_ms=60_000, token="mine")
        assert await slot.shard.renew(place, {"m0.0.80": "mine"}, lease_ms=1000) == []
        slot.use(epoch=0)
        await slot.one(main(80, "x", token="mine"), call=0)
        slot.use(epoch=1)
        await slot.shard.open(place, slot.terms)
        await slot.parked(3, "p", first=100)
        slot.use(policy="skip")
        await slot.one(main(110, "", "dead"))
        purge = PurgeStep(operation="purge", group="g", failed_before_ms=0)
        assert (await slot.operating.purge(place, purge)).messages == 60
        assert await slot.operating.skip(place, "skip", "w", "r61") == "done"
        assert await slot.operating.enlist(place, "op", b"{}")
        assert await slot.operating.progress(place, slot.terms, "op", {"state": "begun"})
        redrive = RedriveStep(operation="op", failed_before_ms=0)
        assert (await slot.operating.redrive(place, redrive)).messages == 4
        looking = slot.looking
        assert (await looking.shard(place)).groups == 2
        assert (await looking.group(place, "p")).operation == "op"
        assert (await looking.dead_letters(place, DeadQuery())).letters == []
        assert len((await looking.dead_letters(place, DeadQuery(group="p"))).letters) == 3
        assert await slot.operating.freeze(place, "a new generation")
        assert await slot.operating.thaw(place)

        # All keys of the shard are in one slot.
        found = await store.call("KEYS", f"{place.tag}*")
        assert len(found) >= 17
        assert len({await store.call("CLUSTER", "KEYSLOT", key) for key in found}) == 1
        assert await slot.operating.reset(place, 2, {"0.0": 0})


async def test_subscription_keys_are_in_slot_of_subscription(
    cluster: PlainServer, tmp_path: Path
) -> None:
    catalogue = SqliteCatalogue(tmp_path / "catalogue.db")
    await catalogue.open()
    async with store_at(cluster.address) as store:
        bench = bench_on(catalogue, store)
        # Call every method, with operations of all kinds.
        await bench.topics.create("default", "bills", partitions=3)
        made = await bench.create("sms", topic="bills", shards=2)
        owner = await own(bench, made)
        await owner.park("a", 2)
        await owner.park("b", 2)
        for asked in (
            Asked(kind="redrive"),
            Asked(kind="purge"),
            Asked(kind="reset", to="beginning"),
        ):
            begun = await bench.operations.begin("default", "sms", asked)
            if asked.kind != "reset":
                await bench.operations.cancel("default", "sms", begun.id)
        await bench.subscriptions.pause("default", "sms")
        await bench.upkeep.mend()

        # All keys of the subscription that belong to no shard are in one slot.
        found = await store.call("KEYS", "{sub.default.sms}:*")
        assert len(found) == 2
        assert len({await store.call("CLUSTER", "KEYSLOT", key) for key in found}) == 1
        await bench.subscriptions.delete("default", "sms")
        left = await store.call("KEYS", "{s.default.sms.*")
        assert {key.partition(b"}:")[2] for key in left} == {b"head", b"lease", b"log", b"log:head"}
    await catalogue.close()


@pytest.mark.parametrize("policy", ["round_robin", "least_loaded", "consistent_hash"])
async def test_pool_keys_are_in_slot_of_pool(cluster: PlainServer, policy: str) -> None:
    place, terms = PoolPlace("shop", policy), PoolTerms(policy=policy)  # type: ignore[arg-type]
    async with store_at(cluster.address) as store:
        members, mail, assignments = Members(store), Mail(store), Assignments(store)
        await members.open(place, terms)

        # Call every method, with recipient keys that contain braces.
        letters = [Letter(f"{{m}}{i}", f"{{k{i % 3}}}", b"x") for i in range(6)]
        await mail.enqueue(place, terms, letters[:3], remember_ms=60_000)
        session = await members.register(place, terms, "w-1", nonce="n")
        await members.beat(place, terms, session)
        await mail.enqueue(place, terms, letters, remember_ms=60_000)
        limits = {"most": 9, "bytes_max": 1000, "lease_ms": LEASE_MS}
        taken = (await mail.take(place, terms, session, token="t", **limits)).items
        assert len(taken) == 3
        assert await mail.renew(place, terms, session, taken, lease_ms=LEASE_MS) == []
        (acked,) = await mail.ack(place, terms, session, taken[:1], next_lease_ms=LEASE_MS)
        assert acked.next is not None
        await mail.nack(place, terms, session, [Nack(taken=taken[1], verdict="dead")])
        await members.register(place, terms, "w-2", nonce="n")
        await assignments.assign(place, terms, "{ahead}")
        assert await members.drain(place, terms, session) == 2
        assert await assignments.reassign(place, terms, "w-1", asked=True) == 2
        await assignments.sweep(place, terms, forget_ms=1, retention_ms=1)
        assert (await assignments.look(place, terms)).pending == 4
        assert await assignments.look_at(place, terms, "{k0}")
        await members.leave(place, terms, session)

        # All keys of the pool are in one slot.
        found = await store.call("KEYS", f"{place.tag}*")
        assert len(found) > 12
        slots = {await store.call("CLUSTER", "KEYSLOT", key) for key in found}
        assert slots == {await store.call("CLUSTER", "KEYSLOT", place.head)}
