"""The examples of `examples/spark`, run beside a real `waystation dev` on the shared Spark session.

Spark reads the store of this module through the file that `spark_store_file` names, because the
environment of a running JVM cannot change.
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.cli.conftest import clean_environment, running_station
from tests.helpers.http import ask
from tests.test_examples import ROOT
from waystation import Waystation
from waystation.config import Config
from waystation.history.ingest.job import ingest_job
from waystation.history.lake.table import Lake
from waystation.history.store_access import store_access

EXAMPLES = ROOT / "examples" / "spark"
ORDERS = 300
#: By customer, as `orders.py` produces them.
TOTALS = [[n % 100 for n in range(ORDERS) if n % 3 == customer] for customer in range(3)]
FAILED = sum(total > 95 for totals in TOTALS for total in totals)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class Examples:
    """A folder with the examples, in which `waystation dev` runs."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url

    def produce(self, first: int) -> None:
        self.start("orders.py", str(first)).check_returncode()

    def start(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run an example as a user does, in a process and Spark session of its own."""
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def advance(self, seconds: int) -> None:
        reply = ask(self.url, "POST", "/v1/time/advance", b'{"seconds": %d}' % seconds)
        assert reply.status < 300, reply

    @property
    def environment(self) -> dict[str, str]:
        return {**clean_environment(), "WAYSTATION_URL": self.url}


@pytest.fixture(scope="module")
def examples(
    spark: SparkSession, spark_store_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Examples]:
    """300 orders that were delivered, and paid or not, and that the lake contains."""
    folder = Path(shutil.copytree(EXAMPLES, tmp_path_factory.mktemp("examples") / "spark"))
    arguments = ("--time-machine", "--app", "orders:app", "--port", "0")
    with running_station(folder, "dev", *arguments) as station:
        examples = Examples(folder, station["url"])
        examples.produce(0)
        with Waystation(station["url"]) as client:
            wait_for_transactions(client)
        data = folder / ".waystation"
        with store_access(Config(data=str(data))) as access:
            ingest_job(spark, Lake(str(data / "lake")), access).run()
            spark_store_file.write_text(access.resolve())
            yield examples


def wait_for_transactions(client: Waystation) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        ended = Counter(each.status for each in client.transactions.list())
        if ended["success"] + ended["failed"] == ORDERS:
            return
        time.sleep(0.2)
    raise AssertionError(ended)


@pytest.fixture
def run(
    examples: Examples, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    """Run an example in this process; return what it prints."""
    monkeypatch.chdir(examples.folder)
    monkeypatch.setenv("WAYSTATION_URL", examples.url)

    def run(name: str) -> str:
        capsys.readouterr()
        runpy.run_path(str(examples.folder / name), run_name="__main__")
        return capsys.readouterr().out

    return run


def cells(table: str) -> list[list[str]]:
    """Return the words of the rows that Spark printed, without the line of the columns."""
    rows = [line for line in table.splitlines() if line.startswith("|")]
    return [[word.strip() for word in row.strip("|").split("|")] for row in rows]


def test_examples_are_short_enough_to_read_as_documentation() -> None:
    for file in EXAMPLES.glob("*.py"):
        assert len(file.read_text(encoding="utf-8").splitlines()) < 80, file


def test_batch_query_of_lake_counts_orders_and_measures_delivery(run: Any) -> None:
    head, *rows = cells(run("busiest_customers.py"))

    customers = [row for row in rows if row[0].startswith("customer-")]
    assert head == ["customer", "orders", "revenue"]
    assert sorted(customers) == [
        [f"customer-{n}", "100", str(float(sum(totals)))] for n, totals in enumerate(TOTALS)
    ]
    assert ["payments", str(ORDERS)] in [row[:2] for row in rows]


def test_lineage_joins_each_order_to_its_delivery_and_its_transaction(run: Any) -> None:
    printed = run("lineage.py")

    order = dict(re.findall(r"^ (\w+) +\| (\S.*?) *$", printed, re.MULTILINE))
    assert (order["id"], order["customer"], order["attempts"]) == ("order-96", "customer-0", "1")
    assert order["produced"] <= order["first_attempt"] <= order["ended"]
    assert (order["pipeline"], order["error"]) == ("payment", "above the limit")
    assert cells(printed)[1:] == [
        ["failed", "above the limit", str(FAILED)],
        ["success", "NULL", str(ORDERS - FAILED)],
    ]


def test_plot_with_pandas_on_spark_is_an_image(run: Any, examples: Examples) -> None:
    table = run("plot_orders.py").splitlines()

    assert [line.split() for line in table[2:]] == [
        [f"customer-{n}", "100", str(float(sum(totals)))] for n, totals in enumerate(TOTALS)
    ]
    assert (examples.folder / "orders.png").read_bytes().startswith(b"\x89PNG")


def test_stream_job_that_is_killed_writes_each_order_once(examples: Examples) -> None:
    # Given a job that is killed, with its JVM, behind its first micro-batch
    job = subprocess.Popen(
        [sys.executable, "stream_to_files.py"],
        cwd=examples.folder,
        env=examples.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    files = examples.folder / "orders-files"
    while not (files / "batch=0" / "_SUCCESS").exists() and job.poll() is None:
        time.sleep(0.01)
    os.killpg(job.pid, signal.SIGKILL)
    assert job.wait() == -signal.SIGKILL
    assert not (files / "batch=5").exists()

    finished = examples.start("stream_to_files.py")

    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == f"orders in files: {ORDERS}\n"
    assert len(list(files.glob("batch=*"))) == ORDERS // 50


def test_windowed_counts_write_each_minute_once_when_it_is_over(
    run: Any, examples: Examples
) -> None:
    first = cells(run("windowed_counts.py"))[1:]
    examples.advance(seconds=300)
    examples.produce(ORDERS)
    second = cells(run("windowed_counts.py"))[1:]

    # A minute may have ended while the first orders were produced; the last one is still open
    assert sum(int(row[2]) for row in first) < ORDERS
    assert sum(int(row[2]) for row in second) == ORDERS
    assert {row[1] for row in second} == {"customer-0", "customer-1", "customer-2"}
    assert second[: len(first)] == first


def test_typed_payloads_have_columns_of_topic_schema_and_keep_misfits(
    run: Any, examples: Examples
) -> None:
    with Waystation(examples.url) as client:
        schema = client.topics.get("orders").options.json_schema
        client.topics.change("orders", json_schema=None)
        client.topics.produce("orders", b"no order", group="customer-1")
        client.topics.change("orders", json_schema=schema)

    printed = run("typed_payloads.py")

    assert " |-- total: double (nullable = true)\n |-- express: boolean" in printed
    assert " |-- items: array (nullable = true)\n |    |-- element: string" in printed
    totals = [row[3] for row in cells(printed)[1:]]
    expected = [n % 100 for n in range(ORDERS) if n % 7 == 0 and n % 3 == 2]
    assert totals[0] == str(float(min(expected)))
    assert totals == sorted(totals, key=float)
    assert printed.endswith("payloads that do not fit: 1\n")
