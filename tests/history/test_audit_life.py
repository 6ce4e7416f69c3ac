"""Audit of the history of a real node: no finding after failures, each planted error by its id."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from tests.helpers.waiting import eventually
from tests.history.log_writer import LogWriter
from tests.history.shard_life import lived
from tests.subscriptions.at_work import Hook
from waystation import AsyncWaystation
from waystation.client import NewMessage
from waystation.config import Config
from waystation.history.audit import Findings, Live, audit
from waystation.history.ingest.job import ingest_job
from waystation.history.lake.table import Lake
from waystation.history.store_access import store_access
from waystation.testing.endpoint import ReceivedRequest

TOPIC = "parcels"
QUICK = {"attempts": 2, "first_seconds": 0.05, "jitter": 0, "retry_codes": [409]}
SLOW = {**QUICK, "attempts": 3, "first_seconds": 3600}


def refuse(request: ReceivedRequest) -> int:
    return 409 if request.headers.get("waystation-group") == "g-1" else 204


async def produce(client: AsyncWaystation, first: int, count: int) -> None:
    await client.topics.produce_many(
        TOPIC,
        [
            NewMessage({"n": n}, id=f"p-{n}", group=f"g-{n % 5}")
            for n in range(first, first + count)
        ],
    )


async def until_counts(
    client: AsyncWaystation, name: str, *, lag: int, retry: int, dead: int
) -> None:
    """Wait until a subscription has this lag and these numbers of retries and dead letters."""

    async def are_reached() -> bool:
        now = await client.subscriptions.shards(name)
        return (now.lag, now.retry, now.dead) == (lag, retry, dead)

    await eventually(are_reached, timeout=30)


@asynccontextmanager
async def second_topic(client: AsyncWaystation, hook: Hook) -> AsyncIterator[None]:
    """Deliver a topic that grows to four subscriptions.

    One of them is reset, one keeps no order, and two have the same name, one after the other.
    """
    hook.decide = refuse
    await client.topics.create(TOPIC, partitions=2, grouped=True)
    options = {"topic": TOPIC, "endpoint": hook.url, "start": "beginning"}
    await client.subscriptions.create("strict", retry=QUICK, **options)  # type: ignore[arg-type]
    loose = {**options, "grouped": False, "poison": "skip"}
    await client.subscriptions.create("loose", retry=QUICK, **loose)  # type: ignore[arg-type]
    await client.subscriptions.create("brief", retry=SLOW, **options)  # type: ignore[arg-type]
    await produce(client, 0, 30)
    await until_counts(client, "strict", lag=0, retry=0, dead=6)
    await until_counts(client, "loose", lag=0, retry=0, dead=6)
    await until_counts(client, "brief", lag=0, retry=6, dead=0)
    # A name that is used again. Messages that the first one had not delivered are gone with it
    await client.subscriptions.delete("brief")
    await client.subscriptions.create("brief", retry=SLOW, **options)  # type: ignore[arg-type]
    await until_counts(client, "brief", lag=0, retry=6, dead=0)
    # The topic grows, and begins anew for one of them while a group of it is parked
    await client.topics.add_storage_topic(TOPIC, 4)
    await client.topics.switch_produce(TOPIC)
    await produce(client, 30, 20)
    await until_counts(client, "strict", lag=0, retry=0, dead=10)
    await (await client.subscriptions.reset("strict", to="beginning")).wait("20s")
    await until_counts(client, "strict", lag=0, retry=0, dead=20)
    await (await client.subscriptions.skip("strict", group="g-1")).wait("20s")
    await until_counts(client, "strict", lag=0, retry=0, dead=19)
    # Messages that no shard has taken yet
    await client.subscriptions.pause("strict")
    await produce(client, 50, 5)
    await until_counts(client, "loose", lag=0, retry=0, dead=11)
    await until_counts(client, "brief", lag=0, retry=11, dead=0)
    yield


def found(findings: Findings) -> set[tuple[str, str, str]]:
    return {(each.check, each.subject, each.id) for each in findings.examples}


def rows_of(lake: Path, table: str, **wanted: str) -> list[dict[str, Any]]:
    """Return the rows of a table with these values, in the order of their log."""
    rows = DeltaTable(str(lake / table)).to_pyarrow_table()
    for column, value in wanted.items():
        rows = rows.filter(pc.field(column) == value)
    return rows.sort_by("log_offset").to_pylist()


def double(lake: Path, message: str) -> None:
    """Append a copy of a message to the lake."""
    rows = DeltaTable(str(lake / "messages")).to_pyarrow_table()
    once_more = rows.filter(pc.field("id") == message)
    write_deltalake(str(lake / "messages"), once_more, mode="append")


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_all_that_can_happen_to_messages_is_in_order_and_what_is_planted_is_found(
    spark: SparkSession, settings: Config, lake: Path
) -> None:
    async with (
        lived(settings) as (running, hook),
        AsyncWaystation(running.url) as client,
        second_topic(client, hook),
    ):
        with store_access(settings) as access:
            ingest = ingest_job(spark, Lake(str(lake)), access).run

            def run() -> Findings:
                with Live(access.resolve()) as live:
                    return audit(spark, Lake(str(lake)), live=live, ingest=ingest)

            clean = await asyncio.to_thread(run)
            assert (clean.counts, clean.examples) == ({}, [])
            # Each message for each incarnation that has to do with it: strict 50 + 55, loose 55,
            # brief has 30 and then 55; billing has the rest of its topic
            assert clean.checked["messages of subscriptions"] >= 245
            notes = "\n".join(clean.notes)
            assert "default/brief was deleted" in notes
            assert "t.default.orders.0: " in notes
            assert "gone before it was read" in notes

            planted = await asyncio.to_thread(_plant, lake, access.resolve(), run)
    assert planted == set()


def _plant(lake: Path, url: str, run: Callable[[], Findings]) -> set[tuple[str, str, str]]:
    """Damage the lake and the store; return how the findings differ from the expected ones."""
    (gone,) = rows_of(lake, "messages", id="p-7")
    (doubled,) = rows_of(lake, "messages", id="p-8")
    DeltaTable(str(lake / "messages")).delete("id = 'p-7'")
    double(lake, "p-8")
    # One of g-2 was attempted before the one before it, p-2, had settled
    DeltaTable(str(lake / "deliveries")).update(
        predicate="message_id = 'p-12' and subscription = 'strict' and incarnation = 2",
        updates={"begun_after": "0"},
    )
    # A retry and a dead letter are gone from the store
    retry = rows_of(lake, "deliveries", message_id="p-51", subscription="brief")[-1]
    letter = rows_of(lake, "deliveries", message_id="p-21", subscription="loose")[-1]
    with LogWriter(url) as writer:
        for row, queue in ((retry, "retry"), (letter, "dead")):
            shard = f"{{{row['log']}.{row['shard']}}}:{queue}"
            assert writer.command("HDEL", shard, row["to_place"][1:]) == 1
    return found(run()) ^ {
        ("missing", _log_of(gone), "p-7"),
        *(("unknown message", f"default/{name}", "p-7") for name in ("strict", "loose", "brief")),
        ("doubled", _log_of(doubled), "p-8"),
        ("overtaken", "default/strict", "p-2"),
        ("lost", "default/brief", "p-51"),
        ("lost", "default/loose", "p-21"),
    }


def _log_of(row: dict[str, Any]) -> str:
    return f"{row['log']}/{row['log_partition']}"
