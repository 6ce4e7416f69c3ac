"""The catalogue of keys: every key that really appears is in it, and every row really appears."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest

from waystation.catalogue import SqliteCatalogue
from waystation.channel_settings import ChannelRule, WebhookRule
from waystation.channels import Channels
from waystation.channels.handles import encode_handle
from waystation.channels.revocation import Revocation
from waystation.clock import Clock
from waystation.delivery import Item, Outbox
from waystation.delivery.notices import Notice
from waystation.delivery.request import Outcome
from waystation.delivery.schedule import Decision, Verdict
from waystation.delivery.states import EndpointStates
from waystation.envelope import Envelope
from waystation.logs.streams import StreamLogs
from waystation.settings import ChannelSettings, Settings
from waystation.store import Heartbeat, Leases, keys, script
from waystation.store.opening import OpenStore, open_store
from waystation.topics import Deduplication, Producer, Topics
from waystation.topics.topic import TopicOptions
from waystation.transactions import names
from waystation.transactions.cells import Terms, open_cells
from waystation.transactions.count_slots import CountSlots
from waystation.transactions.entry import Entry, NewTransaction
from waystation.transactions.held import Held
from waystation.transactions.holding import Claimed, Holding
from waystation.transactions.nodes import NodeRecord, Nodes
from waystation.transactions.pipeline import define
from waystation.transactions.pipelines import Pipelines
from waystation.transactions.progress import FanOpen, FanWait, Finish, PassOn, Progress
from waystation.transactions.signals import Signals
from waystation.transactions.states import Status

_NAME = r"[0-9a-z][0-9a-z_-]{0,62}"
_PARTS = {
    "<channel>": rf"({_NAME}\.)?{_NAME}",
    "<subscriber>": _NAME,
    "<message id>": _NAME,
    "<clock>": r"-?[0-9]+",
    "<lane>": r"(\{unit\}|c\.\{hooked\})\.out\.[a-z]+",
    "<unit>": r"\{unit\}",
    "<jti>": r"(?s:.+)",
    "<log>": r"(t\.default\.orders\.[0-9]+|tx)",
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
    "<node>": "[0-9a-f]{40}",
}
KEY_ROWS = [row for row in keys.CATALOGUE if row.type != "pub/sub"]
TOPIC_ROWS = [row for row in keys.CATALOGUE if row.type == "pub/sub"]


def matches(row: keys.KeyKind, key: bytes) -> bool:
    pattern = re.escape(row.pattern)
    for part, rule in _PARTS.items():
        pattern = pattern.replace(re.escape(part), rule)
    return re.fullmatch(pattern, key.decode()) is not None


async def use_everything(opened: OpenStore, clock: Clock) -> None:
    """Every verb of every part that writes to the store, in two projects."""
    channels = Channels(opened.store, opened.wakeups, clock=clock, settings=ChannelSettings())
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
    revocation = Revocation(opened.store, clock)
    for token_id in ("t-1", "{a} }b{ ü\n\0", "x" * 10_000):
        await revocation.revoke(token_id, clock.now_ms() // 1000 + 3600)
    await use_delivery(opened, clock)
    await use_topics(opened, clock)
    await use_transactions(opened, clock)
    await opened.store.run(script("waystation.store", "attend"), [keys.PROCESSES], ("me", 10_000))
    assert opened.time_machine is not None
    await opened.time_machine.advance(1)
    channels.close()


async def use_delivery(opened: OpenStore, clock: Clock) -> None:
    """An outbox lane with an item that waits and one that was given up, and a lease."""
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
    webhook = WebhookRule(name="crm", url="https://crm.example/hook")
    rules = (ChannelRule(pattern="hooked", webhooks=(webhook,)),)
    hooked = Channels(
        opened.store, opened.wakeups, clock=clock, settings=ChannelSettings(rules=rules)
    )
    await hooked.publish("default", "hooked", "m-1", b"1")
    hooked.close()
    heartbeat = Heartbeat(opened.store.address)
    leases = Leases(opened.store, heartbeat, owner="me")
    assert await leases.acquire("{unit}:lease") is not None
    heartbeat.close()


async def use_topics(opened: OpenStore, clock: Clock) -> None:
    """A topic with deduplication, a message of strange names, and a reader that holds it."""
    with TemporaryDirectory() as folder:
        catalogue = SqliteCatalogue(Path(folder) / "catalogue.db")
        await catalogue.open()
        logs = StreamLogs(opened.store)
        topics = Topics(catalogue, opened.store, logs, clock=clock)
        options = TopicOptions(dedup_seconds=60)
        topic = await topics.create("default", "orders", partitions=1, options=options)
        producer = Producer(topics, logs, Deduplication(opened.store, clock=clock))
        envelope = Envelope(id="{a} }b{ ü\n\0", project="default", data=b"", group="}{")
        await producer.produce("default", "orders", [envelope])
        await logs.hold(topic.log(topic.target), 0, "reader", 0)
        await catalogue.close()


async def use_transactions(opened: OpenStore, clock: Clock) -> None:
    """Transactions in every state, a pipeline that is paused, a node, and somebody who waits."""
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
        await nodes.register(NodeRecord(node_group="main", node_id=f"nodeId-{'0' * 40}"))
        now, counts = (await signals.look(0)).now_ms, CountSlots(store)
        for slot_ms in (100_000, 1_000_000):
            # As if the slot were over.
            await counts.roll_up(0, now // slot_ms * slot_ms + slot_ms + 3_000)
        await catalogue.close()


async def with_everything_used(
    settings: Settings, look: Callable[[OpenStore], Awaitable[None]]
) -> None:
    clock = Clock()
    opened = await open_store(msgspec.structs.replace(settings, time_machine=True), clock=clock)
    try:
        await use_everything(opened, clock)
        await look(opened)
    finally:
        await opened.close()


async def test_every_key_is_in_the_catalogue_with_its_type_and_its_end(settings: Settings) -> None:
    async def look(opened: OpenStore) -> None:
        found = await opened.store.call("KEYS", "*")
        # Counts fall into one time slot, or into two.
        others = [key for key in found if b":metric" not in key]
        assert len(others) == 4 + 2 * 4 + 3 + 12 + 5 + 6 + 27
        for key in found:
            (row,) = (row for row in KEY_ROWS if matches(row, key))
            kind = (await opened.store.call("TYPE", key)).decode().replace("zset", "sorted set")
            assert kind == row.type.partition(",")[0], key
            lives = await opened.store.call("TTL", key)
            for_good = row.dies.startswith(("never", "with ", "when it is empty"))
            assert (lives == -1) is for_good, f"{key!r} has a TTL of {lives}"

    await with_everything_used(settings, look)


async def test_every_row_of_the_catalogue_is_a_key_that_really_appears(
    settings: Settings,
) -> None:
    async def look(opened: OpenStore) -> None:
        found = await opened.store.call("KEYS", "*")
        for row in KEY_ROWS:
            assert any(matches(row, key) for key in found), f"nobody writes {row.pattern}"

    await with_everything_used(settings, look)


async def test_every_topic_that_polls_wait_for_is_in_the_catalogue(settings: Settings) -> None:
    opened = await open_store(settings, clock=Clock())
    channels = Channels(opened.store, opened.wakeups, clock=Clock(), settings=ChannelSettings())
    try:
        await channels.subscribe("shop", "orders", "me")
        poll = asyncio.ensure_future(channels.fetch("shop", "orders", "me", limit=1, seconds=30))
        while not (topics := await opened.store.call("PUBSUB", "CHANNELS", "*")):
            await asyncio.sleep(0.005)
        assert topics == [b"dsps.c.{shop.orders}"]
        assert [row for row in TOPIC_ROWS if matches(row, topics[0])]
        await channels.unsubscribe("shop", "orders", "me")
        await asyncio.gather(poll, return_exceptions=True)
    finally:
        channels.close()
        await opened.close()


def test_a_channel_has_exactly_the_keys_that_dsps_gave_it() -> None:
    tag = keys.channel_tag(keys.DEFAULT_PROJECT, "orders")
    assert keys.channel_clock(tag) == "c.{orders}.clock"
    assert keys.channel_cursor(tag, "me") == "c.{orders}.r.me"
    assert keys.channel_message_prefix(tag) + "7" == "c.{orders}.m.7"
    assert keys.channel_message_id(tag, "m-1") == "c.{orders}.mid.m-1"
    assert keys.channel_topic(tag) == "dsps.c.{orders}"


def test_a_revoked_token_has_the_key_that_dsps_gives_it_and_a_long_id_a_short_one() -> None:
    assert keys.token_revocation("t-1") == "jwt.{t-1}.revoke"
    assert keys.token_revocation("a}b") != keys.token_revocation("a%7Db")
    long = [keys.token_revocation("x" * 10_000), keys.token_revocation("x" * 9_999 + "y")]
    assert len(set(long)) == 2
    assert all(len(each) < 100 for each in long)


@pytest.mark.parametrize("row", keys.CATALOGUE, ids=lambda row: row.pattern)
def test_a_row_tells_everything(row: keys.KeyKind) -> None:
    assert all(msgspec.to_builtins(row).values())
