"""Workers that are killed, stopped and poisoned: real processes, and what is left behind."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.helpers.store_faults import Fate, proxy_to
from tests.transactions.dangerous import app
from tests.transactions.engine_helpers import Machine, open_machine
from tests.transactions.worker_process import WorkerProcess
from waystation.store.embedded.server import EmbeddedServer
from waystation.transactions.states import State, Status
from waystation.transactions.worker import DEAF_EXIT_CODE

SPEC = "tests.transactions.dangerous:app"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DANGEROUS_FOLDER", str(tmp_path))


def notes(folder: Path) -> list[str]:
    file = folder / "notes"
    return file.read_text().splitlines() if file.exists() else []


async def noted(folder: Path, count: int) -> list[str]:
    async with asyncio.timeout(15):
        while len(found := notes(folder)) < count:
            await asyncio.sleep(0.005)
    return found


@pytest.mark.slow
async def test_a_poison_is_given_up_and_fails_nothing_that_ran_beside_it(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """F-18: the first death does not count, since it may have been another's."""
    async with open_machine(store_server.address, app, tmp_path, workers=0) as machine:
        poison = await machine.start("poison")
        harmless = [await machine.start("harmless", number) for number in range(10)]
        deaths = 0
        while (await machine.found(poison)).head.state is not State.COMPLETE:
            with WorkerProcess(store_server.address, tmp_path, SPEC) as worker:
                code, done = asyncio.create_task(worker.ended()), machine.ended(poison, seconds=15)
                ended = asyncio.create_task(done)
                await asyncio.wait((code, ended), return_when=asyncio.FIRST_COMPLETED)
                if code.done():
                    deaths += 1
                    assert code.result() == 9
                    ended.cancel()
                worker.kill()
                await asyncio.gather(code, ended, return_exceptions=True)
        end = await machine.ended(poison)
        assert (end.status, end.cause) == (Status.INTERNAL_ERROR, "rescued too often")
        # Two begun rescues are allowed here; the third is over it.
        assert deaths == 4
        async with _worker(machine, store_server, tmp_path):
            for number, each in enumerate(harmless):
                ended_ = await machine.ended(each)
                assert (ended_.status, ended_.output) == (Status.SUCCESS, number)


class _worker:  # noqa: N801 - used as a verb
    """A worker process that works for the length of a block."""

    def __init__(
        self, machine: Machine, server: EmbeddedServer, folder: Path, *, lease_ms: int = 300
    ) -> None:
        self._process = WorkerProcess(server.address, folder, SPEC, lease_ms=lease_ms)

    async def __aenter__(self) -> WorkerProcess:
        await self._process.working()
        return self._process

    async def __aexit__(self, *_: object) -> None:
        self._process.kill()


async def test_a_stopped_worker_comes_back_too_late_and_its_commit_is_refused(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """F-13."""
    async with (
        open_machine(store_server.address, app, tmp_path, workers=0) as machine,
        _worker(machine, store_server, tmp_path) as first,
    ):
        started = await machine.start("thread")
        await noted(tmp_path, 1)
        first.signal(signal.SIGSTOP)
        async with _worker(machine, store_server, tmp_path) as second:
            await noted(tmp_path, 2)
            (tmp_path / "go").touch()
            end = await machine.ended(started)
            assert end.output == str(second.process.pid)
            # Three of its leases, and a little: time in which it could not hear makes nobody deaf.
            await asyncio.sleep(1.0)
            first.signal(signal.SIGCONT)
            # Its own work goes on as before.
            second.kill()
            again = await machine.run("thread")
            assert again.output == str(first.process.pid)
        assert (await machine.ended(started)).output == str(second.process.pid)
        assert (await machine.kinds(started)).count("finished") == 1


async def test_a_killed_worker_loses_nothing_that_it_held(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """F-01."""
    async with open_machine(store_server.address, app, tmp_path, workers=0) as machine:
        async with _worker(machine, store_server, tmp_path) as first:
            started = [await machine.start("thread") for _ in range(30)]
            await noted(tmp_path, 20)
            first.kill()
        (tmp_path / "go").touch()
        async with _worker(machine, store_server, tmp_path) as second:
            for each in started:
                assert (await machine.ended(each)).output == str(second.process.pid)
        kinds = Counter(fact.kind for fact in await machine.facts())
        assert kinds["finished"] == 30
        assert kinds["rescued"] >= 20
        assert await machine.store.call("ZCARD", "{tx.0}:leaseZ") == 0


async def test_a_worker_that_is_told_to_end_gives_back_what_it_holds(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """F-34."""
    async with open_machine(store_server.address, app, tmp_path, workers=0) as machine:
        # With leases so long that none of it can have been rescued.
        async with _worker(machine, store_server, tmp_path, lease_ms=60_000) as first:
            started = [await machine.start("thread") for _ in range(30)]
            await noted(tmp_path, 20)
            first.signal(signal.SIGTERM)
            assert await first.ended() == 0
        heads = [(await machine.found(each)).head for each in started]
        assert {(head.state, head.flags, head.rescues) for head in heads} == {(State.QUEUED, "", 0)}


@pytest.mark.slow
async def test_a_step_that_hangs_in_the_event_loop_costs_its_process(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """Its time is over, and a second more: nothing is kept alive by the thread alone."""
    async with open_machine(store_server.address, app, tmp_path, workers=0) as machine:
        async with _worker(machine, store_server, tmp_path) as first:
            started = await machine.start("blocks")
            await noted(tmp_path, 1)
            assert await first.ended(30) == DEAF_EXIT_CODE
        (tmp_path / "go").touch()
        async with _worker(machine, store_server, tmp_path):
            assert (await machine.ended(started)).output == "unblocked"


async def test_a_deaf_worker_ends_its_process(store_server: EmbeddedServer, tmp_path: Path) -> None:
    """F-12."""
    async with (
        open_machine(store_server.address, app, tmp_path, workers=0),
        proxy_to(store_server.address) as proxy,
    ):
        with WorkerProcess(proxy.address, tmp_path, SPEC) as worker:
            await worker.working()
            await proxy.set_fates(replies=Fate.SWALLOW)
            assert await worker.ended(30) == DEAF_EXIT_CODE
