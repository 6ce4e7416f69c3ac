"""Embedded store as a cluster of one node: slots, restarts, data of a plain server, and port."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path

import pytest

from tests.helpers.store_faults import store_at
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.plan import server_plan
from waystation.store.scripts import script
from waystation.store.slots import SLOTS
from waystation.testing import private_server

ACQUIRE = script("waystation.store", "lease_acquire")


async def test_embedded_cluster_serves_all_slots_after_start(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path / "store", cluster=True) as server:
        async with store_at(server.address) as store:
            await store.ping()
            told = await store.call("CLUSTER", "INFO")
            assert b"cluster_slots_ok:%d" % SLOTS in told
            assert await store.run(ACQUIRE, ["{a}:lease"], ["me", 1000]) == [1]
            # Another user without the option gets the running cluster.
            with EmbeddedServer(tmp_path / "store") as other:
                assert other.address.cluster is not None


@pytest.mark.slow
async def test_embedded_cluster_after_kill_keeps_id_and_data(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path / "store", cluster=True) as server:
        async with store_at(server.address, call_seconds_max=30) as store:
            name = await store.call("CLUSTER", "MYID")
            await store.call("SET", "kept", 1)
            os.kill(server.process_id, signal.SIGKILL)
            # The calls wait until the server has restarted and accepts writes.
            assert await store.call("INCR", "kept", repeatable=True) == 2
            assert await store.call("CLUSTER", "MYID", repeatable=True) == name


async def test_embedded_cluster_keeps_data_of_plain_server(
    tmp_path: Path,
) -> None:
    for cluster in (False, True, False):
        with EmbeddedServer(tmp_path / "store", cluster=cluster) as server:
            assert (server.address.cluster is not None) is cluster
            async with store_at(server.address) as store:
                calls = [store.call("INCR", f"k{n}") for n in range(50)]
                assert len(set(await asyncio.gather(*calls))) == 1
        while (tmp_path / "store" / "server.json").exists():
            await asyncio.sleep(0.01)


async def test_embedded_cluster_port_is_bound_to_loopback(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = server_plan(tmp_path, "memory", cluster=True, port=port)["command"]
    assert command[command.index("--bind") + 1] == "127.0.0.1"
    with EmbeddedServer(tmp_path / "store", cluster=True, port=port) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"CLUSTER KEYSLOT a\r\n")
        assert await reader.readline() == b":15495\r\n"
        writer.close()
        async with store_at(server.address) as store:
            # The client also reaches the server by the port that the slot map names.
            assert await store.call("SET", "a", 1) == b"OK"


def test_private_server_with_unknown_mode_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WAYSTATION_TEST_STORE", "sentinel")
    with pytest.raises(Exception, match="'server' or 'cluster'"), private_server():
        pass


async def test_private_server_in_cluster_environment_is_a_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WAYSTATION_TEST_STORE", "cluster")
    with private_server() as server:
        assert server.address.cluster is not None
