"""A store that lost its data behind running nodes: nothing is served until an operator decides."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.processes import station_process
from tests.helpers.store_faults import PlainServer, plain_server
from tests.helpers.waiting import eventually
from waystation.catalogue.sqlite import SqliteCatalogue
from waystation.config import Config, StoreConfig
from waystation.errors import StoreDataLostError
from waystation.node import accept_loss, open_node
from waystation.store.client import Store
from waystation.testing.station import quick_settings, serving


def request(method: str, url: str, body: bytes | None = None) -> tuple[int, Any]:
    asked = urllib.request.Request(
        url, data=body, method=method, headers={"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(asked, timeout=20) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)


async def ask(method: str, url: str, body: bytes | None = None) -> tuple[int, Any]:
    return await asyncio.to_thread(request, method, url, body)


def settings_of(server: PlainServer, data: Path) -> Config:
    url = f"unix://{server.address.path}"
    return quick_settings(str(data), store=StoreConfig(url=url, durability="memory"))


def empty(server: PlainServer) -> None:
    server.kill()
    shutil.rmtree(server.folder / "appendonlydir")
    server.start()


async def readiness_is(url: str, ready: bool) -> Any:
    """Ask until the node is ready, or until it is not."""
    async with asyncio.timeout(30):
        while True:
            try:
                status, content = await ask("GET", f"{url}/readyz")
            except OSError:
                status, content = 0, {}
            if status == (200 if ready else 503):
                return content
            await asyncio.sleep(0.05)


async def test_node_whose_store_is_flushed_refuses_writes_without_a_readiness_request(
    tmp_path: Path,
) -> None:
    with plain_server("--appendonly", "yes") as server:
        async with serving(settings_of(server, tmp_path)) as station:
            store = station.node.opened.store
            await store.call("SET", "other", 1)
            await flush(server)

            # FLUSHALL closes no connection, and the test sends no request for readiness.
            async def refused() -> bool:
                try:
                    await store.call("SET", "other", 2)
                except StoreDataLostError:
                    return True
                return False

            await eventually(refused)
            status, content = await ask("GET", f"{station.url}/readyz")
            assert (status, "lost data set" in content["problems"]["store"]) == (503, True)


async def flush(server: PlainServer) -> None:
    """Empty a store over a connection of its own."""
    other = Store(server.address)
    try:
        await other.call("FLUSHALL")
    finally:
        await other.close()


async def test_node_behind_an_emptied_store_is_not_ready_and_refuses_writes(
    tmp_path: Path,
) -> None:
    with plain_server("--appendonly", "yes") as server:
        settings = settings_of(server, tmp_path)
        async with serving(settings) as station:
            await station.node.topics.create("default", "orders", partitions=1)
            messages = f"{station.url}/v1/topics/orders/messages"
            assert (await ask("POST", messages, b'{"payload":1}'))[0] == 200
            before = station.node.opened.dataset

            empty(server)
            content = await readiness_is(station.url, ready=False)
            status, problem = await ask("POST", messages, b'{"payload":2}')

            assert before in content["problems"]["store"]
            assert "waystation store accept-loss" in content["problems"]["store"]
            assert (status, problem["code"]) == (503, "store.data-lost")
            # A node that starts meanwhile does not take the store for a new one
            with pytest.raises(StoreDataLostError, match=before):
                await open_node(settings)

            lost, dataset, changed = await accept_loss(settings)
            assert (lost, changed) == (before, True)
            async with asyncio.timeout(20):
                await station.node.opened.store.data_set.replaced.wait()
            # Until it is opened anew, the node is of the lost data set
            assert (await ask("POST", messages, b'{"payload":3}'))[0] == 503
        async with serving(settings) as station:
            assert station.node.opened.dataset == dataset
            messages = f"{station.url}/v1/topics/orders/messages"
            async with asyncio.timeout(20):
                while (await ask("POST", messages, b'{"payload":4}'))[0] != 200:
                    await asyncio.sleep(0.05)
            assert await accept_loss(settings) == (dataset, dataset, False)


async def test_accept_loss_stopped_before_the_catalogue_is_completed_by_the_next_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with plain_server("--appendonly", "yes") as server:
        settings = settings_of(server, tmp_path)
        node = await open_node(settings)
        before = node.opened.dataset
        await node.close()
        empty(server)

        async def crash(*_: object) -> bool:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(SqliteCatalogue, "change_data_sets", crash)
            with pytest.raises(KeyboardInterrupt):
                await accept_loss(settings)
        node = await open_node(settings)
        try:
            assert node.opened.dataset != before
            assert await node.catalogue.data_sets() == (node.opened.dataset, before)
        finally:
            await node.close()


async def test_node_with_the_catalogue_of_another_store_is_refused(tmp_path: Path) -> None:
    with plain_server("--appendonly", "yes") as one, plain_server("--appendonly", "yes") as two:
        node = await open_node(settings_of(one, tmp_path))
        await node.close()
        with pytest.raises(StoreDataLostError, match="has no data set"):
            await open_node(settings_of(two, tmp_path))


@pytest.mark.slow
async def test_serve_with_an_emptied_embedded_store_continues_on_its_port_after_accept_loss(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    options = ("--insecure", "--durability", "memory", "--app", "built-in")
    leases = {
        "WAYSTATION_TRANSACTIONS_LEASE_SECONDS": "1",
        "WAYSTATION_SUBSCRIPTIONS_LEASE_SECONDS": "1",
    }
    with station_process(data, *options, **leases) as station:
        for path, body in (
            ("topics", b'{"name":"orders"}'),
            ("subscriptions", b'{"name":"crm","topic":"orders","endpoint":"channel:news"}'),
        ):
            assert (await ask("POST", f"{station.url}/v1/{path}", body))[0] == 201
        told = json.loads((data / "store" / "server.json").read_text())
        shutil.rmtree(data / "store" / "appendonlydir")
        os.kill(told["process"], signal.SIGKILL)
        content = await readiness_is(station.url, ready=False)
        while "lost data set" not in content["problems"].get("store", ""):
            content = await readiness_is(station.url, ready=False)
        # A worker that hears nothing for three leases ends its process; a store that answers that
        # it lost the data must not have that effect, however long the operator takes
        await asyncio.sleep(6)
        assert station.alive

        command = [sys.executable, "-m", "waystation.cli.main", "store", "accept-loss"]
        done = await asyncio.to_thread(
            subprocess.run,
            [*command, "--data", str(data), "--json"],
            cwd=tmp_path,
            capture_output=True,
            check=True,
        )
        answer = json.loads(done.stdout)

        assert answer["lost"] == station.said["dataset"] != answer["dataset"]
        await readiness_is(station.url, ready=True)
        assert (await ask("PUT", f"{station.url}/channel/news/message/m1", b"7"))[0] == 200
        assert station.alive
        station.signal(signal.SIGTERM)
        assert await station.exit_code() == 0
    assert answer["dataset"] in station.log.read_text()
