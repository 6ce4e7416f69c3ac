"""Workers on a full store: transactions continue and end, and others do not begin."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.helpers.store_faults import plain_server
from tests.helpers.waiting import eventually
from tests.transactions.cell_store import open_cell_store
from tests.transactions.engine_helpers import PATIENT, Machine, open_machine
from tests.transactions.service_helpers import GROUP, open_outside
from waystation import App, AsyncWaystation, Context
from waystation.config import StoreConfig, TransactionConfig
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.memory import MemoryUsage, StoreMemory
from waystation.telemetry import metrics
from waystation.testing import serving
from waystation.testing.station import quick_settings
from waystation.transactions import names
from waystation.transactions.nodes import node_record
from waystation.transactions.states import State

COUNT = 30


class Counted:
    """An app whose steps count how many run at once, and how many have ended."""

    def __init__(self) -> None:
        self.running = self.running_max = self.ended = 0
        self.app = App()
        self.app.step("work")(self.work)
        self.app.step("inner")(lambda ctx, given: given)
        self.app.pipeline("p", ["work"])
        self.app.pipeline("inner", ["inner"], group="gpu", startable=False)
        self.app.pipeline("outer", [("util/child", {"pipeline": "inner"}), "inner"])

    async def work(self, ctx: Context, given: int | str) -> int | str:
        self.running += 1
        self.running_max = max(self.running_max, self.running)
        await asyncio.sleep(0.001)
        self.running -= 1
        self.ended += 1
        return given


async def states(machine: Machine, ids: list[str]) -> set[State]:
    return {(await machine.found(each)).head.state for each in ids}


async def waits_for_gpu(machine: Machine, transaction_id: str) -> bool:
    head = (await machine.found(transaction_id)).head
    return (head.state, head.group) == (State.QUEUED, "gpu")


async def test_worker_on_a_full_store_continues_parents_and_begins_nothing(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    counted = Counted()
    async with open_machine(store_server.address, counted.app, tmp_path, workers=0) as machine:
        before = await machine.worker(limits=PATIENT)
        parent = await machine.start("outer")
        # The parent is passed to a node group without a worker.
        await eventually(lambda: waits_for_gpu(machine, parent))
        await before.stop()
        machine.workers.remove(before)

        queued = [await machine.start("p", number) for number in range(COUNT)]
        memory = StoreMemory(machine.store, clock=machine.clock)
        memory.usage = MemoryUsage(110, 100)
        await machine.worker(limits=PATIENT, memory=memory)
        await machine.worker(limits=PATIENT, group="gpu")
        await machine.ended(parent)
        assert await states(machine, queued) == {State.QUEUED}
        assert counted.ended == 0

        # The store has room again, and the worker sees that without a hint.
        memory.usage = MemoryUsage(90, 100)
        for each in queued:
            await machine.ended(each, seconds=30)


async def test_node_whose_store_is_full_begins_queued_transactions_when_it_has_room(
    tmp_path: Path,
) -> None:
    counted, go = Counted(), asyncio.Event()

    async def first(ctx: Context, given: str) -> str:
        await go.wait()
        return given

    counted.app.step("first")(first)
    counted.app.pipeline("first", ["first"])
    with plain_server("--appendonly", "yes") as server:
        settings = quick_settings(
            str(tmp_path),
            store=StoreConfig(url=f"unix://{server.address.path}", durability="memory"),
            transactions=TransactionConfig(workers=1, prefetch=0),
        )
        async with (
            serving(settings, app=counted.app) as running,
            AsyncWaystation(running.url) as client,
        ):
            blocker = await client.transactions.start("first", "x")
            queued = [await client.transactions.start("p", "x" * 65_536) for _ in range(COUNT)]
            memory, store = running.node.opened.memory, running.node.opened.store
            await memory.read()
            await store.call("CONFIG", "SET", "maxmemory", memory.usage.used_bytes // 2)
            await memory.read()
            go.set()
            await blocker.wait("30s")
            # Claims are answered, and bring nothing.
            claims = metrics.transaction_claims.of("empty")
            before = claims.value
            await eventually(lambda: claims.value >= before + 2)
            assert counted.ended == 0
            assert (await queued[-1].why()).code == "store_full"

            await store.call("CONFIG", "SET", "maxmemory", 0)
            await eventually(lambda: counted.ended == COUNT, timeout=60)


async def test_worker_on_a_store_full_of_queued_transactions_runs_one_at_a_time(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    counted = Counted()
    async with open_machine(
        store_server.address, counted.app, tmp_path, cells=2, workers=0
    ) as machine:
        queued = [await machine.start("p", number) for number in range(COUNT)]
        memory = StoreMemory(machine.store, clock=machine.clock)
        memory.usage = MemoryUsage(101, 100)
        await machine.worker(limits=PATIENT, memory=memory)
        for each in queued:
            await machine.ended(each, seconds=30)
        assert (counted.ended, counted.running_max) == (COUNT, 1)


async def test_claim_with_a_limit_of_new_transactions_leaves_the_others_queued(
    store_server: EmbeddedServer,
) -> None:
    async with open_cell_store(store_server) as cells:
        started = [await cells.start() for _ in range(3)]
        none = await cells.claim(most_new=0)
        assert (none.items, none.left) == ([], 0)
        one = await cells.claim(most_new=1)
        assert ([each.id for each in one.items], one.left) == (started[:1], 0)
        assert await cells.listed("qInL:workers") == started[1:]


@pytest.mark.parametrize("is_full", [False, True])
async def test_why_of_a_queued_transaction_names_the_full_store(
    store_server: EmbeddedServer, tmp_path: Path, is_full: bool
) -> None:
    async with open_outside(store_server.address, tmp_path) as outside:
        app = App()
        app.step("refund/pay")(lambda ctx, given: given)
        await outside.engine.nodes.register(node_record(GROUP, "nodeId-1", app.book()))
        await outside.define()
        started = await outside.start()
        await outside.store.call("CONFIG", "SET", "maxmemory", int(is_full))
        try:
            reason = await outside.engine.why.explain("default", started)
        finally:
            await outside.store.call("CONFIG", "SET", "maxmemory", 0)
            await outside.engine.nodes.stop()
        assert reason.code == ("store_full" if is_full else "queued")
        assert names.cell_of(started) == 0
