"""Record logs of channels: events that publish, ack and seek record for history."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.channels.helpers import ChannelStore
from tests.helpers.records import record_entries, register_reader, unrecorded_events
from tests.helpers.waiting import eventually
from waystation.channels.model import EXPIRY_MARGIN_S, encode_handle
from waystation.channels.service import ChannelService
from waystation.config import ChannelConfig, ChannelRule, WebhookRule
from waystation.delivery.addresses import AddressGuard
from waystation.errors import StoreUnavailableError
from waystation.logs import keys
from waystation.logs.protocol import Retention
from waystation.logs.records import (
    LOGS_OF_SERVER,
    Kind,
    RecordEntry,
    RecordLogs,
    log_key,
    record_log,
)
from waystation.logs.streams import StreamLogs
from waystation.store.client import Store
from waystation.store.dataset import history_reader
from waystation.store.slots import SLOTS, slot_of

TTL_S = 1800 + EXPIRY_MARGIN_S


@asynccontextmanager
async def recorded_channels(
    opened: ChannelStore, rule: ChannelRule | None = None, *, recorded: bool = True
) -> AsyncIterator[ChannelService]:
    """Open a second channel service on the store, with record logs. Webhooks may be on loopback."""
    logs = StreamLogs(opened.store)
    settings = ChannelConfig(rules=(rule,) if rule else ())
    async with RecordLogs(opened.store, logs, clock=opened.clock, recorded=recorded) as records:
        yield ChannelService(
            opened.store,
            opened.wakeups,
            clock=opened.clock,
            settings=settings,
            guard=AddressGuard(loopback=True),
            records=records,
        )


async def events(store: Store) -> list[tuple[str, object]]:
    """Return the events of channel `room` of project `default`, in order."""
    entries = await record_entries(store, "channels")
    assert all((entry.project, entry.name) == ("default", "room") for entry in entries)
    return [(facts, detail) for entry in entries for facts, detail in entry.events]


def log_of_room(store: Store) -> str:
    """Return the name of the record log of channel `room` of project `default`."""
    return record_log("channels", "{room}", cluster=store.address.cluster is not None)


async def test_publish_without_history_creates_no_record_log(channel_store: ChannelStore) -> None:
    async with recorded_channels(channel_store) as channels:
        await channels.publish("default", "room", "m-1", b"1")

    assert await StreamLogs(channel_store.store).names() == {}
    assert await channel_store.store.call("KEYS", "*:log*") == []


async def test_record_log_has_published_acknowledged_and_sought_events(
    channel_store: ChannelStore,
) -> None:
    await register_reader(channel_store.store)
    async with recorded_channels(channel_store) as channels:
        await channels.subscribe("default", "room", "me")
        await channels.publish("default", "room", "m-1", b'{"a":1}')
        await channels.publish("default", "room", "m-1", b'{"a":2}')
        await channels.publish_many("default", "room", [("m-2", b"2"), ("m-1", b"9")])
        handle = encode_handle("room", "me", 2)
        assert await channels.ack("default", "room", "me", handle)
        assert not await channels.ack("default", "room", "me", handle)
        await channels.seek("default", "room", "me", "beginning")

    assert await events(channel_store.store) == [
        (f"published 1 {TTL_S}", b'{"id":"m-1","content":{"a":1}}'),
        (f"published 2 {TTL_S}", b'{"id":"m-2","content":2}'),
        ("acknowledged 2", "me"),
        ("sought 0", "me"),
    ]


async def test_publish_with_webhook_is_recorded_once(channel_store: ChannelStore) -> None:
    await register_reader(channel_store.store)
    hook = WebhookRule(name="crm", url="http://127.0.0.1/")
    rule = ChannelRule(pattern=".+", webhooks=(hook,))
    async with recorded_channels(channel_store, rule) as channels:
        await channels.publish("default", "room", "m-1", b"1")
        await channels.publish_many("default", "room", [("m-2", b"2")])

    facts = [facts for facts, _ in await events(channel_store.store)]
    assert facts == [f"published 1 {TTL_S}", f"published 2 {TTL_S}"]


async def test_message_above_backlog_limit_is_recorded_as_dropped(
    channel_store: ChannelStore,
) -> None:
    await register_reader(channel_store.store)
    rule = ChannelRule(pattern=".+", backlog_max=2, backlog_policy="drop_oldest")
    async with recorded_channels(channel_store, rule) as channels:
        for number in (1, 2, 3):
            await channels.publish("default", "room", f"m-{number}", b"0")
        batch = [(f"n-{number}", b"0") for number in range(4)]
        await channels.publish_many("default", "room", batch)

    facts = [facts.removesuffix(f" {TTL_S}") for facts, _ in await events(channel_store.store)]
    assert facts == [
        *("published 1", "published 2", "dropped 1 1", "published 3"),
        *("dropped 2 3", "published 4", "published 5", "published 6", "published 7"),
        "dropped 4 5",
    ]
    kept = await channel_store.store.call("KEYS", "c.{room}.m.*")
    assert sorted(kept) == [b"c.{room}.m.6", b"c.{room}.m.7"]


@pytest.mark.single_server  # A log of a cluster is too small for three entries of this size.
async def test_many_events_of_one_call_are_several_entries(channel_store: ChannelStore) -> None:
    await register_reader(channel_store.store)
    async with recorded_channels(channel_store) as channels:
        batch = [(f"m-{number}", b"0") for number in range(2001)]
        await channels.publish_many("default", "room", batch)

    entries = await record_entries(channel_store.store, "channels")
    assert [len(entry.events) for entry in entries] == [1000, 1000, 1]
    assert len({text for text, _ in await events(channel_store.store)}) == 2001


async def test_channel_with_record_headers_records_message_id_without_content(
    channel_store: ChannelStore,
) -> None:
    await register_reader(channel_store.store)
    rule = ChannelRule(pattern=".+", record="headers")
    async with recorded_channels(channel_store, rule) as channels:
        await channels.publish("default", "room", "m-1", b'"secret"')

    assert await events(channel_store.store) == [(f"published 1 {TTL_S}", "m-1")]


async def test_channel_record_none_keeps_count_and_drops_message_ids(
    channel_store: ChannelStore,
) -> None:
    await register_reader(channel_store.store)
    rule = ChannelRule(pattern=".+", record="none")
    async with recorded_channels(channel_store, rule) as channels:
        await channels.subscribe("default", "room", "me")
        await channels.publish("default", "room", "m-1", b"1")
        await channels.ack("default", "room", "me", encode_handle("room", "me", 1))

    entries = await record_entries(channel_store.store, "channels")
    assert entries == [RecordEntry(1, "", "", [])]
    assert entries[0].is_withheld


async def test_rule_with_strictest_record_applies(channel_store: ChannelStore) -> None:
    rules = tuple(
        ChannelRule(pattern=pattern, record=record)
        for pattern, record in ((".+", "full"), ("a.*", "headers"), ("ab.*", "none"))
    )
    settings = ChannelConfig(rules=rules)
    service = ChannelService(
        channel_store.store, channel_store.wakeups, clock=channel_store.clock, settings=settings
    )
    terms = [service.terms_of(channel).record for channel in ("room", "a-room", "ab-room")]
    assert terms == ["full", "headers", "none"]


async def test_history_record_none_counts_events_in_existing_log(
    channel_store: ChannelStore,
) -> None:
    store = channel_store.store
    await register_reader(store)
    async with recorded_channels(channel_store, recorded=False) as channels:
        await channels.publish("default", "room", "m-1", b"1")
        assert await StreamLogs(store).names() == {}
    async with recorded_channels(channel_store) as channels:
        await channels.publish("default", "room", "m-2", b"1")
    async with recorded_channels(channel_store, recorded=False) as channels:
        await channels.publish("default", "room", "m-3", b"1")

    assert [facts for facts, _ in await events(store)] == [f"published 2 {TTL_S}"]
    assert await unrecorded_events(store, "channels") == 1


async def test_publish_into_damaged_record_log_succeeds_and_is_counted(
    channel_store: ChannelStore,
) -> None:
    store = channel_store.store
    await register_reader(store)
    async with recorded_channels(channel_store) as channels:
        await channels.publish("default", "room", "m-1", b"1")
        log = log_of_room(store)
        await store.call("DEL", log_key(log))
        await store.call("SET", log_key(log), "damaged")
        published = await channels.publish("default", "room", "m-2", b"1")

    assert (published.clock, published.duplicate) == (2, False)
    assert await unrecorded_events(store, "channels") == 1


@pytest.mark.single_server  # A log of a cluster has another limit.
async def test_record_log_of_released_history_stays_small(channel_store: ChannelStore) -> None:
    """Check that a record log without a hold keeps its share of 16 MiB and counts what it drops."""
    store = channel_store.store
    await register_reader(store)
    content = b'"%b"' % (b"x" * 200_000)
    async with recorded_channels(channel_store) as channels:
        await channels.publish("default", "room", "m-0", content)
        log = log_of_room(store)
        await StreamLogs(store).release(log, 0, "~history")
        for number in range(1, 12):
            await channels.publish("default", "room", f"m-{number}", content)

    state = await StreamLogs(store).state(log, 0)
    assert state.bytes <= 1_048_576
    assert state.unread == state.first > 0


async def test_node_records_soon_after_history_has_registered(channel_store: ChannelStore) -> None:
    store = channel_store.store
    async with recorded_channels(channel_store) as channels:
        await channels.publish("default", "room", "m-1", b"1")
        await register_reader(store)
        # A jump of the test time ends the pause between two reads of the registration.
        await channel_store.machine.advance(1)
        numbers = iter(range(2, 10_000))

        async def recorded() -> bool:
            await channels.publish("default", "room", f"m-{next(numbers)}", b"1")
            return bool(await record_entries(store, "channels"))

        await eventually(recorded)
        log = log_of_room(store)
        assert await store.call("HGET", keys.holds(log, 0), "~history") == b"0"


async def test_node_that_runs_history_registers_it_at_start(channel_store: ChannelStore) -> None:
    store = channel_store.store
    for reader in ("history", "~history"):
        async with RecordLogs(
            store, StreamLogs(store), clock=channel_store.clock, register_as=reader
        ):
            assert await history_reader(store) == "history"


async def test_record_log_created_by_two_nodes_keeps_entries_and_hold(
    channel_store: ChannelStore,
) -> None:
    store = channel_store.store
    await register_reader(store)
    async with recorded_channels(channel_store) as first, recorded_channels(channel_store) as other:
        await first.publish("default", "room", "m-1", b"1")
        log = log_of_room(store)
        await StreamLogs(store).hold(log, 0, "~history", 1)
        await other.publish("default", "room", "m-2", b"1")

    assert len(await record_entries(store, "channels")) == 2
    assert await store.call("HGET", keys.holds(log, 0), "~history") == b"1"


async def test_record_log_that_is_half_created_is_completed(channel_store: ChannelStore) -> None:
    """Create the log although an earlier process crashed after it had registered the name."""
    store = channel_store.store
    await register_reader(store)
    log = log_of_room(store)
    await store.call("HSET", keys.REGISTER, log, 1)
    async with recorded_channels(channel_store) as channels:
        await channels.publish("default", "room", "m-1", b"1")

    assert len(await record_entries(store, "channels")) == 1


@pytest.mark.parametrize("kind", ["channels", "pools"])
def test_record_log_of_cluster_is_in_slot_of_its_channel(kind: Kind) -> None:
    tags = [f"{{{number}}}" for number in range(60_000)]
    assert len({slot_of(tag) for tag in tags}) > SLOTS * 0.9
    for tag in tags:
        log = record_log(kind, tag, cluster=True)
        assert slot_of(log_key(log)) == slot_of(tag)


def test_record_logs_of_server_are_few() -> None:
    names = {record_log("channels", f"{{{number}}}", cluster=False) for number in range(1000)}
    assert len(names) == LOGS_OF_SERVER


async def test_publish_without_register_of_logs_is_stored_and_recorded_later(
    channel_store: ChannelStore,
) -> None:
    await register_reader(channel_store.store)

    class UnavailableLogs(StreamLogs):
        """Logs whose register is on a store node that is unavailable."""

        async def create(self, log: str, partitions: int, retention: Retention) -> bool:
            raise StoreUnavailableError("node 2 is unavailable")

    logs = UnavailableLogs(channel_store.store)
    async with RecordLogs(channel_store.store, logs, clock=channel_store.clock) as records:
        channels = ChannelService(
            channel_store.store,
            channel_store.wakeups,
            clock=channel_store.clock,
            settings=ChannelConfig(),
            guard=AddressGuard(loopback=True),
            records=records,
        )
        assert (await channels.publish("default", "room", "a", b"1")).clock
        assert not records.needs_log(log_of_room(channel_store.store))
    async with recorded_channels(channel_store) as recorded:
        await recorded.publish("default", "room", "b", b"2")
    assert len(await events(channel_store.store)) == 1
