"""History on a real cluster: a master and two workers on loopback, each with its executor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from deltalake import DeltaTable

from tests.cli.conftest import clean_environment, command
from tests.helpers.server import background_station
from tests.helpers.spark_cluster import SparkCluster, spark_cluster
from tests.helpers.store_faults import plain_server
from tests.history.quick_spark import QUICK_JVM
from waystation import App, Waystation
from waystation.client import NewMessage
from waystation.config import Config, StoreConfig
from waystation.store.embedded.server import supervisor
from waystation.testing.station import quick_settings

SECRET = "a-word-that-nobody-may-see"
#: More than a task reads, so that there are two.
MESSAGES = 70_000
ORDERS = 20
SECONDS_MAX = 250


@pytest.fixture
def store_url() -> Iterator[str]:
    """Yield the URL of a store with a password, as other machines use it."""
    with plain_server("--appendonly", "yes") as server:
        told = supervisor.ask(server.address.path, f"CONFIG SET requirepass {SECRET}".encode())
        assert told.startswith(b"+OK"), told
        yield f"unix://:{SECRET}@{server.address.path}"


@pytest.fixture
def settings(tmp_path: Path, store_url: str) -> Config:
    store = StoreConfig(url=store_url, durability="memory")
    return quick_settings(str(tmp_path / "data"), store=store)


@pytest.fixture
def cluster(tmp_path: Path, store_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield a cluster whose workers have the URL of the store in their environment."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    monkeypatch.setenv("WAYSTATION_STORE_URL", store_url)
    with spark_cluster(folder) as cluster:
        yield cluster


@contextmanager
def at_work(settings: Config) -> Iterator[Waystation]:
    """Yield a client of a node with messages, some of which have become transactions."""
    app = App()

    @app.step("pay")
    async def pay(ctx: object, order: dict[str, int]) -> dict[str, int]:
        return order

    app.pipeline("order", ["pay"])
    with background_station(settings, app=app) as station, Waystation(station.url) as client:
        client.topics.create("clicks", partitions=2)
        client.topics.create("orders")
        client.subscriptions.create("paying", topic="orders", endpoint="pipeline:order")
        client.topics.produce_many("clicks", [NewMessage({"n": n}) for n in range(MESSAGES)])
        for number in range(ORDERS):
            client.topics.produce("orders", {"n": number}, group="g")
        yield client


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_both_workers_of_a_cluster_do_the_work_and_nobody_shows_the_stores_password(
    settings: Config,
    cluster: SparkCluster,
    store_url: str,
    tmp_path: Path,
) -> None:
    events = tmp_path / "events"
    events.mkdir()
    spark = {
        "spark.driver.extraJavaOptions": QUICK_JVM,
        "spark.executor.extraJavaOptions": QUICK_JVM,
        "spark.cores.max": "2",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": events.as_uri(),
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.sql.shuffle.partitions": "4",
    }
    known = {"WAYSTATION_STORE_URL": store_url, "WAYSTATION_HISTORY_SPARK": json.dumps(spark)}
    where = ("--data", settings.data, "--master", cluster.url, "--memory", "512m", "--json")
    assert [each["state"] for each in cluster.status()["workers"]] == ["ALIVE", "ALIVE"]

    with at_work(settings):
        ingested = history("ingest", *where, **known)
        assert ingested.returncode == 0, ingested.stderr
        assert json.loads(ingested.stdout)["rows"] >= MESSAGES + ORDERS
        audited = history("audit", *where, **known)
        assert audited.returncode == 0, audited.stdout + audited.stderr
        read = read_topic(cluster, tmp_path)

    # Given
    assert DeltaTable(f"{settings.data}/lake/messages").to_pyarrow_table().num_rows == (
        MESSAGES + ORDERS
    )
    checked = json.loads(audited.stdout)["checked"]
    assert (checked["entries of messages"], checked["transactions"]) == (MESSAGES + ORDERS, ORDERS)
    assert (read["rows"], read["streamed"]) == (MESSAGES, MESSAGES)
    # Then: each of the three had an executor on both, and each of those had tasks
    assert len(cluster.status()["completedapps"]) == 3
    for page in cluster.worker_pages:
        assert len(cluster.executors_of(page)) == 3, page
    logs = sorted(events.rglob("events_*")) or sorted(each for each in events.iterdir())
    assert len(logs) == 2
    for log in logs:
        assert_both_worked(log, cluster)
    tasks = {each["id"]: each["completedTasks"] for each in read["executors"]}
    assert all(tasks[executor] > 0 for executor in ("0", "1")), tasks
    # Then: nothing that Spark shows or keeps has the password
    shown = [*read["shown"], ingested.stdout, ingested.stderr, audited.stdout, audited.stderr]
    assert not [text for text in shown if SECRET in text]
    kept = [events, tmp_path / "cluster", tmp_path / "reading", Path(settings.data) / "lake"]
    files = [file for folder in kept for file in folder.rglob("*") if file.is_file()]
    assert any("checkpoint" in file.parts for file in files)
    assert any(file.name == "stderr" for file in files)
    assert not [file for file in files if SECRET.encode() in file.read_bytes()]


def history(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command of history, with the long time limit of a cluster."""
    return subprocess.run(
        command("history", *arguments),
        env={**clean_environment(), **environment},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )


def read_topic(cluster: SparkCluster, tmp_path: Path) -> dict[str, Any]:
    folder = tmp_path / "reading"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "tests.history.cluster_process", cluster.url, "clicks", str(folder)],
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    told["shown"].append(done.stderr)
    return told


def assert_both_worked(log: Path, cluster: SparkCluster) -> None:
    """Assert by the event log of Spark that tasks succeeded on the executors of both workers."""
    workers: dict[str, int | None] = {}
    tasks: Counter[int | None] = Counter()
    read: Counter[int | None] = Counter()
    with log.open(encoding="utf-8") as lines:
        for event in map(json.loads, lines):
            match event["Event"]:
                case "SparkListenerExecutorAdded":
                    page = event["Executor Info"]["Log Urls"]["stdout"]
                    # By its port: this machine has two names.
                    workers[event["Executor ID"]] = urlsplit(page).port
                case "SparkListenerTaskEnd" if event["Task End Reason"]["Reason"] == "Success":
                    worker = workers[event["Task Info"]["Executor ID"]]
                    tasks[worker] += 1
                    read[worker] += event["Task Metrics"]["Executor Run Time"]
    assert set(tasks) == {urlsplit(page).port for page in cluster.worker_pages}, tasks
    assert min(read.values()) > 0, read
