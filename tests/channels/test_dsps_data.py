"""Compatibility with data sets of DSPS: keys, values and expiries.

The scenario test follows the example in the documentation of DSPS. A step of time is 100 seconds,
so that delays of a slow machine do not look like a step. Two expiries of the clock differ from
DSPS: in Waystation, a clock never expires before a cursor. A clock that started again below a
cursor would look like one that wrapped.
"""

from __future__ import annotations

from tests.channels.helpers import ChannelStore, open_channels
from waystation.channels.model import encode_handle
from waystation.store.embedded.server import EmbeddedServer

EXPIRE = 1800
MARGIN = 15
STEP = 100

Table = dict[str, tuple[str, int]]


async def assert_table(channel_store: ChannelStore, *, now: int, expected: Table) -> None:
    """Assert the values and expiries of all keys.

    `expected` has, for each key, its value and the step at which its expiry was set.
    """
    found = await channel_store.keys()
    assert {name: value for name, (value, _) in found.items()} == {
        name: value for name, (value, _) in expected.items()
    }
    for name, (_, seconds_left) in found.items():
        wanted = EXPIRE + MARGIN + (expected[name][1] - now) * STEP
        assert wanted - 5 < seconds_left <= wanted, f"{name} has {seconds_left} s, not {wanted}"


async def test_dsps_scenario_writes_same_keys_values_and_expiries(
    store_server: EmbeddedServer,
) -> None:
    body = '{"id":"msg123","content":{ "text": "hello!" }}'
    async with open_channels(store_server, expire_seconds=EXPIRE) as channel_store:
        channels = channel_store.channels
        # t=1: sA and sB subscribe to a new channel.
        assert await channels.subscribe("default", "chX", "sA") is True
        assert await channels.subscribe("default", "chX", "sB") is True
        at_1: Table = {
            "c.{chX}.clock": ("0", 1),
            "c.{chX}.r.sA": ("0", 1),
            "c.{chX}.r.sB": ("0", 1),
        }
        await assert_table(channel_store, now=1, expected=at_1)

        # t=2: sB subscribes again, which restarts the expiry of its cursor and of the clock.
        await channel_store.machine.advance(STEP)
        assert await channels.subscribe("default", "chX", "sB") is False
        at_2 = {**at_1, "c.{chX}.clock": ("0", 2), "c.{chX}.r.sB": ("0", 2)}
        await assert_table(channel_store, now=2, expected=at_2)

        # t=3: msg123 is published.
        await channel_store.machine.advance(STEP)
        published = await channels.publish("default", "chX", "msg123", b'{ "text": "hello!" }')
        assert (published.clock, published.duplicate) == (1, False)
        at_3 = {
            **at_2,
            "c.{chX}.clock": ("1", 3),
            "c.{chX}.m.1": (body, 3),
            "c.{chX}.mid.msg123": ("1", 3),
        }
        await assert_table(channel_store, now=3, expected=at_3)

        # t=4: sA acknowledges msg123 with the handle for clock 1.
        await channel_store.machine.advance(STEP)
        assert await channels.ack("default", "chX", "sA", encode_handle("chX", "sA", 1)) is True
        at_4 = {**at_3, "c.{chX}.clock": ("1", 4), "c.{chX}.r.sA": ("1", 4)}
        await assert_table(channel_store, now=4, expected=at_4)

        # sA has no unread messages, and msg123 is unread for sB.
        assert await channel_store.ids("chX", "sA") == []
        assert await channel_store.ids("chX", "sB") == ["msg123"]


async def test_fetch_extends_expiry_of_subscriber_and_clock_only(
    store_server: EmbeddedServer,
) -> None:
    async with open_channels(store_server, expire_seconds=EXPIRE) as channel_store:
        await channel_store.channels.subscribe("default", "chX", "sA")
        await channel_store.channels.publish("default", "chX", "m1", b"1")

        await channel_store.machine.advance(STEP)
        assert await channel_store.ids("chX", "sA") == ["m1"]

        await assert_table(
            channel_store,
            now=1,
            expected={
                "c.{chX}.clock": ("1", 1),
                "c.{chX}.r.sA": ("0", 1),
                "c.{chX}.m.1": ('{"id":"m1","content":1}', 0),
                "c.{chX}.mid.m1": ("1", 0),
            },
        )


async def test_publish_of_duplicate_extends_expiry_of_clock_only(
    store_server: EmbeddedServer,
) -> None:
    async with open_channels(store_server, expire_seconds=EXPIRE) as channel_store:
        await channel_store.channels.publish("default", "chX", "m1", b'"first"')

        await channel_store.machine.advance(STEP)
        again = await channel_store.channels.publish("default", "chX", "m1", b'"second"')

        assert (again.clock, again.duplicate) == (1, True)
        await assert_table(
            channel_store,
            now=1,
            expected={
                "c.{chX}.clock": ("1", 1),
                "c.{chX}.m.1": ('{"id":"m1","content":"first"}', 0),
                "c.{chX}.mid.m1": ("1", 0),
            },
        )


async def test_expiry_with_fraction_is_rounded_up(store_server: EmbeddedServer) -> None:
    async with open_channels(store_server, expire_seconds=0.2) as channel_store:
        await channel_store.channels.subscribe("default", "chX", "sA")

        keys = await channel_store.keys()

        # DSPS rounds up: ceil(0.2 + 15) seconds.
        assert 15 < keys["c.{chX}.r.sA"][1] <= 16


async def test_unsubscribe_deletes_cursor_only(channel_store: ChannelStore) -> None:
    await channel_store.channels.subscribe("default", "chX", "sA")
    await channel_store.channels.publish("default", "chX", "m1", b"1")

    assert await channel_store.channels.unsubscribe("default", "chX", "sA") is True
    assert await channel_store.channels.unsubscribe("default", "chX", "sA") is False

    assert set(await channel_store.keys()) == {"c.{chX}.clock", "c.{chX}.m.1", "c.{chX}.mid.m1"}


async def test_project_tag_precedes_channel_in_keys(
    channel_store: ChannelStore,
) -> None:
    await channel_store.channels.subscribe("shop", "chX", "sA")
    await channel_store.channels.publish("shop", "chX", "m1", b"1")

    assert set(await channel_store.keys()) == {
        "c.{shop.chX}.clock",
        "c.{shop.chX}.r.sA",
        "c.{shop.chX}.m.1",
        "c.{shop.chX}.mid.m1",
    }


async def test_dsps_data_set_is_read_unchanged(channel_store: ChannelStore) -> None:
    """Read messages with different spaces, order and fields, and a clock that starts at 41."""
    await channel_store.set_clock("old", 41)
    await channel_store.store.call("SET", "c.{old}.r.sA", 39, "EX", 100)
    await channel_store.store.call(
        "SET", "c.{old}.m.40", '{ "id": "m40", "content": [1.0] }', "EX", 99
    )
    await channel_store.store.call(
        "SET", "c.{old}.m.41", '{"content":2,"id":"m41","x":0}', "EX", 99
    )

    fetched = await channel_store.channels.fetch("default", "old", "sA", limit=64)

    assert [(each.id, bytes(each.content)) for each in fetched.messages] == [
        ("m40", b"[1.0]"),
        ("m41", b"2"),
    ]
    assert (fetched.last, fetched.more, fetched.expired) == (41, False, 0)
