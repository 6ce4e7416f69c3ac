"""Key reference (docs/reference/keys.md): it lists all keys, and all listed keys appear."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import msgspec
import pytest

from tests.helpers.topics import open_topics
from waystation.acapy.mirror import Mirror
from waystation.acapy.outbound import OutboundQueue
from waystation.acapy.pusher import Pusher
from waystation.acapy.reconciler import Reconciler
from waystation.acapy.retry_set import RetrySet
from waystation.catalogue import SqliteCatalogue
from waystation.channels import keys as channel_keys
from waystation.channels.model import encode_handle
from waystation.channels.service import ChannelService
from waystation.channels.tokens import RevocationList
from waystation.config import ChannelConfig, ChannelRule, Config, PoolConfig, WebhookRule
from waystation.delivery import outbox as outbox_module
from waystation.delivery.addresses import AddressGuard
from waystation.delivery.notices import Notice
from waystation.delivery.outbox import Item, Outbox
from waystation.delivery.request import Outcome
from waystation.delivery.schedule import Decision, Verdict
from waystation.delivery.sender import Sender
from waystation.delivery.states import EndpointStates
from waystation.errors import TransactionUnknownError
from waystation.history.status import count_failure
from waystation.logs.protocol import Retention
from waystation.logs.streams import StreamLogs
from waystation.messages.envelope import Envelope
from waystation.messages.envelope import pack as pack_envelope
from waystation.pools import Assignments, Mail, Members, PoolOptions, Pools
from waystation.pools.answers import Answers
from waystation.pools.held import Letter, Nack
from waystation.pools.mirrored import Mirrored
from waystation.pools.names import Place as PoolPlace
from waystation.pools.terms import Terms as PoolTerms
from waystation.runtime.clock import Clock
from waystation.runtime.ids import RandomIds
from waystation.store import keys
from waystation.store.client import Store
from waystation.store.dataset import MARKERS
from waystation.store.leases import LeaseRenewer, Leases
from waystation.store.migrations import FORMAT_VERSION, migrate
from waystation.store.opening import OpenStore, open_store
from waystation.store.scripts import script
from waystation.subscriptions.commits import Commits
from waystation.subscriptions.definition import NewSubscription
from waystation.subscriptions.held import Settlement
from waystation.subscriptions.names import Place
from waystation.subscriptions.names import rate as rate_key
from waystation.subscriptions.operating import Operating, RedriveStep
from waystation.subscriptions.operation import Asked
from waystation.subscriptions.operations import Operations
from waystation.subscriptions.placement import Patience, Placement
from waystation.subscriptions.positions import Position
from waystation.subscriptions.rate import take_permits
from waystation.subscriptions.record import RetryRecord, pack
from waystation.subscriptions.shard_store import ShardStore
from waystation.subscriptions.states import Verdict as ShardVerdict
from waystation.subscriptions.subscriptions import Subscriptions
from waystation.subscriptions.terms import Terms as ShardTerms
from waystation.topics.dedup import Deduplicator
from waystation.topics.producer import Producer
from waystation.transactions import names
from waystation.transactions.archiving import Archiving, Confirmed
from waystation.transactions.callbacks import open_secret
from waystation.transactions.cells import Terms, open_cells
from waystation.transactions.count_slots import CountSlots
from waystation.transactions.entry import Entry, NewTransaction
from waystation.transactions.head import parse
from waystation.transactions.held import Held
from waystation.transactions.holding import Claimed, Holding
from waystation.transactions.nodes import NodeRecord, Nodes
from waystation.transactions.pipeline import define
from waystation.transactions.pipelines import Pipelines
from waystation.transactions.progress import FanOpen, FanWait, Finish, PassOn, Progress
from waystation.transactions.reply_lanes import (
    ReplyLayout,
    lane_of,
    receivers_in,
    reply_word,
)
from waystation.transactions.signals import Signals
from waystation.transactions.states import Status
from waystation.transactions.wanted import Wanted
from waystation.transactions.watch import Watch
from waystation.types.topic import TopicOptions

_NAME = r"[0-9a-z][0-9a-z_-]{0,62}"
_PARTS = {
    "<channel>": rf"({_NAME}\.)?{_NAME}",
    "<subscriber>": _NAME,
    "<message id>": _NAME,
    "<clock>": r"-?[0-9]+",
    "<queue>": r"(\{unit\}|c\.\{hooked\})\.out\.[a-z]+",
    "<unit>": r"\{unit\}",
    "<jti>": r"(?s:.+)",
    "<log>": r"(t\.default\.orders\.[0-9]+|tx|s\.default\.crm\.[0-9]+)",
    "<partition>": "[0-9]+",
    "<message id in its scope>": r"(?s:.+)",
    "<project>": _NAME,
    "<topic>": _NAME,
    "<cell>": "[0-9]+",
    "<transaction>": "tx-[0-9a-f]{40}",
    "<node group>": _NAME,
    "<pipeline>": rf"({_NAME}\.)?{_NAME}",
    "<external id>": r"(?s:.+)",
    "<slot>": "[0-9]+",
    "<what>": "[a-z-]+",
    "<minute>": "[0-9]+",
    "<number>": "[12]",
    "<receiver>": r"[wct]\.default\.[0-9a-z]+",
    "<node>": "[0-9a-f]{40}",
    "<subscription>": _NAME,
    "<operation>": r"[0-9a-f]+-[0-9a-f]+",
    "<generation>": "[0-9]+",
    "<shard>": "[0-9]+",
    "<storage number>": "[0-9]+",
    "<pool>": _NAME,
    "<worker>": rf"({_NAME}|-)",
    "<recipient key>": r"(?s:.+)",
    "<message id of a pool>": r"(?s:.+)",
    "<id of an answer>": _NAME,
    "<list of agents>": r"acapy_outbound",
    "<retry set>": r"acapy_outbound_retry",
    "<inbound topic>": "acapy_inbound",
    "<number of a marker>": r"\d+",
    "<prefix>": "acapy",
    "<map of agents>": r"(uid_recip_keys_map|recip_key_uid_map|uid_recip_key_pending_msg_count|"
    r"round_robin_iterator)",
}


@dataclass(frozen=True)
class KeyRow:
    """Row of a table in the key reference."""

    pattern: str
    type: str
    content: str
    writer: str
    lifetime: str


_ROW = re.compile(r"^\| `([^`]+)` \| (.+?) \| (.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)
_PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "keys.md").read_text(encoding="utf-8")
ROWS = [KeyRow(*cells) for cells in _ROW.findall(_PAGE)]
KEY_ROWS = [row for row in ROWS if row.type != "pub/sub"]
TOPIC_ROWS = [row for row in ROWS if row.type == "pub/sub"]


def matches(row: KeyRow, key: bytes) -> bool:
    pattern = re.escape(row.pattern)
    for part, rule in _PARTS.items():
        pattern = pattern.replace(re.escape(part), rule)
    return re.fullmatch(pattern, key.decode()) is not None


async def use_migration(opened: OpenStore) -> None:
    """Run a migration whose step does nothing, and restore the format version."""

    async def step(_: Store) -> None:
        pass

    found = FORMAT_VERSION
    await migrate(opened.store, found, RandomIds(), newest=found + 1, steps={found + 1: step})
    await opened.store.call("HSET", keys.FORMAT, "version", found)


async def use_everything(opened: OpenStore, clock: Clock) -> None:
    """Write every kind of key, for channels in two projects."""
    await use_migration(opened)
    channels = ChannelService(opened.store, opened.wakeups, clock=clock, settings=ChannelConfig())
    for project in (keys.DEFAULT_PROJECT, "shop"):
        await channels.subscribe(project, "orders", "me")
        await channels.subscribe(project, "orders", "other")
        await channels.publish(project, "orders", "m-1", b"{}")
        await channels.publish(project, "orders", "m-1", b"{}")
        fetched = await channels.fetch(project, "orders", "me", limit=1)
        assert fetched.last is not None
        handle = encode_handle("orders", "me", fetched.last)
        await channels.ack(project, "orders", "me", handle)
        await channels.unsubscribe(project, "orders", "other")
    revocation = RevocationList(opened.store, clock)
    for token_id in ("t-1", "{a} }b{ ü\n\0", "x" * 10_000):
        await revocation.revoke(token_id, clock.now_ms() // 1000 + 3600)
    await use_delivery(opened, clock)
    await use_topics(opened, clock)
    await use_transactions(opened, clock)
    await use_subscriptions(opened)
    await use_pools(opened)
    await use_acapy(opened)
    await use_mirror(opened, clock)
    await use_definitions(opened, clock)
    await count_failure(opened.store)
    await opened.store.run(
        script("waystation.store", "member_beat"), [keys.PROCESSES], ("me", 10_000)
    )
    assert opened.time_machine is not None
    await opened.time_machine.advance(1)
    channels.close()


async def use_delivery(opened: OpenStore, clock: Clock) -> None:
    """Fill an outbox queue with a pending and a failed item. Acquire a lease."""
    outbox, lane = Outbox(opened.store), "{unit}.out.crm"
    for number in range(2):
        await outbox.add(lane, f"m-{number}", Item(url="http://crm.example/"))
    (claimed,) = (await outbox.claim(lane, most=1, claim_ms=1000, token="mine")).items
    failed = Decision(Verdict.FAILED, 0.0, "gone")
    await outbox.settle(lane, claimed, failed, Outcome(status=500), at_ms=0)
    states = EndpointStates(opened.store)
    gone = Notice(kind="disabled", endpoint="crm", lane=lane, cause="gone", at_ms=0)
    await states.disable("crm", gone)
    await states.hold("crm", 60)
    await states.declare_repaired("erp")
    await states.report_breakers("node-1", {"crm": 1000})
    webhook = WebhookRule(name="crm", url="https://crm.example/hook")
    rules = (ChannelRule(pattern="hooked", webhooks=(webhook,)),)
    hooked = ChannelService(
        opened.store, opened.wakeups, clock=clock, settings=ChannelConfig(rules=rules)
    )
    await hooked.publish("default", "hooked", "m-1", b"1")
    hooked.close()
    renewer = LeaseRenewer(opened.store.address)
    leases = Leases(opened.store, renewer, owner="me")
    assert await leases.acquire("{unit}:lease") is not None
    renewer.close()


async def use_topics(opened: OpenStore, clock: Clock) -> None:
    """Create a topic with deduplication, a message with unusual names, and a retention hold."""
    with TemporaryDirectory() as folder:
        catalogue = SqliteCatalogue(Path(folder) / "catalogue.db")
        await catalogue.open()
        logs = StreamLogs(opened.store)
        topics = open_topics(catalogue, opened.store, logs, clock=clock)
        options = TopicOptions(dedup_seconds=60)
        topic = await topics.create("default", "orders", partitions=1, options=options)
        producer = Producer(topics, logs, Deduplicator(opened.store, clock=clock))
        envelope = Envelope(id="{a} }b{ ü\n\0", project="default", data=b"", group="}{")
        await producer.produce("default", "orders", [envelope])
        await logs.hold(topic.log(topic.target), 0, "reader", 0)
        await catalogue.close()


async def use_transactions(opened: OpenStore, clock: Clock) -> None:
    """Create transactions in every state, a paused pipeline, a node and a waiting client."""
    store, terms = opened.store, Terms(dataset="ds", archive_delay_ms=1, external_id_ms=60_000)
    await open_cells(store, StreamLogs(store), 1)
    entry, holding, progress = Entry(store, terms), Holding(store, terms), Progress(store, terms)
    nodes, signals = Nodes(store, clock=clock), Signals(store, terms)
    pipeline = define("refund", ["delay"], group="main")

    def new(number: int, **more: Any) -> NewTransaction:
        plain = {"owner": "default", "pipeline": "refund", "version": pipeline.version}
        given = {**plain, "id": f"tx-{number:040x}", "group": "main", "state": b"", **more}
        return NewTransaction(**given)

    async def claim(number: int) -> list[Claimed]:
        claimed = await holding.claim(0, "main", node="n", number=number, most=9, lease_ms=60_000)
        return claimed.items

    with TemporaryDirectory() as folder:
        catalogue = SqliteCatalogue(Path(folder) / "catalogue.db")
        await catalogue.open()
        pipelines = Pipelines(catalogue, store, cells=1, terms=terms, clock=clock)
        await pipelines.put("default", pipeline)
        await nodes.tell("main", "workers", 2)
        kept = [new(1, external_id="{a} }b{ ü\n\0"), new(2), new(3), new(4)]
        asleep = [new(5, delay_ms=60_000), new(6, deadline_in_ms=60_000)]
        await entry.start(0, [*kept, *asleep])
        done, parent, back, _, _ = (each.held for each in await claim(1))
        end = Finish(held=done, state=b"", status=Status.SUCCESS, output=b"1")
        await progress.finish(0, [end])
        await progress.fan_open(0, [FanOpen(held=parent, state=b"", round=1, total=1)])
        parent = Held(parent.id, parent.epoch, 1)
        child = new(0, id=names.child_id(parent.id, 1, 1))
        await entry.fan_out(parent, round_=1, first=1, items=[child])
        await progress.fan_wait(0, [FanWait(held=parent, state=b"")])
        await signals.cancel("default", [parent.id], cause="by hand", grace_ms=60_000)
        await pipelines.pause("default", "refund")
        await entry.start(0, [new(7), new(8, group="other")])
        await claim(2)
        out = {"group": "main", "queue": "out", "pipeline": "refund"}
        await progress.pass_on(0, [PassOn(held=back, state=b"", **out)])
        await nodes.tell("main", "workers", 3)
        await signals.mark([parent.id], wait_ms=60_000)
        await open_secret(store, RandomIds())
        await nodes.register(NodeRecord(node_group="main", node_id=f"nodeId-{'0' * 40}"))
        now, counts = (await signals.look(0)).now_ms, CountSlots(store)
        for slot_ms in (100_000, 1_000_000):
            # A time after the end of the current slot, so that the counts are rolled up.
            await counts.roll_up(0, now // slot_ms * slot_ms + slot_ms + 3_000)
        await catalogue.close()
    await use_archive(opened, terms)
    await use_replies(opened, terms)


async def use_replies(opened: OpenStore, terms: Terms) -> None:
    """Finish a transaction with three reply receivers. Two replies fail, and one is pending."""
    wanted = Wanted(webhook="https://crm.example/", channel="orders", topic="orders")
    word = reply_word("default", wanted)
    active = await opened.store.call("HGET", names.pipeline(0, "default", "refund"), "active")
    told = {"owner": "default", "pipeline": "refund", "version": active.decode()}
    item = NewTransaction(id=f"tx-{9:040x}", group="main", state=b"", reply=word, **told)
    (started,) = await Entry(opened.store, terms).start(0, [item])
    assert started.outcome == "started", started
    signals = Signals(opened.store, terms)
    await signals.cancel("default", [item.id], cause="by hand", grace_ms=1)
    outbox = Outbox(opened.store, ReplyLayout(1))
    failed = Decision(Verdict.FAILED, 0.0, "gone")
    with mock.patch.object(outbox_module, "FAILED_MAX", 1):
        for receiver in receivers_in(word)[:2]:
            lane = lane_of(0, receiver)
            (claimed,) = (await outbox.claim(lane, most=1, claim_ms=1000, token="t")).items
            await outbox.settle(lane, claimed, failed, Outcome(status=500), at_ms=0)


async def use_archive(opened: OpenStore, terms: Terms) -> None:
    """Let the archive reject a transaction, and wake a transaction that does not exist."""
    archiving = Archiving(opened.store, terms, role_ms=60_000, grace_ms=5_000)
    (given,) = (turn := await archiving.turn(0, node="me", most=1)).items
    version = parse(given.fields[b"head"]).version
    refused = Confirmed(given.id, version, turn.now_ms, 0, "no")
    await archiving.turn(0, node="me", most=0, confirmed=[refused])
    signals = Signals(opened.store, terms)
    with pytest.raises(TransactionUnknownError):
        await signals.wake("default", "tx-0000" + "f" * 36)
    sender, clock = Sender(AddressGuard(())), Clock()
    nodes = Nodes(opened.store, clock=clock)
    await Watch(opened.store, signals, nodes, sender, cells=1, clock=clock).look()
    await sender.close()


async def use_subscriptions(opened: OpenStore) -> None:
    """Fill a shard with messages in every state, and register another worker."""
    store, logs, place = opened.store, StreamLogs(opened.store), Place("default", "crm", 0, 0)
    await logs.create(place.record_log, 1, Retention())
    shard, commits = ShardStore(store), Commits(store)
    terms = ShardTerms(
        dataset="ds",
        epoch=1,
        incarnation=1,
        policy="park",
        retry_bytes_max=None,
        dead_bytes_max=None,
        dead_full_policy="refuse",
    )
    await shard.establish(place, terms, {"0.0": 0}, topic="orders")
    await Placement(store, node="me", patience=Patience()).attend()
    renewer = LeaseRenewer(store.address)
    assert await Leases(store, renewer, owner="me").acquire(place.lease) is not None
    renewer.close()

    def item(offset: int, group: str, verdict: str) -> Settlement:
        position = Position(1, 0, 0, offset)
        record = pack(RetryRecord(group=group, position=position, envelope=b""))
        return Settlement(
            member=position.member, group=group, verdict=ShardVerdict(verdict), record=record
        )

    groups = ("a", "b", "}{ ü\n\0")
    dirty = [item(1 + i, group, "again") for i, group in enumerate(groups)]
    dirty += [item(9 + i, group, "dead") for i, group in enumerate(("d", "}{ d"))]
    dirty += [item(20, "a", "behind"), item(21, "d", "behind")]
    await commits.commit(place, terms, dirty, call=0)
    skipped = item(11, "s", "dead")
    await commits.commit(place, msgspec.structs.replace(terms, policy="skip"), [skipped], call=0)
    operating = Operating(store, dataset="ds")
    await operating.enlist(place, "op", b"{}")
    await operating.redrive(place, RedriveStep(operation="op", upto=4, failed_before_ms=0))
    await shard.due(place, terms, call=1, most=1, bytes_max=1)
    await shard.offer(place, terms, [f"m0.0.{i}" for i in range(30, 33)], most=9, seen=0)
    taken = await shard.take(place, most=2, lease_ms=60_000, token="mine")
    done = Settlement(member=taken[0].member, group="", verdict=ShardVerdict.DONE, token="mine")
    taker = msgspec.structs.replace(terms, epoch=0)
    await commits.commit(place, taker, [done], call=0)


async def use_pools(opened: OpenStore) -> None:
    """Fill a pool with pending, leased and dead messages under unusual recipient keys."""
    place, terms = PoolPlace("default", "agents"), PoolTerms()
    members, mail = Members(opened.store), Mail(opened.store)
    await members.open(place, terms)
    keys_of = ("a", "b", "}{ ü", "c,d_e")
    letters = [Letter(f"}}{{ {key}", key, b"") for key in keys_of]
    await mail.enqueue(place, terms, letters[:2], remember_ms=60_000)
    session = await members.register(place, terms, "w-1", nonce="n")
    await mail.enqueue(place, terms, letters[2:], remember_ms=60_000)
    limits = {"most": 2, "bytes_max": 1000, "lease_ms": 60_000}
    taken = await mail.take(place, terms, session, token="t", **limits)
    await mail.nack(place, terms, session, [Nack(taken=taken.items[0], verdict="dead")])
    await members.drain(place, terms, session)
    await Assignments(opened.store).sweep(place, terms, forget_ms=60_000, retention_ms=None)
    assert await members.register(place, terms, "w-2", nonce="n")
    await Answers(opened.store, opened.wakeups).put(place, "a-1", "text/plain", b"1")


async def use_acapy(opened: OpenStore) -> None:
    """Store an agent's message that is leased, one in retry, and a dead letter."""
    store = opened.store
    outbound, retries = (
        OutboundQueue(store, "acapy_outbound"),
        RetrySet(store, "acapy_outbound_retry"),
    )
    await store.call("RPUSH", "acapy_outbound", b"{}")
    assert await outbound.take(1, 60_000)
    await retries.put(b"{}", wait_ms=60_000)
    await retries.bury("r-1", b"{}", cause="gone", attempts=6, readable=True, was=b"")


async def use_mirror(opened: OpenStore, clock: Clock) -> None:
    """Mirror a pool to an agent that has popped one of two messages."""
    store = opened.store
    with TemporaryDirectory() as folder:
        catalogue = SqliteCatalogue(Path(folder) / "catalogue.db")
        await catalogue.open()
        wakeups = opened.wakeups
        pools = Pools(catalogue, store, wakeups, clock=clock, settings=PoolConfig())
        pool = await pools.create("default", "served", PoolOptions(mirror=True))
        mirrored, mirror = Mirrored(store), Mirror(store, inbound="acapy_inbound")
        pusher = Pusher(pools, pool.place, mirrored, mirror)
        reconciler = Reconciler(pools, pool, mirrored, mirror, pusher)
        await store.call("HSET", "uid_recip_keys_map", "a", "W10=")
        await reconciler.step()
        packed = pack_envelope(Envelope(id="e", project="default", data=b""))
        letters = [Letter(f"e-{number}", "k", packed) for number in range(2)]
        await pools.enqueue("default", "served", letters)
        await reconciler.step()
        await store.call("LPOP", "acapy_inbound_k")
        await store.call("HSET", "uid_last_access_map", "a", "2026-01-01T00:00:00Z")
        await reconciler.step()
        await pools.close()
        await catalogue.close()


async def use_definitions(opened: OpenStore, clock: Clock) -> None:
    """Define a subscription and a pool, and start an operation."""

    async def check(project: str, endpoint: str) -> None:
        assert (project, endpoint) == ("default", "channel:crm")

    store, logs = opened.store, StreamLogs(opened.store)
    with TemporaryDirectory() as folder:
        catalogue = SqliteCatalogue(Path(folder) / "catalogue.db")
        await catalogue.open()
        topics = open_topics(catalogue, store, logs, clock=clock)
        await topics.create("default", "orders", partitions=1)
        parts = {"clock": clock, "identity": RandomIds(), "dataset": "ds"}
        subscriptions = Subscriptions(
            catalogue, store, logs, topics, **parts, keeps=Retention(), check=check
        )
        new = NewSubscription(topic="orders", endpoint="channel:crm")
        await subscriptions.create("default", "crm", new)
        operations = Operations(subscriptions, store, **parts, keep_ms=1)
        begun = await operations.begin("default", "crm", Asked(kind="redrive"))
        for operation in ("", begun.id):
            # With a low rate the buckets still exist when the test reads the keys.
            await take_permits(store, rate_key("default", "crm", operation), 0.01, 1)
        pools = Pools(catalogue, store, opened.wakeups, clock=clock, settings=PoolConfig())
        await pools.create("default", "agents")
        await catalogue.close()


async def with_everything_used(
    settings: Config, look: Callable[[OpenStore], Awaitable[None]]
) -> None:
    clock = Clock()
    opened = await open_store(msgspec.structs.replace(settings, time_machine=True), clock=clock)
    try:
        await use_everything(opened, clock)
        await look(opened)
    finally:
        await opened.close()


async def test_store_keys_are_listed_with_type_and_lifetime(settings: Config) -> None:
    async def look(opened: OpenStore) -> None:
        found = await opened.store.call("KEYS", "*")
        # The counts may fall into one time slot or into two.
        others = [key for key in found if b":metric" not in key and b".dataset." not in key]
        markers = [key for key in found if b".dataset." in key]
        assert len(markers) == (MARKERS if opened.store.address.cluster else 0)
        assert len(others) == 4 + 2 * 4 + 3 + 12 + 5 + 6 + 34 + 10 + 20 + 4 + 22 + 6 + 1 + 1 + 31
        # All in one round trip, because some keys live for seconds only.
        types, ttls = await asyncio.gather(
            opened.store.pipeline([("TYPE", key) for key in found]),
            opened.store.pipeline([("TTL", key) for key in found]),
        )
        for key, stored, lives in zip(found, types, ttls, strict=True):
            (row,) = (row for row in KEY_ROWS if matches(row, key))
            kind = stored.decode().replace("zset", "sorted set")
            assert kind == row.type.partition(",")[0], key
            for_good = row.lifetime.startswith(("never", "with ", "when empty"))
            assert (lives == -1) is for_good, f"{key!r} has a TTL of {lives}"

    await with_everything_used(settings, look)


async def test_listed_keys_appear_in_store(
    settings: Config,
) -> None:
    async def look(opened: OpenStore) -> None:
        found = await opened.store.call("KEYS", "*")
        for row in KEY_ROWS:
            if "on a cluster only" in row.writer and not opened.store.address.cluster:
                continue
            assert any(matches(row, key) for key in found), f"no key matches {row.pattern}"

    await with_everything_used(settings, look)


async def test_pubsub_topic_of_long_poll_is_listed(settings: Config) -> None:
    opened = await open_store(settings, clock=Clock())
    channels = ChannelService(opened.store, opened.wakeups, clock=Clock(), settings=ChannelConfig())
    try:
        await channels.subscribe("shop", "orders", "me")
        poll = asyncio.ensure_future(channels.fetch("shop", "orders", "me", limit=1, wait_s=30))
        while not (topics := await opened.store.call("PUBSUB", "CHANNELS", "*")):
            await asyncio.sleep(0.005)
        assert topics == [b"dsps.c.{shop.orders}"]
        assert [row for row in TOPIC_ROWS if matches(row, topics[0])]
        await channels.unsubscribe("shop", "orders", "me")
        await asyncio.gather(poll, return_exceptions=True)
    finally:
        channels.close()
        await opened.close()


def test_channel_keys_in_default_project_are_those_of_dsps() -> None:
    tag = channel_keys.channel_tag(keys.DEFAULT_PROJECT, "orders")
    assert channel_keys.clock(tag) == "c.{orders}.clock"
    assert channel_keys.cursor(tag, "me") == "c.{orders}.r.me"
    assert channel_keys.message_prefix(tag) + "7" == "c.{orders}.m.7"
    assert channel_keys.message_id(tag, "m-1") == "c.{orders}.mid.m-1"
    assert channel_keys.pubsub_topic(tag) == "dsps.c.{orders}"


def test_token_revocation_key_equals_that_of_dsps_and_has_bounded_length() -> None:
    assert channel_keys.token_revocation("t-1") == "jwt.{t-1}.revoke"
    assert channel_keys.token_revocation("a}b") != channel_keys.token_revocation("a%7Db")
    long = [
        channel_keys.token_revocation("x" * 10_000),
        channel_keys.token_revocation("x" * 9_999 + "y"),
    ]
    assert len(set(long)) == 2
    assert all(len(each) < 100 for each in long)


def test_key_reference_row_has_five_cells() -> None:
    lines = [line for line in _PAGE.splitlines() if line.startswith("| `")]
    assert len(lines) == len(ROWS) > 100
