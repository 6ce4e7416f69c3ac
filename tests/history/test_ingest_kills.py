"""F-05: an ingest that is killed at any stage leaves a lake that the next ingest completes."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.history.ingest_process import STAGES, TASK_STAGES
from tests.history.lake_check import gaps_of, projected_rows, require_whole
from tests.history.log_writer import LogWriter, change, envelopes
from waystation.history.ingest.retention import SOFT

ORDERS = "t.default.orders.0"
LEAN = "t.default.lean.0"


def ingest(url: str, lake: Path, stage: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.history.ingest_process", url, str(lake), stage],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_ingest_that_is_killed_at_any_stage_neither_loses_nor_doubles(
    writer: LogWriter, store_url: str, lake: Path
) -> None:
    """With three logs, one of which retention trims before ingest reads it."""
    writer.create(ORDERS, 2)
    writer.create(LEAN)
    writer.create("tx")
    done = 0
    # Every stage on what the one before has left, and with more to read
    for stage in STAGES:
        for partition in (0, 1):
            writer.append(ORDERS, envelopes(100, first=done), partition)
        writer.append_raw("tx", [change(number) for number in range(done, done + 100)])
        writer.append(LEAN, envelopes(100, first=done))
        done += 100
        writer.trim_to(LEAN, 3000)
        killed = ingest(store_url, lake, stage)
        assert killed.returncode == -signal.SIGKILL, f"{stage}: {killed.stderr[-2000:]}"

    last = ingest(store_url, lake, "nothing")

    assert last.stdout.startswith("rows="), last.stderr[-2000:]
    require_whole(lake, store_url)
    assert DeltaTable(str(lake / "messages")).to_pyarrow_table().num_rows > 2 * done
    assert len(projected_rows(lake, "steps")) == done
    # Retention was quicker, once for each stage at which rows were still to be read
    assert gaps_of(lake)
    for log, partition in ((ORDERS, 0), (ORDERS, 1), ("tx", 0), (LEAN, 0)):
        assert writer.held(log, partition) == {SOFT: done - 1}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_tasks_of_killed_processes_are_repeated_and_double_nothing(
    writer: LogWriter, store_url: str, lake: Path, tmp_path: Path
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(300))
    writer.create("tx")
    writer.append_raw("tx", [change(number) for number in range(50)])

    done = ingest(store_url, lake, "tasks")

    for stage in TASK_STAGES:
        assert (tmp_path / f"task-was-lost-{stage}").exists()
    assert done.stdout == "rows=350\n", done.stderr[-2000:]
    require_whole(lake, store_url)
    # Files of the killed tasks exist, and belong to no table
    assert len(list(lake.glob("*/day=*/*/*.parquet"))) > sum(
        len(DeltaTable(str(lake / table)).file_uris()) for table in ("messages", "transactions")
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ingest_whose_spark_is_killed_reports_it_and_the_next_one_continues(
    writer: LogWriter, store_url: str, lake: Path
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(50))

    killed = ingest(store_url, lake, "spark")

    assert killed.stdout.startswith("history.spark-gone: The process of Spark has ended.")
    assert "Traceback" not in killed.stderr
    assert writer.held(ORDERS) == {}
    assert ingest(store_url, lake, "nothing").stdout == "rows=50\n"
    require_whole(lake, store_url)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ingest_on_a_full_disk_reports_it_and_leaves_the_lake_whole(
    writer: LogWriter, store_url: str, lake: Path
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(50))

    done = ingest(store_url, lake, "full-disk")

    no_room, no_commit, enough = done.stdout.splitlines() or [done.stderr[-2000:]]
    for told in (no_room, no_commit):
        assert told.startswith("history.lake-write: messages cannot be written to: ")
        assert "too large" in told
    assert enough == "rows=50"
    require_whole(lake, store_url)
    # Tasks that found no room have left nothing, the commit that did not has left its files
    assert len(list(lake.glob("messages/day=*/*/*.parquet"))) == 2
