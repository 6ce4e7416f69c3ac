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


async def channels_of(opened: ChannelStore, project: str, *, limit: int = 100) -> list[Channel]:
    """Return the channels of all pages."""
    listing, cursor, rows = ChannelQueries(opened.store), "", list[Channel]()
    while True:
        page = await listing.channels(project, limit=limit, cursor=cursor)
        rows += page.items
        if not (cursor := page.cursor):
            return rows


async def subscribers_of(opened: ChannelStore, project: str, channel: str) -> list[Subscriber]:
    page = await ChannelQueries(opened.store).subscribers(project, channel, limit=100)
    assert page.cursor == ""
    return page.items


async def test_list_returns_channels_of_own_project(store_server: EmbeddedServer) -> None:
    async with open_channels(store_server) as opened:
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
            await opened.channels.subscribe(project, channel, f"of-{project}")

        async def names(project: str) -> list[str]:
            return [row.name for row in await channels_of(opened, project)]

        assert await names("default") == ["orders", "shop", "shop-orders"]
        assert await names("shop") == ["c", "orders"]
        assert await names("shop2") == ["orders"]
        assert await names("c") == ["shop"]
        assert await names("nobody") == []
        for project in ("default", "shop", "shop2"):
            (row,) = await subscribers_of(opened, project, "orders")
            assert row.name == f"of-{project}"


async def test_list_returns_clock_cursor_lag_and_expiry(
    store_server: EmbeddedServer,
) -> None:
    async with open_channels(store_server, expire_seconds=EXPIRE) as opened:
        await opened.channels.subscribe("default", "ch", "me")
        await opened.channels.publish_many("default", "ch", [("a", b"1"), ("b", b"1")])
        await opened.channels.ack("default", "ch", "me", encode_handle("ch", "me", 1))

        (channel,) = await channels_of(opened, "default")
        (subscriber,) = await subscribers_of(opened, "default", "ch")

        assert (channel.name, channel.clock) == ("ch", 2)
        assert (subscriber.name, subscriber.cursor, subscriber.lag) == ("me", 1, 1)
        for row in (channel, subscriber):
            assert EXPIRE < row.expires_s <= EXPIRE + 15


async def test_list_omits_expired_channels(store_server: EmbeddedServer) -> None:
    async with open_channels(store_server, expire_seconds=EXPIRE) as opened:
        await opened.channels.subscribe("default", "old", "me")
        await opened.channels.subscribe("default", "ch", "old")
        await opened.machine.advance(EXPIRE)
        await opened.channels.subscribe("default", "ch", "new")
        await opened.machine.advance(30)

        assert [row.name for row in await channels_of(opened, "default")] == ["ch"]
        assert [row.name for row in await subscribers_of(opened, "default", "ch")] == ["new"]
        assert await subscribers_of(opened, "default", "old") == []


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
async def test_lag_equals_number_of_fetched_and_expired_messages(
    store_server: EmbeddedServer, cursor: int, clock: int, lag: int
) -> None:
    async with open_channels(store_server) as opened:
        await opened.set_clock("ch", clock)
        await opened.store.call("SET", "c.{ch}.r.me", cursor, "EX", 100)

        (row,) = await subscribers_of(opened, "default", "ch")

        assert row.lag == lag
        fetched = await opened.channels.fetch("default", "ch", "me", limit=10)
        assert fetched.expired == lag, "all of them are missing here"


async def test_list_of_10_000_channels_scans_in_steps(
    store_server: EmbeddedServer,
) -> None:
    async with open_channels(store_server) as opened:
        for start in range(0, 10_000, 1000):
            await opened.store.pipeline(
                ("SET", f"c.{{n-{number}}}.clock", number, "EX", 100)
                for number in range(start, start + 1000)
            )
        await opened.store.call("CONFIG", "RESETSTAT")

        rows = await channels_of(opened, "default", limit=1000)

        assert {row.name: row.clock for row in rows} == {f"n-{n}": n for n in range(10_000)}
        stats = (await opened.store.call("INFO", "commandstats")).decode()
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
    store_server: EmbeddedServer,
) -> None:
    async with open_channels(store_server) as opened:
        for start in range(0, 30_000, 1000):
            names = [f"other-{number}" for number in range(start, start + 1000)]
            await opened.store.pipeline([("SET", name, "1") for name in names])
        await opened.channels.subscribe("default", "ch", "me")
        listing = ChannelQueries(opened.store)

        first = await listing.channels("default", limit=10)
        second = await listing.channels("default", limit=10, cursor=first.cursor)

        assert first.cursor
        assert second.cursor == ""
        assert [row.name for row in (*first.items, *second.items)] == ["ch"]


@pytest.mark.parametrize("cursor", ["-1", "x", "1 2", "9" * 24, "9" * 5000, "²"])
async def test_list_with_invalid_cursor_is_rejected(
    store_server: EmbeddedServer, cursor: str
) -> None:
    async with open_channels(store_server) as opened:
        with pytest.raises(InvalidInputError) as raised:
            await ChannelQueries(opened.store).channels("default", limit=1, cursor=cursor)
        assert raised.value.field == "cursor"
