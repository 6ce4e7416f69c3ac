"""Gaps: messages that expired before a subscriber came back are passed, and counted."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import pytest

from tests.channels.helpers import ChannelStore, open_channels
from waystation.channels.model import Fetched, encode_handle
from waystation.channels.reader import CLOCKS_PER_CALL_MAX
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer

MILLION = 1_000_000
SCRIPT_MICROSECONDS_MAX = 5_000


async def publish_with_gaps(opened: ChannelStore, channel: str, alive: set[int], end: int) -> None:
    """Makes messages 1 to `end`, of which only those in `alive` have not expired."""
    for clock in range(1, end + 1):
        if clock in alive:
            await opened.set_clock(channel, clock - 1)
            await opened.channels.publish("default", channel, f"m{clock}", b"1")
    await opened.set_clock(channel, end)


async def fetch(opened: ChannelStore, *, limit: int = 64) -> Fetched:
    return await opened.channels.fetch("default", "ch", "s", limit=limit)


def ids(fetched: Fetched) -> list[str]:
    return [message.id for message in fetched.messages]


@pytest.mark.parametrize(
    ("alive", "end", "limit", "found", "lost", "cursor"),
    [
        # none expired: nothing is said, nothing is moved
        ({1, 2, 3}, 3, 64, ["m1", "m2", "m3"], 0, 0),
        # the first few expired
        ({3}, 3, 64, ["m3"], 2, 2),
        # one in the middle: the cursor stays where the client acknowledged
        ({1, 3}, 3, 64, ["m1", "m3"], 1, 0),
        # at both, and one that is beyond the last message returned
        ({2, 4}, 5, 64, ["m2", "m4"], 2, 1),
        # beyond `max` nothing is counted yet
        ({1, 3}, 3, 1, ["m1"], 0, 0),
        # everything expired: the cursor stands at the clock
        (set(), 5, 64, [], 5, 5),
        (set(), 5, 1, [], 5, 5),
        # more than DSPS would ever get over, with its default of 64
        ({200}, 200, 64, ["m200"], 199, 199),
    ],
)
async def test_expired_messages_are_passed_and_counted(
    store_server: EmbeddedServer,
    alive: set[int],
    end: int,
    limit: int,
    found: list[str],
    lost: int,
    cursor: int,
) -> None:
    async with open_channels(store_server) as opened:
        await opened.channels.subscribe("default", "ch", "s")
        await publish_with_gaps(opened, "ch", alive, end)

        fetched = await fetch(opened, limit=limit)

        assert ids(fetched) == found
        assert fetched.expired == lost
        assert await opened.number("c.{ch}.r.s") == cursor


async def test_a_gap_at_the_front_is_told_once(store_server: EmbeddedServer) -> None:
    async with open_channels(store_server) as opened:
        await opened.channels.subscribe("default", "ch", "s")
        await publish_with_gaps(opened, "ch", {3}, 3)

        first, second = await fetch(opened), await fetch(opened)

        assert (ids(first), first.expired) == (["m3"], 2)
        assert (ids(second), second.expired) == (["m3"], 0)


async def test_messages_that_expire_by_time_are_passed(store_server: EmbeddedServer) -> None:
    async with open_channels(store_server, expire_seconds=100) as opened:
        await opened.channels.subscribe("default", "ch", "s")
        await opened.channels.publish("default", "ch", "old", b"1")
        await opened.machine.advance(60)
        assert ids(await fetch(opened)) == ["old"]
        await opened.machine.advance(60)
        await opened.channels.publish("default", "ch", "new", b"1")

        fetched = await fetch(opened)

        assert (ids(fetched), fetched.expired, fetched.more) == (["new"], 1, False)


async def test_an_ack_works_over_an_interior_gap(store_server: EmbeddedServer) -> None:
    async with open_channels(store_server) as opened:
        await opened.channels.subscribe("default", "ch", "s")
        await publish_with_gaps(opened, "ch", {1, 5, 9}, 9)
        first = await fetch(opened, limit=2)
        assert (ids(first), first.last, first.more) == (["m1", "m5"], 5, True)

        await opened.channels.ack("default", "ch", "s", encode_handle("ch", "s", 5))

        rest = await fetch(opened)
        assert (ids(rest), rest.expired) == (["m9"], 3)


async def test_max_0_looks_and_touches_nothing(store_server: EmbeddedServer) -> None:
    async with open_channels(store_server) as opened:
        await opened.channels.subscribe("default", "ch", "s")
        await publish_with_gaps(opened, "ch", {3}, 3)

        fetched = await fetch(opened, limit=0)

        assert (fetched.messages, fetched.more, fetched.expired) == ([], True, 0)
        assert await opened.number("c.{ch}.r.s") == 0


async def test_bodies_that_nobody_can_read_count_as_lost(store_server: EmbeddedServer) -> None:
    async with open_channels(store_server) as opened:
        await opened.channels.subscribe("default", "ch", "s")
        for clock in (1, 2, 3, 4):
            await opened.channels.publish("default", "ch", f"m{clock}", b"1")
        for clock, body in ((1, "not json"), (3, '{"id":7}')):
            await opened.store.call("SET", f"c.{{ch}}.m.{clock}", body, "EX", 100)

        fetched = await fetch(opened)
        assert (ids(fetched), fetched.expired, fetched.more) == (["m2", "m4"], 2, False)

        await opened.channels.ack("default", "ch", "s", encode_handle("ch", "s", 4))
        await opened.channels.publish("default", "ch", "m5", b"1")
        await opened.store.call("SET", "c.{ch}.m.5", "{", "EX", 100)
        fetched = await fetch(opened)
        assert (ids(fetched), fetched.expired, fetched.more) == ([], 1, False)
        assert await opened.number("c.{ch}.r.s") == 5


async def test_a_fetch_returns_as_many_as_max_says_however_many_calls_it_takes(
    store_server: EmbeddedServer,
) -> None:
    async with open_channels(store_server) as opened:
        await opened.channels.subscribe("default", "ch", "s")
        count = 3 * CLOCKS_PER_CALL_MAX
        for clock in range(count):
            await opened.channels.publish("default", "ch", f"m{clock}", b"1")
        await opened.store.call("DEL", f"c.{{ch}}.m.{CLOCKS_PER_CALL_MAX + 5}")

        fetched = await fetch(opened, limit=count - 10)

        assert (
            ids(fetched)
            == [f"m{n}" for n in range(count) if n != CLOCKS_PER_CALL_MAX + 4][: count - 10]
        )
        assert (fetched.last, fetched.more, fetched.expired) == (count - 9, True, 1)


async def test_a_fetch_stops_when_it_has_enough_bytes_and_says_that_there_is_more(
    store_server: EmbeddedServer,
) -> None:
    async with open_channels(store_server, fetch_bytes_max=50_000) as opened:
        await opened.channels.subscribe("default", "ch", "s")
        for clock in range(20):
            await opened.channels.publish("default", "ch", f"m{clock}", b'"%s"' % (b"x" * 9_980))

        fetched = await fetch(opened)

        assert ids(fetched) == ["m0", "m1", "m2", "m3", "m4"]
        assert fetched.more is True


# -- F-22: a million -------------------------------------------------------------------------


class MeteredStore(Store):
    """A store client that notes how much processor time each script call cost the server.

    Processor time, since on a shared machine the time on the wall measures the neighbours.
    """

    def __init__(self, server: EmbeddedServer) -> None:
        super().__init__(server.address, test_mode=True)
        self.pid = 0
        self.microseconds: list[float] = []

    async def run(self, *call: Any) -> Any:
        """Runs a script."""
        if not self.pid:
            info = (await self.call("INFO", "server")).decode()
            self.pid = int(re.findall(r"process_id:(\d+)", info)[0])
        before = self._server_ns()
        reply = await super().run(*call)
        self.microseconds.append((self._server_ns() - before) / 1000)
        return reply

    def _server_ns(self) -> int:
        schedule = Path(f"/proc/{self.pid}/schedstat")
        return int(schedule.read_text().split()[0]) if schedule.exists() else perf_counter_ns()


async def make_a_million(opened: ChannelStore) -> int:
    """A million expired messages before one that lives."""
    await opened.set_clock("ch", MILLION)
    await opened.channels.publish("default", "ch", "after", b"1")
    return MILLION


async def make_scattered_ones(opened: ChannelStore) -> int:
    """The dearest gaps: each block that is looked at has one living message, at its end."""
    for clock in range(CLOCKS_PER_CALL_MAX, 100 * CLOCKS_PER_CALL_MAX + 1, CLOCKS_PER_CALL_MAX):
        await opened.set_clock("ch", clock - 1)
        await opened.channels.publish("default", "ch", f"m{clock}", b"1")
    return 100 * (CLOCKS_PER_CALL_MAX - 1)


@pytest.mark.slow
@pytest.mark.parametrize("make_gaps", [make_a_million, make_scattered_ones])
async def test_no_script_call_is_long_however_many_messages_expired(
    store_server: EmbeddedServer, make_gaps: Callable[[ChannelStore], Awaitable[int]]
) -> None:
    """F-22."""
    store = MeteredStore(store_server)
    async with open_channels(store_server, store=store) as opened:
        readers = ("s", "t", "u")
        for reader in readers:
            await opened.channels.subscribe("default", "ch", reader)
        gone = await make_gaps(opened)
        longest = []

        for reader in readers:
            store.microseconds.clear()
            fetched = await opened.channels.fetch("default", "ch", reader, limit=10_000, wait_s=60)

            assert (fetched.expired, fetched.more) == (gone, False)
            assert fetched.messages[-1].id in ("after", f"m{100 * CLOCKS_PER_CALL_MAX}")
            assert len(store.microseconds) >= 100, "the gap was passed in one step"
            longest.append(max(store.microseconds))
        # A call that is long by itself is so each time; what else the machine did is not.
        assert min(longest) < SCRIPT_MICROSECONDS_MAX


async def test_the_cursor_is_behind_a_wide_gap_after_one_fetch(
    store_server: EmbeddedServer,
) -> None:
    async with open_channels(store_server) as opened:
        await opened.channels.subscribe("default", "ch", "s")
        await opened.set_clock("ch", 20 * CLOCKS_PER_CALL_MAX)

        fetched = await fetch(opened)

        assert (fetched.messages, fetched.more, fetched.expired) == (
            [],
            False,
            20 * CLOCKS_PER_CALL_MAX,
        )
        assert await opened.number("c.{ch}.r.s") == 20 * CLOCKS_PER_CALL_MAX


async def test_a_gap_that_takes_too_long_is_passed_in_several_fetches(
    store_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waystation.channels.reader.GAP_S_MAX", 0.0)
    async with open_channels(store_server) as opened:
        await opened.channels.subscribe("default", "ch", "s")
        await opened.set_clock("ch", 3 * CLOCKS_PER_CALL_MAX)
        await opened.channels.publish("default", "ch", "after", b"1")

        fetches = [await fetch(opened)]
        while fetches[-1].more:
            assert (fetches[-1].messages, fetches[-1].last) == ([], None)
            fetches.append(await fetch(opened))

        assert len(fetches) == 4
        assert sum(each.expired for each in fetches) == 3 * CLOCKS_PER_CALL_MAX
        assert ids(fetches[-1]) == ["after"]
