"""Jobs on a cluster whose workers cannot run their executors end with an error."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cli.conftest import Run, run  # noqa: F401 (a fixture)
from tests.helpers.spark_cluster import spark_cluster
from tests.history.local_ingest import local_ingest
from tests.history.log_writer import LogWriter, envelopes
from tests.history.quick_spark import QUICK
from waystation.history.cluster import ClusterState, Resources, _read_state, refuse

MASTER = "spark://m:7077"
WANTED = Resources(2048, 1)


def state(*workers: Resources, free: tuple[Resources, ...] | None = None) -> ClusterState:
    return ClusterState(WANTED, False, workers, workers if free is None else free)


def test_refuse_names_memory_and_the_setting_to_change() -> None:
    small = state(Resources(1024, 4), Resources(512, 8))
    refused = refuse(MASTER, small, {})
    assert refused is not None
    assert refused.code == "history.cluster-resources"
    assert refused.message == (
        "No worker of the Spark cluster spark://m:7077 can run an executor: it needs 2,048 MiB and"
        " 1 core, and the largest worker has 1,024 MiB and 4 cores."
    )
    assert refused.hint.startswith("Lower history.memory (--memory) to at most 1024m")
    own = refuse(MASTER, small, {"spark.executor.memory": "2g"})
    assert own is not None
    assert own.hint.startswith("Lower spark.executor.memory in [history.spark]")


def test_refuse_names_cores_when_memory_suffices() -> None:
    few = ClusterState(Resources(1024, 8), False, [Resources(4096, 4)], [Resources(4096, 4)])
    refused = refuse(MASTER, few, {})
    assert refused is not None
    assert "spark.executor.cores in [history.spark] to at most 4" in refused.hint


def test_refuse_tells_an_empty_cluster_from_a_busy_one() -> None:
    empty = refuse(MASTER, state(), {})
    assert empty is not None
    assert empty.message == "The Spark cluster spark://m:7077 has no worker."
    busy = state(Resources(4096, 2), free=(Resources(3072, 0),))
    refused = refuse(MASTER, busy, {})
    assert refused is not None
    assert "Other applications use the Spark cluster" in refused.message
    assert "3,072 MiB and 0 cores free" in refused.message
    # Executors that are requested later may find room.
    assert refuse(MASTER, busy, {}, needs_free=False) is None


def test_refuse_accepts_a_cluster_with_one_large_worker() -> None:
    assert refuse(MASTER, state(Resources(1024, 4), Resources(2048, 1)), {}) is None


@pytest.mark.parametrize("jvm", [None, SimpleNamespace(org=SimpleNamespace(apache=print))])
def test_state_of_a_cluster_whose_spark_lacks_a_class_is_unknown(jvm: Any) -> None:
    context: Any = SimpleNamespace(_jvm=jvm)
    assert _read_state(context, "spark://a:7077,b:7077") is None


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_job_on_workers_that_are_too_small_names_the_memory(
    run: Run,  # noqa: F811
    writer: LogWriter,
    store_url: str,
    tmp_path: Path,
) -> None:
    writer.create("t.default.orders.0")
    writer.append("t.default.orders.0", envelopes(3))
    data = tmp_path / "data"
    local_ingest(data / "lake", store_url).run()
    folder = tmp_path / "cluster"
    folder.mkdir()
    jobs = [
        ("ingest", "--store", store_url),
        ("audit", "--no-live"),
        ("sql", "select 1"),
        ("sql", "select 1", "--warm"),
        ("shell",),
    ]
    with spark_cluster(folder) as cluster:
        where = ("--data", str(data), "--master", cluster.url)
        for job in jobs:
            # The workers have 1 GiB each.
            refused = run("history", *job, *where, "--memory", "2g", seconds_max=300)
            assert refused.returncode == 1, (job, refused.stdout)
            told = " ".join(refused.stderr.split())
            assert "it needs 2,048 MiB and 1 core" in told, (job, told)
            assert "the largest worker has 1,024 MiB and 1 core" in told, (job, told)
            assert "Lower history.memory (--memory) to at most 1024m" in told, (job, told)
        # With the memory that the error names, the same cluster answers.
        quick = {"WAYSTATION_HISTORY_SPARK": QUICK["WAYSTATION_HISTORY_SPARK"]}
        query = ("sql", "select count(*) n from waystation.messages", "--json")
        asked = run("history", *query, *where, "--memory", "512m", seconds_max=300, **quick)
        assert asked.stdout == '{"n":3}\n', asked.stderr
