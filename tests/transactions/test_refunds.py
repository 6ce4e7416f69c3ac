"""The example: approve, then pay; with the death of its worker while it waits, and after days."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.transactions.engine_helpers import open_machine
from tests.transactions.refunds import app, bank
from tests.transactions.worker_process import WorkerProcess
from waystation.store.embedded.server import EmbeddedServer
from waystation.transactions.states import State, Status

SPEC = "tests.transactions.refunds:app"


@pytest.fixture(autouse=True)
def _bank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFUNDS_BANK", str(tmp_path / "bank"))


async def test_a_refund_that_is_approved_is_paid_once(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_machine(store_server.address, app, tmp_path) as machine:
        started = await machine.start("refund", {"cents": 500}, external_id="r-17")
        await machine.signals.set_switch("default", started, "approved", "yes")
        end = await machine.ended(started)
        assert (end.status, end.output) == (Status.SUCCESS, {"paid": 500})
        assert len(bank.asked()) == 1


async def test_a_refund_survives_the_death_of_its_worker_while_it_waits(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_machine(store_server.address, app, tmp_path, workers=0) as machine:
        with WorkerProcess(store_server.address, tmp_path, SPEC) as first:
            await first.working()
            started = await machine.start("refund", {"cents": 500}, external_id="r-17")
            await machine.reached(started, State.WAITING_SWITCH)
            first.kill()
        await machine.signals.set_switch("default", started, "approved", "yes")
        assert (await machine.found(started)).head.state is State.QUEUED
        with WorkerProcess(store_server.address, tmp_path, SPEC) as second:
            await second.working()
            end = await machine.ended(started)
        assert (end.status, end.output) == (Status.SUCCESS, {"paid": 500})
        assert len(bank.asked()) == 1


async def test_a_refund_that_nobody_answers_fails_after_two_days(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_machine(store_server.address, app, tmp_path, workers=0) as machine:
        with WorkerProcess(store_server.address, tmp_path, SPEC) as worker:
            await worker.working()
            started = await machine.start("refund", {"cents": 500})
            await machine.reached(started, State.WAITING_SWITCH)
            await machine.time.advance(3 * 86_400)
            end = await machine.ended(started)
        assert (end.status, end.output) == (Status.FAILED, {"error": "nobody answered"})
        assert bank.asked() == []


async def test_a_refund_that_is_refused_fails(store_server: EmbeddedServer, tmp_path: Path) -> None:
    async with open_machine(store_server.address, app, tmp_path) as machine:
        started = await machine.start("refund", {"cents": 500})
        await machine.reached(started, State.WAITING_SWITCH)
        await machine.signals.set_switch("default", started, "approved", False)
        end = await machine.ended(started)
        assert (end.status, end.output) == (Status.FAILED, {"error": "refused"})
