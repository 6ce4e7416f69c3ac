"""Measuring: what a process has used, what the rounds become, and what a bar makes of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from waystation_bench.benchmark import Benchmark, Contender, Run
from waystation_bench.processes import cpu_seconds, resident_bytes
from waystation_bench.report import Promise, Row, Sample, row_of


def sample(operations: int, cpu_seconds: float = 1.0, **figures: float) -> Sample:
    return Sample(
        operations=operations,
        seconds=2.0,
        cpu_seconds=cpu_seconds,
        store_cpu_seconds=0.5,
        figures=figures,
    )


def row(name: str, **values: float) -> Row:
    defaults = {"rate": 1.0, "cpu_us": 1.0, "store_cpu_us": 1.0}
    return Row(name=name, level="memory", process="server", rounds=3, **{**defaults, **values})


def promise(at: str, bar: float) -> Promise:
    return Promise(
        name="ours_vs_bare",
        bar=bar,
        at=at,  # type: ignore[arg-type]
        value=lambda rows: rows["bare@memory"].cpu_us / rows["ours@memory"].cpu_us,
        meaning="bare / ours",
    )


def test_the_cpu_time_of_another_process_is_read_while_it_works() -> None:
    # Given a process that burns 0.2 s of CPU time, says so, and then waits
    code = "import time\nwhile time.process_time() < 0.2: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()

        # Then as much has been used, to the millisecond, and no more is added by waiting
        used = cpu_seconds(child.pid)
        assert 0.2 <= used < 1.0
        assert cpu_seconds(child.pid) - used < 0.01
        child.kill()


def test_the_cpu_time_of_a_process_that_is_gone_is_an_error_and_not_zero() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    with pytest.raises(ProcessLookupError):
        cpu_seconds(child.pid)


def test_memory_that_a_process_takes_is_seen() -> None:
    before = resident_bytes(os.getpid())
    block = b"x" * 50_000_000
    grown = resident_bytes(os.getpid()) - before
    assert 45_000_000 < grown < 60_000_000, len(block)


def test_a_row_is_the_median_of_its_rounds_figure_by_figure() -> None:
    samples = [sample(100, 3.0, p99_ms=9.0), sample(200, 1.0, p99_ms=1.0), sample(400, p99_ms=2.0)]

    found = row_of("publish.ours", "disk", "server", samples)

    assert found.name == "publish.ours@disk"
    assert (found.level, found.process, found.rounds) == ("disk", "server", 3)
    assert found.rate == 100.0  # 50, 100 and 200 a second
    assert found.cpu_us == 5000.0  # 30000, 5000 and 2500
    assert found.store_cpu_us == 2500.0  # 5000, 2500 and 1250
    assert found.figures == {"p99_ms": 2.0}
    assert found.calm == {"p99_ms": 1.0}


def test_the_calm_figure_is_the_lower_quartile_of_the_rounds() -> None:
    samples = [sample(1, p99_ms=float(number)) for number in range(20, 0, -1)]
    assert row_of("lanes.ours", "memory", "caller", samples).calm == {"p99_ms": 6.0}


@pytest.mark.parametrize(
    ("at", "bar", "holds"),
    [("least", 0.5, True), ("least", 0.51, False), ("most", 0.5, True), ("most", 0.49, False)],
)
def test_a_bar_is_computed_from_rows_and_holds_on_its_edge(
    at: str, bar: float, holds: bool
) -> None:
    rows = [row("bare@memory", cpu_us=60.0), row("ours@memory", cpu_us=120.0)]

    found, note = promise(at, bar).judge(rows)

    assert (found.name, found.value, found.bar, found.holds) == ("ours_vs_bare", 0.5, bar, holds)
    assert note == ""


@pytest.mark.parametrize("at", ["least", "most"])
def test_a_bar_without_its_row_does_not_hold_and_is_named(at: str) -> None:
    found, note = promise(at, 0.5).judge([row("ours@memory")])

    assert (found.value, found.holds) == (None, False)
    assert note == "ours_vs_bare does not hold: there is no row bare@memory."


def test_contenders_take_turns_round_by_round() -> None:
    # Given two contenders
    turns: list[str] = []
    steps: list[str] = []

    def contender(name: str) -> Contender:
        return Contender(name, "caller", lambda: turns.append(name) or sample(10))  # type: ignore[func-returns-value]

    run = Run(quick=True, peers={}, progress=lambda done, total, text: steps.append(text))

    # When they are measured in three rounds
    run.rounds("memory", [contender("ours"), contender("bare")], rounds=3)

    # Then nobody has two rounds in a row, and each step was told before it began
    assert turns == ["ours", "bare"] * 3
    assert [each.name for each in run.rows] == ["ours@memory", "bare@memory"]
    assert steps[0] == "memory · round 1 of 3 · ours"
    assert len(steps) == 6


def test_a_run_that_is_out_of_time_begins_no_further_round_and_says_so() -> None:
    run = Run(quick=True, peers={}, progress=lambda *_: None)
    contender = Contender("ours", "caller", lambda: sample(10))

    run.rounds("disk", [contender], rounds=3, seconds_max=0.0)

    assert [each.rounds for each in run.rows] == [1]
    assert run.notes == ["disk: 1 of 3 rounds, for lack of time."]


def test_a_benchmark_leaves_nothing_behind_also_when_it_fails() -> None:
    folders: list[Path] = []

    def measure(run: Run, folder: Path) -> None:
        (folder / "data").write_text("x")
        folders.append(folder)
        raise ZeroDivisionError

    benchmark = Benchmark(name="broken", asks="?", promises=(), measure=measure)
    begun = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        benchmark.run(Run(quick=True, peers={}, progress=lambda *_: None))
    assert not folders[0].exists()
    assert time.monotonic() - begun < 5
