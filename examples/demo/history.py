"""History in the demo: what the acts before it did becomes a lake, is audited and reported on."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from demo.stage import Stage
from demo.station import DemoStation
from demo.subscriptions import EVENTS, EXPECTED_REQUESTS
from demo.topics import SCANS
from waystation.config import Config
from waystation.errors import HistoryMissingError
from waystation.history.packages import require_packages
from waystation.logs.records import history_reader_name
from waystation.runtime.clock import Clock
from waystation.store.address import parse_address
from waystation.store.client import Store
from waystation.store.dataset import register_history

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from waystation.history.audit import Findings
    from waystation.history.lake.table import Lake
    from waystation.history.sources.options import Location

#: The question of the guide, word for word.
QUERY = """select endpoint, count(*) attempts, count_if(status >= 500) failed
             from waystation.deliveries join waystation.messages using (position) group by 1"""
#: What the audit has to check, each in the words of its findings.
PARTS = (
    "entries of messages",
    "messages of subscriptions",
    "transactions",
    "messages of channels",
    "messages of pools",
)
#: Behind the host of an endpoint: which URL of that host, which is another in each run.
_WHICH_URL = re.compile(r":[0-9a-f]{12}$")
#: For a few thousand rows on a small machine: less to start, and none of what pays on long runs.
_SPARK = {
    "spark.driver.extraJavaOptions": (
        "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC -Xshare:auto"
    ),
    "spark.sql.shuffle.partitions": "2",
}


def record_channels_and_pools(station: DemoStation) -> None:
    """Register history and start the station again, before anything happens.

    A station records channels and pools only for a history that is registered. The ingest at the
    end of the demo registers it too, but after all of their messages.
    """
    try:
        require_packages()
    except HistoryMissingError:
        return
    from waystation.history.store_access import store_access  # noqa: PLC0415 (needs the packages)

    settings = Config(data=str(station.data))

    async def register(url: str) -> None:
        store = Store(parse_address(url))
        try:
            await register_history(store, history_reader_name(settings.history.full))
        finally:
            await store.close()

    with store_access(settings) as access:
        asyncio.run(register(access.resolve()))
        station.kill()
        station.start()


def everything_in_the_lake(stage: Stage, station: DemoStation, folder: Path) -> None:
    """Ingests, audits, writes the report and asks; the lake and the page stay in a folder."""
    stage.act("everything that happened, in a lake that Spark reads, audits and reports on")
    try:
        require_packages()
        _bring_in(stage, station, folder)
    except HistoryMissingError as missing:
        stage.say(f"left out: {missing.message} {missing.hint}")


def _bring_in(stage: Stage, station: DemoStation, folder: Path) -> None:
    # Here, since Spark takes seconds to import, and is not there in every installation.
    from waystation.history.lake.table import Lake  # noqa: PLC0415
    from waystation.history.store_access import store_access  # noqa: PLC0415

    # Made by hand: settings of the user's own stations must not lead the demo to their store.
    settings = Config(data=str(station.data))
    lake = Lake(str(folder / "data" / "lake"))
    page = folder / "report.html"
    with store_access(settings) as access, _session(stage, station) as spark:
        findings = _audit(stage, spark, lake, access, settings)
        stage.check("what the audit found lost, doubled or overtaken", findings.total, 0)
        covered = ", ".join(part for part in PARTS if findings.checked.get(part))
        stage.check("the audit covered", covered, ", ".join(PARTS))
        _report(stage, spark, lake, page)
        _ask(stage, spark, lake)
    stage.kept |= {"lake": str(lake.root), "report": str(page)}


@contextmanager
def _session(stage: Stage, station: DemoStation) -> Iterator[SparkSession]:
    from waystation.history.session import SessionPlan, running_session  # noqa: PLC0415

    begun = time.monotonic()
    plan = SessionPlan(folder=station.data / "history", memory="1g", ui=False, spark=_SPARK)
    with running_session(plan) as spark:
        stage.say(f"Spark {spark.version} on this machine  ({time.monotonic() - begun:.1f} s)")
        yield spark


def _audit(
    stage: Stage, spark: SparkSession, lake: Lake, access: Location, settings: Config
) -> Findings:
    from waystation.archive import archive_place  # noqa: PLC0415
    from waystation.history.audit import Live, audit  # noqa: PLC0415
    from waystation.history.ingest.job import ingest_job  # noqa: PLC0415
    from waystation.history.lease import history_lease  # noqa: PLC0415

    begun = time.monotonic()
    with history_lease(access.resolve()):
        rows = ingest_job(spark, lake, access).run().rows
    stage.say(f"ingested: {rows:,} rows  ({time.monotonic() - begun:.1f} s)")
    begun = time.monotonic()
    with Live(access.resolve(), archive_place("", folder=settings.data_dir)) as live:
        found = audit(
            spark,
            lake,
            live=live,
            ingest=ingest_job(spark, lake, access).run,
            archived_before_ms=Clock().now_ms(),
        )
    looked = ", ".join(f"{count:,} {what}" for what, count in found.checked.items())
    stage.say(f"audited: {looked}  ({time.monotonic() - begun:.1f} s)")
    return found


def _report(stage: Stage, spark: SparkSession, lake: Lake, page: Path) -> None:
    from waystation.history.lake.rollups import refresh_rollups  # noqa: PLC0415
    from waystation.history.report.page import write_report  # noqa: PLC0415

    begun = time.monotonic()
    refresh_rollups(spark, lake)
    made = write_report(
        spark, lake, page, now_ms=Clock().now_ms(), title="What passed through the demo"
    )
    stage.say(f"report: {made.bytes:,} bytes of HTML  ({time.monotonic() - begun:.1f} s)")


def _ask(stage: Stage, spark: SparkSession, lake: Lake) -> None:
    from waystation.history import attach  # noqa: PLC0415

    attach(spark, lake=lake.root)
    counted = spark.sql("select topic, count(*) from waystation.messages group by 1").collect()
    messages = {row[0]: row[1] for row in counted}
    for topic, count in (SCANS, EVENTS):
        stage.check(f"messages of topic {topic} in the lake", messages.get(topic, 0), count)
    found = [tuple(row) for row in spark.sql(QUERY).collect()]
    stage.table(QUERY, ("endpoint", "attempts", "failed"), sorted(found))
    named = {_WHICH_URL.sub("", endpoint): [*counts] for endpoint, *counts in found}
    for endpoint, wanted in EXPECTED_REQUESTS.items():
        stage.check(
            f"requests to {endpoint} and those that failed, by the lake",
            named.pop(endpoint, None),
            wanted,
        )
    stage.check("endpoints that nobody knows", len(named), 0)
