"""Real ACA-Py agents behind relay and deliverer.

The tests need a Python with `acapy-agent`, which `make verify` installs (`scripts/tools.py`), or
which WAYSTATION_TEST_ACAPY names. They also need the plugin `redis_events`, and are skipped where
it is missing. A missing agent is a failure in CI.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from scripts import tools

from tests.acapy.agent_world import AgentWorld, agent_world, free_port

COMMON = (
    *("--no-ledger", "--auto-provision", "--wallet-type", "askar", "--wallet-key", "insecure"),
    *("--admin-insecure-mode", "--auto-accept-invites", "--auto-accept-requests"),
)
PLUGIN = "redis_events.v1_0.redis_queue"
HEAD = "{p.default.agents}:head"
#: Encrypts a trust ping for a public key, as anybody can who knows the key.
PACK = """
import json, sys
from acapy_agent.askar.didcomm.v1 import pack_message
ping = {"@type": "https://didcomm.org/trust_ping/1.0/ping", "@id": "1", "response_requested": False}
print(pack_message([sys.argv[1]], None, json.dumps(ping).encode()).decode())
"""


def plugin_path() -> dict[str, str]:
    """Return the environment in which Python finds the plugin."""
    return {"PYTHONPATH": str(tools.PLUGIN)}


def acapy_python() -> str:
    """Return the Python with ACA-Py. Skip the test without one, but fail it in CI."""
    if not tools.PLUGIN.is_dir():
        pytest.skip("the plugin redis_events is missing")
    python = os.environ.get("WAYSTATION_TEST_ACAPY") or str(tools.ACAPY / "bin" / "python")
    if not Path(python).exists():
        missing = pytest.fail if os.environ.get("CI") else pytest.skip
        missing("there is no Python with acapy-agent; scripts/tools.py installs one")
    run_python(python, f"import acapy_agent, {PLUGIN}")
    return python


def run_python(python: str, code: str, *arguments: str) -> str:
    """Run code in ACA-Py's Python and return its standard output."""
    done = subprocess.run(
        [python, "-c", code, *arguments],
        env={**os.environ, **plugin_path()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


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
                env={**os.environ, "HOME": str(world.folder), **plugin_path()},
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


@asynccontextmanager
async def connected_agents(
    world: AgentWorld, inbound: dict[str, str], outbound: dict[str, str]
) -> AsyncIterator[tuple[Agent, str]]:
    """Connect bob, a plain agent, to alice, who is behind the relay.

    Yield bob and the id of his connection.
    """
    config = world.folder / "plugins.json"
    queue = {
        "connection": {"connection_url": f"redis://127.0.0.1:{world.port}"},
        "inbound": inbound,
        "outbound": outbound,
    }
    config.write_text(json.dumps({"redis_queue": queue}))
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
        yield bob, connected


async def send_five(world: AgentWorld, bob: Agent, connected: str, *, accepted: int) -> None:
    """Send five messages to alice. Wait until she popped all `accepted` messages of the relay."""
    for number in range(5):
        path = f"/connections/{connected}/send-message"
        await bob.call("POST", path, {"content": f"{number}"})
    async with world.store() as store, asyncio.timeout(60):
        while int(await store.call("HGET", HEAD, "number") or 0) < accepted:
            await asyncio.sleep(0.1)
        while await store.call("HGET", HEAD, "messages") != b"0":
            await asyncio.sleep(0.1)
        assert len(await store.call("HKEYS", "uid_last_access_map")) == 1


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_agent_behind_relay_and_deliverer_connects_and_gets_messages() -> None:
    acapy_python()
    with agent_world(pop_seconds=0.2) as world:
        world.start_relay()
        world.start_deliverer()
        async with connected_agents(world, {}, {}) as (bob, connected):
            # The request, the end of the exchange, and five messages.
            await send_five(world, bob, connected, accepted=7)
        log = (world.folder / "alice.log").read_text()
        assert "Traceback" not in log, log


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_agent_with_custom_topics_after_request_for_direct_response_gets_messages() -> None:
    python = acapy_python()
    inbound = {"acapy_inbound_topic": "wallet 7", "acapy_direct_resp_topic": "responses"}
    with agent_world(pop_seconds=0.2) as world:
        world.start_relay(WAYSTATION_RELAY_INBOUND_TOPIC="wallet 7")
        world.start_deliverer("sent")
        outbound = {"acapy_outbound_topic": "sent"}
        async with connected_agents(world, inbound, outbound) as (bob, connected):
            async with world.store() as store:
                (*_, key) = await store.call("HKEYS", "recip_key_uid_map")
            packed = json.loads(run_python(python, PACK, key.decode()))
            asking = {**packed, "~transport": {"return_route": "all"}}
            async with aiohttp.ClientSession() as client:
                for _ in range(3):
                    async with client.post(world.door, json=asking) as reply:
                        assert (reply.status, await reply.read()) == (200, b"")
            await send_five(world, bob, connected, accepted=10)
