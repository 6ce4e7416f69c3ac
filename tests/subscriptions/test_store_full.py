"""A store above its memory limit: a shard reads its topic only while that needs no room."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.helpers.store_faults import plain_server
from tests.subscriptions.at_work import Hook
from waystation import AsyncWaystation
from waystation.client import NewMessage, Receipt
from waystation.config import StoreConfig
from waystation.store.memory import MemoryUsage, StoreMemory
from waystation.subscriptions.definition import SubscriptionOptions
from waystation.testing import serving
from waystation.testing.endpoint import ReceivedRequest
from waystation.testing.station import Serving, quick_settings

COUNT, SIZE = 1000, 8_192


@asynccontextmanager
async def full_station(folder: Path, hook: Hook) -> AsyncIterator[tuple[Serving, AsyncWaystation]]:
    """A station whose store is full of messages that a paused subscription has not read."""
    with plain_server("--appendonly", "yes") as server:
        url = f"unix://{server.address.path}"
        settings = quick_settings(str(folder), store=StoreConfig(url=url, durability="memory"))
        async with serving(settings) as running, AsyncWaystation(running.url) as client:
            await client.topics.create("orders", partitions=1)
            await client.subscriptions.create(
                "crm", topic="orders", endpoint=hook.url, shards=1, retry={"first_seconds": 600}
            )
            await client.subscriptions.pause("crm")
            messages = [NewMessage("x" * SIZE, group=f"g-{number}") for number in range(COUNT)]
            results = await client.topics.produce_many("orders", messages)
            assert all(isinstance(each, Receipt) for each in results)
            room = running.node.opened.memory
            await room.read()
            limit = room.usage.used_bytes * 9 // 10
            await running.node.opened.store.call("CONFIG", "SET", "maxmemory", limit)
            await room.read()
            assert room.is_full
            yield running, client


def answer_of_one_success_in_four(request: ReceivedRequest) -> int:
    """Fail three groups of four: the circuit breaker stays closed, because the fourth succeeds."""
    return 204 if int(request.headers["waystation-group"].removeprefix("g-")) % 4 == 0 else 500


@pytest.mark.slow
async def test_shard_with_failing_messages_stops_reading_above_the_memory_limit(
    tmp_path: Path,
) -> None:
    async with (
        Hook(decide=answer_of_one_success_in_four) as hook,
        full_station(tmp_path, hook) as (running, client),
    ):
        room = running.node.opened.memory
        before = room.usage.used_bytes
        await client.subscriptions.resume("crm")
        async with asyncio.timeout(30):
            while (await client.subscriptions.shards("crm")).shards[0].reason != "store_full":
                await asyncio.sleep(0.05)
        seen = -1
        while seen != len(hook.received):
            seen = len(hook.received)
            await asyncio.sleep(1)
        await room.read()

        # Every fourth message succeeds, so the shard may read a third more than it can keep.
        assert 0 < seen < COUNT / 3
        assert room.usage.used_bytes < before + 2_097_152
        assert (await client.subscriptions.why("crm")).code == "store_full"
        assert any("it is full" in note for note in running.node.opened.notes)


@pytest.mark.slow
async def test_shard_with_succeeding_messages_drains_a_full_store(tmp_path: Path) -> None:
    async with Hook() as hook, full_station(tmp_path, hook) as (_, client):
        await client.subscriptions.resume("crm")
        async with asyncio.timeout(60):
            while len(set(hook.ids())) < COUNT:
                await asyncio.sleep(0.05)


def test_store_room_warns_from_seventy_percent_and_without_a_limit_never() -> None:
    room = StoreMemory.__new__(StoreMemory)
    for used, limit, told in ((69, 100, ""), (70, 100, "70%"), (99, 100, "99%"), (5, 0, "")):
        room.usage = MemoryUsage(used * 1_048_576, limit * 1_048_576)
        assert (not room.notes) == (not told)
        assert not room.is_full
        assert told in "".join(room.notes)
    room.usage = MemoryUsage(1_048_576, 1_048_576)
    assert room.is_full
    assert "it is full" in room.notes[0]


def test_subscription_options_bound_retries_and_dead_letters_by_default() -> None:
    options = SubscriptionOptions()
    assert options.retry_max_bytes == options.dead_max_bytes == 67_108_864
