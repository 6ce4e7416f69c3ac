"""`waystation bench`: its processes, its one JSON object, its exit code, and its bars."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

import waystation_bench
from waystation.cli.main import build_app
from waystation_bench.archive import ARCHIVE
from waystation_bench.benchmark import Benchmark, BenchmarkError, Run
from waystation_bench.channels import CHANNELS, Level
from waystation_bench.children import Child
from waystation_bench.delivery import DELIVERY
from waystation_bench.history import HISTORY
from waystation_bench.pools import POOLS
from waystation_bench.registry import BENCHMARKS
from waystation_bench.report import Promise, Sample, row_of
from waystation_bench.sender import SENDER
from waystation_bench.topics import TOPICS, StoreLevel
from waystation_bench.transactions import TRANSACTIONS

BARS = {
    "publish_http_vs_bare": 0.6,
    "fetch_ack_http_vs_bare": 0.6,
    "publish_store_vs_raw": 0.7,
    "coalesced_call_cpu_us": 20,
    "poll_wake_p99_ms": 10,
    "mb_per_5000_polls": 400,
}
TOPIC_BARS = {
    "append_vs_raw": 1,
    "read_vs_raw": 0.6,
    "cost_1m_vs_1k": 1.2,
    "cost_64_vs_1_partitions": 1.5,
    "store_bytes_per_100b": 250,
    "http_produce_vs_bare": 0.6,
    "http_batch100_vs_single": 15,
}


def tiny(rate_least: float) -> Benchmark:
    """A benchmark that measures nothing: ten operations a second, by definition."""

    def measure(run: Run, folder: Path) -> None:
        sample = Sample(operations=10, seconds=1, cpu_seconds=1e-3, store_cpu_seconds=2e-3)
        run.settings["durability"] = "memory"
        run.rows.append(row_of("op.ours", "memory", "caller", [sample]))

    promise = Promise(
        name="rate",
        bar=rate_least,
        at="least",
        value=lambda rows: rows["op.ours@memory"].rate,
        meaning="operations per second",
    )
    return Benchmark(name="tiny", asks="Does it end?", promises=(promise,), measure=measure)


# -- The command -----------------------------------------------------------------------------


def test_without_a_name_the_benchmarks_are_listed() -> None:
    found = CliRunner().invoke(build_app(), ["bench", "--json"])
    assert found.exit_code == 0
    assert json.loads(found.stdout) == [
        {"name": "archive", "asks": ARCHIVE.asks},
        {"name": "channels", "asks": CHANNELS.asks},
        {"name": "delivery", "asks": DELIVERY.asks},
        {"name": "history", "asks": HISTORY.asks},
        {"name": "pools", "asks": POOLS.asks},
        {"name": "sender", "asks": SENDER.asks},
        {"name": "topics", "asks": TOPICS.asks},
        {"name": "transactions", "asks": TRANSACTIONS.asks},
    ]


def test_an_unknown_name_is_a_mistake_of_the_caller() -> None:
    found = CliRunner().invoke(build_app(), ["bench", "nothing"])
    assert found.exit_code == 2


@pytest.mark.parametrize(("rate_least", "exit_code"), [(10.0, 0), (10.1, 1)])
def test_a_run_prints_one_json_object_and_exits_by_its_bars(
    monkeypatch: pytest.MonkeyPatch, rate_least: float, exit_code: int
) -> None:
    monkeypatch.setitem(BENCHMARKS, "tiny", tiny(rate_least))

    found = CliRunner().invoke(build_app(), ["bench", "tiny", "--quick", "--json"])

    assert found.exit_code == exit_code
    assert found.stdout.count("\n") == 1
    report = json.loads(found.stdout)
    assert report["name"] == "tiny"
    assert report["settings"]["durability"] == "memory"
    assert {"python", "waystation", "uvicorn", "redis", "hiredis"} <= report["versions"].keys()
    (row,) = report["rows"]
    assert (row["name"], row["rate"]) == ("op.ours@memory", 10.0)
    assert (row["cpu_us"], row["store_cpu_us"], row["process"]) == (100.0, 200.0, "caller")
    holds = exit_code == 0
    assert report["bars"] == [{"name": "rate", "value": 10.0, "bar": rate_least, "holds": holds}]


@pytest.mark.parametrize(("rate_least", "mark"), [(10.0, "✓"), (10.1, "✗")])
def test_people_get_a_table_with_a_mark_per_bar(
    monkeypatch: pytest.MonkeyPatch, rate_least: float, mark: str
) -> None:
    monkeypatch.setitem(BENCHMARKS, "tiny", tiny(rate_least))
    found = CliRunner().invoke(build_app(), ["bench", "tiny", "--quick"])
    assert f"{mark}  rate" in found.stdout
    assert "op.ours@memory" in found.stdout


# -- The processes ---------------------------------------------------------------------------


@pytest.mark.slow
def test_every_job_of_the_driver_measures_real_servers(tmp_path: Path) -> None:
    # Given a store, our server, the bare one and the driver, each a process of its own
    with Level(tmp_path / "memory", "memory") as level:
        samples = {
            contender.name: contender.sample()
            for contender in (
                *level.common(0.5),
                level.contender("produce_http.ours", "produce_http", "ours", 0.5),
                level.contender("produce_http.bare", "produce_http", "bare", 0.5),
                level.contender("batches.ours", "produce_http_batches", "ours", 0.5),
                level.contender("call.ours", "call_ours", None, 0.5),
                level.contender("call.redis_py", "call_redis_py", None, 0.5),
                level.contender("polls_wake.ours", "polls_wake", "ours", 0.2),
                level.contender("polls_wait.ours", "polls_wait", "ours", 20),
            )
        }

    # Then each has done something, and it took CPU time of ours and of the store
    for name, sample in samples.items():
        assert sample.operations > 0, name
        assert sample.cpu_seconds > 0, name
        assert sample.store_cpu_seconds > 0, name
    assert samples["polls_wake.ours"].operations == 40
    assert 0 < samples["polls_wake.ours"].figures["p50_ms"] < 1000
    assert samples["polls_wait.ours"].operations == 20


@pytest.mark.slow
def test_every_job_of_topics_measures_the_real_store(tmp_path: Path) -> None:
    with StoreLevel(tmp_path / "memory", "memory") as level:
        samples = {
            job: level.drive(job, 0.1)
            for job in (
                "log_append_ours",
                "log_append_raw",
                "log_read_ours",
                "log_read_raw",
                "produce_1",
                "produce_64",
                "topic_weigh",
            )
        }
    for name, sample in samples.items():
        assert sample.operations > 0, name
        assert sample.cpu_seconds > 0, name
        assert sample.store_cpu_seconds > 0, name
    assert 100 < samples["topic_weigh"].figures["message_bytes"] < 1000


@pytest.mark.slow
def test_a_server_that_refuses_ends_the_run_in_words(tmp_path: Path) -> None:
    # Given a target whose key is wrong
    with Level(tmp_path / "memory", "memory") as level:
        target = msgspec.structs.replace(level.targets["ours"], key="ws_wrong")

        # Then the load does not count refusals as operations
        with pytest.raises(BenchmarkError, match="answered 403"):
            level.drive("publish_http", target, 0.1)


def test_a_child_that_dies_is_noticed_at_once() -> None:
    with Child("waystation_bench.driver") as child:
        os.kill(child.process_id, 9)
        with pytest.raises(BenchmarkError, match="ended before it had answered"):
            child.ask({})


@pytest.mark.slow
def test_children_end_with_their_parent_however_it_ends() -> None:
    # Given a parent that has a child and kills itself
    code = (
        "import os\n"
        "from waystation_bench.children import Child\n"
        "child = Child('waystation_bench.driver')\n"
        "print(child.process_id, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(Path(waystation_bench.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.stdout, said.stderr
    child = Path(f"/proc/{said.stdout.strip()}")

    # Then the child is soon gone, too
    until = time.monotonic() + 10
    while child.exists():
        assert time.monotonic() < until, "the child outlived its parent"
        time.sleep(0.02)


# -- The bars --------------------------------------------------------------------------------


def test_the_bars_are_the_promised_ones() -> None:
    assert {promise.name: promise.bar for promise in CHANNELS.promises} == BARS
    assert {promise.name: promise.bar for promise in TOPICS.promises} == TOPIC_BARS


@pytest.mark.slow
@pytest.mark.parametrize(("name", "bars"), [("channels", BARS), ("topics", TOPIC_BARS)])
def test_a_quick_run_measures_every_bar_within_its_time(name: str, bars: dict[str, float]) -> None:
    """Whether the bars hold is the benchmark's own verdict, on a quiet machine; not a test's."""
    begun = time.monotonic()
    command = [str(Path(sys.executable).parent / "waystation"), "bench", name]
    found = subprocess.run(
        [*command, "--quick", "--json"], capture_output=True, text=True, check=False
    )
    took = time.monotonic() - begun

    report = json.loads(found.stdout)
    assert took < 45
    assert found.stdout.count("\n") == 1
    assert {row["level"] for row in report["rows"]} == {"memory", "disk"}
    assert {bar["name"]: bar["bar"] for bar in report["bars"]} == bars
    assert report["notes"] == [] or all("round" in note for note in report["notes"])
    assert all(bar["value"] is not None for bar in report["bars"])
    assert found.returncode == (0 if all(bar["holds"] for bar in report["bars"]) else 1)
