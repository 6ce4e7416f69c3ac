"""Clocks: going round at 2^53 - 1, living longest, and beginning again after a loss."""

from __future__ import annotations

import pytest

from tests.channels.helpers import CLOCK_MAX, CLOCK_MIN, ChannelStore, open_channels
from waystation.channels.model import encode_handle
from waystation.store.embedded.server import EmbeddedServer

MARGIN = 15


async def publish(opened: ChannelStore, channel: str, *ids: str) -> list[int]:
    """Publishes messages in order; returns their clocks."""
    return [(await opened.channels.publish("default", channel, each, b"1")).clock for each in ids]


# -- Going round -----------------------------------------------------------------------------


async def test_the_clock_goes_from_the_largest_safe_integer_to_the_smallest(
    store_server: EmbeddedServer,
) -> None:
    async with open_channels(store_server) as opened:
        await opened.set_clock("ch", CLOCK_MAX - 2)

        clocks = await publish(opened, "ch", "m1", "m2", "m3", "m4")

        assert clocks == [CLOCK_MAX - 1, CLOCK_MAX, CLOCK_MIN, CLOCK_MIN + 1]
        assert await opened.text("c.{ch}.clock") == "-9007199254740990"
        assert await opened.text("c.{ch}.mid.m3") == "-9007199254740991"
        assert await opened.text("c.{ch}.m.-9007199254740991") == '{"id":"m3","content":1}'
        # and it does not die earlier for it
        assert (await opened.keys())["c.{ch}.clock"][1] > 3500


async def test_the_clock_counts_through_zero_from_below(store_server: EmbeddedServer) -> None:
    async with open_channels(store_server) as opened:
        await opened.set_clock("ch", -2)
        await opened.channels.subscribe("default", "ch", "s")

        assert await publish(opened, "ch", "m1", "m2", "m3") == [-1, 0, 1]

        assert await opened.ids("ch", "s") == ["m1", "m2", "m3"]


async def test_a_fetch_reads_across_the_turn_in_the_order_of_the_seed(
    store_server: EmbeddedServer,
) -> None:
    async with open_channels(store_server) as opened:
        # Given the example of DSPS: a cursor at 2^53 - 3, a clock at -(2^53 - 1) + 1
        await opened.set_clock("ch", 2**53 - 3)
        await opened.channels.subscribe("default", "ch", "s")
        clocks = await publish(opened, "ch", "m1", "m2", "m3", "m4")
        assert clocks == [2**53 - 2, 2**53 - 1, -(2**53 - 1), -(2**53 - 1) + 1]

        fetched = await opened.channels.fetch("default", "ch", "s", limit=64)

        assert [each.id for each in fetched.messages] == ["m1", "m2", "m3", "m4"]
        assert (fetched.last, fetched.more, fetched.expired) == (CLOCK_MIN + 1, False, 0)


@pytest.mark.parametrize("taken", [1, 2, 3, 4])
async def test_a_handle_acknowledges_up_to_its_message_on_either_side_of_the_turn(
    store_server: EmbeddedServer, taken: int
) -> None:
    async with open_channels(store_server) as opened:
        # Given two messages before the turn and two after it
        await opened.set_clock("ch", CLOCK_MAX - 2)
        await opened.channels.subscribe("default", "ch", "s")
        await publish(opened, "ch", "m1", "m2", "m3", "m4")
        # When the first few of them are fetched and acknowledged
        fetched = await opened.channels.fetch("default", "ch", "s", limit=taken)
        assert fetched.last is not None
        assert fetched.more is (taken < 4)
        handle = encode_handle("ch", "s", fetched.last)
        assert await opened.channels.ack("default", "ch", "s", handle) is True
        # Then exactly the rest is left, and the same handle is stale
        assert await opened.ids("ch", "s") == ["m1", "m2", "m3", "m4"][taken:]
        assert await opened.channels.ack("default", "ch", "s", handle) is False


async def test_an_old_handle_never_moves_a_cursor_back_around_the_turn(
    store_server: EmbeddedServer,
) -> None:
    async with open_channels(store_server) as opened:
        await opened.set_clock("ch", CLOCK_MAX - 1)
        await opened.channels.subscribe("default", "ch", "s")
        before, after, last = await publish(opened, "ch", "m1", "m2", "m3")
        assert (before, after, last) == (CLOCK_MAX, CLOCK_MIN, CLOCK_MIN + 1)
        await opened.channels.ack("default", "ch", "s", encode_handle("ch", "s", after))

        for stale in (before, after, CLOCK_MAX - 1, 0, CLOCK_MIN + 2):
            moved = await opened.channels.ack("default", "ch", "s", encode_handle("ch", "s", stale))
            assert moved is False, stale

        assert await opened.number("c.{ch}.r.s") == after
        assert await opened.ids("ch", "s") == ["m3"]


async def test_a_gap_of_expired_messages_across_the_turn_is_passed(
    store_server: EmbeddedServer,
) -> None:
    async with open_channels(store_server) as opened:
        await opened.set_clock("ch", CLOCK_MAX - 700)
        await opened.channels.subscribe("default", "ch", "s")
        await opened.set_clock("ch", CLOCK_MIN + 700)
        await publish(opened, "ch", "m1")

        fetched = await opened.channels.fetch("default", "ch", "s", limit=64)

        assert [each.id for each in fetched.messages] == ["m1"]
        assert (fetched.expired, fetched.last) == (1401, CLOCK_MIN + 701)
        assert await opened.number("c.{ch}.r.s") == CLOCK_MIN + 700


# -- Living longest --------------------------------------------------------------------------


async def assert_clock_outlives_cursors(opened: ChannelStore) -> None:
    dies_ms = {name: await opened.store.call("PEXPIRETIME", name) for name in await opened.keys()}
    assert dies_ms["c.{ch}.clock"] >= max(ms for name, ms in dies_ms.items() if ".r." in name)


async def test_the_clock_never_dies_before_the_longest_lived_subscriber(
    store_server: EmbeddedServer,
) -> None:
    async with open_channels(store_server, expire_seconds=1000) as opened:
        channels = opened.channels
        await channels.subscribe("default", "ch", "s1")
        await channels.publish("default", "ch", "m1", b"1")
        for verb in ("subscribe again", "fetch", "ack", "subscribe another"):
            await opened.machine.advance(100)
            if verb == "subscribe again":
                await channels.subscribe("default", "ch", "s1")
            elif verb == "fetch":
                await opened.ids("ch", "s1")
            elif verb == "ack":
                await channels.ack("default", "ch", "s1", encode_handle("ch", "s1", 1))
            else:
                await channels.subscribe("default", "ch", "s2")
            await assert_clock_outlives_cursors(opened)


async def test_a_shorter_expiry_set_later_does_not_end_the_clock_before_a_subscriber(
    store_server: EmbeddedServer,
) -> None:
    # Given a subscriber from the days of a long expiry
    async with open_channels(store_server, expire_seconds=3600) as opened:
        await opened.channels.subscribe("default", "ch", "old")
    # When the expiry is a minute, and all verbs but those of that subscriber are used
    async with open_channels(store_server, expire_seconds=60, flush=False) as opened:
        channels = opened.channels
        await channels.publish("default", "ch", "m1", b"1")
        await channels.publish("default", "ch", "m1", b"1")
        await channels.subscribe("default", "ch", "new")
        await opened.ids("ch", "new")
        await channels.ack("default", "ch", "new", encode_handle("ch", "new", 1))
        await channels.publish("default", "ch", "m2", b"1")
        # Then the clock lives as long as the old one, which so misses nothing but what expired
        await assert_clock_outlives_cursors(opened)
        await opened.machine.advance(60 + MARGIN)
        assert (await channels.publish("default", "ch", "m3", b"1")).clock == 3
        fetched = await channels.fetch("default", "ch", "old", limit=64)
        assert [each.id for each in fetched.messages] == ["m3"]
        assert fetched.expired == 2


async def test_a_channel_that_nobody_used_for_its_whole_expiry_begins_anew(
    store_server: EmbeddedServer,
) -> None:
    async with open_channels(store_server, expire_seconds=100) as opened:
        await opened.channels.subscribe("default", "ch", "s")
        await publish(opened, "ch", "m1", "m2")

        await opened.machine.advance(100 + MARGIN)

        assert await opened.keys() == {}
        assert await publish(opened, "ch", "m1") == [1]


# -- Beginning again -------------------------------------------------------------------------


@pytest.mark.parametrize("cursor", [500, 10**15, CLOCK_MAX, CLOCK_MIN, CLOCK_MIN + 500, -(10**15)])
async def test_a_clock_that_began_again_beside_a_living_cursor_delivers(
    store_server: EmbeddedServer, cursor: int
) -> None:
    """A data set that was taken over can be so: there the clock could die before a cursor."""
    async with open_channels(store_server) as opened:
        await opened.channels.subscribe("default", "ch", "s")
        await opened.store.call("SET", "c.{ch}.r.s", cursor, "EX", 100)
        await opened.store.call("DEL", "c.{ch}.clock")
        await publish(opened, "ch", "m1", "m2", "m3")

        fetched = await opened.channels.fetch("default", "ch", "s", limit=2)

        assert [each.id for each in fetched.messages] == ["m1", "m2"]
        assert (fetched.last, fetched.more, fetched.expired) == (2, True, 0)
        assert await opened.channels.ack("default", "ch", "s", encode_handle("ch", "s", 2)) is True
        assert await opened.ids("ch", "s") == ["m3"]
