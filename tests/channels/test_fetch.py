"""Fetch and long poll: gaps of expired messages, wake-ups, disconnected clients, shutdown."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import pytest

from tests.channels.helpers import ChannelStore, open_channels
from waystation.channels.model import Fetched, encode_handle
from waystation.channels.reader import CLOCKS_PER_CALL_MAX, channel_polls_waiting
from waystation.errors import SubscriberNotFoundError
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.pubsub import RECHECK_S
from waystation.store.scripts import Script

MILLION = 1_000_000
SCRIPT_MICROSECONDS_MAX = 5_000


async def publish_with_gaps(
    channel_store: ChannelStore, channel: str, alive: set[int], end: int
) -> None:
    """Publish messages with clocks up to `end`. Only those in `alive` exist; the rest is a gap."""
    for clock in range(1, end + 1):
        if clock in alive:
            await channel_store.set_clock(channel, clock - 1)
            await channel_store.channels.publish("default", channel, f"m{clock}", b"1")
    await channel_store.set_clock(channel, end)


async def fetch(channel_store: ChannelStore, *, limit: int = 64) -> Fetched:
    return await channel_store.channels.fetch("default", "ch", "s", limit=limit)


def ids(fetched: Fetched) -> list[str]:
    return [message.id for message in fetched.messages]


@pytest.mark.parametrize(
    ("alive", "end", "limit", "found", "lost", "cursor"),
    [
        # No message has expired: the fetch reports no loss and moves no cursor.
        ({1, 2, 3}, 3, 64, ["m1", "m2", "m3"], 0, 0),
        # The first two messages have expired.
        ({3}, 3, 64, ["m3"], 2, 2),
        # A message in the middle has expired: the cursor stays at the last acknowledgement.
        ({1, 3}, 3, 64, ["m1", "m3"], 1, 0),
        # Messages before, between and after the returned ones have expired. The last one is not
        # counted yet.
        ({2, 4}, 5, 64, ["m2", "m4"], 2, 1),
        # Expired messages after the limit are not counted yet.
        ({1, 3}, 3, 1, ["m1"], 0, 0),
        # All messages have expired: the cursor moves to the clock.
        (set(), 5, 64, [], 5, 5),
        (set(), 5, 1, [], 5, 5),
        # The gap is longer than 64, the largest gap that DSPS can skip by default.
        ({200}, 200, 64, ["m200"], 199, 199),
    ],
)
async def test_fetch_with_expired_messages_counts_them(
    channel_store: ChannelStore,
    alive: set[int],
    end: int,
    limit: int,
    found: list[str],
    lost: int,
    cursor: int,
) -> None:
    await channel_store.channels.subscribe("default", "ch", "s")
    await publish_with_gaps(channel_store, "ch", alive, end)

    fetched = await fetch(channel_store, limit=limit)

    assert ids(fetched) == found
    assert fetched.expired == lost
    assert await channel_store.number("c.{ch}.r.s") == cursor


async def test_fetch_reports_gap_at_cursor_once(channel_store: ChannelStore) -> None:
    await channel_store.channels.subscribe("default", "ch", "s")
    await publish_with_gaps(channel_store, "ch", {3}, 3)

    first, second = await fetch(channel_store), await fetch(channel_store)

    assert (ids(first), first.expired) == (["m3"], 2)
    assert (ids(second), second.expired) == (["m3"], 0)


async def test_fetch_after_expiry_continues_behind_gap(store_server: EmbeddedServer) -> None:
    async with open_channels(store_server, expire_seconds=100) as channel_store:
        await channel_store.channels.subscribe("default", "ch", "s")
        await channel_store.channels.publish("default", "ch", "old", b"1")
        await channel_store.machine.advance(60)
        assert ids(await fetch(channel_store)) == ["old"]
        await channel_store.machine.advance(60)
        await channel_store.channels.publish("default", "ch", "new", b"1")

        fetched = await fetch(channel_store)

        assert (ids(fetched), fetched.expired, fetched.more) == (["new"], 1, False)


async def test_ack_across_interior_gap_moves_cursor(channel_store: ChannelStore) -> None:
    await channel_store.channels.subscribe("default", "ch", "s")
    await publish_with_gaps(channel_store, "ch", {1, 5, 9}, 9)
    first = await fetch(channel_store, limit=2)
    assert (ids(first), first.last, first.more) == (["m1", "m5"], 5, True)

    await channel_store.channels.ack("default", "ch", "s", encode_handle("ch", "s", 5))

    rest = await fetch(channel_store)
    assert (ids(rest), rest.expired) == (["m9"], 3)


async def test_fetch_with_limit_0_returns_no_messages(channel_store: ChannelStore) -> None:
    await channel_store.channels.subscribe("default", "ch", "s")
    await publish_with_gaps(channel_store, "ch", {3}, 3)

    fetched = await fetch(channel_store, limit=0)

    assert (fetched.messages, fetched.more, fetched.expired) == ([], True, 0)
    assert await channel_store.number("c.{ch}.r.s") == 0


async def test_fetch_of_unreadable_bodies_counts_them_as_lost(channel_store: ChannelStore) -> None:
    await channel_store.channels.subscribe("default", "ch", "s")
    for clock in (1, 2, 3, 4):
        await channel_store.channels.publish("default", "ch", f"m{clock}", b"1")
    for clock, body in ((1, "not json"), (3, '{"id":7}')):
        await channel_store.store.call("SET", f"c.{{ch}}.m.{clock}", body, "EX", 100)

    fetched = await fetch(channel_store)
    assert (ids(fetched), fetched.expired, fetched.more) == (["m2", "m4"], 2, False)

    await channel_store.channels.ack("default", "ch", "s", encode_handle("ch", "s", 4))
    await channel_store.channels.publish("default", "ch", "m5", b"1")
    await channel_store.store.call("SET", "c.{ch}.m.5", "{", "EX", 100)
    fetched = await fetch(channel_store)
    assert (ids(fetched), fetched.expired, fetched.more) == ([], 1, False)
    assert await channel_store.number("c.{ch}.r.s") == 5


async def test_fetch_of_many_messages_returns_limit(
    channel_store: ChannelStore,
) -> None:
    await channel_store.channels.subscribe("default", "ch", "s")
    count = 3 * CLOCKS_PER_CALL_MAX
    for clock in range(count):
        await channel_store.channels.publish("default", "ch", f"m{clock}", b"1")
    await channel_store.store.call("DEL", f"c.{{ch}}.m.{CLOCKS_PER_CALL_MAX + 5}")

    fetched = await fetch(channel_store, limit=count - 10)

    assert (
        ids(fetched)
        == [f"m{n}" for n in range(count) if n != CLOCKS_PER_CALL_MAX + 4][: count - 10]
    )
    assert (fetched.last, fetched.more, fetched.expired) == (count - 9, True, 1)


async def test_fetch_at_byte_limit_returns_more(
    store_server: EmbeddedServer,
) -> None:
    async with open_channels(store_server, fetch_bytes_max=50_000) as channel_store:
        await channel_store.channels.subscribe("default", "ch", "s")
        for clock in range(20):
            await channel_store.channels.publish(
                "default", "ch", f"m{clock}", b'"%s"' % (b"x" * 9_980)
            )

        fetched = await fetch(channel_store)

        assert ids(fetched) == ["m0", "m1", "m2", "m3", "m4"]
        assert fetched.more is True


# -- Long gaps -------------------------------------------------------------------------------


class MeteredStore(Store):
    """A store client that measures the processor time of the server for each script call.

    Elapsed time would include other processes on a shared machine.
    """

    def __init__(self, server: EmbeddedServer) -> None:
        super().__init__(server.address, test_mode=True)
        self.pid = 0
        self.microseconds: list[float] = []

    async def run(self, *call: Any) -> Any:
        """Run a script and record the processor time of the server."""
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


async def make_a_million(channel_store: ChannelStore) -> int:
    """Create a gap of a million expired messages before a stored one. Return the length."""
    await channel_store.set_clock("ch", MILLION)
    await channel_store.channels.publish("default", "ch", "after", b"1")
    return MILLION


async def make_scattered_messages(channel_store: ChannelStore) -> int:
    """Create the gaps that cost most: each call searches its whole range and finds a message last.

    Return the number of expired messages.
    """
    for clock in range(CLOCKS_PER_CALL_MAX, 100 * CLOCKS_PER_CALL_MAX + 1, CLOCKS_PER_CALL_MAX):
        await channel_store.set_clock("ch", clock - 1)
        await channel_store.channels.publish("default", "ch", f"m{clock}", b"1")
    return 100 * (CLOCKS_PER_CALL_MAX - 1)


@pytest.mark.slow
@pytest.mark.parametrize("make_gaps", [make_a_million, make_scattered_messages])
async def test_fetch_over_long_gap_makes_short_script_calls(
    store_server: EmbeddedServer, make_gaps: Callable[[ChannelStore], Awaitable[int]]
) -> None:
    """Skip long gaps in calls that each block the store only briefly."""
    store = MeteredStore(store_server)
    async with open_channels(store_server, store=store) as channel_store:
        readers = ("s", "t", "u")
        for reader in readers:
            await channel_store.channels.subscribe("default", "ch", reader)
        gone = await make_gaps(channel_store)
        longest = []

        for reader in readers:
            store.microseconds.clear()
            fetched = await channel_store.channels.fetch(
                "default", "ch", reader, limit=10_000, wait_s=60
            )

            assert (fetched.expired, fetched.more) == (gone, False)
            assert fetched.messages[-1].id in ("after", f"m{100 * CLOCKS_PER_CALL_MAX}")
            assert len(store.microseconds) >= 100, "the gap was passed in one step"
            longest.append(max(store.microseconds))
        # Compare the best of three runs, because other processes can delay a single run.
        assert min(longest) < SCRIPT_MICROSECONDS_MAX


async def test_fetch_over_long_gap_moves_cursor_behind_it(
    channel_store: ChannelStore,
) -> None:
    await channel_store.channels.subscribe("default", "ch", "s")
    await channel_store.set_clock("ch", 20 * CLOCKS_PER_CALL_MAX)

    fetched = await fetch(channel_store)

    assert (fetched.messages, fetched.more, fetched.expired) == (
        [],
        False,
        20 * CLOCKS_PER_CALL_MAX,
    )
    assert await channel_store.number("c.{ch}.r.s") == 20 * CLOCKS_PER_CALL_MAX


async def test_fetch_over_gap_beyond_time_limit_continues_next_time(
    store_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waystation.channels.reader.GAP_S_MAX", 0.0)
    async with open_channels(store_server) as channel_store:
        await channel_store.channels.subscribe("default", "ch", "s")
        await channel_store.set_clock("ch", 3 * CLOCKS_PER_CALL_MAX)
        await channel_store.channels.publish("default", "ch", "after", b"1")

        fetches = [await fetch(channel_store)]
        while fetches[-1].more:
            assert (fetches[-1].messages, fetches[-1].last) == ([], None)
            fetches.append(await fetch(channel_store))

        assert len(fetches) == 4
        assert sum(each.expired for each in fetches) == 3 * CLOCKS_PER_CALL_MAX
        assert ids(fetches[-1]) == ["after"]


#: Time limit for a wake-up, sufficient on a busy machine. It is below the ten seconds after which a
#: poll reads again without a wake-up, so that a lost wake-up fails the test.
AT_ONCE_SECONDS = 8.0


def poll(
    channel_store: ChannelStore, subscriber: str = "s", **options: Any
) -> asyncio.Task[Fetched]:
    """Start a long poll as a task."""
    fetch = channel_store.channels.fetch(
        "default", "ch", subscriber, **{"limit": 64, "wait_s": 30, **options}
    )
    return asyncio.create_task(fetch)


async def until_waiting(channel_store: ChannelStore, count: int) -> None:
    """Wait until `count` waiters are registered and the store has confirmed the subscription."""
    while f"{count} waiters" not in repr(channel_store.wakeups):
        await asyncio.sleep(0.001)
    # The store confirms a subscription after the waiter is registered, so ask the store for it.
    while not (await channel_store.store.call("PUBSUB", "NUMSUB", "dsps.c.{ch}"))[1]:
        await asyncio.sleep(0.001)
    await channel_store.store.ping()


async def poll_ids(poll: asyncio.Task[Fetched], seconds: float = AT_ONCE_SECONDS) -> list[str]:
    async with asyncio.timeout(seconds):
        return [message.id for message in (await poll).messages]


async def test_poll_wakes_within_milliseconds_of_publish(
    store_server: EmbeddedServer,
) -> None:
    took = []
    loop = asyncio.get_running_loop()
    async with open_channels(store_server) as channel_store:
        await channel_store.channels.subscribe("default", "ch", "s")
        for round_ in range(1, 31):
            waiting = poll(channel_store)
            await until_waiting(channel_store, 2)  # The second waiter is the time machine.
            begun = loop.time()
            await channel_store.channels.publish("default", "ch", f"m{round_}", b"1")
            assert await poll_ids(waiting) == [f"m{round_}"]
            took.append(loop.time() - begun)
            await channel_store.channels.ack("default", "ch", "s", encode_handle("ch", "s", round_))
    assert sorted(took)[len(took) // 2] < 0.020


async def test_poll_never_misses_concurrent_publish(
    store_server: EmbeddedServer,
) -> None:
    """Publish at random times: before, during and after the read, the subscription and the wait."""
    rng = random.Random(2002)
    async with open_channels(store_server) as channel_store:
        for round_ in range(400):
            channel = f"race-{round_}"  # A new channel, so that each poll must subscribe first.
            await channel_store.channels.subscribe("default", channel, "s")
            waiting = asyncio.create_task(
                channel_store.channels.fetch("default", channel, "s", limit=64, wait_s=30)
            )
            for _ in range(rng.randrange(8)):
                await asyncio.sleep(rng.choice((0, 0, 0.0002)))
            await channel_store.channels.publish("default", channel, "m", b"1")
            assert await poll_ids(waiting) == ["m"], f"round {round_}"


class MeddlingStore(Store):
    """A store client that runs a function right after the n-th fetch script of a poll."""

    def __init__(self, server: EmbeddedServer) -> None:
        super().__init__(server.address, test_mode=True)
        self.looks_before = 0
        self.happens: Any = None

    async def run(self, script: Script, *rest: Any) -> Any:
        """Run a script. Then run `happens` if it was the n-th fetch."""
        reply = await super().run(script, *rest)
        if self.happens and script.name == "fetch":
            self.looks_before -= 1
            if self.looks_before == 0:
                happens, self.happens = self.happens, None
                await happens()
        return reply


@pytest.mark.parametrize("look", [1, 2])
async def test_poll_sees_publish_between_read_and_wait(
    store_server: EmbeddedServer, look: int
) -> None:
    """Publish after the first or the second read of a poll.

    The first read can run before the subscription takes effect. The second one runs after it.
    """
    store = MeddlingStore(store_server)
    async with open_channels(store_server, store=store) as channel_store:
        await channel_store.channels.subscribe("default", "ch", "s")
        store.looks_before = look
        store.happens = lambda: channel_store.channels.publish("default", "ch", "m", b"1")

        assert await poll_ids(poll(channel_store)) == ["m"]


async def test_poll_of_each_subscriber_returns_message(channel_store: ChannelStore) -> None:
    for subscriber in ("s", "t"):
        await channel_store.channels.subscribe("default", "ch", subscriber)
    # Two polls wait for subscriber `s`, and one for `t`.
    waiting = [poll(channel_store, "s"), poll(channel_store, "s"), poll(channel_store, "t")]
    await until_waiting(channel_store, 4)

    await channel_store.channels.publish("default", "ch", "m", b"1")

    assert [await poll_ids(each) for each in waiting] == [["m"], ["m"], ["m"]]


async def test_poll_during_duplicates_continues_waiting(
    channel_store: ChannelStore,
) -> None:
    await channel_store.channels.publish("default", "ch", "old", b"1")
    await channel_store.channels.subscribe("default", "ch", "s")
    waiting = poll(channel_store)
    await until_waiting(channel_store, 2)

    await channel_store.channels.publish("default", "ch", "old", b"1")
    await channel_store.store.call("PUBLISH", "dsps.c.{ch}", "new message")
    await channel_store.channels.publish("default", "ch", "new", b"1")

    assert await poll_ids(waiting) == ["new"]


async def test_poll_at_timeout_returns_nothing(channel_store: ChannelStore) -> None:
    await channel_store.channels.subscribe("default", "ch", "s")
    waiting = poll(channel_store, wait_s=30)
    await until_waiting(channel_store, 2)

    await channel_store.machine.advance(30)

    async with asyncio.timeout(AT_ONCE_SECONDS):
        fetched = await waiting
    assert (fetched.messages, fetched.more, fetched.last) == ([], False, None)


async def test_poll_with_limit_0_does_not_wait(channel_store: ChannelStore) -> None:
    await channel_store.channels.subscribe("default", "ch", "s")
    assert await poll_ids(poll(channel_store, limit=0)) == []
    assert await poll_ids(poll(channel_store, wait_s=-3)) == []


async def test_poll_of_deleted_subscriber_raises_not_found(
    channel_store: ChannelStore,
) -> None:
    await channel_store.channels.subscribe("default", "ch", "s")
    waiting = poll(channel_store)
    await until_waiting(channel_store, 2)

    await channel_store.channels.unsubscribe("default", "ch", "s")

    with pytest.raises(SubscriberNotFoundError):
        await poll_ids(waiting)


async def test_poll_at_shutdown_returns_nothing(
    channel_store: ChannelStore,
) -> None:
    await channel_store.channels.subscribe("default", "ch", "s")
    waiting = poll(channel_store)
    await until_waiting(channel_store, 2)

    channel_store.channels.end_polls()

    assert await poll_ids(waiting) == []
    assert await poll_ids(poll(channel_store)) == []


async def test_poll_of_disconnected_client_ends(
    channel_store: ChannelStore,
) -> None:
    await channel_store.channels.subscribe("default", "ch", "s")
    gone: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    waiting = poll(channel_store, disconnected=lambda: gone)
    await until_waiting(channel_store, 2)

    gone.set_result(None)

    assert await poll_ids(waiting) == []
    assert repr(channel_store.wakeups) == "<PubSub [2 topics, 1 waiters]>"


async def test_poll_cancelled_is_not_counted_as_waiting(
    channel_store: ChannelStore,
) -> None:
    await channel_store.channels.subscribe("default", "ch", "s")
    polls = [poll(channel_store) for _ in range(50)]
    await until_waiting(channel_store, 51)
    assert channel_polls_waiting._value.get() == 50

    for each in polls:
        each.cancel()
    await asyncio.gather(*polls, return_exceptions=True)

    assert repr(channel_store.wakeups) == "<PubSub [2 topics, 1 waiters]>"
    assert channel_polls_waiting._value.get() == 0


async def test_poll_after_lost_connections_returns_message(channel_store: ChannelStore) -> None:
    await channel_store.channels.subscribe("default", "ch", "s")
    waiting = poll(channel_store)
    await until_waiting(channel_store, 2)

    # The store closes all pub/sub connections, so no poll receives the wake-up of the message.
    await channel_store.store.call("CLIENT", "KILL", "TYPE", "pubsub")
    await channel_store.channels.publish("default", "ch", "m", b"1")

    # The poll reads again when its connection is restored, before the periodic read.
    assert await poll_ids(waiting, RECHECK_S - 2) == ["m"]
