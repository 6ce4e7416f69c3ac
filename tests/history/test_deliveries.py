"""Rows of deliveries, compared with the requests of a real subscription; every kind of fact."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.history.shard_life import LOG, lived
from tests.subscriptions.at_work import Hook
from waystation.archive import archive_place
from waystation.config import Config
from waystation.history import attach
from waystation.history.audit import Findings, Live, audit
from waystation.history.decoders.shards import shard_rows
from waystation.history.ingest.job import ingest_job
from waystation.history.lake.projections import PROJECTIONS
from waystation.history.lake.table import Lake
from waystation.history.log_reader import LogReader
from waystation.history.offsets import OffsetRange
from waystation.history.store_access import store_access
from waystation.logs.protocol import LogBatch
from waystation.testing.station import quick_settings

#: As it stands in the guide.
FAILED_BY_ENDPOINT = """select endpoint, count(*) attempts, count_if(status >= 500) failed
             from waystation.deliveries join waystation.messages using (position) group by 1"""


def read(settings: Config) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the record log, by table."""
    with store_access(settings) as access, LogReader(access.resolve()) as logs:
        span = OffsetRange(LOG, 0, 0, logs.states([(LOG, 0)])[LOG, 0].end)
        found: dict[str, list[dict[str, Any]]] = {"deliveries": [], "operations": []}
        for block in logs.blocks(span, on_gap="fail"):
            assert isinstance(block, LogBatch)
            rows = shard_rows(span, block)
            found["deliveries"] += rows.to_pylist()
            found["operations"] += PROJECTIONS["operations"].rows(rows).to_pylist()
    return found


def chain(rows: list[dict[str, Any]], place: str) -> list[str]:
    """Return the kinds of the hops of a message from a place on, and its last place."""
    kinds = []
    for row in rows:
        if row["from_place"] == place and row["kind"] not in ("start", "reset", "trimmed"):
            kinds.append(row["kind"])
            place = row["to_place"]
    return [*kinds, place]


def requests(hook: Hook) -> Counter[tuple[str, str, int, int]]:
    """Count the requests of the endpoint by position, id, attempt and status of its reply."""
    return Counter(
        (
            "default/orders/" + each.headers["waystation-position"].replace(".", "/"),
            each.headers["waystation-id"],
            int(each.headers["waystation-attempt"]),
            each.status,
        )
        for each in hook.received
    )


@pytest.mark.slow
async def test_every_kind_of_fact_is_read_as_a_station_writes_it(tmp_path: Path) -> None:
    settings = quick_settings(str(tmp_path))
    async with lived(settings) as (_, hook):
        found = await asyncio.to_thread(read, settings)
    rows = found["deliveries"]
    assert {row["kind"] for row in rows} == {
        "start", "attempt", "late", "behind", "parked", "followed", "redriven", "skipped",
        "purged", "dead", "dropped", "trimmed", "reset",
    }  # fmt: skip
    assert not [row for row in rows if row["malformed"]]

    # Every request is a row, and no other row has a position
    told = Counter(
        (row["position"], row["message_id"], row["attempt"], row["status"])
        for row in rows
        if row["position"]
    )
    assert told == requests(hook)
    assert {
        (row["started_at"] is None, row["endpoint"] is None) for row in rows if row["position"]
    } == {(False, False)}
    assert {row["started_at"] for row in rows if not row["position"]} == {None}

    # The hops of each message are a chain
    ids = {
        row["from_place"]: row["message_id"]
        for row in rows
        if row["message_id"] and "m" in row["from_place"]
    }
    ways = {id_: chain(rows, place) for place, id_ in ids.items()}
    assert ways["well-0"] == ["attempt", "-"]
    assert ways["late-0"] == ["late", "attempt", "-"]
    assert ways["tired-0"] == ["attempt", "attempt", "-"]
    assert ways["tired-1"] == ["behind", "attempt", "attempt", "-"]
    failed = ["attempt", "attempt", "parked"]
    assert ways["redriven-0"] == [*failed, "redriven", "attempt", "-"]
    assert ways["redriven-1"] == ["behind", "followed", "attempt", "-"]
    assert ways["redriven-3"] == ["behind", "attempt", "-"]
    assert ways["skipped-0"] == [*failed, "skipped", "-"]
    assert ways["purged-0"] == [*failed, "purged", "-"]
    assert ways["purged-1"] == ["behind", "followed", "purged", "-"]
    assert ways["dead-0"] == ["attempt", "attempt", "dead", "dropped", "-"]
    assert ways["dead-2"][:-1] == ["behind", "attempt", "attempt", "dead"]

    # Ranges and what operators did
    by_kind = {each["kind"]: each for each in found["operations"]}
    assert set(by_kind) == {"start", "redriven", "skipped", "purged", "trimmed", "reset"}
    assert json.loads(by_kind["start"]["detail"])["topic"] == "orders"
    assert json.loads(by_kind["purged"]["detail"])["operation"]
    assert by_kind["trimmed"]["from_position"] == "m0.0.17"
    assert by_kind["trimmed"]["to_position"] == "m0.0.22"
    assert by_kind["reset"]["from_position"] == "m0.0.23"


@pytest.mark.timeout(300)
@pytest.mark.slow
async def test_a_lake_tells_how_endpoints_did_and_its_audit_finds_nothing_wrong(
    spark: SparkSession, tmp_path: Path, lake: Path
) -> None:
    settings = quick_settings(str(tmp_path / "data"))

    def look(hook: Hook) -> tuple[list[tuple[Any, ...]], list[str], Findings]:
        with store_access(settings) as access:
            ingest = ingest_job(spark, Lake(str(lake)), access)
            with Live(access.resolve(), archive_place("", folder=settings.data_dir)) as live:
                findings = audit(spark, Lake(str(lake)), live=live, ingest=ingest.run)
        attach(spark, lake=str(lake))
        answer = spark.sql(FAILED_BY_ENDPOINT)
        return [tuple(row) for row in answer.collect()], answer.columns, findings

    async with lived(settings, trims=False) as (_, hook):
        rows, columns, findings = await asyncio.to_thread(look, hook)

    assert columns == ["endpoint", "attempts", "failed"]
    sent = requests(hook)
    (row,) = rows
    assert row[0].startswith("127.0.0.1:")
    # Six messages of group `tired`, half of which were refused once
    assert row[1:] == (sent.total(), 2)
    assert (findings.counts, findings.examples) == ({}, [])
    assert findings.checked["messages of subscriptions"] == 18
