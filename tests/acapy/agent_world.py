"""A store as agents need it, a relay of ours in front, and processes that play agents."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from tests.acapy.relay_world import v1
from tests.cli.conftest import clean_environment, command
from waystation.catalogue import SqliteCatalogue
from waystation.config import PoolConfig
from waystation.pools import PoolOptions, Pools
from waystation.runtime.clock import Clock
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.pubsub import PubSub

ROOT = Path(__file__).resolve().parent.parent.parent


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class AgentWorld:
    """All processes of one installation."""

    folder: Path
    server: EmbeddedServer
    port: int
    pop_seconds: float
    door: str = ""
    running: list[subprocess.Popen[str]] = field(default_factory=list)
    agents: dict[str, subprocess.Popen[str]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"redis+cluster://127.0.0.1:{self.port}"

    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        """A client of ours, to look at what there is."""
        store = Store(self.server.address)
        try:
            yield store
        finally:
            await store.close()

    async def make_pool(self, **options: Any) -> None:
        """The pool as an operator defines it."""
        catalogue = SqliteCatalogue(self.folder / "catalogue.db")
        await catalogue.open()
        async with self.store() as store:
            wakeups = PubSub(self.server.address)
            pools = Pools(catalogue, store, wakeups, clock=Clock(), settings=PoolConfig())
            await pools.create("default", "agents", PoolOptions(**options))
            await pools.close()
        await catalogue.close()

    def start_relay(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """`waystation relay`, by the environment of the plugin's own."""
        running = self._start(
            command("relay", *arguments),
            REDIS_SERVER_URL=self.url,
            INBOUND_TRANSPORT_CONFIG='[["http", "127.0.0.1", "0"]]',
            WAYSTATION_STORE_DURABILITY="memory",
            **environment,
        )
        told = json.loads(_line(running))
        self.door = f"http://{told['relay'][0]['address']}/"
        return running

    def start_deliverer(self, outbound: str = "acapy_outbound") -> None:
        """Start `waystation deliverer` and allow it to deliver to this machine."""
        running = self._start(
            command("deliverer"),
            REDIS_SERVER_URL=self.url,
            WAYSTATION_STORE_DURABILITY="memory",
            WAYSTATION_DELIVERY_LOOPBACK="true",
            WAYSTATION_DELIVERER_OUTBOUND_TOPIC=outbound,
        )
        assert json.loads(_line(running))["deliverer"] == outbound

    def start_agent(
        self,
        *flags: str,
        inbound: str = "acapy_inbound",
        direct: str = "acapy_inbound_direct_resp",
    ) -> str:
        """Start another agent and return its uid."""
        arguments = (str(self.port), inbound, direct, str(self.pop_seconds), *flags)
        running = self._start([sys.executable, "-m", "tests.acapy.agent", *arguments])
        uid = _line(running).strip()
        self.agents[uid] = running
        return uid

    def kill(self, running: subprocess.Popen[str]) -> None:
        """kill -9."""
        running.kill()
        running.wait()

    async def until_registered(self, count: int) -> None:
        """Waits until agents are workers: the pool has somebody to give keys to."""
        async with self.store() as store, asyncio.timeout(30):
            while await store.call("ZCARD", "{p.default.agents}:live") < count:
                await asyncio.sleep(0.02)

    async def post(self, client: aiohttp.ClientSession, key: str, number: int) -> None:
        """One envelope, until the relay has it."""
        async with client.post(self.door, data=v1(key, n=number)) as reply:
            assert reply.status == 200, await reply.text()

    async def played(self, keys: list[str]) -> dict[str, list[tuple[str, int]]]:
        """Per key: who got which message, in the order in which they were got."""
        found = {}
        async with self.store() as store:
            for key in keys:
                lines = await store.call("LRANGE", f"played.{key}", 0, -1)
                words = [each.decode().split(" ", 1) for each in lines]
                found[key] = [(uid, json.loads(body)["n"]) for uid, body in words]
        return found

    async def until_empty(self, keys: list[str]) -> None:
        """Waits until agents have popped everything, and the pool knows it."""
        async with self.store() as store, asyncio.timeout(240):
            while int(await store.call("HGET", "{p.default.agents}:head", "messages") or 0):
                await asyncio.sleep(0.05)
            assert [await store.call("LLEN", f"acapy_inbound_{key}") for key in keys] == [0] * len(
                keys
            )

    def _start(self, words: list[str], **environment: str) -> subprocess.Popen[str]:
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
        # Into a file: a pipe that nobody reads is full some day, and then its writer stands still.
        with (self.folder / f"{len(self.running)}.err").open("w") as told:
            running = subprocess.Popen(
                words,
                cwd=self.folder,
                env={**clean_environment(), "PYTHONPATH": path, **environment},
                stdout=subprocess.PIPE,
                stderr=told,
                text=True,
            )
        self.running.append(running)
        return running


def _line(running: subprocess.Popen[str]) -> str:
    assert running.stdout is not None
    line = running.stdout.readline()
    assert line, "it ended without a word"
    return line


@contextmanager
def agent_world(*, pop_seconds: float) -> Iterator[AgentWorld]:
    """A cluster of one node, as the plugin's client wants it; nothing runs yet."""
    folder = Path(tempfile.mkdtemp(prefix="ws-"))
    port = free_port()
    try:
        with EmbeddedServer(
            folder / "store", durability="memory", cluster=True, port=port
        ) as server:
            world = AgentWorld(folder, server, port, pop_seconds)
            try:
                yield world
            finally:
                for running in world.running:
                    running.kill()
                    running.communicate()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
