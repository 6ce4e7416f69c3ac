"""Rates hold over all shards and nodes, and a shard that is alone gets all of a rate."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.helpers.store_faults import store_at
from tests.helpers.waiting import eventually
from tests.subscriptions.test_dispatch import new_topic, produce, subscribe, two_nodes
from waystation.config import ChannelConfig, ChannelRule
from waystation.errors import StoreUnavailableError
from waystation.node import Node
from waystation.store.embedded.server import EmbeddedServer
from waystation.subscriptions.definition import RetryPolicy
from waystation.subscriptions.looking import Looking
from waystation.subscriptions.operation import Asked
from waystation.subscriptions.rate import SharedRate, take_permits
from waystation.subscriptions.shards import shards_of_key
from waystation.testing import serving
from waystation.testing.endpoint import FakeEndpoint, ReceivedRequest
from waystation.testing.station import quick_settings
from waystation.topics.router import Router

NEVER = 403


def groups_of(shard: int, count: int) -> list[str]:
    """Groups of one shard of four."""
    names = (f"x{n}" for n in range(100_000))
    own = (each for each in names if shards_of_key(each, [Router(4)], 4) == [shard])
    return [next(own) for _ in range(count)]


def check_rate(received: Sequence[ReceivedRequest], since: float, rate: float) -> None:
    """Up to each moment at most rate x seconds + burst + 1 requests have come.

    A request that comes late can only make it fewer, so a busy machine fails nothing.
    """
    burst = max(1.0, rate * 0.1)
    for number, each in enumerate(sorted(request.at for request in received), start=1):
        allowed = rate * (each - since) + burst + 1
        assert number <= allowed, f"{number} after {each - since:.3f} s, not {allowed:.1f}"


# -- The bucket ------------------------------------------------------------------------------


async def test_bucket_gives_many_takers_no_more_than_its_rate(store_server: EmbeddedServer) -> None:
    async with store_at(store_server.address) as store:
        await store.call("FLUSHALL")
        taken, began = 0, time.monotonic()

        async def take_on() -> None:
            nonlocal taken
            while time.monotonic() - began < 0.5:
                granted, seconds = await take_permits(store, "{sub.p.n}:rate", 200.0, 10)
                taken += granted
                await asyncio.sleep(seconds)

        await asyncio.gather(*(take_on() for _ in range(8)))
        seconds = time.monotonic() - began
        assert 0 < taken <= 200 * seconds + 20 + 1
        assert 0 < await store.call("PTTL", "{sub.p.n}:rate") <= 1110


async def test_bucket_that_is_new_has_one_permit_and_says_when_the_next_comes(
    store_server: EmbeddedServer,
) -> None:
    async with store_at(store_server.address) as store:
        await store.call("FLUSHALL")
        assert await take_permits(store, "{sub.p.n}:rate", 0.01, 10) == (1, 0.0)
        granted, seconds = await take_permits(store, "{sub.p.n}:rate", 0.01, 10)
        assert granted == 0
        assert 90 < seconds <= 100
        # A store whose clock went back must not stop the rate
        await store.call("SET", "{sub.p.n}:rate", str(2**52))
        assert (await take_permits(store, "{sub.p.n}:rate", 0.01, 10))[0] == 1


@pytest.mark.parametrize("rate", [0.3, 7.0, 30.0, 33.333, 700.0, 999_983.0])
async def test_bucket_of_any_rate_has_a_permit_at_first_and_another_when_it_says(
    store_server: EmbeddedServer, rate: float
) -> None:
    """Times are numbers of limited precision; no rate may wait for ever because of that."""
    async with store_at(store_server.address) as store:
        await store.call("FLUSHALL")
        assert (await take_permits(store, "{sub.p.n}:rate", rate, 1))[0] == 1
        if rate < 1:
            return
        async with asyncio.timeout(10):
            for _ in range(5):
                granted, seconds = 0, 0.0
                while not granted:
                    await asyncio.sleep(seconds)
                    granted, seconds = await take_permits(store, "{sub.p.n}:rate", rate, 1)


async def test_shared_rate_drops_permits_that_were_not_used_in_time() -> None:
    now, answers, called = 0.0, [(3, 0.0), (0, 0.5), (1, 0.0)], asyncio.Event()

    async def take(per_second: float, most: int) -> tuple[int, float]:
        assert (per_second, most) == (100.0, 5), "of 50 ms, not all that is wanted"
        return answers.pop(0)

    rate = SharedRate(take, 100.0, on_permits=called.set)

    async def ask() -> None:
        called.clear()
        assert rate.wait_seconds(now, 50, lambda: now) == float("inf")
        assert rate.wait_seconds(now, 50, lambda: now) == float("inf"), "it asks once"
        await called.wait()

    await ask()
    assert (rate.wait_seconds(now, 50, lambda: now), rate.permits(now)) == (0.0, 3)
    rate.spend(1)
    assert rate.permits(now) == 2
    now = 0.11
    assert rate.permits(now) == 0
    await ask()
    assert rate.wait_seconds(now, 50, lambda: now) == pytest.approx(0.5)
    assert rate.waits
    now = 0.7
    await ask()
    assert rate.wait_seconds(now, 50, lambda: now) == 0.0
    assert not rate.waits


async def test_shared_rate_asks_again_after_the_store_was_away() -> None:
    now, called = 0.0, asyncio.Event()

    async def take(per_second: float, most: int) -> tuple[int, float]:
        if now == 0.0:
            raise StoreUnavailableError("away")
        return 1, 0.0

    rate = SharedRate(take, 10.0, on_permits=called.set)
    rate.wait_seconds(now, 1, lambda: now)
    await called.wait()
    assert 0 < rate.wait_seconds(now, 1, lambda: now) < 1
    now = 1.0
    called.clear()
    rate.wait_seconds(now, 1, lambda: now)
    await called.wait()
    assert rate.wait_seconds(now, 1, lambda: now) == 0.0


# -- Nodes -----------------------------------------------------------------------------------


async def shared(one: Node, two: Node) -> None:
    """Wait until each node has two of four shards."""
    hosts = [each.subscriptions.host for each in (one, two)]
    await eventually(lambda: [len(each.shards) for each in hosts if each] == [2, 2])


@pytest.mark.slow
@pytest.mark.parametrize("alone", [True, False], ids=["one-shard", "all-shards"])
async def test_subscription_rate_holds_over_two_nodes_and_goes_to_the_shards_with_work(
    tmp_path: Path, alone: bool
) -> None:
    async with FakeEndpoint() as receiver, two_nodes(tmp_path) as (one, two):
        await new_topic(one)
        await subscribe(one, receiver.url, rate=30.0)
        await shared(one, two)
        names = groups_of(0, 90) if alone else [f"g{n}" for n in range(90)]
        since = time.monotonic()
        await produce(one, *(f"{each}-0" for each in names))
        received = await receiver.until(90, seconds=30)
        assert len({each.headers["waystation-id"] for each in received}) == 90
        check_rate(received, since, 30.0)
        # A quarter of the rate for each shard would take a shard that is alone 11 s.
        assert time.monotonic() - since < 8


@asynccontextmanager
async def parked(
    receiver: FakeEndpoint, one: Node, groups: Sequence[str], each: int
) -> AsyncIterator[None]:
    """Groups whose messages are all dead letters; the endpoint is repaired after that."""
    receiver.plan = [NEVER]
    await new_topic(one)
    await subscribe(one, receiver.url, retry=RetryPolicy(attempts=0))
    await produce(one, *(f"{group}-{n}" for n in range(each) for group in groups))
    subscription = await one.subscriptions.subscriptions.get("default", "billing")
    looking = Looking(one.opened.store)
    async with asyncio.timeout(30):
        while True:
            looks = [await looking.shard(subscription.place(n)) for n in range(4)]
            if sum(look.dead_count for look in looks) == each * len(groups):
                break
            await asyncio.sleep(0.02)
    receiver.plan = [200]
    receiver.received.clear()
    yield


@pytest.mark.slow
@pytest.mark.parametrize(
    ("groups", "each"),
    [(["long"], 40), ([f"g{n}" for n in range(40)], 1)],
    ids=["one-group", "many-groups"],
)
async def test_redrive_rate_bounds_messages_over_two_nodes(
    tmp_path: Path, groups: list[str], each: int
) -> None:
    async with (
        FakeEndpoint() as receiver,
        two_nodes(tmp_path) as (one, two),
        parked(receiver, one, groups, each),
    ):
        await shared(one, two)
        since = time.monotonic()
        await one.subscriptions.operations.begin(
            "default", "billing", Asked(kind="redrive", rate=20.0)
        )
        received = await receiver.until(40, seconds=30)
        check_rate(received, since, 20.0)
        assert len({request.headers["waystation-id"] for request in received}) == 40
        # Other messages do not wait for a redrive
        await produce(one, "other-0")
        await receiver.until(41)


async def test_redrive_of_a_group_with_a_rate_keeps_to_it(tmp_path: Path) -> None:
    async with (
        FakeEndpoint() as receiver,
        serving(quick_settings(str(tmp_path))) as station,
        parked(receiver, station.node, ["long"], 8),
    ):
        since = time.monotonic()
        await station.node.subscriptions.operations.begin(
            "default", "billing", Asked(kind="redrive", group="long", rate=20.0)
        )
        check_rate(await receiver.until(8, seconds=20), since, 20.0)
        numbers = [
            int(each.headers["waystation-id"].partition("-")[2]) for each in receiver.received
        ]
        assert numbers == list(range(8))


async def test_subscription_rate_bounds_batches_to_a_channel(tmp_path: Path) -> None:
    """A call takes a hundred messages; with a rate it takes as many as are permitted."""
    settings = quick_settings(
        str(tmp_path), channels=ChannelConfig(rules=(ChannelRule(pattern="news"),))
    )
    async with serving(settings) as station:
        node = station.node
        await new_topic(node)
        await node.channels.subscribe("default", "news", "me")
        await subscribe(node, "channel:news", rate=10.0)
        since = time.monotonic()
        await produce(node, *(f"g{n}-0" for n in range(50)))
        async with asyncio.timeout(20):
            while True:
                fetched = await node.channels.fetch("default", "news", "me", limit=100)
                count, seconds = len(fetched.messages), time.monotonic() - since
                assert count <= 10 * seconds + 2
                if count >= 5:
                    break
                await asyncio.sleep(0.02)
