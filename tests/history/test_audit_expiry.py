"""The audit of a lake whose first days have expired reports planted damage and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from tests.helpers.records import record_entries, register_reader
from tests.helpers.waiting import eventually
from tests.history.local_ingest import local_ingest
from tests.subscriptions.at_work import Hook
from waystation import App, AsyncWaystation, Wait
from waystation.history.audit import Findings, Live, audit
from waystation.history.ingest import job as ingest_job
from waystation.history.lake.rollups import refresh_rollups
from waystation.history.lake.table import Lake
from waystation.history.store_access import store_access
from waystation.runtime.clock import Clock
from waystation.testing import serving
from waystation.testing.endpoint import ReceivedRequest
from waystation.testing.station import Serving, quick_settings

DAY_S, DAY_MS = 86_400, 86_400_000


class Health:
    """Whether an endpoint accepts all messages; before, it refuses two groups."""

    is_healthy = False

    def decide(self, request: ReceivedRequest) -> int:
        refused = {"slow": 503, "bad": 409}.get(request.headers.get("waystation-group", ""), 204)
        return 204 if self.is_healthy else refused


def app() -> App:
    made = App()

    @made.step("approve")
    async def approve(ctx: Any, given: Any) -> Any:
        return given if "ok" in ctx.switches else Wait(switch="ok", at_most="30d")

    made.pipeline("approval", ["approve"])
    return made


async def produce(client: AsyncWaystation, name: str) -> None:
    """Produce a message of each group."""
    for group in ("good", "slow", "bad"):
        await client.topics.produce("orders", {"n": 1}, id=f"{group}-{name}", group=group)


async def until_counts(client: AsyncWaystation, *counts: int) -> None:
    """Wait until the subscription has this lag and these numbers of retries and dead letters."""

    async def are_reached() -> bool:
        now = await client.subscriptions.shards("billing")
        return (now.lag, now.retry, now.dead) == counts

    await eventually(are_reached, timeout=120)


async def begin(running: Serving, client: AsyncWaystation, endpoint: str) -> list[Any]:
    """Begin the lives that end some days later. Return two transactions that wait."""
    store = running.node.opened.store
    await register_reader(store)

    async def is_recorded() -> bool:
        await client.channels.publish("news", {"n": 0})
        return bool(await record_entries(store, "channels"))

    await eventually(is_recorded, timeout=120)
    await client.topics.create("orders", partitions=1, grouped=True)
    retry = {
        "attempts": 5,
        "first_seconds": 3600,
        "jitter": 0,
        "retry_codes": [503],
        "fatal_codes": [409],
    }
    await client.subscriptions.create("billing", topic="orders", endpoint=endpoint, retry=retry)
    await produce(client, "early")
    await until_counts(client, 0, 1, 1)
    await client.pools.create("agents")
    for number in range(2):
        await client.pools.send("agents", "did:1", {"n": number}, id=f"early-{number}")
    return [await client.transactions.start("approval", {"n": n}) for n in range(2)]


async def end(client: AsyncWaystation, waiting: list[Any]) -> None:
    """End most of them, and begin others."""
    await (await client.subscriptions.redrive("billing")).wait("20s")
    await until_counts(client, 0, 0, 0)
    await produce(client, "late")
    await until_counts(client, 0, 0, 0)
    await waiting[0].set_switch("ok", True)
    await waiting[0].wait("30s")
    late = await client.transactions.start("approval", {"n": 2})
    await late.set_switch("ok", True)
    await late.wait("30s")
    await client.channels.publish("news", {"n": 1})
    await client.pools.send("agents", "did:1", {"n": 2}, id="late-0")
    taken = asyncio.Event()

    async def handle(message: Any) -> None:
        if message.id == "late-0":
            taken.set()

    async with client.pools.worker("agents", handle):
        await asyncio.wait_for(taken.wait(), 30)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_audit_of_lives_that_began_before_the_kept_days_finds_only_what_is_planted(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = quick_settings(str(tmp_path / "data"), time_machine=True)
    lake = tmp_path / "lake"
    health = Health()
    async with (
        Hook(decide=health.decide) as hook,
        serving(settings, app=app()) as running,
        AsyncWaystation(running.url) as client,
    ):
        waiting = await begin(running, client, hook.url)
        with store_access(settings) as access:
            clock = Clock()
            # The clocks of the machine and of the store agree.
            monkeypatch.setattr(ingest_job, "store_time_ms", lambda logs: clock.now_ms())

            def ingest(keep_days: int = 0) -> Any:
                job = local_ingest(lake, access.resolve(), keep_days=keep_days)
                job.clock = clock
                return job.run()

            def check() -> Findings:
                with Live(access.resolve()) as live:
                    return audit(spark, Lake(str(lake)), live=live, ingest=lambda: ingest(2))

            await asyncio.to_thread(ingest)
            await asyncio.to_thread(refresh_rollups, spark, Lake(str(lake)))
            early = await asyncio.to_thread(buckets, lake)
            machine = running.node.opened.time_machine
            assert machine is not None
            await machine.advance(4 * DAY_S)
            clock.shift_to(4 * DAY_MS)
            health.is_healthy = True
            await end(client, waiting)

            assert (await asyncio.to_thread(ingest, 2)).expired_rows > 10
            findings = await asyncio.to_thread(check)

            assert (findings.counts, findings.examples) == ({}, [])
            assert findings.checked["messages of subscriptions"] == 3
            notes = "\n".join(findings.notes)
            assert "t.default.orders.0: 3 deleted after history.keep_days." in notes
            assert "were not all recorded" not in notes
            # Counts of days that have expired stay, except those that name groups
            await asyncio.to_thread(refresh_rollups, spark, Lake(str(lake)))
            late = await asyncio.to_thread(buckets, lake)
            assert early["subscription_metrics"] <= late["subscription_metrics"]
            assert early["group_load"]
            assert not early["group_load"] & late["group_load"]

            assert await asyncio.to_thread(_plant, lake, check) == {
                ("missing", "good-late"),
                ("unknown message", "good-late"),
                ("doubled", "slow-late"),
            }


def buckets(lake: Path) -> dict[str, set[str]]:
    """Return the rows of two rollups."""
    return {
        name: {repr(row) for row in DeltaTable(str(lake / name)).to_pyarrow_table().to_pylist()}
        for name in ("subscription_metrics", "group_load")
    }


def _plant(lake: Path, check: Callable[[], Findings]) -> set[tuple[str, str]]:
    """Delete a message and double another one, of the days that are kept. Return the findings."""
    messages = DeltaTable(str(lake / "messages")).to_pyarrow_table()
    DeltaTable(str(lake / "messages")).delete("id = 'good-late'")
    rows = messages.filter(pc.field("id") == "slow-late")
    write_deltalake(str(lake / "messages"), rows, mode="append")
    findings = check()
    return {(each.check, each.id) for each in findings.examples}
