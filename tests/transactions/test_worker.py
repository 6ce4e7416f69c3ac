"""A worker: what it holds it keeps, gives back, or loses cleanly; and it hears, or ends."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from tests.helpers.interleavings import count_calls
from tests.helpers.store_faults import Fate, Proxy, proxy_to, store_at
from tests.transactions.engine_helpers import (
    PATIENT,
    QUICK,
    Machine,
    open_machine,
    start_many,
)
from tests.transactions.helpers import TERMS, one_step
from waystation import Context
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.scripts import script
from waystation.transactions import names
from waystation.transactions.cells import BATCH_MAX
from waystation.transactions.count_slots import CountSlots
from waystation.transactions.holding import Claim, Holding
from waystation.transactions.nodes import Nodes
from waystation.transactions.states import State, Status
from waystation.transactions.timekeeper import Timekeeper
from waystation.transactions.worker import Worker

RESCUE = script("waystation.transactions", "rescue")

# -- Two at once -----------------------------------------------------------------------------


async def test_two_workers_share_the_work_and_no_step_runs_twice(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    calls: Counter[int] = Counter()

    async def count(ctx: Context, number: int) -> int:
        calls[number] += 1
        await asyncio.sleep(0.002)
        return number

    app = one_step(count)
    limits = msgspec.structs.replace(PATIENT, workers=10, prefetch=10)
    async with open_machine(
        store_server.address, app, tmp_path, cells=3, workers=2, limits=limits
    ) as machine:
        started = await start_many(machine, 300)
        ends = [await machine.ended(each) for each in started]
        assert [each.output for each in ends] == list(range(300))
        assert set(calls.values()) == {1}
        assert {each.journal("1").last[0].node for each in ends} == {"n1", "n2"}


# -- Claiming --------------------------------------------------------------------------------


class Watched(Holding):
    """Notes what is asked of it."""

    asked: list[tuple[int, int]]

    async def claim(self, cell: int, group: str, **more: Any) -> Claim:
        self.asked.append((cell, more["most"]))
        return await super().claim(cell, group, **more)


async def test_all_cells_are_asked_for_a_share_and_those_with_work_get_the_rest(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    blocked = asyncio.Event()

    async def waits(ctx: Context, number: int) -> None:
        await blocked.wait()

    app = one_step(waits)
    limits = msgspec.structs.replace(PATIENT, workers=300, prefetch=0)
    async with open_machine(store_server.address, app, tmp_path, cells=3, workers=0) as machine:
        new = [await machine.new("p", number, cell=1) for number in range(400)]
        for at in range(0, 400, 100):
            await machine.entry.start(1, new[at : at + 100])
        other = await machine.start("p", 0, cell=2)
        worker = await machine.worker(limits=limits)
        watched = Watched(machine.store, TERMS)
        watched.asked = []
        worker._claimer._holding = watched
        await machine.reached(other, State.RUNNING)
        async with asyncio.timeout(5):
            while worker.held < 300:
                await asyncio.sleep(0.001)
        first = watched.asked[:3]
        assert sorted(cell for cell, _ in first) == [0, 1, 2]
        assert sum(most for _, most in first) == 300
        assert max(most for _, most in watched.asked) <= BATCH_MAX
        # Cells without work are left alone, but for the beginning: subscriptions have no past.
        times = Counter(cell for cell, _ in watched.asked)
        assert max(times[0], times[2]) <= 4 <= times[1]
        blocked.set()
        for each in new[::50]:
            await machine.ended(each.id)


async def test_claimer_with_long_queues_in_many_cells_asks_few_of_them_in_each_turn(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    app = one_step(passes)
    limits = msgspec.structs.replace(PATIENT, workers=100, prefetch=100)
    async with open_machine(store_server.address, app, tmp_path, cells=8, workers=0) as machine:
        new = []
        for cell in range(8):
            for _ in range(4):
                call = [await machine.new("p", 0, cell=cell) for _ in range(BATCH_MAX)]
                await machine.entry.start(cell, call)
                new += call
        worker = await machine.worker(limits=limits)
        watched = Watched(machine.store, TERMS)
        watched.asked = []
        worker._claimer._holding = watched
        for each in new[::40]:
            await machine.ended(each.id)
        assert len(watched.asked) < len(new) / 20, "calls for an eighth of the free slots each"
        assert {cell for cell, _ in watched.asked} == set(range(8)), "every cell gets its turn"


async def passes(ctx: Context, number: int) -> int:
    return number


async def test_an_idle_worker_starts_new_work_at_once_and_asks_for_none_meanwhile(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    begun: asyncio.Queue[float] = asyncio.Queue()

    async def stamp(ctx: Context) -> None:
        begun.put_nowait(time.perf_counter())

    app = one_step(stamp)
    async with open_machine(store_server.address, app, tmp_path, limits=PATIENT) as machine:
        delays = []
        for _ in range(20):
            new = await machine.new("p")
            at = time.perf_counter()
            await machine.entry.start(0, [new])
            delays.append(await begun.get() - at)
            await machine.ended(new.id)
        assert sorted(delays)[5] < 0.02
        calls = count_calls(machine.store)
        await asyncio.sleep(1.0)
        # One beat of the time machine, and nothing of the worker's.
        assert calls() <= 4


async def until_quiet(worker: Worker, store: Store, proxy: Proxy) -> None:
    """Waits until nothing of the worker's is on its way: the next reply is that of a claim."""
    async with asyncio.timeout(20):
        while worker.held:
            await asyncio.sleep(0.005)
        chunks = -1
        while proxy.chunks != chunks:
            await store.ping()
            chunks = proxy.chunks
            await asyncio.sleep(0.2)


async def test_a_claim_whose_reply_is_lost_is_found_again(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async def step(ctx: Context) -> str:
        return "run"

    app = one_step(step)
    async with (
        open_machine(store_server.address, app, tmp_path, workers=0) as machine,
        proxy_to(store_server.address) as proxy,
        store_at(proxy.address, test_mode=True) as store,
    ):
        worker = await machine.worker(limits=PATIENT, store=store)
        for _ in range(2):
            await machine.run("p")
        await until_quiet(worker, store, proxy)
        await proxy.set_fates(replies=Fate.CUT)
        started = await machine.start("p")
        await proxy.met.wait()
        assert (await machine.reached(started, State.RUNNING)).head.epoch == 1
        await proxy.set_fates()
        end = await machine.ended(started)
        assert end.found.head.epoch == 1
        await worker.stop()


async def test_a_worker_that_stops_does_not_wait_for_a_lost_claim(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """What the claim took is rescued: a process that is to end has no minute for it."""

    async def step(ctx: Context) -> str:
        return "run"

    app = one_step(step)
    async with (
        open_machine(store_server.address, app, tmp_path, workers=0) as machine,
        proxy_to(store_server.address) as proxy,
        store_at(proxy.address, test_mode=True, call_seconds_max=1.0) as store,
    ):
        worker = await machine.worker(limits=PATIENT, store=store)
        for _ in range(2):
            await machine.run("p")
        await until_quiet(worker, store, proxy)
        await proxy.set_fates(replies=Fate.CUT)
        started = await machine.start("p")
        await machine.reached(started, State.RUNNING)
        async with asyncio.timeout(20):
            await worker.stop()


# -- Health ----------------------------------------------------------------------------------


async def test_a_worker_is_healthy_while_it_is_heard_and_deaf_after_three_leases(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async def step(ctx: Context) -> None:
        return None

    app = one_step(step)
    limits = msgspec.structs.replace(QUICK, lease_ms=1000)
    async with (
        open_machine(store_server.address, app, tmp_path, workers=0) as machine,
        proxy_to(store_server.address) as proxy,
        store_at(proxy.address, call_seconds_max=1.0, test_mode=True) as store,
    ):
        worker = await machine.worker(limits=limits, store=store)
        await machine.run("p")
        await asyncio.sleep(2.2 * limits.lease_ms / 1000)
        assert worker.healthy
        await proxy.set_fates(replies=Fate.SWALLOW)
        async with asyncio.timeout(30):
            while worker.healthy:
                await asyncio.sleep(0.01)
            assert not machine.deaf
            while not machine.deaf:
                await asyncio.sleep(0.01)
        assert machine.deaf[0] == "no claim was answered for three leases"
        # A worker that was only cut off takes work again.
        await proxy.set_fates()
        async with asyncio.timeout(30):
            while not worker.healthy:
                await asyncio.sleep(0.01)
        assert (await machine.run("p")).status is Status.SUCCESS
        await worker.stop()


async def test_a_store_that_hangs_up_costs_no_transaction(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """F-11, F-12: what was under way is committed, what comes is taken, within 5 s."""
    may_end = asyncio.Event()

    async def step(ctx: Context) -> str:
        await may_end.wait()
        return "done"

    app = one_step(step)
    async with (
        open_machine(store_server.address, app, tmp_path, workers=0) as machine,
        proxy_to(store_server.address) as proxy,
        store_at(proxy.address, call_seconds_max=0.5, test_mode=True) as store,
    ):
        worker = await machine.worker(limits=PATIENT, store=store)
        started = await machine.start("p")
        await machine.reached(started, State.RUNNING)
        await proxy.set_fates(requests=Fate.CUT, replies=Fate.CUT)
        may_end.set()
        await proxy.met.wait()
        waiting = await machine.start("p")
        await asyncio.sleep(0.7)
        await proxy.set_fates()
        end = await machine.ended(started, seconds=5)
        assert (end.output, end.found.head.epoch) == ("done", 1)
        assert (await machine.ended(waiting, seconds=5)).output == "done"
        await worker.stop()


# -- Being told ------------------------------------------------------------------------------


async def test_a_node_group_can_be_paused_and_told_how_many_work(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    running, most = 0, 0

    async def step(ctx: Context, number: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1

    app = one_step(step)
    async with open_machine(
        store_server.address, app, tmp_path, cells=2, limits=PATIENT
    ) as machine:
        nodes, worker = Nodes(machine.store, clock=machine.clock), machine.workers[0]
        await machine.run("p", 0)
        await nodes.tell("master", "paused", 1)
        async with asyncio.timeout(5):
            while not worker._claimer.paused:
                await asyncio.sleep(0.001)
        started = await start_many(machine, 20)
        await asyncio.sleep(0.05)
        heads = [(await machine.found(each)).head.state for each in started]
        assert set(heads) == {State.QUEUED}
        await nodes.tell("master", "workers", 2)
        async with asyncio.timeout(5):
            while len(worker._slots._slots) > 2:
                await asyncio.sleep(0.001)
        await nodes.tell("master", "paused", 0)
        for each in started:
            assert (await machine.ended(each)).status is Status.SUCCESS
        assert most == 2


async def test_counts_are_summed_up_into_longer_slots(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async def step(ctx: Context) -> None:
        return None

    app = one_step(step)
    async with open_machine(store_server.address, app, tmp_path) as machine:
        # To the beginning of a slot of all lengths, so that they end together.
        now = (await machine.signals.look(0)).now_ms / 1000
        await machine.time.advance(1000 - now % 1000 + 1)
        for _ in range(5):
            await machine.run("p")
        name = b"g:::master:::o:::default:::p:::p:::ended:::success"
        slot = int((await machine.signals.look(0)).now_ms / 1000) // 1000 * 1000
        await machine.time.advance(110)
        await _counted(machine, "metric2H", slot, name)
        await machine.time.advance(900)
        await _counted(machine, "metric3H", slot, name)


async def test_what_is_due_is_done_in_a_full_store_though_counts_find_no_room(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """F-20: who sleeps wakes, or nothing would ever end, and make room."""

    async def step(ctx: Context) -> None:
        return None

    async with open_machine(store_server.address, one_step(step), tmp_path, workers=0) as machine:
        now = (await machine.signals.look(0)).now_ms / 1000
        await machine.time.advance(100 - now % 100 + 1)
        started = await machine.start("p", delay_ms=1000)
        await machine.time.advance(110)
        timekeeper = Timekeeper(
            machine.signals,
            Holding(machine.store, TERMS),
            CountSlots(machine.store),
            machine.wakeups,
            clock=machine.clock,
            cells=1,
            limits=QUICK,
        )
        await machine.store.call("CONFIG", "SET", "maxmemory", 1)
        try:
            timekeeper.start()
            await machine.reached(started, State.QUEUED, seconds=5)
        finally:
            await machine.store.call("CONFIG", "SET", "maxmemory", 0)
        await timekeeper.stop()


async def _counted(machine: Machine, series: str, slot: int, name: bytes) -> None:
    key = names.counts(0, series, slot)
    async with asyncio.timeout(5):
        while await machine.store.call("HGET", key, name) != b"5":
            await asyncio.sleep(0.005)
        while await machine.store.call("TTL", key) <= 0:
            await asyncio.sleep(0.005)
