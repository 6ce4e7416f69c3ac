"""Rollups contain the counts and percentiles of exactly the rows that are in the lake."""

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
from waystation.history.lake import rollups
from waystation.history.lake.files import TableWriter
from waystation.history.lake.rollup_schema import BUCKET_SECONDS
from waystation.history.lake.rollups import (
    BucketWindow,
    TimeSpan,
    merge_windows,
    refresh_rollups,
    touched_times,
)
from waystation.history.lake.schema import OPERATIONS, TRANSACTIONS
from waystation.history.lake.table import Lake
from waystation.history.sources.options import Location

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


class CrashError(Exception):
    """The process crashes here."""


def crash(*_: Any) -> None:
    raise CrashError


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def rows(lake: Path, table: str, seconds: int) -> list[dict[str, Any]]:
    found = DeltaTable(str(lake / table)).to_pyarrow_table().to_pylist()
    return sorted(
        (row for row in found if row["bucket_seconds"] == seconds),
        key=lambda row: str(row["bucket"]),
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


def test_windows_consist_of_whole_buckets_and_contain_each_bucket_once() -> None:
    touched = TimeSpan(at(1), at(7))
    assert {window.bucket_seconds: window.start for window in touched.windows()} == {
        5: NOON,
        100: NOON,
        1000: datetime(2026, 3, 1, 11, 53, 20, tzinfo=UTC),
        3600: NOON,
        86400: datetime(2026, 3, 1, tzinfo=UTC),
    }
    assert all(
        (window.end - window.start).total_seconds() % window.bucket_seconds == 0
        for window in touched.windows()
    )
    # A bucket of 1,000 s contains midnight, so both days touch it
    midnight = datetime(2026, 3, 2, tzinfo=UTC)
    both = [
        window
        for moment in (midnight - timedelta(seconds=1), midnight + timedelta(seconds=1))
        for window in TimeSpan(moment, moment).windows()
    ]
    (over,) = [window for window in merge_windows(both) if window.bucket_seconds == 1000]
    assert over == BucketWindow(
        1000, midnight - timedelta(seconds=600), midnight + timedelta(seconds=400)
    )
    assert set(over.days()) == {date(2026, 3, 1), date(2026, 3, 2)}


def test_touched_times_contain_added_rows_and_not_compacted_rows(lake: Path) -> None:
    folder, table = str(lake / "operations"), Lake(str(lake))

    def touched(version: int | None) -> list[TimeSpan]:
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
    both = [TimeSpan(at(0), at(7)), TimeSpan(at(100), at(100))]
    assert touched(None) == both
    assert touched(first) == [TimeSpan(at(100), at(100))]

    DeltaTable(folder).optimize.compact()
    third = DeltaTable(folder).version()
    assert third > second
    assert touched(second) == []

    # The log of that version was cleaned up, so all files count as new
    DeltaTable(folder).create_checkpoint()
    for version in range(second + 1):
        (lake / "operations" / "_delta_log" / f"{version:020}.json").unlink()
    assert touched(first) == [TimeSpan(at(0), at(100))]


@pytest.mark.timeout(240)
def test_refresh_counts_all_rows_and_computes_only_the_buckets_of_late_rows_again(
    spark: SparkSession,
    writer: LogWriter,
    store_url: str,
    lake: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writer.create("t.default.orders.0")
    for number in range(20):
        writer.append("t.default.orders.0", envelopes(1, first=number, group="ab"[number % 2]))
    ingest_job(spark, Lake(str(lake)), Location(store_url)).run()
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

    # A crash before the first commit records no version
    with monkeypatch.context() as patch:
        patch.setattr(rollups, "_replace", crash)
        with pytest.raises(CrashError):
            refresh_rollups(spark, Lake(str(lake)))

    done = refresh_rollups(spark, Lake(str(lake)))

    assert set(done.rows) == {
        "pipeline_metrics", "subscription_metrics", "endpoint_metrics", "group_load",
    }  # fmt: skip
    small, day = rows(lake, "pipeline_metrics", 5), rows(lake, "pipeline_metrics", 86_400)
    assert [(row["bucket"], row["started"], row["success"]) for row in small[:2]] == [
        (NOON, 2, 1),
        (at(50), 0, 0),
    ]
    (whole,) = day
    assert (whole["project"], whole["pipeline"], whole["day"]) == ("default", "order", NOON.date())
    assert (whole["started"], whole["success"], whole["failed"], whole["rescued"]) == (2, 1, 1, 1)
    assert (whole["steps"], whole["step_failures"]) == (2, 1)
    assert (whole["seconds_p50"], whole["seconds_p99"]) == (3.0, 150.0)

    (subscription,) = rows(lake, "subscription_metrics", 86_400)
    assert (subscription["delivered"], subscription["dead"]) == (12, 1)
    assert (subscription["failed"], subscription["parked"], subscription["filtered"]) == (6, 3, 1)
    assert subscription["attempts_p99"] == 4.0
    (endpoint,) = rows(lake, "endpoint_metrics", 86_400)
    assert (endpoint["endpoint"], endpoint["attempts"], endpoint["failed"]) == ("crm", 18, 6)
    assert (endpoint["last_failure"], endpoint["seconds_p99"]) == ("503", 1.0)
    load = {row["shard"]: row for row in rows(lake, "group_load", 86_400)}
    assert (load[None]["messages"], load[None]["groups"]) == (20, 2)
    assert load[None]["largest"] == [{"group": "a", "messages": 10}, {"group": "b", "messages": 10}]
    assert (load[0]["topic"], load[0]["subscription"], load[0]["messages"]) == (
        "orders", "billing", 16,
    )  # fmt: skip

    # Without new rows, nothing is computed
    assert refresh_rollups(spark, Lake(str(lake))).rows == {}

    # A late row changes its bucket of each length, and no other bucket
    DeltaTable(str(lake / "pipeline_metrics")).update(
        predicate="bucket_seconds = 5 and started = 0", updates={"rescued": "77"}
    )
    late = change(6, 3, "started", 3)
    shard_story.commit(spark, lake, [late], spec=TRANSACTIONS)
    again = refresh_rollups(spark, Lake(str(lake)))
    assert again.rows == {"pipeline_metrics": len(BUCKET_SECONDS)}
    small = rows(lake, "pipeline_metrics", 5)
    assert [(row["started"], row["rescued"]) for row in small[:2]] == [(3, 0), (0, 77)]
    assert [row["started"] for row in rows(lake, "pipeline_metrics", 86_400)] == [3]
    assert len({(row["bucket"], row["pipeline"]) for row in small}) == len(small)


@pytest.mark.timeout(240)
def test_refresh_does_not_record_rows_that_were_committed_after_its_snapshot(
    spark: SparkSession, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard_story.commit(spark, lake, [change(0, 1, "started", 1)], spec=TRANSACTIONS)
    attach = rollups.attach
    late = [change(1, 2, "started", 60)]

    def attach_and_commit(session: SparkSession, **more: Any) -> SparkSession:
        attach(session, **more)
        if late:
            shard_story.commit(spark, lake, [late.pop()], spec=TRANSACTIONS)
        return session

    monkeypatch.setattr(rollups, "attach", attach_and_commit)
    refresh_rollups(spark, Lake(str(lake)))
    assert [row["started"] for row in rows(lake, "pipeline_metrics", 86_400)] == [1]

    refresh_rollups(spark, Lake(str(lake)))
    assert [row["started"] for row in rows(lake, "pipeline_metrics", 86_400)] == [2]


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
