"""Commands of `waystation history`, run as a user runs them."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shutil
import subprocess
from functools import partial
from pathlib import Path

import msgspec
import pytest
from deltalake import DeltaTable

from tests.cli.conftest import Run, clean_environment, command, run  # noqa: F401 (a fixture)
from tests.helpers.server import background_station
from tests.history.log_writer import LogWriter
from tests.history.quick_spark import QUICK
from waystation import Waystation
from waystation.api.wide_history import HistoryPlace, history_place
from waystation.config import Config, HistoryConfig, StoreConfig
from waystation.history.ingest.retention import SOFT
from waystation.history.lake.schema import MESSAGES
from waystation.history.lake.table import Lake
from waystation.history.lease import history_lease
from waystation.history.log_reader import LogReader
from waystation.history.status import RoleReport, count_batch, count_failure, write_report
from waystation.history.store_access import store_access
from waystation.store.embedded.server import EmbeddedServer


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_was_produced_is_in_the_lake_after_ingest(
    run: Run,  # noqa: F811
    settings: Config,
) -> None:
    where = ("--data", settings.data, "--master", "local[1]")
    with background_station(settings) as station, Waystation(station.url) as client:
        client.topics.create("orders", partitions=2)
        for number in range(5):
            client.topics.produce("orders", {"n": number}, group="g")
        # One that has ended, and one of which nothing is left
        client.subscriptions.create("crm", topic="orders", endpoint="http://127.0.0.1:1/")
        client.subscriptions.delete("crm")
        client.topics.create("gone")
        client.topics.produce("gone", {"n": 1})
        client.topics.delete("gone")
        client.topics.purge("gone")

        job = partial(run, "history", "ingest", *where, seconds_max=250, **QUICK)
        done = job()
        # Files that Spark wrote for itself are deleted
        shutil.rmtree(Path(settings.data) / "history")
        again = job("--json")
        client.topics.produce("orders", {"n": 5}, group="g")
        shown = on_terminal("history", "ingest", *where, **QUICK)
        with store_access(settings) as access, LogWriter(access.resolve()) as writer:
            ended = writer.held("s.default.crm.0")
            present = writer.held("t.default.orders.0", 0)

    assert (done.returncode, done.stderr, again.stderr) == (0, "", "")
    assert done.stdout.endswith(f" rows are new in {settings.data}/lake.\n")
    assert json.loads(again.stdout)["rows"] == 0
    rows = DeltaTable(f"{settings.data}/lake/messages").to_pyarrow_table().to_pylist()
    assert sorted(row["payload"] for row in rows) == [b'{"n":%d}' % n for n in range(6)]
    assert {row["group"] for row in rows} == {"g"}
    assert (ended, present.keys()) == ({}, {SOFT})
    # The user sees the progress, and the log has the output of Spark
    assert "starting Spark" in shown
    assert re.search(r"rows .* 0/1 ", shown), shown
    assert re.search(r"Spark UI: http://127\.0\.0\.1:\d+", shown), shown
    assert "WARN" not in shown
    assert (Path(settings.data) / "history" / "spark.log").stat().st_size > 0


def on_terminal(*arguments: str, **environment: str) -> str:
    """Run a command whose standard error is a terminal; return what it writes there."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command(*arguments),
        env={**clean_environment(), "COLUMNS": "120", "TERM": "xterm", **environment},
        stdout=subprocess.DEVNULL,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        seen = b""
        # Reading fails when no process has the other end any more
        with contextlib.suppress(OSError):
            while read := os.read(ours, 65_536):
                seen += read
        os.close(ours)
        assert process.wait() == 0, seen
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_spark_that_does_not_start_is_told_with_where_to_look(
    run: Run,  # noqa: F811
    tmp_path: Path,
) -> None:
    # Spark takes this value from another setting
    wrong = json.dumps({"spark.driver.extraJavaOptions": "-Xmx1g"})
    Lake(str(tmp_path / "d" / "lake")).open(MESSAGES)
    asked = run("history", "sql", "select 1", "--data", "d", WAYSTATION_HISTORY_SPARK=wrong)
    assert asked.returncode == 1
    first, second = asked.stderr.splitlines()
    assert first.startswith("error Spark does not start: ")
    log = tmp_path / "d" / "history" / "spark.log"
    assert second.strip() == f"See its log {log}."
    assert "-Xmx1g" in log.read_text()


def test_a_second_ingest_is_refused_before_spark_is_started(
    run: Run,  # noqa: F811
    settings: Config,
) -> None:
    with store_access(settings) as access:
        with LogWriter(access.resolve()) as writer:
            writer.flush()
        with history_lease(access.resolve()):
            refused = run("history", "ingest", "--data", settings.data)
    assert refused.returncode == 6
    assert "Another ingest is running." in refused.stderr
    assert "waystation history status --wait" in refused.stderr
    # The lease was given back
    with store_access(settings) as access, history_lease(access.resolve()):
        pass


def test_status_shows_lag_batch_rows_and_failures(
    run: Run,  # noqa: F811
    settings: Config,
) -> None:
    where = ("history", "status", "--data", settings.data)
    with background_station(settings):
        off = run(*where, "--json")
        waited = run(*where, "--wait")
        assert json.loads(off.stdout) == {
            "state": "off",
            "lake": "",
            "lag": None,
            "last_batch": None,
            "rows": 0,
            "failures": 0,
            "error": "",
            "hint": "",
        }
        assert waited.returncode == 1
        problem, hint = waited.stderr.splitlines()
        assert problem == "error No server runs the data pipeline."
        assert "waystation dev" in hint
        with store_access(settings) as access, LogReader(access.resolve()) as logs:
            report = RoleReport(state="failing", lake="/lake", lag=1_200, error="Full.", hint="Go.")
            logs.use(lambda store: write_report(store, report))
            logs.use(lambda store: count_batch(store, 1_500, 2.25))
            logs.use(count_failure)
        shown = run(*where)
    lines = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in shown.stdout.splitlines())
    assert lines.pop("last batch").startswith("1,500 rows in 2.2 s, 20")
    assert lines == {
        "state": "failing",
        "error": "Full. Go.",
        "lake": "/lake",
        "lag": "1,200 messages and records",
        "rows": "1,500",
        "failures": "1",
    }


def test_a_password_reaches_tasks_by_a_file_that_only_its_owner_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "redis://:hunter2@127.0.0.1:1/0"
    settings = Config(data=str(tmp_path / "data"), store=StoreConfig(url=url))
    with store_access(settings) as access:
        assert "hunter2" not in repr(access)
        assert access.resolve({}) == url
        assert Path(access.file).stat().st_mode & 0o777 == 0o600
    # A file that the operator has put on every machine comes first
    named = tmp_path / "mounted"
    named.write_text(url)
    monkeypatch.setenv("WAYSTATION_STORE_URL_FILE", str(named))
    with store_access(settings) as access:
        assert access.file == str(named)


@pytest.mark.parametrize(
    "arguments", [("ingest",), ("audit",), ("release",), ("refresh",), ("report",)]
)
def test_history_command_without_a_store_is_refused_and_creates_nothing(
    run: Run,  # noqa: F811
    tmp_path: Path,
    arguments: tuple[str, ...],
) -> None:
    refused = run("history", *arguments)
    assert refused.returncode == 1
    assert "has no store." in refused.stderr
    assert "WAYSTATION_URL" in refused.stderr
    assert not list(tmp_path.iterdir())


def test_history_command_on_an_empty_store_is_refused(
    run: Run,  # noqa: F811
    settings: Config,
) -> None:
    with store_access(settings) as access:
        refused = run("history", "ingest", "--store", access.resolve())
    assert refused.returncode == 1
    assert "no server has used it yet" in refused.stderr


@pytest.mark.parametrize("arguments", [("sql", "select 1"), ("audit", "--no-live")])
def test_history_command_without_a_lake_is_refused_before_spark_starts(
    run: Run,  # noqa: F811
    tmp_path: Path,
    arguments: tuple[str, ...],
) -> None:
    refused = run("history", *arguments, "--data", "d")
    assert refused.returncode == 1
    assert f"There is no lake at {tmp_path}/d/lake." in refused.stderr
    assert not list(tmp_path.iterdir())


def test_history_command_with_a_server_uses_its_store_and_refuses_another(
    run: Run,  # noqa: F811
    settings: Config,
    tmp_path: Path,
) -> None:
    other = msgspec.structs.replace(settings, data=str(tmp_path / "other"))
    with background_station(settings) as station, Waystation(station.url) as client:
        place = client.history.place()
        assert (place.data, place.lake) == (settings.data, f"{settings.data}/lake")
        with store_access(settings) as access, LogReader(access.resolve()) as logs:
            assert place.dataset == logs.dataset()

        by_option = run("history", "release", "--url", station.url, "--json")
        by_environment = run("history", "release", "--json", WAYSTATION_URL=station.url)
        no_lake = run("history", "sql", "select 1", "--url", station.url)
        with store_access(other) as access:
            with LogWriter(access.resolve()) as writer:
                writer.flush()
            refused = run("history", "ingest", "--url", station.url, "--data", other.data)

    for done in (by_option, by_environment):
        assert (done.returncode, done.stderr) == (0, "")
    assert f"There is no lake at {settings.data}/lake." in no_lake.stderr
    assert refused.returncode == 1
    assert f"the data set ds-test, and the server that you named has {place.dataset}" in " ".join(
        refused.stderr.split()
    )
    assert not (tmp_path / ".waystation").exists()


def test_history_place_of_a_server_has_no_password() -> None:
    settings = Config(
        data="/srv/data",
        store=StoreConfig(url="redis://:hunter2@store:6379/0"),
        history=HistoryConfig(lake="s3://user:hunter2@bucket/lake"),
    )
    place = history_place(settings, "ds-1")
    assert place == HistoryPlace(
        dataset="ds-1", data="/srv/data", lake="s3://bucket/lake", embedded=False
    )
    assert "hunter2" not in repr(place)


def test_store_access_beside_a_server_keeps_its_level_of_durability(settings: Config) -> None:
    strict = msgspec.structs.replace(settings, store=StoreConfig(durability="disk"))
    folder = settings.data_dir / "store"
    with (
        EmbeddedServer(folder, durability="memory") as server,
        store_access(strict) as access,
        LogReader(access.resolve()) as logs,
    ):
        asked = [("CONFIG", "GET", "appendfsync"), ("PING",)]
        (_, level), _ = logs.replies(asked)
        assert level == b"everysec"
        assert server.address.path in access.resolve()
    assert not (folder / "always").exists()
