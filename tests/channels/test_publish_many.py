"""A batch is published in its order, in one step, each message once, however often it is sent."""

from __future__ import annotations

import asyncio

from tests.channels.helpers import CLOCK_MAX, CLOCK_MIN, open_channels
from tests.helpers.store_faults import Fate, proxy_to, store_at
from waystation.channels.service import ChannelService
from waystation.config import ChannelConfig
from waystation.runtime.clock import Clock
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.pubsub import PubSub


def batch(*ids: str) -> list[tuple[str, bytes]]:
    return [(each, f'"{each}"'.encode()) for each in ids]


async def test_messages_have_clocks_in_their_order_and_duplicates_that_of_the_first(
    store_server: EmbeddedServer,
) -> None:
    async with open_channels(store_server) as opened:
        await opened.channels.subscribe("default", "ch", "me")
        await opened.channels.publish("default", "ch", "known", b"1")

        published = await opened.channels.publish_many(
            "default", "ch", [("c", b"1"), ("known", b"2"), ("a", b"3"), ("c", b"4")]
        )

        assert [(each.clock, each.duplicate) for each in published] == [
            (2, False),
            (1, True),
            (3, False),
            (2, True),
        ]
        fetched = await opened.channels.fetch("default", "ch", "me", limit=10)
        contents = [(each.id, bytes(each.content)) for each in fetched.messages]
        assert contents == [("known", b"1"), ("c", b"1"), ("a", b"3")]


async def test_a_batch_goes_over_the_end_of_the_clocks(store_server: EmbeddedServer) -> None:
    async with open_channels(store_server) as opened:
        await opened.set_clock("ch", CLOCK_MAX - 1)
        await opened.channels.subscribe("default", "ch", "me")

        published = await opened.channels.publish_many("default", "ch", batch("a", "b", "c"))

        assert [each.clock for each in published] == [CLOCK_MAX, CLOCK_MIN, CLOCK_MIN + 1]
        assert await opened.ids("ch", "me") == ["a", "b", "c"]


async def test_a_batch_leaves_the_keys_that_single_publishes_leave(
    store_server: EmbeddedServer,
) -> None:
    async with open_channels(store_server) as opened:
        for each in batch("a", "b", "a"):
            await opened.channels.publish("default", "ch", *each)
        alone = {key: value for key, (value, _) in (await opened.keys()).items()}
        lives = [seconds for _, seconds in (await opened.keys()).values()]
        await opened.store.call("DEL", *alone)

        await opened.channels.publish_many("default", "ch", batch("a", "b", "a"))

        together = await opened.keys()
        assert {key: value for key, (value, _) in together.items()} == alone
        assert all(abs(life - lives[0]) < 10 for _, life in together.values())


async def test_batches_that_come_at_once_are_not_mixed(store_server: EmbeddedServer) -> None:
    async with open_channels(store_server) as opened:
        batches = [batch(*(f"{name}-{n}" for n in range(50))) for name in "abcd"]

        done = await asyncio.gather(
            *(opened.channels.publish_many("default", "ch", each) for each in batches)
        )

        for published in done:
            clocks = [each.clock for each in published]
            assert clocks == list(range(clocks[0], clocks[0] + 50))
        assert sorted(published[0].clock for published in done) == [1, 51, 101, 151]


async def test_a_batch_wakes_a_waiting_poll_with_all_its_messages(
    store_server: EmbeddedServer,
) -> None:
    async with open_channels(store_server) as opened:
        await opened.channels.subscribe("default", "ch", "me")
        poll = asyncio.ensure_future(
            opened.channels.fetch("default", "ch", "me", limit=10, wait_s=30)
        )
        while not await opened.store.call("PUBSUB", "CHANNELS", "*ch*"):
            await asyncio.sleep(0.005)

        await opened.channels.publish_many("default", "ch", batch("a", "b", "c"))

        fetched = await asyncio.wait_for(poll, timeout=5)
        assert [each.id for each in fetched.messages] == ["a", "b", "c"]


async def test_a_batch_whose_reply_is_lost_is_sent_again_and_doubles_nothing(
    store_server: EmbeddedServer,
) -> None:
    async with (
        store_at(store_server.address) as direct,
        proxy_to(store_server.address) as proxy,
        store_at(proxy.address) as store,
    ):
        await direct.call("FLUSHALL")
        channels = ChannelService(
            store, PubSub(store.address), clock=Clock(), settings=ChannelConfig()
        )
        await store.ping()
        await proxy.set_fates(replies=Fate.CUT)
        publishing = asyncio.ensure_future(
            channels.publish_many("default", "ch", batch("a", "b", "c"))
        )
        await asyncio.wait_for(proxy.met.wait(), timeout=5)
        assert await direct.call("GET", "c.{ch}.clock") == b"3", "it had run"
        await proxy.set_fates()

        published = await asyncio.wait_for(publishing, timeout=5)

        assert [each.clock for each in published] == [1, 2, 3]
        assert all(each.duplicate for each in published)
        assert await direct.call("GET", "c.{ch}.clock") == b"3"
        assert len(await direct.call("KEYS", "c.{ch}.m.*")) == 3
