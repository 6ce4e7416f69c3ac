"""The embedded store as a cluster of one node: all slots, over restarts, and open to others."""

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


async def test_it_serves_all_slots_from_its_first_answer_on(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path / "store", cluster=True) as server:
        async with store_at(server.address) as store:
            await store.ping()
            told = await store.call("CLUSTER", "INFO")
            assert b"cluster_slots_ok:%d" % SLOTS in told
            assert await store.run(ACQUIRE, ["{a}:lease"], ["me", 1000]) == [1]
            # And whoever comes to the same folder finds a cluster, whatever they wished for.
            with EmbeddedServer(tmp_path / "store") as other:
                assert other.address.cluster is not None


@pytest.mark.slow
async def test_it_is_the_same_cluster_after_it_was_killed(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path / "store", cluster=True) as server:
        async with store_at(server.address, call_seconds_max=30) as store:
            name = await store.call("CLUSTER", "MYID")
            await store.call("SET", "kept", 1)
            os.kill(server.process_id, signal.SIGKILL)
            # Calls wait while it is away, and while it takes no writes yet.
            assert await store.call("INCR", "kept", repeatable=True) == 2
            assert await store.call("CLUSTER", "MYID", repeatable=True) == name


async def test_data_of_a_server_by_itself_is_there_when_it_becomes_a_cluster(
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


async def test_its_port_is_open_on_this_machine_alone(tmp_path: Path) -> None:
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
            # The way over the port that it tells of is good as well.
            assert await store.call("SET", "a", 1) == b"OK"


def test_a_kind_of_store_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAYSTATION_TEST_STORE", "sentinel")
    with pytest.raises(Exception, match="'server' or 'cluster'"), private_server():
        pass


async def test_the_environment_makes_stores_of_tests_clusters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WAYSTATION_TEST_STORE", "cluster")
    with private_server() as server:
        assert server.address.cluster is not None
