"""Tests of `ingest --follow`: repeated ingests, and the lease that they wait for."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.history import local_ingest as local
from tests.history.local_ingest import local_ingest
from tests.history.log_writer import LogWriter, envelopes
from waystation.errors import HistoryBusyError, LakeWriteError, SparkGoneError
from waystation.history.jobs import TriggeredIngest, run_on_trigger
from waystation.history.lake.table import Lake, LakeTable
from waystation.history.lease import history_lease
from waystation.history.session import ui_address

ORDERS = "t.default.orders.0"


def test_run_on_trigger_after_failure_reports_it_and_ingests_again(
    writer: LogWriter,
    store_url: str,
    lake: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(3))
    stop, turns, commit = threading.Event(), list[TriggeredIngest](), LakeTable.commit

    def full(*_: Any) -> None:
        raise LakeWriteError("the disk is full")

    def tell(turn: TriggeredIngest) -> None:
        turns.append(turn)
        match len(turns):
            case 1:
                writer.append(ORDERS, envelopes(2, first=3))
                monkeypatch.setattr(LakeTable, "commit", full)
            case 2:
                monkeypatch.setattr(LakeTable, "commit", commit)
            case 3:
                stop.set()

    ingest = local_ingest(lake, store_url)
    run_on_trigger(ingest, every_seconds=0.01, stop=stop, report=tell)

    assert [(turn.ingested.rows, turn.problem) for turn in turns] == [
        (3, ""),
        (0, "the disk is full"),
        (2, ""),
    ]
    assert DeltaTable(str(lake / "messages")).to_pyarrow_table().num_rows == 5


def test_run_on_trigger_with_new_partitions_reads_them_from_their_start(
    writer: LogWriter, store_url: str, lake: Path
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(3))
    stop, rows = threading.Event(), list[int]()

    def tell(turn: TriggeredIngest) -> None:
        rows.append(turn.ingested.rows)
        match len(rows):
            case 1:
                # The topic continues in another storage topic, with more partitions
                writer.append(ORDERS, envelopes(1, first=3))
                writer.create("t.default.orders.1", 3)
                writer.append("t.default.orders.1", envelopes(2, first=4), 2)
                writer.seal(ORDERS)
            case 2:
                assert writer.held(ORDERS) == {}
                writer.create("s.default.billing.1", 2)
                writer.append_raw("s.default.billing.1", [b"a"], 1)
            case 3:
                stop.set()

    ingest = local_ingest(lake, store_url)
    run_on_trigger(ingest, every_seconds=0.01, stop=stop, report=tell)

    assert rows == [3, 3, 1]
    table = DeltaTable(str(lake / "messages")).to_pyarrow_table(columns=["id"])
    assert sorted(table.column("id").to_pylist()) == [f"m-{n}" for n in range(6)]


def test_run_on_trigger_without_spark_raises(
    writer: LogWriter,
    store_url: str,
    lake: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The slow tests kill the Java process itself."""
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(3))

    def gone(*_: Any) -> Any:
        raise SparkGoneError("The process of Spark has ended.")

    monkeypatch.setattr(local, "run_task", gone)
    ingest, told = local_ingest(lake, store_url), list[TriggeredIngest]()
    with pytest.raises(SparkGoneError):
        run_on_trigger(ingest, every_seconds=0.01, stop=threading.Event(), report=told.append)
    assert told == []


def test_ingest_when_stopped_returns_between_micro_batches(
    writer: LogWriter, store_url: str, lake: Path
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(30))
    ingest = local_ingest(lake, store_url, batch_rows=10)
    rounds: list[int] = []
    done = ingest.run(lambda so_far: rounds.append(so_far.rounds), stopping=lambda: bool(rounds))
    assert (done.rows, done.left) == (10, 20)
    assert ingest.run().rows == 20


def test_ingest_in_many_micro_batches_compacts_files(
    writer: LogWriter, store_url: str, lake: Path
) -> None:
    writer.create(ORDERS)
    ingest = local_ingest(lake, store_url, task_rows=2)
    for number in range(5):
        writer.append(ORDERS, envelopes(16, first=16 * number))
        ingest.run()
    # Eight tasks a round, a file each; more than 32 become one
    assert len(Lake(str(lake)).open(_messages()).files()) < 32
    assert DeltaTable(str(lake / "messages")).to_pyarrow_table().num_rows == 80
    assert ingest.run().rows == 0


def _messages() -> Any:
    from waystation.history.lake.schema import MESSAGES

    return MESSAGES


def test_history_lease_with_retry_waits_for_release(writer: LogWriter, store_url: str) -> None:
    first = history_lease(store_url)
    first.__enter__()
    asked = 0

    def waiting() -> bool:
        nonlocal asked
        asked += 1
        if asked == 2:
            first.__exit__(None, None, None)
        return True

    with history_lease(store_url, retry=waiting):
        assert asked == 2
        # Without another attempt, the caller gets the error
        with pytest.raises(HistoryBusyError), history_lease(store_url, retry=lambda: False):
            pass


def test_ui_address_of_session_without_ui_is_empty(spark: SparkSession) -> None:
    assert ui_address(spark) == ""
