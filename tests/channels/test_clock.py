"""Clocks of channels: wrap at the maximum, expiry and loss; acknowledgement handles."""

from __future__ import annotations

import base64
import json
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.channels.helpers import CLOCK_MAX, CLOCK_MIN, ChannelStore, open_channels
from waystation.channels.model import decode_handle, encode_handle
from waystation.errors import AckHandleMalformedError, SubscriberNotFoundError
from waystation.store.embedded.server import EmbeddedServer

MARGIN = 15


async def publish(channel_store: ChannelStore, channel: str, *ids: str) -> list[int]:
    """Publish messages in order. Return their clocks."""
    return [
        (await channel_store.channels.publish("default", channel, each, b"1")).clock for each in ids
    ]


# -- Wrap ------------------------------------------------------------------------------------


async def test_clock_at_maximum_continues_at_minimum(
    channel_store: ChannelStore,
) -> None:
    await channel_store.set_clock("ch", CLOCK_MAX - 2)

    clocks = await publish(channel_store, "ch", "m1", "m2", "m3", "m4")

    assert clocks == [CLOCK_MAX - 1, CLOCK_MAX, CLOCK_MIN, CLOCK_MIN + 1]
    assert await channel_store.text("c.{ch}.clock") == "-9007199254740990"
    assert await channel_store.text("c.{ch}.mid.m3") == "-9007199254740991"
    assert await channel_store.text("c.{ch}.m.-9007199254740991") == '{"id":"m3","content":1}'
    # The wrap does not shorten the expiry of the clock.
    assert (await channel_store.keys())["c.{ch}.clock"][1] > 3500


async def test_clock_below_zero_counts_through_zero(channel_store: ChannelStore) -> None:
    await channel_store.set_clock("ch", -2)
    await channel_store.channels.subscribe("default", "ch", "s")

    assert await publish(channel_store, "ch", "m1", "m2", "m3") == [-1, 0, 1]

    assert await channel_store.ids("ch", "s") == ["m1", "m2", "m3"]


async def test_clock_wrap_keeps_order_of_fetch(
    channel_store: ChannelStore,
) -> None:
    # The example in the documentation of DSPS: cursor 2^53 - 3, clock -(2^53 - 1) + 1.
    await channel_store.set_clock("ch", 2**53 - 3)
    await channel_store.channels.subscribe("default", "ch", "s")
    clocks = await publish(channel_store, "ch", "m1", "m2", "m3", "m4")
    assert clocks == [2**53 - 2, 2**53 - 1, -(2**53 - 1), -(2**53 - 1) + 1]

    fetched = await channel_store.channels.fetch("default", "ch", "s", limit=64)

    assert [each.id for each in fetched.messages] == ["m1", "m2", "m3", "m4"]
    assert (fetched.last, fetched.more, fetched.expired) == (CLOCK_MIN + 1, False, 0)


@pytest.mark.parametrize("taken", [1, 2, 3, 4])
async def test_handle_around_clock_wrap_acknowledges_up_to_its_message(
    channel_store: ChannelStore, taken: int
) -> None:
    # Two messages have clocks before the wrap and two after it.
    await channel_store.set_clock("ch", CLOCK_MAX - 2)
    await channel_store.channels.subscribe("default", "ch", "s")
    await publish(channel_store, "ch", "m1", "m2", "m3", "m4")
    # Fetch and acknowledge the first `taken` messages.
    fetched = await channel_store.channels.fetch("default", "ch", "s", limit=taken)
    assert fetched.last is not None
    assert fetched.more is (taken < 4)
    handle = encode_handle("ch", "s", fetched.last)
    assert await channel_store.channels.ack("default", "ch", "s", handle) is True
    # The other messages stay unread. A second acknowledgement with the handle has no effect.
    assert await channel_store.ids("ch", "s") == ["m1", "m2", "m3", "m4"][taken:]
    assert await channel_store.channels.ack("default", "ch", "s", handle) is False


async def test_handle_from_before_clock_wrap_does_not_move_cursor_back(
    channel_store: ChannelStore,
) -> None:
    await channel_store.set_clock("ch", CLOCK_MAX - 1)
    await channel_store.channels.subscribe("default", "ch", "s")
    before, after, last = await publish(channel_store, "ch", "m1", "m2", "m3")
    assert (before, after, last) == (CLOCK_MAX, CLOCK_MIN, CLOCK_MIN + 1)
    await channel_store.channels.ack("default", "ch", "s", encode_handle("ch", "s", after))

    for stale in (before, after, CLOCK_MAX - 1, 0, CLOCK_MIN + 2):
        moved = await channel_store.channels.ack(
            "default", "ch", "s", encode_handle("ch", "s", stale)
        )
        assert moved is False, stale

    assert await channel_store.number("c.{ch}.r.s") == after
    assert await channel_store.ids("ch", "s") == ["m3"]


async def test_fetch_skips_gap_that_contains_clock_wrap(
    channel_store: ChannelStore,
) -> None:
    await channel_store.set_clock("ch", CLOCK_MAX - 700)
    await channel_store.channels.subscribe("default", "ch", "s")
    await channel_store.set_clock("ch", CLOCK_MIN + 700)
    await publish(channel_store, "ch", "m1")

    fetched = await channel_store.channels.fetch("default", "ch", "s", limit=64)

    assert [each.id for each in fetched.messages] == ["m1"]
    assert (fetched.expired, fetched.last) == (1401, CLOCK_MIN + 701)
    assert await channel_store.number("c.{ch}.r.s") == CLOCK_MIN + 700


# -- Expiry ----------------------------------------------------------------------------------


async def assert_clock_outlives_cursors(channel_store: ChannelStore) -> None:
    dies_ms = {
        name: await channel_store.store.call("PEXPIRETIME", name)
        for name in await channel_store.keys()
    }
    assert dies_ms["c.{ch}.clock"] >= max(ms for name, ms in dies_ms.items() if ".r." in name)


async def test_clock_expires_after_all_subscribers(
    store_server: EmbeddedServer,
) -> None:
    async with open_channels(store_server, expire_seconds=1000) as channel_store:
        channels = channel_store.channels
        await channels.subscribe("default", "ch", "s1")
        await channels.publish("default", "ch", "m1", b"1")
        for verb in ("subscribe again", "fetch", "ack", "subscribe another"):
            await channel_store.machine.advance(100)
            if verb == "subscribe again":
                await channels.subscribe("default", "ch", "s1")
            elif verb == "fetch":
                await channel_store.ids("ch", "s1")
            elif verb == "ack":
                await channels.ack("default", "ch", "s1", encode_handle("ch", "s1", 1))
            else:
                await channels.subscribe("default", "ch", "s2")
            await assert_clock_outlives_cursors(channel_store)


async def test_clock_with_shortened_expiry_outlives_subscriber(
    store_server: EmbeddedServer,
) -> None:
    # The subscriber `old` is created while the expiry is an hour.
    async with open_channels(store_server, expire_seconds=3600) as channel_store:
        await channel_store.channels.subscribe("default", "ch", "old")
    # The expiry is then reduced to a minute. All subscribers except `old` make their calls.
    async with open_channels(store_server, expire_seconds=60, flush=False) as channel_store:
        channels = channel_store.channels
        await channels.publish("default", "ch", "m1", b"1")
        await channels.publish("default", "ch", "m1", b"1")
        await channels.subscribe("default", "ch", "new")
        await channel_store.ids("ch", "new")
        await channels.ack("default", "ch", "new", encode_handle("ch", "new", 1))
        await channels.publish("default", "ch", "m2", b"1")
        # The clock expires no earlier than the cursor of `old`. Therefore `old` misses only
        # messages that have expired.
        await assert_clock_outlives_cursors(channel_store)
        await channel_store.machine.advance(60 + MARGIN)
        assert (await channels.publish("default", "ch", "m3", b"1")).clock == 3
        fetched = await channels.fetch("default", "ch", "old", limit=64)
        assert [each.id for each in fetched.messages] == ["m3"]
        assert fetched.expired == 2


async def test_clock_of_expired_channel_starts_again(
    store_server: EmbeddedServer,
) -> None:
    async with open_channels(store_server, expire_seconds=100) as channel_store:
        await channel_store.channels.subscribe("default", "ch", "s")
        await publish(channel_store, "ch", "m1", "m2")

        await channel_store.machine.advance(100 + MARGIN)

        assert await channel_store.keys() == {}
        assert await publish(channel_store, "ch", "m1") == [1]


# -- Loss ------------------------------------------------------------------------------------


@pytest.mark.parametrize("cursor", [500, 10**15, CLOCK_MAX, CLOCK_MIN, CLOCK_MIN + 500, -(10**15)])
async def test_clock_below_cursor_after_loss_delivers_messages(
    channel_store: ChannelStore, cursor: int
) -> None:
    """Deliver messages although the clock is below the cursor.

    A data set of DSPS can be in this state, because there a clock can expire before a cursor.
    """
    await channel_store.channels.subscribe("default", "ch", "s")
    await channel_store.store.call("SET", "c.{ch}.r.s", cursor, "EX", 100)
    await channel_store.store.call("DEL", "c.{ch}.clock")
    await publish(channel_store, "ch", "m1", "m2", "m3")

    fetched = await channel_store.channels.fetch("default", "ch", "s", limit=2)

    assert [each.id for each in fetched.messages] == ["m1", "m2"]
    assert (fetched.last, fetched.more, fetched.expired) == (2, True, 0)
    assert (
        await channel_store.channels.ack("default", "ch", "s", encode_handle("ch", "s", 2)) is True
    )
    assert await channel_store.ids("ch", "s") == ["m3"]


names = st.from_regex(r"[0-9a-z][0-9a-z_-]{0,62}", fullmatch=True)
clocks = st.integers(CLOCK_MIN, CLOCK_MAX)


def dsps_checksum(channel: str, subscriber: str, clock: int) -> str:
    """Return the checksum of a handle, computed as the documentation of DSPS describes it."""
    covered = b"dsps.storage.redis\0" + channel.encode() + b"\0" + subscriber.encode() + b"\0"
    crc = zlib.crc32(covered + clock.to_bytes(8, "big", signed=True))
    return base64.b64encode(struct.pack(">I", crc)).decode().rstrip("=")


def dsps_handle(channel: str, subscriber: str, clock: int, *, storage: str = "default") -> str:
    """Return a handle as DSPS creates it for a single storage."""
    inner = json.dumps({"clk": clock, "xs": dsps_checksum(channel, subscriber, clock)})
    return base64.b64encode(json.dumps({storage: inner}).encode()).decode()


def wrapped(content: object) -> str:
    return base64.b64encode(json.dumps(content).encode()).decode()


@given(names, names, clocks)
def test_handle_equals_handle_of_dsps(channel: str, subscriber: str, clock: int) -> None:
    outer = json.loads(base64.b64decode(encode_handle(channel, subscriber, clock), validate=True))

    assert list(outer) == ["default"]
    assert json.loads(outer["default"]) == {
        "clk": clock,
        "xs": dsps_checksum(channel, subscriber, clock),
    }


@given(names, names, clocks)
def test_handle_of_dsps_is_accepted(channel: str, subscriber: str, clock: int) -> None:
    assert decode_handle(channel, subscriber, dsps_handle(channel, subscriber, clock)) == clock


@given(names, names, clocks)
def test_handle_needs_no_escaping_in_url(channel: str, subscriber: str, clock: int) -> None:
    handle = encode_handle(channel, subscriber, clock)

    assert not set(handle) - set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789=")


def test_handle_format_equals_stored_example() -> None:
    """Keep the format of handles, because clients use them after an upgrade of the server."""
    assert encode_handle("chan", "sub", 1) == (
        "eyJkZWZhdWx0Ijoie1wiY2xrXCI6MSxcInhzXCI6XCJ1NkpTY3dcIn0ifQ=="
    )


GOOD = {"clk": 7, "xs": dsps_checksum("ch", "s", 7)}


@pytest.mark.parametrize(
    "handle",
    [
        "x",
        "@@@@",
        "====",
        "e30",  # base64 without padding
        "eyJ",
        "e30=e30=",
        " e30=",
        "e30=\n",
        "ü",
        "\0",
        wrapped([]),
        wrapped("default"),
        wrapped(7),
        wrapped({"default": 7}),
        wrapped({"default": GOOD}),
        wrapped({"default": ""}),
        wrapped({"default": "{}"}),
        wrapped({"default": json.dumps({"clk": 7})}),
        wrapped({"default": json.dumps({"xs": GOOD["xs"]})}),
        wrapped({"default": json.dumps({**GOOD, "clk": 8})}),
        wrapped({"default": json.dumps({**GOOD, "clk": "7"})}),
        wrapped({"default": json.dumps({**GOOD, "clk": 2**63})}),
        wrapped({"default": json.dumps({**GOOD, "clk": 10**40})}),
        wrapped({"default": json.dumps({**GOOD, "xs": ""})}),
        wrapped({"default": json.dumps({**GOOD, "xs": None})}),
        wrapped({"default": json.dumps({"mid": "m1", "xs": GOOD["xs"]})}),
        dsps_handle("other", "s", 7),
        dsps_handle("ch", "other", 7),
        dsps_handle("s", "ch", 7),
        dsps_handle("ch", "s", 2**53),
        dsps_handle("ch", "s", -(2**53)),
        base64.b64encode(b"[" * 100_000).decode(),
        base64.b64encode(b'{"default":"\xff"}').decode(),
        "A" * 1_000_000,
    ],
    ids=lambda handle: handle[:40].encode("unicode_escape").decode() or "empty",
)
def test_handle_of_other_subscriber_is_rejected(handle: str) -> None:
    with pytest.raises(AckHandleMalformedError) as caught:
        decode_handle("ch", "s", handle)
    assert caught.value.code == "dsps.storage.ack-handle-malformed"


@given(st.binary(max_size=200))
def test_handle_of_random_bytes_is_rejected_or_ignored(content: bytes) -> None:
    try:
        clock = decode_handle("ch", "s", base64.b64encode(content).decode())
    except AckHandleMalformedError:
        return
    assert clock is None


async def test_handle_of_another_storage_acknowledges_nothing(
    channel_store: ChannelStore,
) -> None:
    channels = channel_store.channels
    await channels.subscribe("default", "ch", "s")
    await channels.publish("default", "ch", "m1", b"1")

    for handle in ("e30=", dsps_handle("ch", "s", 1, storage="other")):
        assert await channels.ack("default", "ch", "s", handle) is False

    assert await channel_store.ids("ch", "s") == ["m1"]


async def test_handle_beyond_clock_moves_nothing(
    channel_store: ChannelStore,
) -> None:
    """Reject a clock out of range although the checksum of the handle is correct.

    Clients can compute the checksum, so only clock and cursor decide whether the cursor moves.
    """
    channels = channel_store.channels
    await channels.subscribe("default", "ch", "s")
    await channels.publish("default", "ch", "m1", b"1")

    for clock in (2, 10**6, CLOCK_MAX, CLOCK_MIN, -1, 0):
        assert await channels.ack("default", "ch", "s", dsps_handle("ch", "s", clock)) is False

    assert await channel_store.number("c.{ch}.r.s") == 0


async def test_handle_of_missing_subscriber_raises_not_found(
    channel_store: ChannelStore,
) -> None:
    with pytest.raises(SubscriberNotFoundError):
        await channel_store.channels.ack("default", "ch", "s", dsps_handle("ch", "s", 1))
