"""A station that handles the data of two persons, for tests that forget one of them.

The group of a person is her name. Her messages go to a pipeline, a channel, a pool and an HTTP
endpoint that answers with an excerpt. The pipeline has a step with a note, produces a message to
another topic, publishes in a channel and starts a child. Every payload has the marker of a person.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.helpers.records import record_entries, register_reader
from tests.helpers.waiting import eventually
from tests.subscriptions.at_work import Hook
from waystation import App, AsyncWaystation, Child, Parallel, RetryLater, Wait
from waystation.config import ChannelConfig, ChannelRule, Config, WebhookRule
from waystation.testing import FakeEndpoint, serving
from waystation.testing.station import Serving, quick_settings

ANN, BOB = "person-ann", "person-bob"
EXTERNAL_ID = "external-ann"
WAITING_ID = "external-waiting"


def marker(person: str) -> str:
    """Return the text that all data of a person has."""
    return f"secret-of-{person}"


def app() -> App:
    """Return the pipelines of the station."""
    made = App()
    retried: set[str] = set()

    @made.step("note")
    async def note(ctx: Any, given: dict[str, str]) -> Any:
        if ctx.idempotency_key in retried:
            return given
        retried.add(ctx.idempotency_key)
        return RetryLater(delay="1ms", note=f"again for {given['name']}")

    @made.step("split")
    async def split(ctx: Any, given: dict[str, str]) -> Any:
        return Parallel([Child("child", given)])

    @made.step("approve")
    async def approve(ctx: Any, given: dict[str, str]) -> Any:
        return given if "ok" in ctx.switches else Wait(switch="ok", at_most="1h")

    made.pipeline("child", ["note"])
    made.pipeline("approval", ["approve"])
    made.pipeline(
        "care",
        [
            "note",
            ("util/produce", {"topic": "receipts"}),
            ("util/publish", {"channel": "results"}),
            "split",
        ],
    )
    return made


def data(person: str) -> dict[str, str]:
    """Return the data of a message or transaction."""
    return {"name": marker(person)}


@asynccontextmanager
async def lived(folder: str) -> AsyncIterator[tuple[Serving, AsyncWaystation, Config]]:
    """Run the station until both persons' messages are settled."""
    async with Hook() as hook, FakeEndpoint() as crm:
        webhook = WebhookRule(name="crm", url=crm.url)
        rules = (
            ChannelRule(pattern="warm-up"),
            ChannelRule(pattern="results", webhooks=(webhook,)),
            ChannelRule(pattern="events"),
        )
        settings = quick_settings(folder, channels=ChannelConfig(rules=rules))
        async with (
            serving(settings, app=app()) as running,
            AsyncWaystation(running.url) as client,
        ):
            await register_reader(running.node.opened.store)

            async def is_recorded() -> bool:
                await client.channels.publish("warm-up", {})
                return bool(await record_entries(running.node.opened.store, "channels"))

            await eventually(is_recorded, timeout=30)
            await client.pools.create("agents")
            await client.topics.create("orders", partitions=2, grouped=True)
            await client.topics.create("receipts")
            endpoints = {
                "care": "pipeline:care",
                "events": "channel:events",
                "agents": "pool:agents",
                "http": hook.url,
            }
            for name, endpoint in endpoints.items():
                await client.subscriptions.create(name, topic="orders", endpoint=endpoint)
            await client.subscriptions.create("audit", topic="receipts", endpoint=hook.url)
            for number in range(3):
                for person in (ANN, BOB):
                    await client.topics.produce(
                        "orders",
                        data(person),
                        id=f"{person}-{number}",
                        group=person,
                        headers={"x-name": marker(person)},
                    )
            for person, external_id in ((ANN, EXTERNAL_ID), (BOB, "external-bob")):
                started = await client.transactions.start(
                    "care", data(person), external_id=external_id, metadata={"m": marker(person)}
                )
                await started.wait("30s")
            await client.transactions.start("approval", data(ANN), external_id=WAITING_ID)

            async def is_settled() -> bool:
                found = [await client.subscriptions.shards(name) for name in (*endpoints, "audit")]
                return all((each.lag, each.retry) == (0, 0) for each in found)

            await eventually(is_settled, timeout=60)
            # Eight transactions publish a result.
            await crm.until(8)
            yield running, client, settings


def occurrences(lake: Path, text: str) -> dict[str, int]:
    """Return how often a text is in each table: in values of files, and in bytes of the log."""
    found: dict[str, int] = {}
    for file in lake.rglob("*"):
        if not file.is_file():
            continue
        raw = file.read_bytes().count(text.encode())
        if file.suffix == ".parquet":
            raw += repr(pq.ParquetFile(file).read().to_pylist()).count(text)
        if raw:
            table = file.relative_to(lake).parts[0]
            found[table] = found.get(table, 0) + raw
    return found
