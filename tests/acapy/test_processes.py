"""Relay and deliverer as processes: they start, stop in order, and survive being killed."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from websockets.asyncio.client import connect

from tests.acapy.outbox_world import message
from tests.acapy.relay_world import v1
from tests.cli.conftest import clean_environment, command
from tests.helpers.http import Receiver
from tests.helpers.store_faults import PlainServer, plain_server
from waystation.acapy.retry_set import RetrySet
from waystation.cli.plugin_environment import plugin_defaults
from waystation.config_sources import load_config
from waystation.errors import SettingsError
from waystation.pools import Assignments
from waystation.pools.names import Place
from waystation.pools.terms import Terms
from waystation.store.client import Store
from waystation.testing import Answer, FakeEndpoint

STORE = ("--appendonly", "yes", "--maxmemory-policy", "noeviction")


@contextmanager
def process(
    folder: Path, server: PlainServer, *arguments: str, **environment: str
) -> Iterator[tuple[dict[str, Any], subprocess.Popen[str]]]:
    """A command that runs until it is told to stop; what it said about itself."""
    url = f"unix://{server.address.path}"
    told = {
        "WAYSTATION_STORE_DURABILITY": "memory",
        "WAYSTATION_DELIVERY_LOOPBACK": "true",
        "REDIS_SERVER_URL": url,
    }
    running = subprocess.Popen(
        command(*arguments),
        cwd=folder,
        env={**clean_environment(), **told, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert running.stdout is not None
        line = running.stdout.readline()
        assert line, running.stderr.read() if running.stderr else ""
        yield json.loads(line), running
    finally:
        running.terminate()
        running.communicate(timeout=30)


def calls(server: PlainServer, *commands: tuple[str | bytes | int, ...]) -> list[Any]:
    """Says something to the store."""

    async def call() -> list[Any]:
        store = Store(server.address)
        try:
            return [await store.call(*each) for each in commands]
        finally:
            await store.close()

    return asyncio.run(call())


def until_empty(server: PlainServer) -> None:
    """Waits until the deliverer has nothing left."""

    async def wait() -> None:
        store = Store(server.address)
        names = ("acapy_outbound", "{acapy_outbound}.taken", "acapy_outbound_retry")
        async with asyncio.timeout(30):
            while await store.call("EXISTS", *names):
                await asyncio.sleep(0.02)
        await store.close()

    asyncio.run(wait())


def test_a_deliverer_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    """kill -9 with messages under way, then another deliverer."""
    hanging = [Answer(hang=True)] * 5 + [Answer(200)]
    with plain_server(*STORE) as server, Receiver(FakeEndpoint(plan=hanging)) as receiver:
        sent = [message(receiver.url, b"%d" % i) for i in range(5)]
        calls(server, ("RPUSH", "acapy_outbound", *sent))
        quick = {"WAYSTATION_DELIVERER_TIMEOUT_SECONDS": "3"}
        with process(tmp_path, server, "deliverer", **quick) as (_, running):
            while len(receiver.received) < 5:
                time.sleep(0.01)
            running.kill()
        assert calls(server, ("HLEN", "{acapy_outbound}.taken"), ("LLEN", "acapy_outbound")) == [
            *(5, 0)
        ]
        with process(tmp_path, server, "deliverer", **quick):
            until_empty(server)
        bodies = [each.body for each in receiver.received if each.status == 200]
        assert sorted(bodies) == [b"%d" % i for i in range(5)]


def test_a_deliverer_stops_in_order_on_a_signal(tmp_path: Path) -> None:
    with plain_server(*STORE) as server, Receiver(FakeEndpoint()) as receiver:
        calls(server, ("RPUSH", "acapy_outbound", message(receiver.url, b"1")))
        with process(tmp_path, server, "deliverer") as (told, running):
            assert told["deliverer"] == "acapy_outbound"
            until_empty(server)
            running.terminate()
            assert running.wait(timeout=20) == 0
        assert [each.body for each in receiver.received] == [b"1"]


def test_deliverer_with_custom_topic_delivers_messages_of_this_topic(tmp_path: Path) -> None:
    name = "{wallet}.sent mail"
    with plain_server(*STORE) as server, Receiver(FakeEndpoint()) as receiver:
        calls(server, ("RPUSH", name, message(receiver.url, b"1"), b"{"))
        custom = {"WAYSTATION_DELIVERER_OUTBOUND_TOPIC": name}
        with process(tmp_path, server, "deliverer", **custom) as (told, _):
            assert told["deliverer"] == name
            deadline = time.monotonic() + 30
            while calls(server, ("HLEN", f"{name}_retry.dead"), ("EXISTS", name)) != [1, 0]:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        assert [each.body for each in receiver.received] == [b"1"]


@pytest.mark.slow
def test_dead_letters_are_shown_redriven_and_purged_by_commands(tmp_path: Path) -> None:
    with plain_server(*STORE) as server, Receiver(FakeEndpoint()) as receiver:
        calls(server, ("RPUSH", "acapy_outbound", b"{", message("ftp://127.0.0.1/")))

        async def bury() -> None:
            store = Store(server.address)
            letter = {"cause": "gone", "attempts": 6, "readable": True}
            again = message(receiver.url, b"1", retries=0, id="m-1")
            await RetrySet(store, "acapy_outbound_retry").bury("m-1", again, was=b"", **letter)
            await store.close()

        asyncio.run(bury())

        def run(*arguments: str) -> Any:
            done = subprocess.run(
                command("deliverer", *arguments, "--json"),
                cwd=tmp_path,
                env={
                    **clean_environment(),
                    "WAYSTATION_STORE_DURABILITY": "memory",
                    "WAYSTATION_STORE_URL": f"unix://{server.address.path}",
                },
                capture_output=True,
                text=True,
                timeout=60,
                check=True,
            )
            return json.loads(done.stdout)

        with process(tmp_path, server, "deliverer"):
            until_empty(server)
            assert len(run("dead")) == 3
            assert run("redrive") == {"count": 1}
            until_empty(server)
        assert [each.body for each in receiver.received] == [b"1"]
        left = run("dead")
        assert [each["readable"] for each in left] == [False, False]
        assert "cannot be read" in left[0]["cause"]
        assert run("purge", "--id", left[0]["id"]) == {"count": 1}
        assert run("purge") == {"count": 1}
        assert run("dead") == []


def test_a_relay_serves_by_the_environment_of_the_plugin_and_stops_in_order(
    tmp_path: Path,
) -> None:
    plugin = {
        "INBOUND_TRANSPORT_CONFIG": '[["http", "127.0.0.1", "0"], ["ws", "127.0.0.1", "0"]]',
        "STATUS_ENDPOINT_HOST": "127.0.0.1",
        "STATUS_ENDPOINT_PORT": "0",
        "STATUS_ENDPOINT_API_KEY": "key-1",
    }

    async def use(doors: dict[str, str]) -> None:
        async with aiohttp.ClientSession() as client:
            async with client.post(f"http://{doors['http']}/", data=v1("a")) as reply:
                assert reply.status == 200
            headers = {"access_token": "key-1"}
            async with client.get(f"http://{doors['status']}/status/ready", headers=headers) as it:
                assert await it.json() == {"ready": True}
        async with connect(f"ws://{doors['ws']}/") as socket:
            await socket.send(v1("b"))

    with plain_server(*STORE) as server:
        with process(tmp_path, server, "relay", "--pool", "mine", **plugin) as (told, running):
            doors = {each["door"]: each["address"] for each in told["relay"]}
            asyncio.run(use(doors))
            running.terminate()
            assert running.wait(timeout=20) == 0

        async def look() -> None:
            store = Store(server.address)
            found = await Assignments(store).look(Place("default", "mine"), Terms())
            assert (found.pending, found.keys, found.waiting) == (2, 2, 2)
            await store.close()

        asyncio.run(look())


def test_the_environment_of_the_plugin_is_weaker_than_our_own() -> None:
    environment = {"TOPIC_PREFIX": "theirs", "STATUS_ENDPOINT_HOST": "127.0.0.1"}
    defaults = plugin_defaults(environment, "deliverer")
    assert defaults == {"deliverer.topic_prefix": "theirs"}, "a status door needs all three"
    ours = {"WAYSTATION_DELIVERER_TOPIC_PREFIX": "ours"}
    loaded = load_config(defaults=defaults, environment=ours)
    assert loaded.config.deliverer.topic_prefix == "ours"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WAYSTATION_RELAY_DOORS", '[["smtp", "127.0.0.1", 1]]'),
        ("WAYSTATION_RELAY_DOORS", '[["http", "127.0.0.1", 70000]]'),
        ("WAYSTATION_DELIVERER_TOPIC_PREFIX", "a{b"),
        ("WAYSTATION_DELIVERER_OUTBOUND_TOPIC", "a{b"),
        ("WAYSTATION_DELIVERER_EVENTS", '[{"list": "a b", "topic": "t"}]'),
    ],
)
def test_a_bad_setting_is_told_by_its_name(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=r"relay\.doors|deliverer\."):
        load_config(environment={name: value})


def test_what_is_no_json_in_the_environment_of_the_plugin_is_told() -> None:
    with pytest.raises(SettingsError, match="INBOUND_TRANSPORT_CONFIG"):
        plugin_defaults({"INBOUND_TRANSPORT_CONFIG": "http"}, "relay")


def test_an_api_key_is_never_shown() -> None:
    key = base64.b64encode(b"secret").decode()
    environment = {"WAYSTATION_RELAY_STATUS_API_KEY": key}
    rows = {name: value for name, value, _ in load_config(environment=environment).rows()}
    assert rows["relay.status_api_key"] == "•••"
    assert list(rows["relay.doors"]) == [["http", "127.0.0.1", 8071], ["ws", "127.0.0.1", 8081]]
