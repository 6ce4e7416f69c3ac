"""`bench history`: its bars, its contenders on real servers and a real Spark."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from deltalake import DeltaTable

from waystation.transactions.cells import CELLS_DEFAULT
from waystation_bench.benchmark import BenchmarkError, Run
from waystation_bench.children import Child
from waystation_bench.history import HISTORY, QUICK, Reading
from waystation_bench.processes import family_bytes, family_cpu_seconds
from waystation_bench.sender import Stage
from waystation_bench.workshop import Workshop

BARS = {
    "topic_read_vs_parquet": 0.3,
    "lake_view_vs_parquet": 0.9,
    "ingest_vs_topic_read": 0.5,
    "record_overhead_on_transactions": 1.15,
    "record_overhead_on_delivery": 1.15,
    "audit_10m_vs_1m": 12,
    "audit_peak_gib": 6,
}
SMALL = dataclasses.replace(QUICK, few=4_000, many=120_000, audited=2_000, live=5_000, memory="1g")


def test_the_bars_of_history_are_the_promised_ones() -> None:
    assert {promise.name: promise.bar for promise in HISTORY.promises} == BARS


@pytest.mark.slow
def test_deliveries_are_measured_with_their_record_and_without(tmp_path: Path) -> None:
    ends = {}
    with Stage(tmp_path) as stage:
        for record in ("none", "full"):
            target = msgspec.structs.replace(stage.receiver, record=record)
            assert stage.drive("deliver_grouped", target, [3_000, 0.1]).operations > 0
            ends[record] = records_in(stage.store.address.path, "{s.default.bench.0.0}:log:head")
    assert ends["none"] == 0 < ends["full"]


@pytest.mark.slow
def test_transactions_are_measured_with_their_record_and_without(tmp_path: Path) -> None:
    ends = {}
    with Workshop(tmp_path / "shop", "memory", {}) as shop:
        for record in ("none", "full"):
            assert shop.lives(record, 1_000).sample().operations == 1_000
            ends[record] = sum(
                records_in(shop.store.address.path, f"{{tx.{cell}}}:log:head")
                for cell in range(CELLS_DEFAULT)
            )
    assert ends["none"] == 0 < ends["full"]


def records_in(store: str, head: str) -> int:
    """How many entries a record log has."""
    # Late: others of this file need no client.
    import redis

    with redis.Redis(unix_socket_path=store) as client:
        return int(client.hget(head, "end") or 0)


def test_a_family_is_a_process_and_all_below_it() -> None:
    with Child("waystation_bench.driver") as child:
        alone = family_bytes(child.process_id)
        mine = family_cpu_seconds(os.getpid())
        assert child.process_id in mine
        assert 0 < alone < family_bytes(os.getpid())


@pytest.fixture(scope="module")
def reading(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Reading, Path]]:
    """Two stores and a Spark."""
    folder = tmp_path_factory.mktemp("reading") / "history"
    run = Run(quick=True, peers={}, progress=lambda done, total, text: None)
    with Reading(run, folder, SMALL) as reading:
        yield reading, folder


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_topic_parquet_ingest_and_view_are_measured_by_what_more_rows_take(
    reading: tuple[Reading, Path],
) -> None:
    samples = {each.name: each.sample() for each in reading[0].contenders()}

    names = ["parquet", "topic", "ingest", "view", "view_parquet"]
    assert list(samples) == [f"read.{name}" for name in names]
    for name, sample in samples.items():
        assert sample.operations == SMALL.many - SMALL.few, name
        told = sample.figures
        assert sample.seconds == pytest.approx(told["many_seconds"] - told["few_seconds"]), name
    assert samples["read.topic"].store_cpu_seconds > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_audit_is_measured_where_all_is_well_and_refused_where_it_is_not(
    reading: tuple[Reading, Path],
) -> None:
    reader, folder = reading
    few, many = (each.sample() for each in reader.audits())
    assert (few.operations, many.operations) == (2_000, 20_000)
    assert few.figures["seconds"] > 0
    assert 0 < many.figures["peak_gib"] < 6

    DeltaTable(str(folder / "lake-few" / "messages")).delete("id = 'm-1-7'")
    with pytest.raises(BenchmarkError, match="missing"):
        reader.audit_again("lake-few", 2_000)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_went_live_through_the_system_is_audited_beside_its_store(
    reading: tuple[Reading, Path], tmp_path: Path
) -> None:
    sample = reading[0].live(tmp_path / "live").sample()

    assert sample.operations == SMALL.live
    assert sample.figures["seconds"] > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_quick_run_of_history_measures_every_bar() -> None:
    """Whether the bars hold is the benchmark's own verdict, on a quiet machine; not a test's."""
    command = [str(Path(sys.executable).parent / "waystation"), "bench", "history"]
    found = subprocess.run(
        [*command, "--quick", "--json"], capture_output=True, text=True, check=False
    )

    assert found.stdout, found.stderr
    report: dict[str, Any] = json.loads(found.stdout)
    assert {bar["name"]: bar["bar"] for bar in report["bars"]} == BARS
    assert all(bar["value"] is not None for bar in report["bars"])
    assert all("round" in note for note in report["notes"])
    assert report["seconds"] < 240
    assert found.returncode == (0 if all(bar["holds"] for bar in report["bars"]) else 1)
