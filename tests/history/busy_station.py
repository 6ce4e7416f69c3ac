"""A station in which deliveries and transactions fail, for tests of what tells their causes.

Of four orders, the pipeline `order` declines two. A transaction of `courier` waits for a switch, so
that none of that pipeline has ended. The endpoint of the subscription `billing` rejects one order
twice. The webhook of the transactions answers, and so does the one of the channel `news`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.helpers.records import record_entries, register_reader
from tests.helpers.waiting import eventually
from tests.subscriptions.at_work import Hook
from waystation import App, AsyncWaystation, Fail, Wait
from waystation.config import ChannelConfig, ChannelRule, Config, WebhookRule
from waystation.store.client import Store
from waystation.testing import FakeEndpoint, serving
from waystation.testing.endpoint import ReceivedRequest
from waystation.testing.station import quick_settings

DECLINED = "The bank declined the card."
REJECTED = "order-3"


def shop() -> App:
    """Return the pipelines `order`, which fails for odd orders, and `courier`, which waits."""
    app = App()

    @app.step("pay")
    async def pay(ctx: Any, order: dict[str, int]) -> Any:
        return Fail(DECLINED) if order["n"] % 2 else order

    @app.step("wait")
    async def wait(ctx: Any, order: dict[str, int]) -> Any:
        return Wait(switch="picked-up")

    app.pipeline("order", ["pay"])
    app.pipeline("courier", ["wait"])
    return app


def decide(request: ReceivedRequest) -> int:
    """Reject one message, so that it becomes a dead letter; accept all others."""
    return 409 if request.headers["waystation-id"] == REJECTED else 204


@asynccontextmanager
async def busy_station(folder: str) -> AsyncIterator[Config]:
    """Run the station until all orders are settled, and let the caller ingest its logs."""
    async with Hook(decide=decide) as hook, FakeEndpoint() as reply, FakeEndpoint() as crm:
        webhook = WebhookRule(name="crm", url=crm.url)
        rules = (ChannelRule(pattern="warm-up"), ChannelRule(pattern="news", webhooks=(webhook,)))
        settings = quick_settings(folder, channels=ChannelConfig(rules=rules))
        async with serving(settings, app=shop()) as running, AsyncWaystation(running.url) as client:
            await _until_recorded(client, running.node.opened.store)
            await client.topics.create("orders", partitions=1, grouped=True)
            retry = {"attempts": 1, "first_seconds": 0.05, "jitter": 0, "retry_codes": [409]}
            await client.subscriptions.create(
                "billing", topic="orders", endpoint=hook.url, retry=retry
            )
            for n in range(4):
                await client.topics.produce("orders", {"n": n}, id=f"order-{n}", group=f"g-{n}")
                told = {"webhook": reply.url}
                await client.transactions.start("order", {"n": n}, metadata=told)
            await client.transactions.start("courier", {"n": 0})
            await _use_channel_and_pool(client)
            await reply.until(4)
            await crm.until(2)

            async def is_settled() -> bool:
                now = await client.subscriptions.shards("billing")
                return (now.lag, now.retry, now.dead) == (0, 0, 1)

            await eventually(is_settled, timeout=30)
            yield settings


async def _until_recorded(client: AsyncWaystation, store: Store) -> None:
    """Register history, and wait until the station records channels and pools."""
    await register_reader(store)

    async def is_recorded() -> bool:
        await client.channels.publish("warm-up", {})
        return bool(await record_entries(store, "channels"))

    await eventually(is_recorded, timeout=30)


async def _use_channel_and_pool(client: AsyncWaystation) -> None:
    """Publish two messages and acknowledge one; enqueue two and acknowledge the first."""
    await client.channels.subscribe("news", "reader")
    await client.channels.publish("news", {"n": 1}, message_id="n-1")
    batch = await client.channels.fetch("news", "reader")
    await client.channels.ack("news", "reader", batch.handle)
    await client.channels.publish("news", {"n": 2}, message_id="n-2")
    await client.pools.create("agents")
    handled = asyncio.Event()

    async def handle(message: Any) -> None:
        handled.set()

    async with client.pools.worker("agents", handle):
        await client.pools.send("agents", "did:1", {"n": 1}, id="p-1")
        async with asyncio.timeout(20):
            await handled.wait()
    await client.pools.send("agents", "did:1", {"n": 2}, id="p-2")
