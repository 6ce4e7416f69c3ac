"""`bench archive`: its bars, its contenders on real servers, and a server that is not there."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from waystation_bench import postgres
from waystation_bench.archive import ARCHIVE
from waystation_bench.benchmark import BenchmarkError
from waystation_bench.postgres import PostgresMissingError, postgres_server, version_of
from waystation_bench.report import Sample
from waystation_bench.sender import Stage

BARS = {
    "pg_archive_vs_copy_upsert": 0.5,
    "sqlite_archive_vs_executemany": 0.5,
    "store_bytes_per_archived_sleeper": 200,
    "store_bytes_per_archived_sleeper_with_id": 350,
    "wake_100k_per_s_vs_start": 0.4,
    "webhooks_vs_sender": 0.5,
    "cost_1m_vs_1k_sleepers": 1.3,
}


class Drives:
    """A stage, and what its driver is asked."""

    def __init__(self, stage: Stage, data: Path) -> None:
        self._stage = stage
        self._target = msgspec.structs.replace(stage.receiver, data=str(data))

    def __call__(self, job: str, amount: object) -> Sample:
        sample = self._stage.drive(job, self._target, amount)
        assert sample.cpu_seconds > 0, job
        return sample


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drives]:
    """A store, receivers and a driver, each a process of its own."""
    data = tmp_path_factory.mktemp("stage")
    with Stage(data) as stage:
        yield Drives(stage, data)


def test_the_bars_of_the_archive_are_the_promised_ones() -> None:
    assert {promise.name: promise.bar for promise in ARCHIVE.promises} == BARS


def test_all_that_sleeps_leaves_the_store_for_sqlite(drive: Drives) -> None:
    # More than one upsert, and a last one that is not full
    assert drive("archive_ours", [1250, ""]).operations == 1250
    assert drive("archive_bare", [1250, ""]).operations == 1250


@pytest.mark.slow
def test_all_that_sleeps_leaves_the_store_for_postgres_round_after_round(drive: Drives) -> None:
    with postgres_server() as url:
        assert int(version_of(url).partition(".")[0]) >= 14
        for _ in range(2):
            assert drive("archive_ours", [1250, url]).operations == 1250
            assert drive("archive_bare", [1250, url]).operations == 1250


def test_an_external_id_is_all_that_makes_one_sleeper_larger_than_another(drive: Drives) -> None:
    # The first round on a store also loads the scripts into its memory.
    drive("archive_weigh", [10, 1])
    plain, named = (
        drive("archive_weigh", [2000, external]).figures["sleeper_bytes"] for external in (0, 1)
    )
    assert 50 < plain < named < 1000


def test_all_that_is_due_and_archived_is_queued(drive: Drives) -> None:
    assert drive("wake_archived", 1250).operations == 1250


def test_all_ends_are_told_and_the_sender_sends_the_same(drive: Drives) -> None:
    assert drive("webhooks_ours", 250).operations == 250
    assert drive("webhooks_sender", 0.2).operations > 0


def test_a_look_a_switch_and_a_wake_are_measured_beside_many_and_few(drive: Drives) -> None:
    figures = drive("depth_archived", [1500, 2]).figures
    assert figures["few_us"] > 0
    assert figures["many_us"] > 0
    assert figures["many_vs_few"] > 0


def test_a_database_that_is_not_there_ends_the_round_in_words(drive: Drives) -> None:
    with pytest.raises(BenchmarkError, match="ArchiveUnavailableError"):
        drive("archive_ours", [10, "postgresql://nobody@/none?host=/nowhere"])


def test_without_a_postgres_its_bar_fails_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(postgres, "_MACHINE", tmp_path)
    monkeypatch.setattr(postgres, "_WHEEL", "no_such_wheel")
    with pytest.raises(PostgresMissingError, match="no PostgreSQL server"), postgres_server():
        pass

    bar, note = ARCHIVE.promises[0].judge([])
    assert (bar.name, bar.value, bar.holds) == ("pg_archive_vs_copy_upsert", None, False)
    assert note.endswith("there is no row archive.postgres@memory.")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_quick_run_of_the_archive_measures_every_bar_within_its_time() -> None:
    """Whether the bars hold is the benchmark's own verdict, on a quiet machine; not a test's."""
    begun = time.monotonic()
    command = [str(Path(sys.executable).parent / "waystation"), "bench", "archive"]
    found = subprocess.run(
        [*command, "--quick", "--json"], capture_output=True, text=True, check=False
    )
    took = time.monotonic() - begun

    report = json.loads(found.stdout)
    assert report["seconds"] < 240
    assert report["seconds"] < took
    assert found.stdout.count("\n") == 1
    assert {bar["name"]: bar["bar"] for bar in report["bars"]} == BARS
    assert all("round" in note for note in report["notes"])
    assert all(bar["value"] is not None for bar in report["bars"])
    assert found.returncode == (0 if all(bar["holds"] for bar in report["bars"]) else 1)
