"""The life of a subscription: a real station delivers to a real endpoint, and all goes wrong once.

Everything that a record log can say of a shard is said in it, but `passed`, which nothing asks for
yet: delivered, tried again, put off, behind another, parked, dead, dropped, redriven, skipped,
purged, trimmed, begun anew.
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
    """Which messages are refused, and with what; the first attempt of `tired-…` always."""

    def __init__(self) -> None:
        self.groups: set[str] = set()

    def decide(self, request: ReceivedRequest) -> int:
        group = request.headers.get("waystation-group", "")
        if group == "tired" and request.headers["waystation-attempt"] == "1":
            return 503
        return 409 if group in self.groups else 204


@asynccontextmanager
async def lived(settings: Config, *, trims: bool = True) -> AsyncIterator[tuple[Serving, Hook]]:
    """A station after all of it, and the endpoint with all that it got."""
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
    """What is parked is redriven, skipped or purged."""
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
    """Without parking, and with room for one dead letter."""
    broken.groups = {"dead"}
    changed = {"poison": "skip", "dead_max_bytes": 200, "dead_full_policy": "drop_and_count"}
    await client.subscriptions.change(NAME, **changed)  # type: ignore[arg-type]
    await _produce(client, "dead-0", "dead-1", "dead-2")
    await _settled(client, dead=1)


async def _trim(client: AsyncWaystation, running: Serving) -> None:
    """The topic lets go of what nobody has read."""
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
    # What is gone is no lag any more: what comes after it tells when it was passed over
    await _produce(client, "kept-0")
    await _settled(client, dead=1)


async def _produce(client: AsyncWaystation, *ids: str) -> None:
    """All at once, so that those of a group find the first of them unsettled."""
    messages = [NewMessage({}, id=each, group=each.partition("-")[0]) for each in ids]
    receipts = await client.topics.produce_many(TOPIC, messages)
    assert all(isinstance(each, Receipt) for each in receipts)


async def _settled(client: AsyncWaystation, *, dead: int | None = None) -> None:
    """Waits until nothing is left to be tried, and so many are dead."""
    async with asyncio.timeout(20):
        while True:
            now = await client.subscriptions.shards(NAME)
            if now.lag + now.retry == 0 and dead in (None, now.dead):
                return
            await asyncio.sleep(0.02)
