"""The time machine disturbs neither the lake nor the audit."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.helpers.waiting import eventually_sync
from tests.history.lake_check import require_whole
from tests.history.local_ingest import local_ingest
from tests.history.log_writer import LogWriter
from waystation import Waystation
from waystation.history.audit import Findings, Live, audit
from waystation.history.lake.table import Lake
from waystation.testing import Station

DAY_S = 86_400


@pytest.mark.timeout(300)
def test_jumps_of_the_time_machine_leave_lake_whole_and_audit_clean(
    spark: SparkSession, lake: Path
) -> None:
    """With messages of a topic and of a channel that expire at the first jump."""
    with Station() as station, Waystation(station.url) as client:
        address = station._running().node.opened.store.address
        url = f"unix://{address.path}"
        ingest = local_ingest(lake, url)

        def is_recorded() -> int:
            client.channels.publish("room", {"n": 0})
            return ingest.run().rows

        # The first run registers history as a reader of record logs, and the node notices that.
        eventually_sync(is_recorded)
        client.topics.create("orders", max_age_seconds=3600)
        client.pools.create("agents")

        def live(number: int) -> None:
            client.topics.produce("orders", {"n": number})
            client.channels.publish("room", {"n": number}, message_id=f"m-{number}")
            client.pools.send("agents", "key", {"n": number})

        def check() -> Findings:
            with Live(url) as found:
                return audit(spark, Lake(str(lake)), live=found, ingest=ingest.run)

        live(1)
        ingest.run()
        station.advance(seconds=DAY_S)
        live(2)
        clean = check()
        assert (clean.counts, clean.examples) == ({}, [])
        station.advance(seconds=30 * DAY_S)
        live(3)
        clean = check()
        assert (clean.counts, clean.examples) == ({}, [])
        assert clean.checked["messages of channels"] == 4
        require_whole(lake, url)
        # A message that vanishes before its expiry is found, by the time of the data.
        with LogWriter(url) as writer:
            assert writer.command("DEL", "c.{room}.m.1") == 1
        damaged = check()
        assert {(each.check, each.id) for each in damaged.examples} == {("lost", "m-3")}
