"""Life of a subscription: a real node delivers to a real endpoint, and each failure happens once.

The record log has every kind of fact except `passed`, which no code writes: attempts, retries,
messages that are late or behind another one, parked and dead messages, dropped dead letters,
redrives, skips, purges, trimmed ranges and a reset.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

from tests.subscriptions.at_work import Hook
from waystation import AsyncWaystation
from waystation.client import NewMessage, Receipt
from waystation.config import Config
from waystation.logs.protocol import Retention
from waystation.testing import serving
from waystation.testing.endpoint import ReceivedRequest
from waystation.testing.station import Serving

NAME, TOPIC = "billing", "orders"
LOG = f"s.default.{NAME}.0"


class Broken:
    """Groups that the endpoint refuses. It also refuses each first attempt of group `tired`."""

    def __init__(self) -> None:
        self.groups: set[str] = set()

    def decide(self, request: ReceivedRequest) -> int:
        group = request.headers.get("waystation-group", "")
        if group == "tired" and request.headers["waystation-attempt"] == "1":
            return 503
        return 409 if group in self.groups else 204


@asynccontextmanager
async def lived(settings: Config, *, trims: bool = True) -> AsyncIterator[tuple[Serving, Hook]]:
    """Yield a node after the whole life of the subscription, and the endpoint with its requests."""
    broken = Broken()
    async with (
        Hook(decide=broken.decide) as hook,
        serving(settings) as running,
        AsyncWaystation(running.url) as client,
    ):
        await client.topics.create(TOPIC, partitions=1, grouped=True)
        retry = {"attempts": 2, "first_seconds": 0.05, "jitter": 0, "retry_codes": [409]}
        await client.subscriptions.create(NAME, topic=TOPIC, endpoint=hook.url, retry=retry)
        await _park_and_operate(client, broken)
        await _die_and_drop(client, broken)
        if trims:
            await _trim(client, running)
        await client.subscriptions.reset(NAME, to="end")
        await _produce(client, "after-0")
        await _settled(client)
        yield running, hook


async def _park_and_operate(client: AsyncWaystation, broken: Broken) -> None:
    """Park messages, then redrive, skip and purge them."""
    broken.groups = {"redriven", "skipped", "purged"}
    soon = datetime.now(UTC) + timedelta(seconds=4)
    await client.topics.produce(TOPIC, {}, id="late-0", group="late", not_before=soon)
    await _produce(client, "well-0", "tired-0", "tired-1")
    await _produce(client, *(f"{group}-{n}" for group in broken.groups for n in range(3)))
    for group in broken.groups:
        await client.subscriptions.wait(NAME, group=group, state="parked")
    # Behind dead letters, not behind what is tried again
    await _produce(client, "redriven-3")
    await _settled(client, dead=10)
    broken.groups = set()
    await (await client.subscriptions.redrive(NAME, group="redriven")).wait("20s")
    await (await client.subscriptions.purge(NAME, group="purged")).wait("20s")
    await (await client.subscriptions.skip(NAME, group="skipped")).wait("20s")
    await _settled(client)


async def _die_and_drop(client: AsyncWaystation, broken: Broken) -> None:
    """Produce messages that become dead letters one by one, with room for one dead letter."""
    broken.groups = {"dead"}
    changed = {"poison": "skip", "dead_max_bytes": 200, "dead_full_policy": "drop_and_count"}
    await client.subscriptions.change(NAME, **changed)  # type: ignore[arg-type]
    await _produce(client, "dead-0", "dead-1", "dead-2")
    await _settled(client, dead=1)


async def _trim(client: AsyncWaystation, running: Serving) -> None:
    """Let the topic trim messages that the paused subscription has not read."""
    await client.subscriptions.pause(NAME)
    async with asyncio.timeout(20):
        while (await client.subscriptions.shards(NAME)).shards[0].state != "paused":
            await asyncio.sleep(0.02)
    await _produce(client, *(f"gone-{n}" for n in range(5)))
    log, logs = f"t.default.{TOPIC}.0", running.node.logs
    while (await logs.trim(log, 0, Retention(max_bytes=1, policy="drop_and_count"))).more:
        pass
    await logs.set_retention(log, 0, Retention())
    await client.subscriptions.resume(NAME)
    # Trimmed messages do not count as lag. The next message shows when the range was passed over
    await _produce(client, "kept-0")
    await _settled(client, dead=1)


async def _produce(client: AsyncWaystation, *ids: str) -> None:
    """Produce messages in one call, so that later ones of a group find the first one unsettled."""
    messages = [NewMessage({}, id=each, group=each.partition("-")[0]) for each in ids]
    receipts = await client.topics.produce_many(TOPIC, messages)
    assert all(isinstance(each, Receipt) for each in receipts)


async def _settled(client: AsyncWaystation, *, dead: int | None = None) -> None:
    """Wait until no message is pending or in retry, and the given number is dead."""
    async with asyncio.timeout(20):
        while True:
            now = await client.subscriptions.shards(NAME)
            if now.lag + now.retry == 0 and dead in (None, now.dead):
                return
            await asyncio.sleep(0.02)
