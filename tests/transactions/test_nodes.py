"""Nodes: registered while they live, listed with their steps, told by admin events."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tests.helpers.store_faults import store_at
from tests.transactions.helpers import open_transactions
from waystation import App
from waystation.errors import BusyError, InvalidInputError
from waystation.runtime.ids import RandomIds
from waystation.store.embedded.server import EmbeddedServer
from waystation.transactions import names
from waystation.transactions.nodes import (
    GONE_MS,
    GroupSettings,
    NodeRecord,
    Nodes,
    new_node_id,
    node_record,
)
from waystation.transactions.pipeline import define


def app_with(*types: str) -> App:
    app = App()
    for each in types:

        @app.step(each)
        async def step(ctx: Any) -> None:
            """Does what has to be done.

            And more.
            """

    return app


def record_of(*types: str, group: str = "master") -> NodeRecord:
    return node_record(group, new_node_id(RandomIds()), app_with(*types).book())


async def test_a_node_is_registered_as_seed_001_says(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as opened:
        nodes, record = Nodes(opened.store, clock=opened.clock), record_of("refund/pay")
        await nodes.register(record)
        key = f"datp:node-registration:RECORD:master:{record.node_id}"
        assert len(record.node_id) == len("nodeId-") + 40
        body = msgspec.json.decode(await opened.store.call("GET", key))
        assert body["nodeGroup"] == "master"
        assert body["nodeId"] == record.node_id
        assert {"appVersion", "datpVersion", "buildTime"} < set(body)
        assert body["stepTypes"][0] == {
            "name": "refund/pay",
            "description": "Does what has to be done.",
            "defaultDefinition": {"description": "Does what has to be done."},
        }
        assert len(body["stepTypes"]) == 15
        assert 0 < await opened.store.call("PTTL", key) <= GONE_MS
        assert await nodes.all() == [record]
        await nodes.stop()
        assert await nodes.all() == []
        for each in (key, names.NODES):
            assert not await opened.store.call("EXISTS", each)


async def test_a_node_that_is_silent_is_gone_after_a_minute(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as opened:
        dead = Nodes(opened.store, clock=opened.clock)
        await dead.register(record_of("a"))
        # As by kill -9: it says nothing any more, and takes nothing back.
        assert dead._main_task is not None
        dead._main_task.cancel()
        await dead.ended()
        await opened.machine.advance(GONE_MS / 1000 - 1)
        assert len(await dead.all()) == 1
        await opened.machine.advance(1.001)
        assert await dead.all() == []
        # The next who registers sweeps the list.
        living = Nodes(opened.store, clock=opened.clock)
        await living.register(record_of("b"))
        assert await opened.store.call("ZCARD", names.NODES) == 1
        await living.stop()


async def test_a_living_node_stays_over_days_of_a_time_machine(
    store_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waystation.transactions.nodes.BEAT_SECONDS", 30.0)
    async with open_transactions(store_server) as opened:
        nodes = Nodes(opened.store, clock=opened.clock)
        await nodes.register(record_of("a"))
        await opened.machine.advance(3 * 86_400)
        async with asyncio.timeout(20):  # Less than the pause between two beats.
            while not await nodes.all():
                await asyncio.sleep(0.005)
        await nodes.stop()


async def test_a_beat_that_finds_its_process_busy_is_not_the_last(
    store_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many calls wait for the store: that is over soon, and the node lives."""
    monkeypatch.setattr("waystation.transactions.nodes.BEAT_SECONDS", 30.0)
    async with (
        open_transactions(store_server) as opened,
        store_at(store_server.address, test_mode=True) as store,
    ):
        nodes, refused = Nodes(store, clock=opened.clock), asyncio.Event()
        await nodes.register(record_of("a"))
        submit = store._submit

        def busy(*arguments: Any, **options: Any) -> Any:
            refused.set()
            raise BusyError("Too many calls wait for the store.")

        store._submit = busy  # type: ignore[method-assign]
        await opened.machine.advance(GONE_MS / 1000 + 1)
        await refused.wait()
        store._submit = submit  # type: ignore[method-assign]
        assert not await nodes.all()
        await opened.machine.advance(31)
        async with asyncio.timeout(20):
            while not await nodes.all():
                await asyncio.sleep(0.005)
        store._submit = busy  # type: ignore[method-assign]
        await nodes.stop()


async def test_new_code_takes_the_place_of_the_old_record(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as opened:
        nodes, first = Nodes(opened.store, clock=opened.clock), record_of("a")
        await nodes.register(first)
        await nodes.register(node_record("master", first.node_id, app_with("b").book()))
        assert await nodes.serving("a") == []
        assert [each.node_id for each in await nodes.serving("b")] == [first.node_id]
        await nodes.stop()


async def test_a_pipeline_whose_step_nobody_serves_says_so_by_name(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as opened:
        ours, theirs = (Nodes(opened.store, clock=opened.clock) for _ in range(2))
        await ours.register(record_of("refund/approve"))
        await theirs.register(record_of("refund/pay", group="gpu"))
        refund = define("refund", ["refund/approve", "util/delay", "refund/pay"])
        render = define("render", ["refund/pay", "refund/approve"], group="gpu")
        absent = define("absent", ["util/delay"], group="nobody")
        assert await ours.unserved([refund, render, absent]) == [
            "Nobody in node group master serves refund/pay, step 3 of pipeline refund.",
            "Nobody in node group gpu serves refund/approve, step 2 of pipeline render.",
            "Nobody in node group nobody serves util/delay, step 1 of pipeline absent.",
        ]
        assert len(await ours.serving("refund/pay")) == 1
        assert await ours.serving("refund/pay", group="master") == []
        await ours.stop()
        await theirs.stop()


async def test_a_record_that_cannot_be_read_hides_no_other(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as opened:
        nodes, record = Nodes(opened.store, clock=opened.clock), record_of("a")
        await nodes.register(record)
        await opened.store.call("SET", "datp:node-registration:RECORD:x:nodeId-1", "{")
        await opened.store.call("ZADD", names.NODES, 1, "datp:node-registration:RECORD:x:nodeId-1")
        assert await nodes.all() == [record]
        await nodes.stop()


# -- Node groups -----------------------------------------------------------------------------


async def test_what_a_node_group_is_told_takes_effect_with_its_next_claim(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as opened:
        nodes = Nodes(opened.store, clock=opened.clock)
        await nodes.tell("main", "workers", 7)
        await nodes.tell("main", "paused", 1)
        assert await nodes.settings("main") == GroupSettings()
        await opened.start()
        assert await opened.claim() == []
        assert await nodes.settings("main") == GroupSettings(revision=1, workers=7, paused=True)
        await nodes.tell("main", "paused", 0)
        assert len(await opened.claim()) == 1
        told = await nodes.settings("main")
        assert told == GroupSettings(revision=2, workers=7, paused=False)
        assert await nodes.settings("other") == GroupSettings()


async def test_an_idle_worker_is_called_when_its_node_group_is_told_something(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as opened:
        called: asyncio.Queue[bytes | None] = asyncio.Queue()
        end = opened.wakeups.listen(names.work_topic(0, "main"), called.put_nowait)
        async with asyncio.timeout(10):
            await called.get()
            await Nodes(opened.store, clock=opened.clock).tell("main", "workers", 2)
            assert await called.get() == b"admin"
        end()


@pytest.mark.parametrize(
    ("group", "setting", "value"),
    [
        ("main", "revision", 5),
        ("main", "color", 5),
        ("main", "workers", 0),
        ("main", "workers", 10_001),
        ("main", "paused", 2),
        ("main", "lease_ms", 999),
        ("main", "workers", "7 8"),
        ("a:b", "workers", 5),
    ],
)
async def test_what_cannot_be_told_is_refused_and_queues_nothing(
    store_server: EmbeddedServer, group: str, setting: str, value: Any
) -> None:
    async with open_transactions(store_server) as opened:
        with pytest.raises(InvalidInputError):
            await Nodes(opened.store, clock=opened.clock).tell(group, setting, value)
        assert await opened.store.call("KEYS", "*qAdminL*") == []
