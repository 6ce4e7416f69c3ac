"""Audit beside a node under load: changes during the audit are no findings."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from tests.subscriptions.at_work import Hook
from waystation import App, AsyncWaystation, Wait
from waystation.archive import archive_place
from waystation.client import NewMessage
from waystation.config import Config, TransactionConfig
from waystation.errors import WaystationError
from waystation.history.audit import Findings, Live, audit
from waystation.history.ingest.job import ingest_job
from waystation.history.lake.table import Lake
from waystation.history.store_access import store_access
from waystation.runtime.clock import Clock
from waystation.testing import serving
from waystation.testing.endpoint import ReceivedRequest

TOPIC, NAME = "orders", "billing"
RETRY = {"attempts": 2, "first_seconds": 0.05, "jitter": 0.2, "retry_codes": [409]}


def app() -> App:
    made = App()

    @made.step("pay")
    async def pay(ctx: Any, order: dict[str, int]) -> Any:
        # Some sleep for so long that they are archived, and come back
        if order["n"] % 5 == 0 and not ctx.timed_out:
            return Wait(switch="ok", at_most="300ms")
        return order

    made.pipeline("order", ["pay"])
    return made


class Load:
    """Messages and transactions without end, and an operator who redrives, skips and resets."""

    def __init__(self, client: AsyncWaystation, seed: int) -> None:
        self._client = client
        self._random = random.Random(seed)
        self.produced = 0
        self.started = 0
        self.operations = 0

    def decide(self, request: ReceivedRequest) -> int:
        return 409 if self._random.random() < 0.1 else 204

    async def produce(self) -> None:
        while True:
            messages = [
                NewMessage({}, id=f"m-{n}", group=f"g-{n % 40}")
                for n in range(self.produced, self.produced + 20)
            ]
            await self._client.topics.produce_many(TOPIC, messages)
            self.produced += 20
            await asyncio.sleep(0.5)

    async def start(self) -> None:
        while True:
            await self._client.transactions.start("order", {"n": self.started})
            self.started += 1
            await asyncio.sleep(0.1)

    async def operate(self) -> None:
        while True:
            await asyncio.sleep(2)
            kind = self._random.choice(["redrive"] * 4 + ["skip"] * 2 + ["reset"])
            with suppress(WaystationError):
                if kind == "reset":
                    await self._client.subscriptions.reset(NAME, to="beginning")
                elif kind == "redrive":
                    await self._client.subscriptions.redrive(NAME)
                else:
                    await self._client.subscriptions.skip(NAME, group="g-1")
                self.operations += 1


@asynccontextmanager
async def under_load(settings: Config) -> AsyncIterator[Load]:
    async with (
        Hook() as hook,
        serving(settings, app=app()) as running,
        AsyncWaystation(running.url) as client,
    ):
        load = Load(client, seed=8)
        hook.decide = load.decide
        await client.topics.create(TOPIC, partitions=2, grouped=True)
        await client.subscriptions.create(
            NAME,
            topic=TOPIC,
            endpoint=hook.url,
            start="beginning",
            retry=RETRY,  # type: ignore[arg-type]
        )
        tasks = [asyncio.create_task(work()) for work in (load.produce, load.start, load.operate)]
        try:
            yield load
            assert not [task for task in tasks if task.done()], "the load goes on to the end"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_beside_a_station_that_works_there_is_no_false_alarm(
    spark: SparkSession, settings: Config, lake: Path
) -> None:
    quick = msgspec.structs.replace(
        settings,
        transactions=TransactionConfig(archive_delay_seconds=0.05, cache_seconds=0.1),
    )
    async with under_load(quick) as load:
        with store_access(quick) as access:
            ingest = ingest_job(spark, Lake(str(lake)), access).run

            def run() -> Findings:
                archive = archive_place("", folder=quick.data_dir)
                with Live(access.resolve(), archive) as live:
                    return audit(
                        spark,
                        Lake(str(lake)),
                        live=live,
                        ingest=ingest,
                        archived_before_ms=Clock().now_ms() - 50,
                    )

            async with asyncio.timeout(60):
                while load.produced < 200 or load.started < 30 or load.operations < 2:
                    await asyncio.sleep(0.1)
            before = load.produced, load.started
            findings = await asyncio.to_thread(run)
            assert (findings.counts, findings.examples) == ({}, [])
            assert load.produced > before[0]
            assert load.started > before[1]
        assert findings.checked["messages of subscriptions"] > 100
        assert findings.checked["transactions"] > 20
