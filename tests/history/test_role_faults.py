"""Faults around the history role: failing ingests, store pauses, other lakes, a moving clock."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.helpers.waiting import eventually
from tests.history.local_ingest import local_ingest
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
from waystation.errors import (
    HistoryBusyError,
    HistoryError,
    StoreDamagedError,
    StoreUnavailableError,
)
from waystation.history import jobs, process, role
from waystation.history.jobs import IngestProgress, JobRequests, retry_busy
from waystation.history.lake.identity import TABLES, read_lake_id
from waystation.history.lake.schema import BASE
from waystation.history.lease import KEYS, history_lease
from waystation.history.log_ends import ends_digest
from waystation.history.log_reader import LogReader
from waystation.history.status import (
    ask_for_ingest,
    finish_ingest,
    read_status,
    wait_for_ingest,
)
from waystation.logs import keys
from waystation.store.leases import LEASE_MS
from waystation.telemetry import history_metrics
from waystation.testing import serving
from waystation.testing.station import Serving, quick_settings

pytestmark = pytest.mark.usefixtures("quick")


def rows_counted() -> float:
    return history_metrics.rows._value.get()


def url_of(running: Serving) -> str:
    return f"unix://{running.node.opened.store.address.path}"


async def looked(running: Serving, times: int) -> None:
    """Return when the role has read the ends some more times."""
    at = await eventually(lambda: reported_at(running))
    for _ in range(times):
        role_of(running)._reported = None
        before = at
        at = await eventually(lambda: reported_at(running, after=before))  # noqa: B023


def allow(folder: Path, number: int) -> None:
    """Let a process of a script answer its request with a number."""
    (folder / str(number)).touch()


# -- Failures ----------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", ["failed", "crash", "long"])
async def test_failing_ingest_with_waiting_client_is_retried_once_and_then_after_the_back_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    monkeypatch.setattr(role, "_RETRY_S_FIRST", 300.0)
    script(monkeypatch, answer)
    async with serving(with_role(tmp_path)) as running:
        store = running.node.opened.store
        await produce(running, 1)
        await eventually(lambda: in_state(running, "failing"))
        for asked in (1, 2):
            assert await ask_for_ingest(store) == asked
            await eventually(lambda: role_of(running)._backoff.failures == asked + 1)  # noqa: B023
            await looked(running, 5)
            # Each request ends the pause once. Without another, the role waits.
            assert (await read_status(store)).public.failures == asked + 1


async def test_process_that_cannot_be_started_is_a_failure_and_the_role_retries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "COMMAND", (str(tmp_path / "no-such-program"),))
    async with serving(with_role(tmp_path)) as running:
        await produce(running, 1)
        status = await eventually(lambda: in_state(running, "failing"))
        assert "The ingest process does not start: " in status.error
        before = rows_counted()
        script(monkeypatch, "ok")
        await eventually(lambda: rows_counted() == before + 1)
        assert (await eventually(lambda: in_state(running, "idle"))).lag == 0


async def test_store_that_does_not_answer_after_an_ingest_does_not_end_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_ends, failures = role.read_ends, 0

    async def failing(*given: Any) -> Any:
        nonlocal failures
        task = asyncio.current_task()
        assert task is not None
        # The task that ingests, and not the one that reads the ends each second.
        if failures < 3 and "HistoryRole.run" in repr(task.get_coro()):
            failures += 1
            raise StoreUnavailableError("The store does not answer.")
        return await read_ends(*given)

    monkeypatch.setattr(role, "read_ends", failing)
    script(monkeypatch, "ok")
    async with serving(with_role(tmp_path, every_seconds=0.01)) as running:
        await produce(running, 1)
        pid = await eventually(lambda: role_of(running).pid)
        for number in range(2, 6):
            before = rows_counted()
            await produce(running, number)
            await eventually(lambda: rows_counted() > before)  # noqa: B023
        assert failures == 3
        assert role_of(running).pid == pid
        assert (await read_status(running.node.opened.store)).public.failures == 0


async def test_request_names_the_data_set_of_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, "echo")
    async with serving(with_role(tmp_path)) as running:
        await produce(running, 1)
        status = await eventually(lambda: in_state(running, "failing"))
        assert status.error == f"ingest {running.node.opened.dataset}"


def test_ingest_beside_another_one_is_repeated_and_no_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jobs, "_PAUSE_S_FIRST", 0.001)
    left = 3

    def run() -> IngestProgress:
        nonlocal left
        left -= 1
        if left:
            raise HistoryBusyError("Another process committed to messages in the meantime.")
        return IngestProgress(rows=7)

    assert retry_busy(run, JobRequests()).rows == 7
    monkeypatch.setattr(jobs, "_ATTEMPTS_MAX", 2)
    left = 5
    with pytest.raises(HistoryBusyError):
        retry_busy(run, JobRequests())


# -- Lag ---------------------------------------------------------------------------------------


async def test_lag_in_seconds_with_messages_during_each_ingest_is_that_of_the_last_ingest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates = tmp_path / "gates"
    gates.mkdir()
    script(monkeypatch, str(gates), "ok")
    async with serving(with_role(tmp_path, every_seconds=0.01)) as running:
        found = role_of(running)
        begun = []
        for number in range(1, 5):
            before = rows_counted()
            if number == 1:
                await produce(running, number)
            await eventually(lambda: found.state == "running")
            begun.append(found.clock.uptime_s())
            # The next message arrives before the ingest has ended: the lake is never complete.
            await produce(running, number + 1)
            allow(gates, number)
            await eventually(lambda: rows_counted() == before + 1)  # noqa: B023
        await eventually(lambda: found.state == "running")
        late_s = history_metrics.lag_seconds.collect()[0].samples[0].value
        # The third of these four ingests had begun before the fourth ended.
        assert late_s <= found.clock.uptime_s() - begun[2]
        allow(gates, 5)


async def test_node_without_the_lease_has_the_figures_of_the_node_that_ingests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates = tmp_path / "gates"
    gates.mkdir()
    script(monkeypatch, str(gates), "ok")
    async with serving(with_role(tmp_path)) as running:
        first, before = role_of(running), rows_counted()
        await produce(running, 1)
        await eventually(lambda: first.state == "running")
        async with second_role(running) as second:
            # The second node sees the lake complete at no time.
            for number in range(1, 5):
                await eventually(lambda: first.state == "running")
                await produce(running, number + 1)
                allow(gates, number)
                await eventually(lambda: rows_counted() == before + number)  # noqa: B023
            status = await eventually(lambda: lag_of_one(running))
            assert second._lease is None
            assert second._lag(status) == 1
            now_s = second.clock.uptime_s()
            await finish_ingest(
                running.node.opened.store, served=0, ends="older", lake_id="", age_ms=10
            )
            await eventually(lambda: second._current_s > now_s - 1)
            allow(gates, 5)


async def lag_of_one(running: Serving) -> Any:
    status = await read_status(running.node.opened.store)
    return status if status.public.lag == 1 else None


# -- Lakes -------------------------------------------------------------------------------------


async def test_role_ingests_what_only_another_lake_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(quick_settings(str(tmp_path))) as running:
        await produce(running, 1)
        other = local_ingest(tmp_path / "other", url_of(running))
        assert (await asyncio.to_thread(other.run)).rows == 1
    script(monkeypatch, "ok")
    before = rows_counted()
    async with serving(with_role(tmp_path)) as running:
        await eventually(lambda: reported_at(running))
        status = await wait_for_ingest(running.node.opened.store)
        assert rows_counted() == before + 1
        assert status.failures == 0


async def test_role_with_complete_lake_ingests_again_after_the_lake_was_moved_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(quick_settings(str(tmp_path))) as running:
        await produce(running, 1)
        await asyncio.to_thread(local_ingest(tmp_path / "lake", url_of(running)).run)
    script(monkeypatch, "ok")
    async with serving(with_role(tmp_path, every_seconds=0.01)) as running:
        before = rows_counted()
        await eventually(lambda: reported_at(running))
        await wait_for_ingest(running.node.opened.store)
        assert rows_counted() == before
        (tmp_path / "lake").rename(tmp_path / "moved")
        await eventually(lambda: rows_counted() > before)
        assert role_of(running)._lake_id == ""


async def test_ingest_into_another_lake_does_not_serve_the_client_of_the_role(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates = tmp_path / "gates"
    gates.mkdir()
    script(monkeypatch, str(gates), "ok")
    async with serving(with_role(tmp_path)) as running:
        store = running.node.opened.store
        await produce(running, 1)
        await eventually(lambda: in_state(running, "running"))
        number = await ask_for_ingest(store)
        await asyncio.to_thread(local_ingest(tmp_path / "other", url_of(running)).run)
        assert (await read_status(store)).served < number
        own = local_ingest(tmp_path / "lake", url_of(running))
        await asyncio.to_thread(own.run)
        status = await read_status(store)
        assert status.served == number
        assert status.lake_id == own.lake_id == read_lake_id(str(tmp_path / "lake"))
        assert status.ends == ends_digest(role_of(running)._ends)
        allow(gates, 1)
        allow(gates, 2)


async def test_ingest_of_the_same_process_fills_a_lake_that_replaced_one_that_was_moved(
    tmp_path: Path,
) -> None:
    async with serving(quick_settings(str(tmp_path))) as running:
        await produce(running, 1)
        same = local_ingest(tmp_path / "lake", url_of(running))
        assert (await asyncio.to_thread(same.run)).rows == 1
        (tmp_path / "lake").rename(tmp_path / "moved")
        assert (await asyncio.to_thread(same.run)).rows == 1


def test_lake_id_has_the_tables_that_ingest_writes(tmp_path: Path) -> None:
    assert sorted(TABLES) == sorted(schema.name for schema in BASE)
    assert read_lake_id(str(tmp_path)) == ""
    assert read_lake_id("s3://user:secret@bucket/lake/") == "s3://bucket/lake"


# -- Time machine ------------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["", "[]", "{"])
def test_lake_id_of_a_folder_that_is_none_is_refused_and_a_new_table_has_none(
    tmp_path: Path, content: str
) -> None:
    log = tmp_path / "lake" / "messages" / "_delta_log"
    log.mkdir(parents=True)
    (log / "00000000000000000000.json").write_text(content)
    assert read_lake_id(str(tmp_path / "lake")) in ("", f"messages={log.stat().st_ino}")
    with pytest.raises(HistoryError, match="cannot be read"):
        read_lake_id(str(log / "00000000000000000000.json"))


async def test_lake_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    lake.touch()
    async with serving(with_role(tmp_path, lake=str(lake))) as running:
        status = await eventually(lambda: in_state(running, "failing"))
        assert "The lake cannot be read" in status.error


async def test_jump_of_the_time_machine_changes_neither_status_nor_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates = tmp_path / "gates"
    gates.mkdir()
    script(monkeypatch, str(gates), "ok")
    settings = with_role(tmp_path, idle_seconds=0.1)
    machine_on = {"time_machine": True, "history": settings.history}
    async with serving(quick_settings(str(tmp_path), **machine_on)) as running:
        machine = running.node.opened.time_machine
        assert machine is not None
        url = url_of(running)
        await eventually(lambda: reported_at(running))
        await machine.advance(86_400)

        def status_of_a_command() -> str:
            with LogReader(url) as logs:
                return logs.use(read_status).public.state

        # Without a new report of the role.
        assert await asyncio.to_thread(status_of_a_command) != "off"
        await produce(running, 1)
        await eventually(lambda: role_of(running).state == "running")
        await machine.advance(86_400)
        store = running.node.opened.store
        until_ms = int(await store.call("HGET", KEYS["ingest"], "until_ms"))
        seconds, _ = await store.call("TIME")
        # If the node crashed now, a command would wait for the lease no longer than without a jump.
        assert until_ms <= int(seconds) * 1000 + 1000 + LEASE_MS
        allow(gates, 1)
        await eventually(lambda: not_leased(running))

        def use_lease() -> None:
            with history_lease(url):
                pass

        await asyncio.to_thread(use_lease)
        assert os.listdir(gates) == ["1"]


def test_failed_event_has_the_start_of_a_long_error() -> None:
    for error in (
        HistoryBusyError("\x01" * 1_000_000, hint="h" * 1_000_000),
        OSError("x" * 99_999),
    ):
        event = jobs._failed(error)
        assert len(msgspec.json.encode(event)) < process.EVENT_BYTES_MAX
        assert len(event.error) == 10_000


# -- Damaged logs ------------------------------------------------------------------------------


async def test_damaged_log_head_is_skipped_and_logged_once_and_other_logs_are_ingested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    script(monkeypatch, "ok")
    async with serving(with_role(tmp_path)) as running:
        await produce(running, 1)
        await eventually(lambda: in_state(running, "idle"))
        async with AsyncWaystation(running.url) as client:
            await client.topics.create("broken", partitions=1)
            await client.topics.produce("broken", {"n": 1})
            store = running.node.opened.store
            head = keys.head("t.default.broken.0", 0)
            assert await store.call("HSET", head, "end", "many") == 0
            await looked(running, 3)
            before = rows_counted()
            await produce(running, 2)
            await eventually(lambda: rows_counted() > before)
        assert (await eventually(lambda: in_state(running, "idle"))).lag == 0
    assert [each.message for each in caplog.records].count("log skipped") == 1


async def test_failing_read_of_the_ends_is_reported_until_it_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_ends, is_damaged = role.read_ends, True

    async def failing(*given: Any) -> Any:
        if is_damaged:
            raise StoreDamagedError(key="{a}:log")
        return await read_ends(*given)

    monkeypatch.setattr(role, "read_ends", failing)
    async with serving(with_role(tmp_path)) as running:
        status = await eventually(lambda: in_state(running, "failing"))
        assert "{a}:log" in status.error
        is_damaged = False
        assert (await eventually(lambda: in_state(running, "idle"))).error == ""
