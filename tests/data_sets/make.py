"""Makes a data set with something of every part, to be kept as a fixture of a release.

    python -m tests.data_sets.make tests/data_sets/format-1

Run it with the code of the release whose data is to be kept. The append-only file is written as
plain commands, which every server since Redis 7.0 loads. `expected.json` has what the release
itself read from its data; `tests/data_sets/test_kept.py` compares it with what later ones read.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from waystation import App, AsyncWaystation, Wait
from waystation.client import NewMessage
from waystation.config import ChannelConfig, Config, TransactionConfig
from waystation.testing.endpoint import FakeEndpoint
from waystation.testing.station import Serving, quick_settings, serving

#: Ten years: what is kept must not expire.
LONG_SECONDS = 315_360_000.0
FAR = datetime(2100, 1, 1, tzinfo=UTC)
DATABASES = ("catalogue.db", "archive.db")

app = App()


@app.step("refund/approve")
async def approve(ctx: Any, refund: Any) -> Any:
    """Wait for a switch, then end."""
    return refund if ctx.switch("approved") else Wait("approved")


app.pipeline("refund", ["refund/approve"])


def settings_of(data: Path) -> Config:
    """Config under which nothing of the data set expires."""
    return quick_settings(
        str(data),
        channels=ChannelConfig(expire_seconds=LONG_SECONDS),
        transactions=TransactionConfig(archive_delay_seconds=0.0, external_id_seconds=LONG_SECONDS),
    )


@asynccontextmanager
async def station_of(data: Path) -> AsyncIterator[tuple[Serving, AsyncWaystation]]:
    """A station on a data directory, with the steps of the kept transactions."""
    async with (
        serving(settings_of(data), app=app) as running,
        AsyncWaystation(running.url) as client,
    ):
        yield running, client


async def fill(running: Serving, client: AsyncWaystation) -> None:
    """Use every part of the station."""
    await client.channels.subscribe("news", "reader")
    for number in range(3):
        await client.channels.publish("news", {"n": number}, message_id=f"c-{number}")
    await client.topics.create("orders", partitions=2)
    for number in range(6):
        message = NewMessage({"n": number}, id=f"m-{number}", group=f"g-{number % 3}")
        await client.topics.produce_many("orders", [message])
    await client.topics.add_storage_topic("orders", partitions=4)
    await client.topics.switch_produce("orders")
    await client.topics.produce("orders", {"n": 6}, id="m-6", group="g-0")
    async with FakeEndpoint(plan=(500,)) as endpoint:
        await client.subscriptions.create(
            "crm",
            topic="orders",
            endpoint=endpoint.url,
            shards=1,
            start="beginning",
            retry={"attempts": 0},
        )
        await until(lambda: dead_letters(client), 1)
        await client.subscriptions.pause("crm", reason="kept")
    await client.pools.create("agents")
    for number in range(2):
        await client.pools.send("agents", "key-1", {"n": number}, id=f"p-{number}")
    done = await client.transactions.start("refund", {"cents": 1}, external_id="t-done")
    await done.set_switch("approved", "yes")
    await done.wait("30s")
    await client.transactions.start("refund", {"cents": 2}, external_id="t-waiting")
    await client.transactions.start("refund", {"cents": 3}, external_id="t-later", start_at=FAR)
    await until(lambda: archived(client), 1)


async def dead_letters(client: AsyncWaystation) -> int:
    """Return how many dead letters there are."""
    return len([each async for each in client.subscriptions.dead_letters("crm")])


async def archived(client: AsyncWaystation) -> int:
    """Return how many transactions that have ended are in the archive."""
    return len([each async for each in client.transactions.archived()])


async def until(count: Any, least: int) -> None:
    """Wait until there are so many of something."""
    async with asyncio.timeout(60):
        while await count() < least:
            await asyncio.sleep(0.1)


async def read_everything(running: Serving, client: AsyncWaystation) -> dict[str, Any]:
    """Return what can be read of the data set, in a form that stays the same over time."""
    batch = await client.channels.fetch("news", "reader")
    messages = [
        each
        for group in ("g-0", "g-1", "g-2")
        async for each in client.topics.messages("orders", group=group)
    ]
    letters = [each async for each in client.subscriptions.dead_letters("crm", payload=True)]
    subscription = await client.subscriptions.get("crm")
    transactions = {}
    for name in ("t-done", "t-waiting", "t-later"):
        found = await (await client.transactions.by_external_id(name)).get()
        transactions[name] = [found.id, found.status, found.output]
    ended = [each async for each in client.transactions.archived()]
    return {
        "dataset": running.node.opened.dataset,
        "projects": [each.name for each in await running.node.catalogue.projects()],
        "channel": [[each.id, each.content] for each in batch.messages],
        "topic": sorted(
            [each.id, each.group, each.storage, each.partition, each.offset, each.content]
            for each in messages
        ),
        "subscription": [subscription.endpoint, subscription.shards, subscription.paused_reason],
        "dead": sorted([each.group, each.id, each.position, each.attempts] for each in letters),
        "pool": [[each.key, each.pending] async for each in client.pools.map("agents")],
        "transactions": transactions,
        "archived": sorted(each.id for each in ended),
    }


async def make(target: Path) -> None:
    """Write a data set to a folder, which is replaced."""
    with tempfile.TemporaryDirectory(prefix="waystation-keep-") as folder:
        data = Path(folder)
        async with station_of(data) as (running, client):
            await fill(running, client)
        # Anew, so that nothing is expected that only memory had.
        async with station_of(data) as (running, client):
            expected = await read_everything(running, client)
            store = running.node.opened.store
            await store.call("CONFIG", "SET", "aof-use-rdb-preamble", "no")
            await store.call("BGREWRITEAOF")
            async with asyncio.timeout(60):
                while b"aof_rewrite_in_progress:1" in await store.call("INFO", "persistence"):
                    await asyncio.sleep(0.1)
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        shutil.copytree(data / "store" / "appendonlydir", target / "appendonlydir")
        for name in DATABASES:
            with closing(sqlite3.connect(data / name)) as database:
                database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            shutil.copyfile(data / name, target / name)
        told = json.dumps(expected, indent=1, sort_keys=True)
        (target / "expected.json").write_text(told + "\n", encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(make(Path(sys.argv[1])))
