"""With `history.full = "refuse"` a record log drops nothing: its shard waits for history."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.helpers.waiting import eventually
from tests.subscriptions.at_work import Hook
from waystation import AsyncWaystation
from waystation.client import NewMessage, Receipt
from waystation.config import Config, HistoryConfig, SubscriptionConfig, WhenFull
from waystation.logs import keys
from waystation.logs.protocol import LogState
from waystation.testing import serving
from waystation.testing.station import Serving, quick_settings

ROOM, COUNT = 1_048_576, 10_000
#: Long ids fill record logs soon.
PADDING = "x" * 50


def settings_of(folder: Path, full: WhenFull) -> Config:
    """Of a station whose record logs have the least room."""
    return quick_settings(
        str(folder),
        subscriptions=SubscriptionConfig(log_bytes_max=ROOM),
        history=HistoryConfig(full=full),
    )


async def fill(client: AsyncWaystation, running: Serving, hook: Hook) -> None:
    """More messages than the record log has room for; history has seen the first fact alone."""
    await client.topics.create("orders", partitions=1)
    await client.subscriptions.create("billing", topic="orders", endpoint=hook.url, shards=1)
    await running.node.logs.hold(await record_log(running), 0, "history", 0)
    for first in range(0, COUNT, 1000):
        messages = [NewMessage({}, id=f"{PADDING}-{first + n}") for n in range(1000)]
        receipts = await client.topics.produce_many("orders", messages)
        assert all(isinstance(each, Receipt) for each in receipts)


async def record_log(running: Serving) -> str:
    """Its name."""
    subscription = await running.node.subscriptions.subscriptions.get("default", "billing")
    return subscription.record_log


async def state(running: Serving) -> LogState:
    """Of the record log."""
    return await running.node.logs.state(await record_log(running), 0)


async def test_shards_of_a_subscription_share_the_limit_of_unread_entries(tmp_path: Path) -> None:
    async with (
        Hook() as hook,
        serving(quick_settings(str(tmp_path))) as running,
        AsyncWaystation(running.url) as client,
    ):
        await client.topics.create("orders", partitions=32)
        for name, shards in (("billing", 4), ("crm", 32)):
            await client.subscriptions.create(
                name, topic="orders", endpoint=hook.url, shards=shards
            )
        subscriptions = running.node.subscriptions.subscriptions
        store = running.node.opened.store

        async def limits(name: str) -> list[int]:
            log = (await subscriptions.get("default", name)).record_log
            shards = (await subscriptions.get("default", name)).shards
            return [
                int(await store.call("HGET", keys.head(log, shard), "unread_bytes"))
                for shard in range(shards)
            ]

        async def check() -> None:
            assert await limits("billing") == [4_194_304] * 4
            assert await limits("crm") == [1_048_576] * 32

        await check()
        # The owner of a shard sets the limits again.
        messages = [NewMessage({}, group=f"g-{number}") for number in range(200)]
        await client.topics.produce_many("orders", messages)
        await eventually(lambda: len(hook.received) == 400, timeout=60)
        await check()


async def until_full(client: AsyncWaystation, running: Serving) -> None:
    """Waits until the shard says so, and has done with what it had in its hands."""
    async with asyncio.timeout(40):
        while (await client.subscriptions.shards("billing")).shards[0].reason != "record_full":
            await asyncio.sleep(0.05)
        before = -1
        while before != (end := (await state(running)).end):
            before = end
            await asyncio.sleep(0.5)


@pytest.mark.slow
async def test_a_shard_waits_for_history_and_then_goes_on_without_a_loss(tmp_path: Path) -> None:
    async with (
        Hook() as hook,
        serving(settings_of(tmp_path, "refuse")) as running,
        AsyncWaystation(running.url) as client,
    ):
        await fill(client, running, hook)
        await until_full(client, running)

        # Then nothing was dropped, and what is above the bound is what was under way
        full = await state(running)
        assert (full.first, full.dropped) == (0, 0)
        assert ROOM <= full.bytes < 2 * ROOM
        standing = (await client.subscriptions.shards("billing")).shards[0]
        assert (standing.state, standing.lag > 0) == ("full", True)
        told = await client.subscriptions.why("billing")
        assert told.code == "record_full"
        assert "history has not read" in told.text

        # When history has caught up, the shard goes on
        while len({each.headers["webhook-id"] for each in hook.received}) < COUNT:
            await running.node.logs.hold(
                await record_log(running), 0, "history", (await state(running)).end
            )
            await asyncio.sleep(0.2)
        assert (await state(running)).dropped == 0


@pytest.mark.slow
async def test_by_default_a_full_record_log_drops_its_oldest_and_delivery_goes_on(
    tmp_path: Path,
) -> None:
    async with Hook() as hook:
        # Given a shard that waits, because its station was told to
        async with (
            serving(settings_of(tmp_path, "refuse")) as running,
            AsyncWaystation(running.url) as client,
        ):
            await fill(client, running, hook)
            await until_full(client, running)
            assert len(hook.received) < COUNT

        # When the next one is told otherwise, the log that is there follows
        async with (
            serving(settings_of(tmp_path, "drop_and_count")) as running,
            AsyncWaystation(running.url) as client,
            asyncio.timeout(60),
        ):
            while (await client.subscriptions.shards("billing")).lag:
                await asyncio.sleep(0.1)
            dropped = await state(running)
    assert len({each.headers["webhook-id"] for each in hook.received}) == COUNT
    assert dropped.dropped > 0
    assert dropped.bytes <= ROOM
