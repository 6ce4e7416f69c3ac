"""The disk of the store is full, by a limit on the size of its files: nothing acknowledged is lost.

The limit is on the real server, which needs no rights. A process that meets it gets a signal, which
a full disk does not send; so the server is started by a script that ignores it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import resource
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.http import Answer, async_ask
from tests.helpers.processes import ended, parent_of
from tests.helpers.server import problem
from tests.helpers.waiting import eventually, eventually_sync
from waystation import App
from waystation.config import StoreConfig
from waystation.errors import StoreUnavailableError
from waystation.store import plan
from waystation.store.embedded import supervisor
from waystation.store.embedded.server import EmbeddedServer
from waystation.testing.station import Serving, quick_settings, serving
from waystation.types.message import Durability

MESSAGES = "/v1/topics/orders/messages"
#: What the store's files may grow to; some dozens of messages.
LIMIT = 300_000


@pytest.fixture(autouse=True)
def _server_without_the_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "server"
    program.write_text(f"#!/bin/sh\ntrap '' XFSZ\nexec '{plan.server_program()}' \"$@\"\n")
    program.chmod(0o700)
    monkeypatch.setattr(plan, "server_program", lambda: str(program))


class Shop:
    """A station with a topic and a pipeline, and what it has acknowledged."""

    def __init__(self, running: Serving, numbers: itertools.count[int]) -> None:
        self.running = running
        self._numbers = numbers
        self.acknowledged: list[int] = []

    @property
    def server(self) -> EmbeddedServer:
        server = self.running.node.opened.server
        assert server is not None
        return server

    async def ask(self, method: str, path: str, body: bytes | None = None) -> Answer:
        return await async_ask(self.running.url, method, path, body)

    async def produce(self) -> Answer:
        number = next(self._numbers)
        answer = await self.ask("POST", MESSAGES, f"{number} {'x' * 5000}".encode())
        if answer.status == 200:
            self.acknowledged.append(number)
        return answer

    async def produce_until_refused(self) -> Answer:
        async with asyncio.timeout(60):
            while (answer := await self.produce()).status == 200:
                pass
        return answer

    async def produce_until_ended(self, process_id: int) -> list[Answer]:
        """What was refused until the server had ended."""
        answers: list[Answer] = []
        async with asyncio.timeout(60):
            while not await asyncio.to_thread(ended, process_id, seconds=0):
                answers.append(await self.produce())
        return [each for each in answers if each.status != 200]

    async def is_ready(self) -> bool:
        return (await self.readiness())[0] == 200

    async def is_taken_again(self) -> bool:
        return (await self.produce()).status == 200

    async def found(self) -> list[int]:
        answer = await self.ask("GET", f"{MESSAGES}?partition=0&limit=1000")
        assert answer.status == 200, answer
        return [int(each["message"]["text"].split()[0]) for each in answer.json()["messages"]]

    async def readiness(self) -> tuple[int, Any]:
        answer = await self.ask("GET", "/readyz")
        return answer.status, answer.json()


@asynccontextmanager
async def shop(
    folder: Path, level: Durability, numbers: itertools.count[int] | None = None
) -> AsyncIterator[Shop]:
    """The server has ended when the block is left."""
    app = App()
    app.pipeline("pay", ["util/checkpoint"])
    settings = quick_settings(str(folder / "data"), store=StoreConfig(durability=level))
    async with serving(settings, app=app) as running:
        yield (opened := Shop(running, numbers or itertools.count(1)))
        keeper_id = parent_of(opened.server.process_id)
    assert await asyncio.to_thread(ended, keeper_id)


def limit_files(process_id: int, size: int) -> None:
    resource.prlimit(process_id, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@pytest.mark.slow
async def test_on_a_full_disk_writes_are_507_reads_go_on_and_all_goes_on_when_there_is_room(
    tmp_path: Path,
) -> None:
    """F-32, at durability `memory`."""
    async with shop(tmp_path, "memory") as early:
        await early.running.node.topics.create("default", "orders", partitions=1)
        limit_files(early.server.process_id, LIMIT)
        process_id = early.server.process_id

        assert problem(await early.produce_until_refused()) == (507, "store.full")

        assert len(early.acknowledged) > 10
        published = await early.ask("PUT", "/channel/orders/message/m-1", b"1")
        assert (published.status, published.json()["code"]) == (507, "store.full")
        order = json.dumps({"type": "pay", "metadata": {"externalId": "r-1"}}).encode()
        for path, body in ((MESSAGES, b"x"), ("/v1/transactions", order)):
            answer = await early.ask("POST", path, body)
            assert problem(answer) == (507, "store.full")
            assert "No space left on device" in answer.json()["detail"]
            assert answer.header("retry-after") == "1"
        assert await early.found() == early.acknowledged, "what is there can be read"
        status, said = await early.readiness()
        assert (status, said["ready"]) == (503, False)
        assert "No space left on device" in said["problems"]["store"]

        limit_files(process_id, resource.RLIM_INFINITY)

        await eventually(early.is_taken_again)
        assert early.server.process_id == process_id, "nobody had to start it again"
        await eventually(early.is_ready)
        # The transaction that was refused was not applied, so its id is free.
        assert (await early.ask("POST", "/v1/transactions", order)).status == 201
        assert (await early.ask("PUT", "/channel/orders/message/m-1", b"1")).status < 300
    async with shop(tmp_path, "memory") as late:
        assert await late.found() == early.acknowledged
        assert late.running.node.opened.notes == []


@pytest.mark.slow
async def test_store_at_memory_killed_on_full_disk_loses_only_the_last_writes(
    tmp_path: Path,
) -> None:
    async with shop(tmp_path, "memory") as early:
        await early.running.node.topics.create("default", "orders", partitions=1)
        process_id = early.server.process_id
        # The next server has no room either.
        for each in (parent_of(process_id), process_id):
            limit_files(each, LIMIT)
        await early.produce_until_refused()

        os.kill(process_id, signal.SIGKILL)

        assert await asyncio.to_thread(ended, process_id)
        async with asyncio.timeout(30):
            while (await early.ask("GET", f"{MESSAGES}?partition=0&limit=1")).status != 200:
                await asyncio.sleep(0.05)
        found = await early.found()
        assert found == early.acknowledged[: len(found)], "only the newest messages are missing"
        # The server acknowledges what it executes before the first write that fails.
        assert len(found) >= len(early.acknowledged) - 1
        assert (await early.produce_until_refused()).status == 507


@pytest.mark.slow
async def test_a_server_that_ends_over_a_full_disk_comes_back_with_all_that_was_acknowledged(
    tmp_path: Path,
) -> None:
    """F-32, at durability `disk`: what cannot be on the disk before its reply ends the server."""
    async with shop(tmp_path, "disk", numbers := itertools.count(1)) as early:
        await early.running.node.topics.create("default", "orders", partitions=1)
        acknowledged, refused = early.acknowledged, list[Answer]()
        for number in range(1, 4):
            # Each server that comes has room for some more, and then none.
            process_id = early.server.process_id
            limit_files(process_id, number * LIMIT)
            before = len(acknowledged)

            refused += await early.produce_until_ended(process_id)

            assert len(acknowledged) > before
            await eventually(early.is_taken_again)
            assert early.server.process_id != process_id
            found = await early.found()
            assert set(acknowledged) <= set(found)
            assert found == sorted(set(found)), "in order, each once"
        # A write that something else made may be what met the limit; hardly each time.
        assert {problem(each)[0] for each in refused} == {503}
        assert {each.header("retry-after") for each in refused} == {"1"}
        assert {problem(each)[1] for each in refused} <= {
            "store.outcome-unknown",
            "store.unavailable",
        }
    async with shop(tmp_path, "disk", numbers) as late:
        found = await late.found()
        assert set(acknowledged) <= set(found)
        assert found == sorted(set(found))
        assert (await late.produce()).status == 200


@pytest.mark.slow
async def test_store_at_disk_on_full_disk_waits_for_room_and_starts_again(tmp_path: Path) -> None:
    """F-32: the supervisor finds no room either, so it does not restart the server in a loop."""
    async with shop(tmp_path, "disk") as early:
        await early.running.node.topics.create("default", "orders", partitions=1)
        supervisor_id, process_id = parent_of(early.server.process_id), early.server.process_id
        # The supervisor can write nothing at all, not even the state of the server.
        limit_files(supervisor_id, 0)
        limit_files(process_id, LIMIT)
        refused = await early.produce_until_ended(process_id)

        async with asyncio.timeout(30):
            while "is full" not in (await early.readiness())[1]["problems"].get("store", ""):
                await asyncio.sleep(0.1)
        answer = await early.produce()
        order = json.dumps({"type": "pay", "metadata": {"externalId": "r-1"}}).encode()
        started = await early.ask("POST", "/v1/transactions", order)
        published = await early.ask("PUT", "/channel/orders/message/m-1", b"1")
        for each in (answer, started, published):
            assert (each.status, each.json()["code"]) == (503, "store.unavailable")
            assert each.header("retry-after") == "1"
        assert {problem(each)[0] for each in refused} <= {503}
        # The supervisor has not started a server that could only end again.
        log = (tmp_path / "data" / "store" / "server.log").read_text()
        assert log.count("Ready to accept connections") == 1

        limit_files(supervisor_id, resource.RLIM_INFINITY)

        await eventually(early.is_taken_again)
        await eventually(early.is_ready)
        found = await early.found()
        assert set(early.acknowledged) <= set(found)
        assert found == sorted(set(found)), "in order, each once"
        assert (await early.ask("POST", "/v1/transactions", order)).status == 201


@pytest.mark.slow
def test_supervisor_killed_on_full_disk_is_replaced_and_store_recovers(tmp_path: Path) -> None:
    def ask(line: bytes) -> bytes:
        with suppress(OSError, StoreUnavailableError):
            return supervisor.ask(server.address.path, line)
        return b""

    with EmbeddedServer(tmp_path / "store", durability="disk") as server:
        assert ask(b"SET kept 1") == b"+OK\r\n"
        process_id, supervisor_id = server.process_id, parent_of(server.process_id)
        limit_files(supervisor_id, 0)
        limit_files(process_id, 20_000)
        eventually_sync(lambda: not ask(b"APPEND a " + b"x" * 5000).startswith(b":"))
        assert ended(process_id)
        eventually_sync(lambda: server.disk_full)

        os.kill(supervisor_id, signal.SIGKILL)

        eventually_sync(lambda: ask(b"APPEND a " + b"x" * 5000).startswith(b":"))
        assert ask(b"GET kept") == b"$1\r\n1\r\n"
        assert not server.disk_full


@pytest.mark.slow
def test_supervisor_restarts_server_that_ends_as_soon_as_it_serves(tmp_path: Path) -> None:
    """A client that is faster than the supervisor must not make the data look damaged."""

    def ask(line: bytes) -> bytes:
        with suppress(OSError, StoreUnavailableError):
            return supervisor.ask(server.address.path, line)
        return b""

    with EmbeddedServer(tmp_path / "store", durability="disk") as server:
        seen: set[int] = set()
        write, acknowledged = b"APPEND a " + b"x" * 5000, 0

        def ended_often() -> bool:
            nonlocal acknowledged
            # Each server may write a little more than the one before.
            with suppress(StoreUnavailableError, ProcessLookupError):
                if (process_id := server.process_id) not in seen:
                    limit_files(process_id, 60_000 + 6_000 * len(seen))
                    seen.add(process_id)
            if ask(write).startswith(b":"):
                acknowledged += 1
            assert not server.refusal()
            return len(seen) > 10

        eventually_sync(ended_often)
        limit_files(server.process_id, resource.RLIM_INFINITY)
        eventually_sync(lambda: ask(write).startswith(b":"))
        length = int(ask(b"STRLEN a")[1:])
        assert length >= (acknowledged + 1) * 5000
