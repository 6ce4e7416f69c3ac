"""The real ACA-Py behind relay and deliverer: it connects to another agent, and gets its messages.

It needs a Python with `acapy-agent` and the redis-events plugin, which neither is a dependency nor
runs on ours: name it in WAYSTATION_TEST_ACAPY.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from typing import Any

import aiohttp
import pytest

from tests.acapy.agent_world import AgentWorld, agent_world, free_port

COMMON = (
    *("--no-ledger", "--auto-provision", "--wallet-type", "askar", "--wallet-key", "insecure"),
    *("--admin-insecure-mode", "--auto-accept-invites", "--auto-accept-requests"),
)
PLUGIN = "redis_events.v1_0.redis_queue"


def acapy_python() -> str:
    """The Python that has both."""
    python = os.environ.get("WAYSTATION_TEST_ACAPY", "")
    if not python:
        pytest.skip("WAYSTATION_TEST_ACAPY names no Python with acapy-agent and redis_events")
    done = subprocess.run(
        [python, "-c", f"import acapy_agent, {PLUGIN}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return python


class Agent:
    """An ACA-Py process, by its admin API."""

    def __init__(self, client: aiohttp.ClientSession) -> None:
        self._client = client
        self.port = free_port()

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        url = f"http://127.0.0.1:{self.port}{path}"
        async with self._client.request(method, url, json=body) as reply:
            assert reply.status < 300, await reply.text()
            return await reply.json()

    def start(self, world: AgentWorld, name: str, *arguments: str) -> None:
        """Begins to start."""
        wallet = ("--label", name, "--wallet-name", name, "--admin", "127.0.0.1", str(self.port))
        with (world.folder / f"{name}.log").open("w") as log:
            running = subprocess.Popen(
                [acapy_python(), "-m", "acapy_agent", "start", *wallet, *COMMON, *arguments],
                cwd=world.folder,
                env={**os.environ, "HOME": str(world.folder), "PYTHONPATH": ""},
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
            )
        world.running.append(running)

    async def until_ready(self) -> None:
        """ACA-Py takes its time."""
        async with asyncio.timeout(120):
            while True:
                try:
                    await self.call("GET", "/status/ready")
                except aiohttp.ClientError:
                    await asyncio.sleep(0.2)
                else:
                    return

    async def connection(self) -> str:
        """Waits for its one connection; the id of it."""
        async with asyncio.timeout(60):
            while True:
                found = (await self.call("GET", "/connections"))["results"]
                if found and found[0]["state"] in ("active", "completed"):
                    return str(found[0]["connection_id"])
                await asyncio.sleep(0.1)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_an_agent_behind_relay_and_deliverer_connects_and_gets_messages() -> None:
    acapy_python()
    with agent_world(pop_seconds=0.2) as world:
        world.start_relay()
        world.start_deliverer()
        config = world.folder / "plugins.json"
        connection = {"connection_url": f"redis://127.0.0.1:{world.port}"}
        config.write_text(json.dumps({"redis_queue": {"connection": connection}}))
        async with aiohttp.ClientSession() as client:
            alice, bob, door = Agent(client), Agent(client), free_port()
            alice.start(
                *(world, "alice", "--inbound-transport", f"{PLUGIN}.inbound", "redis", "0"),
                *("--outbound-transport", f"{PLUGIN}.outbound", "--plugin-config", str(config)),
                *("--endpoint", world.door.rstrip("/")),
            )
            bob.start(
                *(world, "bob", "--inbound-transport", "http", "127.0.0.1", str(door)),
                *("--outbound-transport", "http", "--endpoint", f"http://127.0.0.1:{door}"),
            )
            for each in (alice, bob):
                await each.until_ready()
            wanted = {
                "handshake_protocols": ["https://didcomm.org/didexchange/1.1"],
                "use_did_method": "did:peer:2",
            }
            path = "/out-of-band/create-invitation?auto_accept=true"
            invitation = (await alice.call("POST", path, wanted))["invitation"]
            await bob.call("POST", "/out-of-band/receive-invitation?auto_accept=true", invitation)
            connected = await bob.connection()
            await alice.connection()
            for number in range(5):
                path = f"/connections/{connected}/send-message"
                await bob.call("POST", path, {"content": f"{number}"})
            async with world.store() as store, asyncio.timeout(60):
                head = "{p.default.agents}:head"
                # The request, the end of the exchange, and five messages.
                while int(await store.call("HGET", head, "number") or 0) < 7:
                    await asyncio.sleep(0.1)
                while await store.call("HGET", head, "messages") != b"0":
                    await asyncio.sleep(0.1)
                assert len(await store.call("HKEYS", "uid_last_access_map")) == 1
        log = (world.folder / "alice.log").read_text()
        assert "Traceback" not in log, log
