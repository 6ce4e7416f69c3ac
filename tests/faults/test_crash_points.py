"""A process dies at every store call of every channel verb: nothing is lost, nothing is doubled.

The client of a process that died without an answer does the same again; the state must then be the
one that a single undisturbed run leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.helpers.store_faults import store_at
from waystation.channels.model import encode_handle
from waystation.channels.service import ChannelService
from waystation.config import ChannelConfig, ChannelRule
from waystation.errors import SubscriberNotFoundError
from waystation.runtime.clock import Clock
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.pubsub import PubSub
from waystation.testing import CrashPoint, crash_points

Verb = Callable[[ChannelService], Awaitable[object]]

CHANNEL = ("default", "orders")
ORDERS = ["o-1", "o-2", "o-3", "o-4"]
#: ChannelService that are nearly full.
LOOSE, STRICT = ("default", "loose"), ("default", "strict")
RULES = (
    ChannelRule(pattern="orders"),
    ChannelRule(pattern="loose", backlog_max=3, backlog_policy="drop_oldest"),
    ChannelRule(pattern="strict", backlog_max=3),
)


def channels_on(store: Store) -> ChannelService:
    settings = ChannelConfig(rules=RULES)
    return ChannelService(store, PubSub(store.address), clock=Clock(), settings=settings)


async def state_of(store: Store) -> dict[bytes, bytes]:
    """Every key with its value; how long they live depends on when they were written."""
    names = sorted(await store.call("KEYS", "*"))
    return {name: await store.call("GET", name) for name in names}


async def set_the_scene(store: Store) -> None:
    """Two subscribers, three messages, of which the first has expired; two of three elsewhere."""
    channels = channels_on(store)
    await channels.subscribe(*CHANNEL, "me")
    await channels.subscribe(*CHANNEL, "other")
    for order in ORDERS[:3]:
        await channels.publish(*CHANNEL, order, b'{"total": 1.0}')
    await store.call("DEL", "c.{orders}.m.1", "c.{orders}.mid.o-1")
    for channel in (LOOSE, STRICT):
        await channels.publish_many(*channel, [("o-1", b"1"), ("o-2", b"2")])


def batch(*ids: str) -> list[tuple[str, bytes]]:
    return [(each, b"1") for each in ids]


VERBS: dict[str, Verb] = {
    "publish": lambda channels: channels.publish(*CHANNEL, "o-4", b"4"),
    "publish again": lambda channels: channels.publish(*CHANNEL, "o-3", b"other"),
    "publish many": lambda channels: channels.publish_many(*CHANNEL, batch("o-4", "o-3", "o-5")),
    "publish many, dropping": lambda channels: channels.publish_many(*LOOSE, batch(*ORDERS)),
    "publish many, too many": lambda channels: channels.publish_many(*STRICT, batch(*ORDERS)),
    "seek back": lambda channels: channels.seek(*CHANNEL, "me", "beginning", 0),
    "seek to the end": lambda channels: channels.seek(*CHANNEL, "other", "end", 0),
    "seek to a clock": lambda channels: channels.seek(*CHANNEL, "me", "clock", 2),
    "subscribe": lambda channels: channels.subscribe(*CHANNEL, "late"),
    "subscribe where it was": lambda channels: channels.subscribe(*CHANNEL, "late", after=2),
    "stream over a gap": lambda channels: channels.stream(*CHANNEL, "me").read(10),
    "subscribe again": lambda channels: channels.subscribe(*CHANNEL, "me"),
    "fetch over a gap": lambda channels: channels.fetch(*CHANNEL, "me", limit=10),
    "ack": lambda channels: channels.ack(*CHANNEL, "me", encode_handle("orders", "me", 2)),
    "unsubscribe": lambda channels: channels.unsubscribe(*CHANNEL, "other"),
}


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_a_verb_that_is_repeated_after_a_death_has_its_effect_once(
    store_server: EmbeddedServer, verb: Verb
) -> None:
    async def undisturbed() -> dict[bytes, bytes]:
        async with store_at(store_server.address) as store:
            await store.call("FLUSHALL")
            await set_the_scene(store)
            await verb(channels_on(store))
            return await state_of(store)

    async def scenario(store: Store) -> None:
        await verb(channels_on(store))

    async def after(store: Store, point: CrashPoint) -> None:
        await verb(channels_on(store))
        assert await state_of(store) == expected

    expected = asyncio.run(undisturbed())
    points = crash_points(store_server.address, scenario, after, prepare=set_the_scene)
    assert len(points) == 3, "each verb is one call, with three deaths"


async def buy_and_read(channels: ChannelService) -> list[str]:
    """The life of a client: subscribe, publish, fetch, ack, until nothing is left; what it read."""
    read = []
    await channels.subscribe(*CHANNEL, "me")
    for order in ORDERS:
        await channels.publish(*CHANNEL, order, b"1")
    while True:
        fetched = await channels.fetch(*CHANNEL, "me", limit=3)
        if fetched.last is None:
            return read
        read += [message.id for message in fetched.messages]
        await channels.ack(*CHANNEL, "me", encode_handle("orders", "me", fetched.last))


def test_a_client_that_starts_over_reads_everything_it_had_not_acknowledged(
    store_server: EmbeddedServer,
) -> None:
    async def scenario(store: Store) -> None:
        assert await buy_and_read(channels_on(store)) == ORDERS

    async def after(store: Store, point: CrashPoint) -> None:
        # Given what the first life had acknowledged when it ended
        acknowledged = int(await store.call("GET", "c.{orders}.r.me") or 0)

        read = await buy_and_read(channels_on(store))

        # Then the second life reads the rest, in order, each once
        assert read == ORDERS[acknowledged:]
        # And the channel has every order once, under the clocks 1 to 4, all acknowledged
        state = await state_of(store)
        assert len(state) == 1 + 1 + 2 * len(ORDERS)
        assert state[b"c.{orders}.clock"] == state[b"c.{orders}.r.me"] == b"4"
        for clock, order in enumerate(ORDERS, start=1):
            assert state[f"c.{{orders}}.mid.{order}".encode()] == str(clock).encode()
            assert order.encode() in state[f"c.{{orders}}.m.{clock}".encode()]

    points = crash_points(store_server.address, scenario, after)
    # subscribe, four publishes, three fetches, two acks
    assert len(points) == 3 * 10


def test_a_subscriber_that_leaves_is_gone_for_good_whenever_its_process_dies(
    store_server: EmbeddedServer,
) -> None:
    async def leave(store: Store) -> None:
        channels = channels_on(store)
        fetched = await channels.fetch(*CHANNEL, "other", limit=10)
        assert fetched.last is not None
        handle = encode_handle("orders", "other", fetched.last)
        await channels.ack(*CHANNEL, "other", handle)
        await channels.unsubscribe(*CHANNEL, "other")

    async def after(store: Store, point: CrashPoint) -> None:
        channels = channels_on(store)
        await channels.unsubscribe(*CHANNEL, "other")
        with pytest.raises(SubscriberNotFoundError):
            await channels.fetch(*CHANNEL, "other", limit=10)
        # And the one who stays has not noticed anything
        fetched = await channels.fetch(*CHANNEL, "me", limit=10)
        assert [message.id for message in fetched.messages] == ["o-2", "o-3"]
        assert fetched.expired == 1

    points = crash_points(store_server.address, leave, after, prepare=set_the_scene)
    assert len(points) == 3 * 3
