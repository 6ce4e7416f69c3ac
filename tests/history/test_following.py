"""`ingest --follow` and the history role: what comes later comes into the lake, too."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.history.log_writer import LogWriter, envelopes
from waystation import AsyncWaystation, history_role
from waystation.cli.serve import _history as beside
from waystation.config import Config, HistoryConfig, StoreConfig
from waystation.config_sources import load_config
from waystation.errors import HistoryBusyError, HistoryMissingError, LakeWriteError, SparkGoneError
from waystation.history.following import Turn, follow
from waystation.history.ingest.job import Ingest
from waystation.history.lake.table import Lake, LakeTable
from waystation.history.lease import history_lease
from waystation.history.session import ui_address
from waystation.history.sources.options import StorePlace
from waystation.history_role import HistoryRole, child_environment
from waystation.telemetry import history_metrics
from waystation.testing import serving
from waystation.testing.station import quick_settings

ORDERS = "t.default.orders.0"


def test_every_turn_brings_what_is_new_and_a_failure_is_told_and_tried_again(
    spark: SparkSession,
    writer: LogWriter,
    store_url: str,
    lake: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(3))
    stop, turns, commit = threading.Event(), list[Turn](), LakeTable.commit

    def full(*_: Any) -> None:
        raise LakeWriteError("the disk is full")

    def tell(turn: Turn) -> None:
        turns.append(turn)
        match len(turns):
            case 1:
                writer.append(ORDERS, envelopes(2, first=3))
                monkeypatch.setattr(LakeTable, "commit", full)
            case 2:
                monkeypatch.setattr(LakeTable, "commit", commit)
            case 3:
                stop.set()

    ingest = Ingest(spark, Lake(str(lake)), StorePlace(store_url))
    follow(ingest, every_seconds=0.01, stop=stop, tell=tell)

    assert [(turn.ingested.rows, turn.problem) for turn in turns] == [
        (3, ""),
        (0, "the disk is full"),
        (2, ""),
    ]
    assert DeltaTable(str(lake / "messages")).to_pyarrow_table().num_rows == 5


def test_partitions_and_storage_topics_that_come_later_are_read_from_their_beginning(
    spark: SparkSession, writer: LogWriter, store_url: str, lake: Path
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(3))
    stop, rows = threading.Event(), list[int]()

    def tell(turn: Turn) -> None:
        rows.append(turn.ingested.rows)
        match len(rows):
            case 1:
                # The topic goes on in another storage topic, with more partitions
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

    ingest = Ingest(spark, Lake(str(lake)), StorePlace(store_url))
    follow(ingest, every_seconds=0.01, stop=stop, tell=tell)

    assert rows == [3, 3, 1]
    table = DeltaTable(str(lake / "messages")).to_pyarrow_table(columns=["id"])
    assert sorted(table.column("id").to_pylist()) == [f"m-{n}" for n in range(6)]


def test_without_spark_it_ends_instead_of_trying_for_ever(
    spark: SparkSession,
    writer: LogWriter,
    store_url: str,
    lake: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its process is killed in the slow tests."""
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(3))

    def gone(*_: Any) -> Any:
        raise SparkGoneError("The process of Spark has ended.")

    monkeypatch.setattr(Ingest, "_run_tasks", gone)
    ingest, told = Ingest(spark, Lake(str(lake)), StorePlace(store_url)), list[Turn]()
    with pytest.raises(SparkGoneError):
        follow(ingest, every_seconds=0.01, stop=threading.Event(), tell=told.append)
    assert told == []


def test_it_stops_between_two_rounds(
    spark: SparkSession, writer: LogWriter, store_url: str, lake: Path
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(30))
    ingest = Ingest(spark, Lake(str(lake)), StorePlace(store_url), round_rows=10)
    rounds: list[int] = []
    done = ingest.run(lambda so_far: rounds.append(so_far.rounds), stopping=lambda: bool(rounds))
    assert (done.rows, done.left) == (10, 20)
    assert ingest.run().rows == 20


def test_many_rounds_leave_few_files(
    spark: SparkSession, writer: LogWriter, store_url: str, lake: Path
) -> None:
    writer.create(ORDERS)
    ingest = Ingest(spark, Lake(str(lake)), StorePlace(store_url), task_rows=2)
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


def test_who_waits_for_the_lease_gets_it_when_the_other_has_ended(
    writer: LogWriter, store_url: str
) -> None:
    first = history_lease(store_url)
    first.__enter__()
    asked = 0

    def waiting() -> bool:
        nonlocal asked
        asked += 1
        if asked == 2:
            first.__exit__(None, None, None)
        return True

    with history_lease(store_url, waiting=waiting):
        assert asked == 2
        # And who does not want to wait any more is told
        with pytest.raises(HistoryBusyError), history_lease(store_url, waiting=lambda: False):
            pass


def test_a_session_without_pages_has_no_address(spark: SparkSession) -> None:
    assert ui_address(spark) == ""


def test_the_child_gets_the_settings_of_the_station_and_none_of_the_surroundings(
    tmp_path: Path,
) -> None:
    settings = Config(
        data=str(tmp_path / "data"),
        store=StoreConfig(url="redis://:secret@127.0.0.1:1/0"),
        history=HistoryConfig(
            run=True, lake="lake", ui=True, every_seconds=7.5, spark={"spark.a": "b"}
        ),
    )
    outside = {"PATH": "/bin", "WAYSTATION_DATA": "elsewhere", "WAYSTATION_KEY": "k"}
    environment = child_environment(settings, outside)
    assert environment["PATH"] == "/bin"
    assert "WAYSTATION_KEY" not in environment
    file = Path(environment["WAYSTATION_CONFIG"])
    found = load_config(file=file, environment=environment).config
    assert (found.data, found.store.url) == (settings.data, settings.store.url)
    assert found.history.lake == os.path.abspath("lake")
    assert found.history.spark == {"spark.a": "b"}
    assert (found.history.ui, found.history.every_seconds) == (True, 7.5)
    # Where a file on every machine has the URL, tasks are told of that one
    mounted = child_environment(settings, {"WAYSTATION_STORE_URL_FILE": "/run/store"})
    assert "WAYSTATION_STORE_URL" not in mounted


async def test_the_role_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_role, "_NEEDED", ("no_such_package",))
    with pytest.raises(HistoryMissingError, match="no_such_package"):
        HistoryRole(quick_settings(str(tmp_path))).start()


async def test_a_station_that_is_to_have_the_role_and_cannot_says_so_at_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_role, "_NEEDED", ("no_such_package",))
    settings = quick_settings(str(tmp_path), history=HistoryConfig(run=True))
    async with serving(settings) as running:
        with pytest.raises(HistoryMissingError, match="no_such_package"):
            async with beside(running.node):
                pass
        without = list(running.node.note_sources)
        running.node.settings = Config()
        async with beside(running.node):
            assert running.node.note_sources == without


async def until(true: Callable[[], bool], role: HistoryRole) -> None:
    while not true():
        role.told.clear()
        await role.told.wait()


@pytest.mark.slow
@pytest.mark.timeout(280)
async def test_a_station_with_the_role_brings_its_history_into_the_lake_whatever_ends_the_child(
    tmp_path: Path,
) -> None:
    wanted = HistoryConfig(run=True, master="local[1]", memory="512m", every_seconds=0.2)
    settings = quick_settings(str(tmp_path), history=wanted)

    def rows() -> int:
        folder = str(settings.data_dir / "lake" / "messages")
        if not DeltaTable.is_deltatable(folder):
            return 0
        return DeltaTable(folder).to_pyarrow_table(columns=["id"]).num_rows

    async with (
        serving(settings) as running,
        AsyncWaystation(running.url) as client,
        asyncio.timeout(260),
    ):
        before = history_metrics.rows._value.get()
        role = HistoryRole(settings)
        role.start()
        try:
            await client.topics.create("orders")
            await client.topics.produce("orders", {"n": 1})
            await until(lambda: rows() == 1, role)
            assert history_metrics.rows._value.get() > before
            assert role.notes == []

            # Killed: it is told, and another one goes on
            first = role.pid
            assert first is not None
            os.kill(first, signal.SIGKILL)
            await client.topics.produce("orders", {"n": 2})
            await until(lambda: rows() == 2, role)
            second = role.pid
            assert second not in (None, first)
        finally:
            await role.close()
        assert role.pid is None
        assert second is not None
        with pytest.raises(ProcessLookupError):
            os.kill(second, 0)
