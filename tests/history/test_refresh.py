"""Derived tables: counts and percentiles of slots, of exactly the rows that are in the lake."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.history import shard_story
from tests.history.log_writer import LogWriter, envelopes
from waystation.history.ingest.job import ingest_job
from waystation.history.lake import rollups as refreshing
from waystation.history.lake.files import TableWriter
from waystation.history.lake.rollup_queries import Window
from waystation.history.lake.rollup_schema import SLOT_SECONDS
from waystation.history.lake.rollups import Touched, merged, refresh, touched_times
from waystation.history.lake.schema import OPERATIONS, TRANSACTIONS
from waystation.history.lake.table import Lake
from waystation.history.sources.options import StorePlace

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


class DeathError(Exception):
    """The process dies here."""


def dies(*_: Any) -> None:
    raise DeathError


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def rows(lake: Path, table: str, seconds: int) -> list[dict[str, Any]]:
    found = DeltaTable(str(lake / table)).to_pyarrow_table().to_pylist()
    return sorted(
        (row for row in found if row["slot_seconds"] == seconds), key=lambda row: str(row["slot"])
    )


def change(offset: int, number: int, kind: str, after: float, **more: Any) -> dict[str, Any]:
    return {
        "log": "tx",
        "log_offset": offset,
        "time": at(after),
        "transaction_id": f"tx-{number}",
        "kind": kind,
        "version": offset,
        **({"pipeline": "order"} if kind == "started" else {"project": None}),
        **more,
    }


def test_slots_of_a_time_are_whole_and_each_is_there_once() -> None:
    touched = Touched(at(1), at(7))
    assert {window.slot_seconds: window.begin for window in touched.windows()} == {
        5: NOON,
        100: NOON,
        1000: datetime(2026, 3, 1, 11, 53, 20, tzinfo=UTC),
        3600: NOON,
        86400: datetime(2026, 3, 1, tzinfo=UTC),
    }
    assert all(
        (window.end - window.begin).total_seconds() % window.slot_seconds == 0
        for window in touched.windows()
    )
    # One of 1,000 s reaches over midnight, and is touched from both days
    midnight = datetime(2026, 3, 2, tzinfo=UTC)
    both = [
        window
        for moment in (midnight - timedelta(seconds=1), midnight + timedelta(seconds=1))
        for window in Touched(moment, moment).windows()
    ]
    (over,) = [window for window in merged(both) if window.slot_seconds == 1000]
    assert over == Window(
        1000, midnight - timedelta(seconds=600), midnight + timedelta(seconds=400)
    )
    assert set(over.days()) == {date(2026, 3, 1), date(2026, 3, 2)}


def test_touched_is_what_was_added_and_not_what_was_compacted(lake: Path) -> None:
    folder, table = str(lake / "operations"), Lake(str(lake))

    def touched(version: int | None) -> list[Touched]:
        found = touched_times(table.open(OPERATIONS).added_since(version))
        return sorted(found, key=lambda each: each.first)

    def add(*times: datetime) -> int:
        writer = TableWriter(folder, OPERATIONS)
        row = {"dataset": "ds", "log": "t", "log_partition": 0, "log_offset": 0, "item": 0}
        rows = [{**row, "time": time, "ingested": time} for time in times]
        writer.write(pa.RecordBatch.from_pylist(rows, schema=OPERATIONS.file_schema))
        table.open(OPERATIONS).commit(writer.close(), {})
        return DeltaTable(folder).version()

    first = add(at(0), at(7))
    second = add(at(100))
    both = [Touched(at(0), at(7)), Touched(at(100), at(100))]
    assert touched(None) == both
    assert touched(first) == [Touched(at(100), at(100))]

    DeltaTable(folder).optimize.compact()
    third = DeltaTable(folder).version()
    assert third > second
    assert touched(second) == []

    # A version that was cleaned up: nobody knows what it had
    DeltaTable(folder).create_checkpoint()
    for version in range(second + 1):
        (lake / "operations" / "_delta_log" / f"{version:020}.json").unlink()
    assert touched(first) == [Touched(at(0), at(100))]


@pytest.mark.timeout(240)
def test_slots_have_what_the_rows_say_and_late_rows_touch_their_own_slots_alone(
    spark: SparkSession,
    writer: LogWriter,
    store_url: str,
    lake: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writer.create("t.default.orders.0")
    for number in range(20):
        writer.append("t.default.orders.0", envelopes(1, first=number, group="ab"[number % 2]))
    ingest_job(spark, Lake(str(lake)), StorePlace(store_url)).run()
    shard_story.commit(spark, lake, shard_story.story())
    changes = [
        change(0, 1, "started", 1),
        change(1, 2, "started", 2),
        change(2, 1, "finished", 4, status="success", attempts=[{"outcome": "success"}]),
        change(3, 2, "rescued", 50),
        change(4, 2, "finished", 152, status="failed", attempts=[{"outcome": "failed"}]),
        change(5, 2, "notified", 153, status="failed"),
    ]
    shard_story.commit(spark, lake, changes, spec=TRANSACTIONS)

    # A death before the first commit leaves nothing that the next one would take for done
    with monkeypatch.context() as patch:
        patch.setattr(refreshing, "_replace", dies)
        with pytest.raises(DeathError):
            refresh(spark, Lake(str(lake)))

    done = refresh(spark, Lake(str(lake)))

    assert set(done.rows) == {
        "pipeline_slots", "subscription_slots", "endpoint_health", "group_load",
    }  # fmt: skip
    small, day = rows(lake, "pipeline_slots", 5), rows(lake, "pipeline_slots", 86_400)
    assert [(row["slot"], row["started"], row["success"]) for row in small[:2]] == [
        (NOON, 2, 1),
        (at(50), 0, 0),
    ]
    (whole,) = day
    assert (whole["project"], whole["pipeline"], whole["day"]) == ("default", "order", NOON.date())
    assert (whole["started"], whole["success"], whole["failed"], whole["rescued"]) == (2, 1, 1, 1)
    assert (whole["steps"], whole["step_failures"]) == (2, 1)
    assert (whole["seconds_p50"], whole["seconds_p99"]) == (3.0, 150.0)

    (subscription,) = rows(lake, "subscription_slots", 86_400)
    assert (subscription["delivered"], subscription["dead"]) == (12, 1)
    assert (subscription["failed"], subscription["parked"], subscription["filtered"]) == (6, 3, 1)
    assert subscription["attempts_p99"] == 4.0
    (endpoint,) = rows(lake, "endpoint_health", 86_400)
    assert (endpoint["endpoint"], endpoint["attempts"], endpoint["failed"]) == ("crm", 18, 6)
    assert (endpoint["last_failure"], endpoint["seconds_p99"]) == ("503", 1.0)
    load = {row["shard"]: row for row in rows(lake, "group_load", 86_400)}
    assert (load[None]["messages"], load[None]["groups"]) == (20, 2)
    assert load[None]["largest"] == [{"group": "a", "messages": 10}, {"group": "b", "messages": 10}]
    assert (load[0]["topic"], load[0]["subscription"], load[0]["messages"]) == (
        "orders", "billing", 16,
    )  # fmt: skip

    # Nothing has come: nothing is computed
    assert refresh(spark, Lake(str(lake))).rows == {}

    # Late rows touch their own slots, and hours and days; other slots are as they were
    DeltaTable(str(lake / "pipeline_slots")).update(
        predicate="slot_seconds = 5 and started = 0", updates={"rescued": "77"}
    )
    late = change(6, 3, "started", 3)
    shard_story.commit(spark, lake, [late], spec=TRANSACTIONS)
    again = refresh(spark, Lake(str(lake)))
    assert again.rows == {"pipeline_slots": len(SLOT_SECONDS)}
    small = rows(lake, "pipeline_slots", 5)
    assert [(row["started"], row["rescued"]) for row in small[:2]] == [(3, 0), (0, 77)]
    assert [row["started"] for row in rows(lake, "pipeline_slots", 86_400)] == [3]
    assert len({(row["slot"], row["pipeline"]) for row in small}) == len(small)


@pytest.mark.timeout(240)
def test_refresh_does_not_record_rows_that_were_committed_after_its_snapshot(
    spark: SparkSession, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard_story.commit(spark, lake, [change(0, 1, "started", 1)], spec=TRANSACTIONS)
    attach = refreshing.attach
    late = [change(1, 2, "started", 60)]

    def attach_and_commit(session: SparkSession, **more: Any) -> SparkSession:
        attach(session, **more)
        if late:
            shard_story.commit(spark, lake, [late.pop()], spec=TRANSACTIONS)
        return session

    monkeypatch.setattr(refreshing, "attach", attach_and_commit)
    refresh(spark, Lake(str(lake)))
    assert [row["started"] for row in rows(lake, "pipeline_slots", 86_400)] == [1]

    refresh(spark, Lake(str(lake)))
    assert [row["started"] for row in rows(lake, "pipeline_slots", 86_400)] == [2]


def test_added_since_returns_all_files_of_a_table_that_was_created_again(lake: Path) -> None:
    table = Lake(str(lake))
    for number in range(3):
        writer = TableWriter(str(lake / "operations"), OPERATIONS)
        row = {"dataset": "ds", "log_offset": number, "time": at(number), "ingested": at(number)}
        writer.write(pa.RecordBatch.from_pylist([row], schema=OPERATIONS.file_schema))
        table.open(OPERATIONS).commit(writer.close(), {})

    opened = table.open(OPERATIONS)

    assert len(opened.added_since(opened.version + 7)) == 3
    assert opened.added_since(opened.version) == []
