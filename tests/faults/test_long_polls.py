"""Clients of long polls vanish without a word; nothing may stay behind (F-31).

What could stay: a waiter, a task, a place in a gauge, a subscription in the store, memory. The
fast tests look at two hundred polls, the slow one at five thousand.
"""

from __future__ import annotations

import asyncio
import random
import re
import resource
from pathlib import Path

import pytest

from tests.helpers.http import AsyncWire, async_wire, open_async_wire, request_bytes
from tests.helpers.processes import StationProcess, station_process
from tests.helpers.store_faults import store_at
from tests.helpers.waiting import eventually
from waystation.channels.reader import channel_polls_waiting
from waystation.config import HttpConfig
from waystation.store.client import Store
from waystation.store.keys import MAINTENANCE_LEASE
from waystation.testing import serving
from waystation.testing.station import Serving, quick_settings

POLLS = 200
#: Polls of these tests end by a message or because their client vanishes, never by themselves.
POLL_SECONDS = 300
SOON_SECONDS = 30.0
#: Connections opened at once: fewer than the server's backlog.
OPENED_AT_ONCE = 500
#: Beyond those of the polls.
DESCRIPTORS_SPARE = 200
MEGABYTE = 1_000_000


def patient() -> HttpConfig:
    return HttpConfig(port=0, poll_seconds_max=POLL_SECONDS)


def subscriber_path(number: int) -> str:
    return f"/channel/ch-{number}/subscription/polling/me"


async def subscribe(url: str, count: int) -> None:
    async with async_wire(url) as wire:
        for number in range(count):
            assert (await wire.ask("PUT", subscriber_path(number))).status == 200


async def open_polls(url: str, count: int) -> list[AsyncWire]:
    """Starts one long poll on each of so many channels."""
    polls: list[AsyncWire] = []
    while len(polls) < count:
        opening = min(OPENED_AT_ONCE, count - len(polls))
        fresh = await asyncio.gather(*(open_async_wire(url) for _ in range(opening)))
        for number, wire in enumerate(fresh, start=len(polls)):
            wire.send(request_bytes("GET", f"{subscriber_path(number)}?timeout={POLL_SECONDS}s"))
        polls += fresh
    return polls


async def until_waiting(serving: Serving, count: int) -> None:
    """Wait until exactly `count` polls wait."""
    await eventually(
        lambda: f" {count} waiters" in repr(serving.node.opened.wakeups), timeout=SOON_SECONDS
    )


async def until_gauge(control: AsyncWire, count: int) -> None:
    """Wait until the metrics of a server process report exactly `count` waiting polls."""

    async def is_reported() -> bool:
        return await gauge(control) == count

    await eventually(is_reported, timeout=SOON_SECONDS)


async def gauge(control: AsyncWire) -> int:
    exposition = (await control.ask("GET", "/metrics")).body.decode()
    found = re.search(r"^waystation_channel_polls_waiting (\d+)", exposition, re.MULTILINE)
    assert found, exposition
    return int(found.group(1))


async def subscription_connections(store: Store) -> int:
    """Connections to the store that have subscribed to something."""
    listed = await store.call("CLIENT", "LIST", "TYPE", "pubsub")
    return len(listed.split(b"\n")) - 1


async def until_leases_renewed(store: Store) -> None:
    """Return after the server has renewed a lease, for which it opens one more connection."""

    async def expiry() -> int:
        return int(await store.call("HGET", MAINTENANCE_LEASE, "until_ms") or 0)

    first = await eventually(expiry, timeout=SOON_SECONDS)

    async def is_later() -> bool:
        return await expiry() > first

    await eventually(is_later, timeout=SOON_SECONDS)


async def until_descriptors(station: StationProcess, count: int) -> None:
    """Return once the server has at most so many descriptors open."""
    await eventually(lambda: station.descriptors() <= count, timeout=SOON_SECONDS)


async def test_polls_whose_clients_vanish_leave_no_waiter_and_no_task(tmp_path: Path) -> None:
    settings = quick_settings(str(tmp_path), http=patient())
    async with serving(settings) as server:
        await subscribe(server.url, POLLS)
        await until_waiting(server, 0)
        tasks_before = len(asyncio.all_tasks())
        gauge_before = channel_polls_waiting._value.get()

        polls = await open_polls(server.url, POLLS)
        await until_waiting(server, POLLS)
        async with asyncio.timeout(SOON_SECONDS):
            while channel_polls_waiting._value.get() != gauge_before + POLLS:
                await asyncio.sleep(0.005)
        for wire in polls:
            wire.vanish()

        await until_waiting(server, 0)
        async with asyncio.timeout(SOON_SECONDS):
            while len(asyncio.all_tasks()) > tasks_before:
                await asyncio.sleep(0.005)
        assert channel_polls_waiting._value.get() == gauge_before


async def test_those_who_stay_get_their_message_when_others_have_vanished(
    tmp_path: Path,
) -> None:
    async with serving(quick_settings(str(tmp_path), http=patient())) as server:
        await subscribe(server.url, POLLS)
        polls = await open_polls(server.url, POLLS)
        await until_waiting(server, POLLS)
        for wire in polls[::2]:
            wire.vanish()
        await until_waiting(server, POLLS // 2)

        async with async_wire(server.url) as publisher:
            for number in range(POLLS):
                await publisher.ask("PUT", f"/channel/ch-{number}/message/m", b"%d" % number)

        for number, wire in list(enumerate(polls))[1::2]:
            answer = await wire.answer()
            assert answer.json()["messages"] == [{"messageID": "m", "content": number}]
            wire.close()
        await until_waiting(server, 0)


async def test_all_polls_of_a_process_share_one_subscription_connection(
    tmp_path: Path,
) -> None:
    async with serving(quick_settings(str(tmp_path), http=patient())) as server:
        await subscribe(server.url, POLLS)
        polls = await open_polls(server.url, POLLS)
        await until_waiting(server, POLLS)

        async with store_at(server.node.opened.store.address) as store:
            async with asyncio.timeout(SOON_SECONDS):
                while len(await store.call("PUBSUB", "CHANNELS", "dsps.c.*")) < POLLS:
                    await asyncio.sleep(0.005)
            assert await subscription_connections(store) == 1
        for wire in polls:
            wire.vanish()
        await until_waiting(server, 0)


async def test_a_client_may_vanish_at_any_moment_of_its_poll(tmp_path: Path) -> None:
    """Before the request is read, between its looks, while it waits, while it is answered."""
    rng = random.Random(31)
    async with serving(quick_settings(str(tmp_path), http=patient())) as server:
        await subscribe(server.url, 20)

        async def come_and_go(number: int) -> None:
            wire = await open_async_wire(server.url)
            path = f"{subscriber_path(number % 20)}?timeout={POLL_SECONDS}s"
            wire.send(request_bytes("GET", path))
            await asyncio.sleep(rng.choice((0, 0.0005, 0.002, 0.01, 0.05)))
            if number % 5 == 0:
                await server.node.channels.publish("default", f"ch-{number % 20}", "m", b"1")
            wire.vanish()

        for _ in range(10):
            await asyncio.gather(*(come_and_go(number) for number in range(40)))
        await until_waiting(server, 0)


@pytest.mark.parametrize(
    ("polls_at_once", "rounds", "growth_max"),
    [
        pytest.param(POLLS, 6, 2 * MEGABYTE, id="200"),
        pytest.param(5_000, 4, 10 * MEGABYTE, id="5000", marks=pytest.mark.slow),
    ],
)
async def test_memory_is_flat_over_rounds_of_polls_that_vanish(
    tmp_path: Path, polls_at_once: int, rounds: int, growth_max: int
) -> None:
    """The first round fills caches and pools; from then on the same work needs no more memory."""
    allow_descriptors(polls_at_once + DESCRIPTORS_SPARE)
    with station_process(
        tmp_path / "data",
        *("--insecure", "--durability", "memory"),
        WAYSTATION_HTTP_POLL_SECONDS_MAX=str(POLL_SECONDS),
    ) as station:
        await subscribe(station.url, polls_at_once)
        resident: list[int] = []
        async with async_wire(station.url) as control, store_at(station.store) as store:
            await until_leases_renewed(store)
            assert (await control.ask("GET", "/livez")).status == 200
            descriptors_before = station.descriptors()
            for _ in range(rounds):
                polls = await open_polls(station.url, polls_at_once)
                await until_gauge(control, polls_at_once)
                assert await subscription_connections(store) == 1
                for wire in polls:
                    wire.vanish()
                await until_gauge(control, 0)
                await until_descriptors(station, descriptors_before)
                resident.append(station.resident_bytes())
    assert max(resident[1:]) - resident[0] < growth_max, [size // MEGABYTE for size in resident]


@pytest.mark.slow
async def test_topics_that_nobody_waits_for_any_more_are_given_up(tmp_path: Path) -> None:
    """A while after the last waiter: pollers come back, and subscribing anew costs a round trip."""
    async with serving(quick_settings(str(tmp_path), http=patient())) as server:
        standing = repr(server.node.opened.wakeups)
        await subscribe(server.url, POLLS)
        polls = await open_polls(server.url, POLLS)
        await until_waiting(server, POLLS)
        for wire in polls:
            wire.vanish()
        await until_waiting(server, 0)

        async with asyncio.timeout(60):
            while repr(server.node.opened.wakeups) != standing:
                await asyncio.sleep(0.1)
        async with store_at(server.node.opened.store.address) as store, asyncio.timeout(10):
            while await store.call("PUBSUB", "CHANNELS", "dsps.c.*"):
                await asyncio.sleep(0.01)


def allow_descriptors(count: int) -> None:
    """Raises our own limit, so that we can hold the other end of all polls."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard == resource.RLIM_INFINITY or hard >= count, (
        f"this test needs {count} file descriptors; the machine's hard limit is {hard}"
    )
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
