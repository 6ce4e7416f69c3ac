"""A bounded backlog: how many messages a channel keeps, and what becomes of one more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.channels.helpers import CLOCK_MAX, CLOCK_MIN, ChannelStore, open_channels
from waystation.channels.model import EXPIRY_MARGIN_S, encode_handle
from waystation.config import Backlog, ChannelRule
from waystation.errors import ChannelFullError
from waystation.store.embedded.server import EmbeddedServer

BOUND = 3
EXPIRE = 600


async def test_channels_of_a_pattern_expire_as_their_rule_says(
    store_server: EmbeddedServer,
) -> None:
    rules = ChannelRule(pattern="short-.+", expire_seconds=60), ChannelRule(pattern="long")
    async with open_channels(store_server, expire_seconds=EXPIRE, rules=rules) as opened:
        for channel, seconds in (("short-1", 60), ("long", EXPIRE)):
            await opened.channels.publish("default", channel, "m", b"1")
            left = await opened.store.call("TTL", f"c.{{{channel}}}.m.1")
            assert seconds < left <= seconds + EXPIRY_MARGIN_S


@asynccontextmanager
async def bounded(
    server: EmbeddedServer, policy: Backlog, *, bound: int = BOUND, flush: bool = True
) -> AsyncIterator[ChannelStore]:
    """Channels with a bound."""
    rule = ChannelRule(pattern=".+", backlog_max=bound, backlog_policy=policy)
    async with open_channels(server, expire_seconds=EXPIRE, rules=(rule,), flush=flush) as opened:
        yield opened


async def publish(opened: ChannelStore, *ids: str) -> list[str]:
    """Publishes one by one; tells the outcomes."""
    outcomes = []
    for each in ids:
        try:
            published = await opened.channels.publish("default", "ch", each, b"1")
            outcomes.append("duplicate" if published.duplicate else "accepted")
        except ChannelFullError:
            outcomes.append("full")
    return outcomes


async def kept(opened: ChannelStore) -> list[int]:
    """The clocks of the messages that are in the store."""
    names = await opened.store.call("KEYS", "c.{ch}.m.*")
    return sorted(int(name.rpartition(b".")[2]) for name in names)


@pytest.mark.parametrize("start", [None, 0, CLOCK_MAX - 5, CLOCK_MAX - 1, CLOCK_MAX, CLOCK_MIN])
async def test_a_full_channel_refuses_new_messages_and_knows_the_old_ones(
    store_server: EmbeddedServer, start: int | None
) -> None:
    async with bounded(store_server, "refuse") as opened:
        if start is not None:
            await opened.set_clock("ch", start)
        await opened.channels.subscribe("default", "ch", "me")

        outcomes = await publish(opened, "a", "b", "a", "c", "d", "a", "c")

        assert outcomes == [
            *("accepted", "accepted", "duplicate", "accepted", "full", "duplicate", "duplicate")
        ]
        assert await opened.ids("ch", "me") == ["a", "b", "c"]


@pytest.mark.parametrize("start", [None, 0, CLOCK_MAX - 5, CLOCK_MAX - 1, CLOCK_MAX, CLOCK_MIN])
async def test_or_drops_the_oldest_for_a_new_one_and_tells_readers_how_many_they_lost(
    store_server: EmbeddedServer, start: int | None
) -> None:
    async with bounded(store_server, "drop_oldest") as opened:
        if start is not None:
            await opened.set_clock("ch", start)
        await opened.channels.subscribe("default", "ch", "me")

        outcomes = await publish(opened, "a", "b", "c", "d", "e", "d", "a")

        # The id of a dropped message is remembered as long as any other.
        assert outcomes == ["accepted"] * 5 + ["duplicate"] * 2
        fetched = await opened.channels.fetch("default", "ch", "me", limit=10)
        assert [each.id for each in fetched.messages] == ["c", "d", "e"]
        assert fetched.expired == 2
        assert len(await kept(opened)) == BOUND


@pytest.mark.parametrize("start", [0, CLOCK_MAX - 2])
async def test_a_batch_fills_what_room_there_is(store_server: EmbeddedServer, start: int) -> None:
    async with bounded(store_server, "refuse") as opened:
        await opened.set_clock("ch", start)
        await publish(opened, "a")
        messages = [(each, b"1") for each in ("b", "a", "c", "d", "b", "e", "d")]

        published = await opened.channels.publish_many("default", "ch", messages)

        told = ["full" if each.full else "known" if each.duplicate else "new" for each in published]
        assert told == ["new", "known", "new", "full", "known", "full", "full"]
        with pytest.raises(ChannelFullError) as raised:
            await opened.channels.publish_many("default", "ch", [("d", b"1"), ("e", b"1")])
        assert raised.value.code == "channel.full"
        # And nothing was remembered of those that were refused
        assert await opened.store.call("EXISTS", "c.{ch}.mid.d", "c.{ch}.mid.e") == 0


@pytest.mark.parametrize("start", [0, CLOCK_MAX - 2, CLOCK_MAX - 4])
async def test_a_batch_larger_than_the_bound_keeps_its_last_messages(
    store_server: EmbeddedServer, start: int
) -> None:
    async with bounded(store_server, "drop_oldest") as opened:
        await opened.set_clock("ch", start)
        await opened.channels.subscribe("default", "ch", "me")
        await publish(opened, "z")

        messages = [(f"m-{number}", b"1") for number in range(5)]
        await opened.channels.publish_many("default", "ch", messages)

        fetched = await opened.channels.fetch("default", "ch", "me", limit=10)
        assert [each.id for each in fetched.messages] == ["m-2", "m-3", "m-4"]
        assert fetched.expired == 3
        # And sent again, it drops nothing more
        again = await opened.channels.publish_many("default", "ch", messages)
        assert all(each.duplicate for each in again)
        assert await opened.ids("ch", "me") == ["m-2", "m-3", "m-4"]


async def test_acknowledged_messages_count_until_they_expire(store_server: EmbeddedServer) -> None:
    async with bounded(store_server, "refuse") as opened:
        await opened.channels.subscribe("default", "ch", "me")
        await publish(opened, "a", "b", "c")
        await opened.channels.ack("default", "ch", "me", encode_handle("ch", "me", 3))

        assert await publish(opened, "d") == ["full"]

        await opened.machine.advance(EXPIRE + EXPIRY_MARGIN_S + 1)
        assert await publish(opened, "d", "e", "f", "g") == ["accepted"] * 3 + ["full"]


async def test_room_comes_back_message_by_message_as_they_expire(
    store_server: EmbeddedServer,
) -> None:
    async with bounded(store_server, "refuse") as opened:
        await publish(opened, "a")
        await opened.machine.advance(EXPIRE / 2)
        await publish(opened, "b", "c")
        assert await publish(opened, "d") == ["full"]

        await opened.machine.advance(EXPIRE / 2 + EXPIRY_MARGIN_S + 1)

        assert await publish(opened, "d", "e") == ["accepted", "full"]


@pytest.mark.parametrize("policy", ["refuse", "drop_oldest"])
async def test_publishers_at_once_never_exceed_the_bound(
    store_server: EmbeddedServer, policy: Backlog
) -> None:
    async with bounded(store_server, policy, bound=50) as opened:
        names = [[f"{who}-{number}" for number in range(20)] for who in range(8)]

        outcomes = await asyncio.gather(*(publish(opened, *each) for each in names))

        accepted = sum(each.count("accepted") for each in outcomes)
        assert accepted == (50 if policy == "refuse" else 160)
        last = 50 if policy == "refuse" else 160
        assert await kept(opened) == list(range(last - 49, last + 1))


async def test_a_bound_that_was_lowered_drops_from_the_oldest_on(
    store_server: EmbeddedServer,
) -> None:
    async with bounded(store_server, "drop_oldest", bound=5000) as opened:
        for start in range(0, 3000, 1000):
            messages = [(f"m-{start + number}", b"1") for number in range(1000)]
            await opened.channels.publish_many("default", "ch", messages)

    # When the same channel may keep just ten
    async with bounded(store_server, "drop_oldest", bound=10, flush=False) as opened:
        sizes = []
        for number in range(4):
            await publish(opened, f"new-{number}")
            clocks = await kept(opened)
            assert clocks == list(range(clocks[0], 3002 + number))
            sizes.append(len(clocks))

        # Then each publish drops a bounded number, never one from the middle, until ten are left
        assert sizes == [2000, 1000, 10, 10]


async def test_a_message_that_somebody_deleted_is_not_waited_for(
    store_server: EmbeddedServer,
) -> None:
    async with bounded(store_server, "refuse") as opened:
        await publish(opened, "a", "b", "c")
        await opened.store.call("DEL", "c.{ch}.m.1")
        assert await publish(opened, "d", "e") == ["accepted", "full"]
