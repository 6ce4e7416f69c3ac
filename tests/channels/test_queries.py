"""Channel queries: lists of channels and subscribers, projects, lag, bounded scan steps."""

from __future__ import annotations

import pytest

from tests.channels.helpers import CLOCK_MAX, CLOCK_MIN, ChannelStore, open_channels
from waystation.channels.model import encode_handle
from waystation.channels.queries import ChannelQueries
from waystation.errors import InvalidInputError
from waystation.store.embedded.server import EmbeddedServer
from waystation.types.channel import Channel, Subscriber

EXPIRE = 600


async def channels_of(
    channel_store: ChannelStore, project: str, *, limit: int = 100
) -> list[Channel]:
    """Return the channels of all pages."""
    listing, cursor, rows = ChannelQueries(channel_store.store), "", list[Channel]()
    while True:
        page = await listing.channels(project, limit=limit, cursor=cursor)
        rows += page.items
        if not (cursor := page.cursor):
            return rows


async def subscribers_of(
    channel_store: ChannelStore, project: str, channel: str
) -> list[Subscriber]:
    page = await ChannelQueries(channel_store.store).subscribers(project, channel, limit=100)
    assert page.cursor == ""
    return page.items


async def test_list_returns_channels_of_own_project(channel_store: ChannelStore) -> None:
    # Similar names: `shop` is a channel and also a project, and each name is a prefix of
    # another.
    for project, channel in [
        ("default", "orders"),
        ("default", "shop"),
        ("default", "shop-orders"),
        ("shop", "orders"),
        ("shop", "c"),
        ("shop2", "orders"),
        ("c", "shop"),
    ]:
        await channel_store.channels.subscribe(project, channel, f"of-{project}")

    async def names(project: str) -> list[str]:
        return [row.name for row in await channels_of(channel_store, project)]

    assert await names("default") == ["orders", "shop", "shop-orders"]
    assert await names("shop") == ["c", "orders"]
    assert await names("shop2") == ["orders"]
    assert await names("c") == ["shop"]
    assert await names("nobody") == []
    for project in ("default", "shop", "shop2"):
        (row,) = await subscribers_of(channel_store, project, "orders")
        assert row.name == f"of-{project}"


async def test_list_returns_clock_cursor_lag_and_expiry(
    store_server: EmbeddedServer,
) -> None:
    async with open_channels(store_server, expire_seconds=EXPIRE) as channel_store:
        await channel_store.channels.subscribe("default", "ch", "me")
        await channel_store.channels.publish_many("default", "ch", [("a", b"1"), ("b", b"1")])
        await channel_store.channels.ack("default", "ch", "me", encode_handle("ch", "me", 1))

        (channel,) = await channels_of(channel_store, "default")
        (subscriber,) = await subscribers_of(channel_store, "default", "ch")

        assert (channel.name, channel.clock) == ("ch", 2)
        assert (subscriber.name, subscriber.cursor, subscriber.lag) == ("me", 1, 1)
        for row in (channel, subscriber):
            assert EXPIRE < row.expires_s <= EXPIRE + 15


async def test_list_omits_expired_channels(store_server: EmbeddedServer) -> None:
    async with open_channels(store_server, expire_seconds=EXPIRE) as channel_store:
        await channel_store.channels.subscribe("default", "old", "me")
        await channel_store.channels.subscribe("default", "ch", "old")
        await channel_store.machine.advance(EXPIRE)
        await channel_store.channels.subscribe("default", "ch", "new")
        await channel_store.machine.advance(30)

        assert [row.name for row in await channels_of(channel_store, "default")] == ["ch"]
        assert [row.name for row in await subscribers_of(channel_store, "default", "ch")] == ["new"]
        assert await subscribers_of(channel_store, "default", "old") == []


@pytest.mark.parametrize(
    ("cursor", "clock", "lag"),
    [
        (0, 0, 0),
        (-2, 3, 5),
        (CLOCK_MAX - 2, CLOCK_MIN + 1, 4),
        (CLOCK_MAX, CLOCK_MIN, 1),
        # The clock was lost and started again. The lag counts from 0, as a fetch does.
        (1_000_000, 7, 7),
    ],
)
async def test_lag_equals_number_of_messages_after_cursor(
    channel_store: ChannelStore, cursor: int, clock: int, lag: int
) -> None:
    await channel_store.set_clock("ch", clock)
    await channel_store.store.call("SET", "c.{ch}.r.me", cursor, "EX", 100)

    (row,) = await subscribers_of(channel_store, "default", "ch")

    assert row.lag == lag
    fetched = await channel_store.channels.fetch("default", "ch", "me", limit=10)
    assert fetched.expired == lag, "all of them are missing here"


async def test_list_of_10_000_channels_scans_in_steps(
    channel_store: ChannelStore,
) -> None:
    for start in range(0, 10_000, 1000):
        await channel_store.store.pipeline(
            ("SET", f"c.{{n-{number}}}.clock", number, "EX", 100)
            for number in range(start, start + 1000)
        )
    await channel_store.store.call("CONFIG", "RESETSTAT")

    rows = await channels_of(channel_store, "default", limit=1000)

    assert {row.name: row.clock for row in rows} == {f"n-{n}": n for n in range(10_000)}
    stats = (await channel_store.store.call("INFO", "commandstats")).decode()
    calls = {
        line.partition(":")[0].removeprefix("cmdstat_"): int(
            line.partition("calls=")[2].partition(",")[0]
        )
        for line in stats.splitlines()
        if line.startswith("cmdstat_")
    }
    assert "keys" not in calls
    assert calls["scan"] <= 11
    assert calls["get"] <= 10_100


async def test_list_page_without_matches_ends_after_step_limit(
    channel_store: ChannelStore,
) -> None:
    for start in range(0, 30_000, 1000):
        names = [f"other-{number}" for number in range(start, start + 1000)]
        await channel_store.store.pipeline([("SET", name, "1") for name in names])
    await channel_store.channels.subscribe("default", "ch", "me")
    listing = ChannelQueries(channel_store.store)

    first = await listing.channels("default", limit=10)
    second = await listing.channels("default", limit=10, cursor=first.cursor)

    assert first.cursor
    assert second.cursor == ""
    assert [row.name for row in (*first.items, *second.items)] == ["ch"]


@pytest.mark.parametrize("cursor", ["-1", "x", "1 2", "9" * 24, "9" * 5000, "²"])
async def test_list_with_invalid_cursor_is_rejected(
    channel_store: ChannelStore, cursor: str
) -> None:
    with pytest.raises(InvalidInputError) as raised:
        await ChannelQueries(channel_store.store).channels("default", limit=1, cursor=cursor)
    assert raised.value.field == "cursor"
