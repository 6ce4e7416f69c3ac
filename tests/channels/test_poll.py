"""Long polls: they wake at once, miss nothing, and leave nothing behind."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from tests.channels.helpers import ChannelStore, open_channels
from waystation.channels.model import Fetched, encode_handle
from waystation.errors import SubscriberNotFoundError
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.pubsub import RECHECK_S
from waystation.store.scripts import Script
from waystation.telemetry import metrics

#: Far more than a wake-up takes on a busy machine, less than the look that pub/sub's losses
#: make a waiter take every ten seconds.
AT_ONCE_SECONDS = 8.0


def poll(opened: ChannelStore, subscriber: str = "s", **options: Any) -> asyncio.Task[Fetched]:
    """Starts a long poll."""
    fetch = opened.channels.fetch(
        "default", "ch", subscriber, **{"limit": 64, "wait_s": 30, **options}
    )
    return asyncio.create_task(fetch)


async def until_waiting(opened: ChannelStore, count: int) -> None:
    """Returns once so many polls wait, subscribed and with their second look behind them."""
    while f"{count} waiters" not in repr(opened.wakeups):
        await asyncio.sleep(0.001)
    # A publish to nobody but us: the store tells how many it reached.
    while not (await opened.store.call("PUBSUB", "NUMSUB", "dsps.c.{ch}"))[1]:
        await asyncio.sleep(0.001)
    await opened.store.ping()


async def ids(poll: asyncio.Task[Fetched], seconds: float = AT_ONCE_SECONDS) -> list[str]:
    async with asyncio.timeout(seconds):
        return [message.id for message in (await poll).messages]


async def test_a_poll_wakes_within_milliseconds_of_a_publish(
    store_server: EmbeddedServer,
) -> None:
    took = []
    loop = asyncio.get_running_loop()
    async with open_channels(store_server) as opened:
        await opened.channels.subscribe("default", "ch", "s")
        for round_ in range(1, 31):
            waiting = poll(opened)
            await until_waiting(opened, 2)  # the time machine waits too
            begun = loop.time()
            await opened.channels.publish("default", "ch", f"m{round_}", b"1")
            assert await ids(waiting) == [f"m{round_}"]
            took.append(loop.time() - begun)
            await opened.channels.ack("default", "ch", "s", encode_handle("ch", "s", round_))
    assert sorted(took)[len(took) // 2] < 0.020


async def test_a_publish_at_any_moment_of_a_poll_is_never_missed(
    store_server: EmbeddedServer,
) -> None:
    """Races: the publish lands before, within and after the look, the subscription and the wait."""
    rng = random.Random(2002)
    async with open_channels(store_server) as opened:
        for round_ in range(400):
            channel = f"race-{round_}"  # a new topic each time: subscribing is part of the race
            await opened.channels.subscribe("default", channel, "s")
            waiting = asyncio.create_task(
                opened.channels.fetch("default", channel, "s", limit=64, wait_s=30)
            )
            for _ in range(rng.randrange(8)):
                await asyncio.sleep(rng.choice((0, 0, 0.0002)))
            await opened.channels.publish("default", channel, "m", b"1")
            assert await ids(waiting) == ["m"], f"round {round_}"


class MeddlingStore(Store):
    """A store client in whose hands something happens right after the n-th look of a poll."""

    def __init__(self, server: EmbeddedServer) -> None:
        super().__init__(server.address, test_mode=True)
        self.looks_before = 0
        self.happens: Any = None

    async def run(self, script: Script, *rest: Any) -> Any:
        """Runs a script, then meddles if it was the look that was waited for."""
        reply = await super().run(script, *rest)
        if self.happens and script.name == "fetch":
            self.looks_before -= 1
            if self.looks_before == 0:
                happens, self.happens = self.happens, None
                await happens()
        return reply


@pytest.mark.parametrize("look", [1, 2])
async def test_a_publish_right_after_a_look_is_seen(
    store_server: EmbeddedServer, look: int
) -> None:
    """The first look may come before the subscription takes effect, the second comes after it."""
    store = MeddlingStore(store_server)
    async with open_channels(store_server, store=store) as opened:
        await opened.channels.subscribe("default", "ch", "s")
        store.looks_before = look
        store.happens = lambda: opened.channels.publish("default", "ch", "m", b"1")

        assert await ids(poll(opened)) == ["m"]


async def test_all_pollers_of_a_channel_get_the_message(store_server: EmbeddedServer) -> None:
    async with open_channels(store_server) as opened:
        for subscriber in ("s", "t"):
            await opened.channels.subscribe("default", "ch", subscriber)
        # Given two pollers of one subscriber, and one of another
        waiting = [poll(opened, "s"), poll(opened, "s"), poll(opened, "t")]
        await until_waiting(opened, 4)

        await opened.channels.publish("default", "ch", "m", b"1")

        assert [await ids(each) for each in waiting] == [["m"], ["m"], ["m"]]


async def test_a_poll_that_only_hears_of_repetitions_goes_on_waiting(
    store_server: EmbeddedServer,
) -> None:
    async with open_channels(store_server) as opened:
        await opened.channels.publish("default", "ch", "old", b"1")
        await opened.channels.subscribe("default", "ch", "s")
        waiting = poll(opened)
        await until_waiting(opened, 2)

        await opened.channels.publish("default", "ch", "old", b"1")
        await opened.store.call("PUBLISH", "dsps.c.{ch}", "new message")
        await opened.channels.publish("default", "ch", "new", b"1")

        assert await ids(waiting) == ["new"]


async def test_a_poll_ends_empty_when_its_time_is_over(store_server: EmbeddedServer) -> None:
    async with open_channels(store_server) as opened:
        await opened.channels.subscribe("default", "ch", "s")
        waiting = poll(opened, wait_s=30)
        await until_waiting(opened, 2)

        await opened.machine.advance(30)

        async with asyncio.timeout(AT_ONCE_SECONDS):
            fetched = await waiting
        assert (fetched.messages, fetched.more, fetched.last) == ([], False, None)


async def test_a_poll_for_no_messages_does_not_wait(store_server: EmbeddedServer) -> None:
    async with open_channels(store_server) as opened:
        await opened.channels.subscribe("default", "ch", "s")
        assert await ids(poll(opened, limit=0)) == []
        assert await ids(poll(opened, wait_s=-3)) == []


async def test_a_poll_of_a_subscriber_that_is_deleted_is_told_so(
    store_server: EmbeddedServer,
) -> None:
    async with open_channels(store_server) as opened:
        await opened.channels.subscribe("default", "ch", "s")
        waiting = poll(opened)
        await until_waiting(opened, 2)

        await opened.channels.unsubscribe("default", "ch", "s")

        with pytest.raises(SubscriberNotFoundError):
            await ids(waiting)


async def test_shutdown_ends_polls_empty_and_lets_no_new_one_wait(
    store_server: EmbeddedServer,
) -> None:
    async with open_channels(store_server) as opened:
        await opened.channels.subscribe("default", "ch", "s")
        waiting = poll(opened)
        await until_waiting(opened, 2)

        opened.channels.end_polls()

        assert await ids(waiting) == []
        assert await ids(poll(opened)) == []


async def test_a_poll_whose_client_is_gone_ends_and_leaves_no_waiter(
    store_server: EmbeddedServer,
) -> None:
    async with open_channels(store_server) as opened:
        await opened.channels.subscribe("default", "ch", "s")
        gone: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        waiting = poll(opened, disconnected=lambda: gone)
        await until_waiting(opened, 2)

        gone.set_result(None)

        assert await ids(waiting) == []
        assert repr(opened.wakeups) == "<PubSub [2 topics, 1 waiters]>"


async def test_a_cancelled_poll_leaves_no_waiter_and_does_not_count_as_waiting(
    store_server: EmbeddedServer,
) -> None:
    async with open_channels(store_server) as opened:
        await opened.channels.subscribe("default", "ch", "s")
        polls = [poll(opened) for _ in range(50)]
        await until_waiting(opened, 51)
        assert metrics.channel_polls_waiting._value.get() == 50

        for each in polls:
            each.cancel()
        await asyncio.gather(*polls, return_exceptions=True)

        assert repr(opened.wakeups) == "<PubSub [2 topics, 1 waiters]>"
        assert metrics.channel_polls_waiting._value.get() == 0


async def test_a_poll_survives_the_loss_of_its_connections(store_server: EmbeddedServer) -> None:
    async with open_channels(store_server) as opened:
        await opened.channels.subscribe("default", "ch", "s")
        waiting = poll(opened)
        await until_waiting(opened, 2)

        # When the store drops everyone, and the message is published while nobody listens
        await opened.store.call("CLIENT", "KILL", "TYPE", "pubsub")
        await opened.channels.publish("default", "ch", "m", b"1")

        # Then the poll wakes when its connection is back, before it would look by itself
        assert await ids(waiting, RECHECK_S - 2) == ["m"]
