"""Seek to the start or end of a channel, to a clock or a time; expired messages and polls."""

from __future__ import annotations

import asyncio

import pytest

from tests.channels.helpers import CLOCK_MAX, CLOCK_MIN, ChannelStore, open_channels
from tests.models.channel import following
from waystation.channels.model import EXPIRY_MARGIN_S, encode_handle
from waystation.channels.service import SeekTo
from waystation.errors import InvalidInputError, SubscriberNotFoundError
from waystation.store.embedded.server import EmbeddedServer

EXPIRE = 600
#: Values of the channel's clock at which each test begins.
STARTS = [0, CLOCK_MAX - 3, CLOCK_MAX - 1, CLOCK_MAX, CLOCK_MIN, -3]


async def publish(channel_store: ChannelStore, *ids: str) -> None:
    for each in ids:
        await channel_store.channels.publish("default", "ch", each, b"1")


async def seek(channel_store: ChannelStore, to: SeekTo, target: int = 0) -> tuple[int, int]:
    sought = await channel_store.channels.seek("default", "ch", "me", to, target)
    return sought.cursor, sought.unread


@pytest.mark.parametrize("start", STARTS)
async def test_seek_to_start_end_or_clock_moves_cursor(
    store_server: EmbeddedServer, start: int
) -> None:
    ids = ["a", "b", "c", "d", "e"]
    async with open_channels(store_server) as channel_store:
        await channel_store.set_clock("ch", start)
        await channel_store.channels.subscribe("default", "ch", "me")
        await publish(channel_store, *ids)

        assert await seek(channel_store, "end") == (following(start, 5), 0)
        assert await channel_store.ids("ch", "me") == []
        assert await seek(channel_store, "beginning") == (start, 5)
        assert await channel_store.ids("ch", "me") == ids
        for read in range(6):
            clock = following(start, read)
            assert await seek(channel_store, "clock", clock) == (clock, 5 - read)
            assert await channel_store.ids("ch", "me") == ids[read:]


@pytest.mark.parametrize("start", STARTS)
async def test_seek_to_clock_out_of_range_is_rejected(
    channel_store: ChannelStore, start: int
) -> None:
    await channel_store.set_clock("ch", start)
    await channel_store.channels.subscribe("default", "ch", "me")
    await publish(channel_store, "a", "b", "c")
    await seek(channel_store, "clock", following(start, 1))

    for outside in (following(start, -1), following(start, 4)):
        with pytest.raises(InvalidInputError) as raised:
            await seek(channel_store, "clock", outside)
        assert raised.value.field == "clock"
        assert f"clock from {start} to {following(start, 3)}" in raised.value.hint

    assert await channel_store.ids("ch", "me") == ["b", "c"]


async def test_seek_to_time_returns_messages_published_since(
    store_server: EmbeddedServer,
) -> None:
    async with open_channels(store_server, expire_seconds=EXPIRE) as channel_store:
        await channel_store.channels.subscribe("default", "ch", "me")
        begun_ms = channel_store.clock.now_ms()
        for minute in range(5):
            await publish(channel_store, f"m-{minute}")
            await channel_store.machine.advance(60)

        for minute in range(6):
            # Seek to half a minute before a message, so that delays of the test have no effect.
            cursor, unread = await seek(channel_store, "time", begun_ms + minute * 60_000 - 30_000)
            assert (cursor, unread) == (minute, 5 - minute)

        assert await seek(channel_store, "time", 0) == (0, 5)
        assert await seek(channel_store, "time", CLOCK_MAX) == (5, 0)


async def test_seek_to_beginning_skips_expired_messages(store_server: EmbeddedServer) -> None:
    async with open_channels(store_server, expire_seconds=EXPIRE) as channel_store:
        await channel_store.channels.subscribe("default", "ch", "me")
        await publish(channel_store, "old", "older")
        await channel_store.machine.advance(EXPIRE / 2)
        await publish(channel_store, "new")
        await channel_store.channels.ack("default", "ch", "me", encode_handle("ch", "me", 3))
        await channel_store.machine.advance(EXPIRE / 2 + EXPIRY_MARGIN_S + 1)

        assert await seek(channel_store, "beginning") == (2, 1)
        fetched = await channel_store.channels.fetch("default", "ch", "me", limit=10)
        assert [each.id for each in fetched.messages] == ["new"]
        assert fetched.expired == 0, "messages that a seek skips are not counted as lost"
        with pytest.raises(InvalidInputError):
            await seek(channel_store, "clock", 1)


async def test_seek_in_empty_channel_stays_at_end(
    channel_store: ChannelStore,
) -> None:
    await channel_store.channels.subscribe("default", "ch", "me")
    for how in ("beginning", "end", "time", "clock"):
        assert await seek(channel_store, how) == (0, 0)


async def test_seek_in_long_channel_makes_few_checks(
    channel_store: ChannelStore,
) -> None:
    await channel_store.channels.subscribe("default", "ch", "me")
    for start in range(0, 5000, 1000):
        messages = [(f"m-{start + number}", b"1") for number in range(1000)]
        await channel_store.channels.publish_many("default", "ch", messages)
    await channel_store.store.call("CONFIG", "RESETSTAT")

    assert await seek(channel_store, "beginning") == (0, 5000)

    stats = (await channel_store.store.call("INFO", "commandstats")).decode()
    (looks,) = (line for line in stats.splitlines() if line.startswith("cmdstat_pttl"))
    assert int(looks.partition("calls=")[2].partition(",")[0]) <= 2 * 13 + 2


async def test_seek_backwards_wakes_poll(channel_store: ChannelStore) -> None:
    await channel_store.channels.subscribe("default", "ch", "me")
    await publish(channel_store, "a")
    await seek(channel_store, "end")
    poll = asyncio.ensure_future(
        channel_store.channels.fetch("default", "ch", "me", limit=10, wait_s=30)
    )
    while not await channel_store.store.call("PUBSUB", "CHANNELS", "*ch*"):
        await asyncio.sleep(0.005)
    assert not poll.done()

    await seek(channel_store, "beginning")

    fetched = await asyncio.wait_for(poll, timeout=5)
    assert [each.id for each in fetched.messages] == ["a"]


async def test_seek_of_missing_subscriber_raises_not_found(
    channel_store: ChannelStore,
) -> None:
    await publish(channel_store, "a")
    before = set(await channel_store.keys())

    for channel in ("ch", "nowhere"):
        with pytest.raises(SubscriberNotFoundError):
            await channel_store.channels.seek("default", channel, "me", "end", 0)

    assert set(await channel_store.keys()) == before


async def test_seek_extends_expiry_of_subscriber_and_clock(store_server: EmbeddedServer) -> None:
    async with open_channels(store_server, expire_seconds=EXPIRE) as channel_store:
        await channel_store.channels.subscribe("default", "ch", "me")
        await publish(channel_store, "first")
        await channel_store.machine.advance(EXPIRE)
        await seek(channel_store, "end")
        await channel_store.machine.advance(EXPIRE)
        # An expired clock would assign 1 again, and the cursor at 1 would skip the message.
        await publish(channel_store, "a")

        assert await channel_store.ids("ch", "me") == ["a"]


async def test_seek_does_not_change_effect_of_older_handle(
    channel_store: ChannelStore,
) -> None:
    await channel_store.channels.subscribe("default", "ch", "me")
    await publish(channel_store, "a", "b", "c")
    await seek(channel_store, "end")

    assert not await channel_store.channels.ack("default", "ch", "me", encode_handle("ch", "me", 2))
    assert await channel_store.ids("ch", "me") == []
    await seek(channel_store, "beginning")
    assert await channel_store.channels.ack("default", "ch", "me", encode_handle("ch", "me", 2))
    assert await channel_store.ids("ch", "me") == ["c"]
