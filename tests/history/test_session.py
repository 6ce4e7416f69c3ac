"""Spark sessions: their settings, and the addresses on which they listen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from waystation.config import Config, HistoryConfig
from waystation.config_sources import load_config
from waystation.history.session import (
    SessionPlan,
    session_master,
    session_plan,
    session_settings,
)

_PAGES = """
import sys
from pathlib import Path
from waystation.history.session import SessionPlan, running_session, ui_address
plan = SessionPlan(folder=Path(sys.argv[1]), master="local[1]", memory="512m", ui=True)
with running_session(plan) as spark:
    port = int(ui_address(spark).rpartition(":")[2])
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            address, _, found = local.rpartition(":")
            if state == "0A" and int(found, 16) == port:
                sys.stdout.write(f"listens {address}\\n")
"""


@pytest.mark.parametrize(
    ("master", "told"),
    [
        ("local", "local[1,4]"),
        ("local[*]", "local[*,4]"),
        ("local[2]", "local[2,4]"),
        ("local[2,1]", "local[2,1]"),
        ("local-cluster[2,1,1024]", "local-cluster[2,1,1024]"),
        ("spark://host:7077", "spark://host:7077"),
    ],
)
def test_a_task_that_was_lost_is_tried_again_wherever_it_runs(master: str, told: str) -> None:
    assert session_master(master) == told


def test_what_an_operator_sets_wins(tmp_path: Path) -> None:
    wanted = {"spark.log.level": "INFO", "spark.executor.cores": "2"}
    found = session_settings(SessionPlan(folder=tmp_path, spark=wanted))
    assert found.items() >= wanted.items()
    assert found["spark.sql.session.timeZone"] == "UTC"


def test_the_memory_of_the_settings_is_that_of_driver_and_executors(tmp_path: Path) -> None:
    def memory(settings: Config) -> set[str]:
        found = session_settings(session_plan(settings))
        return {found["spark.driver.memory"], found["spark.executor.memory"]}

    data = str(tmp_path)
    assert memory(Config(data=data)) == {"2g"}
    assert memory(Config(data=data, history=HistoryConfig(memory="700m"))) == {"700m"}
    # One of them alone, where an operator says so.
    own = HistoryConfig(memory="700m", spark={"spark.executor.memory": "5g"})
    assert memory(Config(data=data, history=own)) == {"700m", "5g"}
    # Said by an operator: the command line before the environment.
    environment, flags = {"WAYSTATION_HISTORY_MEMORY": "800m"}, {"history.memory": "900m"}
    assert memory(load_config(environment=environment).config) == {"800m"}
    assert memory(load_config(environment=environment, flags=flags).config) == {"900m"}


@pytest.mark.slow
def test_a_session_has_the_memory_of_its_plan(spark: SparkSession) -> None:
    """Check the shared session, whose plan has 1g."""
    assert spark.conf.get("spark.driver.memory") == "1g"
    assert spark.conf.get("spark.executor.memory") == "1g"
    most = spark._jvm.java.lang.Runtime.getRuntime().maxMemory()  # type: ignore[union-attr]
    # The memory that the collector keeps for itself is not counted.
    assert 0.8 * 2**30 <= most <= 2**30


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(sys.platform != "linux", reason="reads what listens from /proc")
def test_pages_of_a_local_spark_are_on_this_machine_alone(tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-c", _PAGES, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    loopback = {"0100007F", "0000000000000000FFFF00000100007F"}
    found = {line.removeprefix("listens ") for line in told.stdout.splitlines()}
    assert found, told.stderr
    assert found <= loopback
    assert told.stderr == ""
