"""A worker and its leases: what it holds is its own, and nobody is failed for another's poison."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from tests.helpers.store_faults import store_at
from tests.transactions.engine_helpers import (
    PATIENT,
    QUICK,
    open_machine,
    start_many,
)
from tests.transactions.helpers import TERMS, one_step
from waystation import App, Context
from waystation.catalogue import SqliteCatalogue
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.leases import RenewalCall
from waystation.store.scripts import script
from waystation.transactions import names
from waystation.transactions.holding import Holding
from waystation.transactions.nodes import Nodes
from waystation.transactions.pipelines import Pipelines
from waystation.transactions.states import State, Status

RESCUE = script("waystation.transactions", "rescue")


# -- Leases ----------------------------------------------------------------------------------


async def test_a_step_that_blocks_the_event_loop_keeps_its_lease_and_those_of_the_others(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """F-14: nothing is rescued meanwhile, though somebody looks for it all the time."""
    rescued = []
    limits = msgspec.structs.replace(QUICK, workers=1, lease_ms=1000)

    async def blocks(ctx: Context, number: int) -> int:
        if number == 0:
            # The join blocks the event loop of the worker.
            rescuer = threading.Thread(target=asyncio.run, args=(rescue_repeatedly(),))
            rescuer.start()
            rescuer.join()
        return number

    async def rescue_repeatedly() -> None:
        async with store_at(store_server.address, test_mode=True) as store:
            until = time.monotonic() + 3 * limits.lease_ms / 1000
            while time.monotonic() < until:
                reply = await store.run(RESCUE, [names.log(0)], [TERMS.argument, 100, 3])
                rescued.append(reply[0])
                await asyncio.sleep(0.02)

    app = one_step(blocks)
    async with open_machine(store_server.address, app, tmp_path, limits=limits) as machine:
        started = await start_many(machine, 10)
        ends = [await machine.ended(each) for each in started]
        assert [each.output for each in ends] == list(range(10))
        assert {each.found.head.epoch for each in ends} == {1}
        assert len(rescued) > 10
        assert set(rescued) == {0}
        assert machine.deaf == []


async def test_a_late_commit_is_refused_and_costs_the_others_nothing(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    calls: Counter[int] = Counter()

    async def late(ctx: Context, number: int) -> str:
        calls[number] += 1
        if number == 3 and calls[number] == 1:
            key = names.sorted_set(0, "leaseZ")
            # In one write: the lease is renewed all the time.
            _, (rescued, _) = await asyncio.gather(
                machine.store.call("ZADD", key, 1, ctx.transaction.id),
                machine.store.run(RESCUE, [names.log(0)], [TERMS.argument, 100, 3]),
            )
            assert rescued == 1
        return f"epoch {ctx._call.held.epoch}"

    app = one_step(late)
    async with open_machine(store_server.address, app, tmp_path, limits=PATIENT) as machine:
        started = await start_many(machine, 8)
        ends = [await machine.ended(each) for each in started]
        assert [each.output for each in ends] == ["epoch 1"] * 3 + ["epoch 3"] + ["epoch 1"] * 4
        assert calls == {number: 2 if number == 3 else 1 for number in range(8)}
        # One is the record of its end, the other one's was never written.
        assert (await machine.kinds(started[3])).count("finished") == 1
        # An end is seen by others before its worker has heard of it.
        async with asyncio.timeout(10):
            while machine.workers[0].held:
                await asyncio.sleep(0.001)


async def test_a_move_that_cannot_be_applied_costs_the_others_nothing(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async def spoils(ctx: Context, number: int) -> int:
        if number == 2:
            await machine.store.call("DEL", names.state(ctx.transaction.id))
            await machine.store.call("SET", names.state(ctx.transaction.id), "not a hash")
        return number

    app = one_step(spoils)
    async with open_machine(store_server.address, app, tmp_path, limits=PATIENT) as machine:
        started = await start_many(machine, 5)
        for number in (0, 1, 3, 4):
            assert (await machine.ended(started[number])).output == number
        while machine.workers[0].held:
            await asyncio.sleep(0.001)


async def test_what_is_held_is_given_back_at_once_and_in_order_when_a_worker_stops(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """F-34: nothing of it counts."""
    begun = asyncio.Semaphore(0)

    async def long(ctx: Context, number: int) -> None:
        begun.release()
        await asyncio.sleep(3600)

    limits = msgspec.structs.replace(PATIENT, workers=2, prefetch=100)
    app = one_step(long)
    async with open_machine(store_server.address, app, tmp_path, limits=limits) as machine:
        started = await start_many(machine, 150)
        await begun.acquire()
        await begun.acquire()
        await machine.workers[0].stop(grace_seconds=0.05)
        queued = await machine.store.call("LRANGE", names.queue_in(0, "master"), 0, -1)
        assert [each.decode() for each in queued] == started
        for each in (started[0], started[1], started[50], started[149]):
            head = (await machine.found(each)).head
            assert (head.state, head.flags, head.rescues) == (State.QUEUED, "", 0)


async def test_a_step_that_ends_within_the_grace_time_is_committed(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    begun, may_end = asyncio.Semaphore(0), asyncio.Event()

    async def ends(ctx: Context) -> str:
        begun.release()
        await may_end.wait()
        return "done"

    async def never(ctx: Context) -> None:
        raise AssertionError("no step begins while a worker stops")

    app = one_step(ends)
    app.step("never")(never)
    app.pipeline("two", ["step", "never"])
    async with open_machine(store_server.address, app, tmp_path, limits=PATIENT) as machine:
        started = [await machine.start("p"), await machine.start("two")]
        await begun.acquire()
        await begun.acquire()
        stopping = asyncio.create_task(machine.workers[0].stop(grace_seconds=5))
        await asyncio.sleep(0)
        may_end.set()
        await stopping
        assert (await machine.found(started[0])).head.status is Status.SUCCESS
        head = (await machine.found(started[1])).head
        assert (head.state, head.commits) == (State.QUEUED, 1)


async def test_one_call_renews_all_that_is_held_in_a_cell_three_times_a_lease(
    store_server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is prefetched is held, too."""

    async def long(ctx: Context, number: int) -> None:
        await asyncio.sleep(3600)

    app = one_step(long)
    limits = msgspec.structs.replace(QUICK, workers=2, prefetch=100, lease_ms=1500)
    async with open_machine(store_server.address, app, tmp_path, cells=2, limits=limits) as machine:
        started = await start_many(machine, 60)
        for each in started:
            await machine.reached(each, State.RUNNING)
        renewal = machine.workers[0]._renewal
        calls_of, counts = renewal.calls, []

        def counted() -> list[RenewalCall]:
            calls = calls_of()
            counts.append(len(calls))
            return calls

        monkeypatch.setattr(renewal, "calls", counted)
        begun = time.monotonic()
        await asyncio.sleep(2.5)
        beats = (time.monotonic() - begun) / 0.5
        assert 3 <= len(counts) <= beats + 1
        assert set(counts) == {2}, "one call for each cell"
        heads = [(await machine.found(each)).head for each in started]
        assert {(head.state, head.epoch) for head in heads} == {(State.RUNNING, 1)}


async def test_a_jump_of_the_time_machine_takes_nothing_from_those_who_live(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    may_end = asyncio.Event()

    async def step(ctx: Context) -> int:
        await may_end.wait()
        return ctx._call.held.epoch

    app = one_step(step)
    # Leases of a minute: they end by the jump, and not because a process stood still.
    async with open_machine(
        store_server.address, app, tmp_path, workers=2, limits=PATIENT
    ) as machine:
        started = await machine.start("p")
        await machine.reached(started, State.RUNNING)
        await machine.time.advance(3 * 86_400)
        await asyncio.sleep(0.5)
        may_end.set()
        assert (await machine.ended(started)).output == 1


async def test_a_shorter_lease_is_renewed_in_time_from_the_moment_it_is_told(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    may_end = asyncio.Event()

    async def step(ctx: Context) -> int:
        await may_end.wait()
        return ctx._call.held.epoch

    app = one_step(step)
    async with open_machine(store_server.address, app, tmp_path, limits=PATIENT) as machine:
        nodes, worker = Nodes(machine.store, clock=machine.clock), machine.workers[0]
        before = await machine.start("p")
        await machine.reached(before, State.RUNNING)
        await asyncio.sleep(0.05)  # The thread rests by now, for a third of a minute.
        await nodes.tell("master", "lease_ms", 1000)
        async with asyncio.timeout(5):
            while worker._claimer.lease_ms != 1000:
                await asyncio.sleep(0.001)
        started = await machine.start("p")
        first = (await machine.reached(started, State.RUNNING)).lease_ms
        async with asyncio.timeout(5):
            while (found := await machine.found(started)).lease_ms == first:
                await asyncio.sleep(0.005)
        assert (found.head.state, found.head.epoch) == (State.RUNNING, 1)
        may_end.set()
        assert [(await machine.ended(each)).output for each in (before, started)] == [1, 1]


# -- Suspects --------------------------------------------------------------------------------


async def test_suspects_run_one_at_a_time_and_a_commit_clears_them(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    running, most, flags = 0, 0, []

    async def slowly(ctx: Context, number: int) -> int:
        nonlocal running, most
        flags.append((await machine.found(ctx.transaction.id)).head.flags)
        suspect = "s" in flags[-1]
        running += suspect
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= suspect
        return number

    app = one_step(slowly)
    app.pipeline("two", ["step", "step"])
    async with open_machine(
        store_server.address, app, tmp_path, limits=PATIENT, workers=0
    ) as machine:
        started = await start_many(machine, 6, "two")
        # A process claims them all and dies.
        holding = Holding(machine.store, TERMS)
        claim = await holding.claim(0, "master", node="dead", number=1, most=6, lease_ms=1)
        assert len(claim.items) == 6
        await machine.worker(limits=PATIENT)
        ends = [await machine.ended(each) for each in started]
        assert [each.output for each in ends] == list(range(6))
        begun = [each for each in flags if "s" in each]
        assert len(begun) == 6
        assert all("b" in each for each in begun)
        # Once committed, they are as all others.
        assert len([each for each in flags if "s" not in each]) == 6
        assert most == 1


async def test_a_node_that_does_not_serve_its_step_clears_no_suspect(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """F-18: a step that kills one half of the nodes must not be made harmless by the other half."""
    flags: list[str] = []

    async def step(ctx: Context) -> str:
        flags.append((await machine.found(ctx.transaction.id)).head.flags)
        return "run"

    app = one_step(step)
    async with open_machine(store_server.address, app, tmp_path, workers=0) as machine:
        started = await machine.start("p")
        holding = Holding(machine.store, TERMS)
        await holding.claim(0, "master", node="dead", number=1, most=1, lease_ms=1)
        other = await machine.worker(limits=PATIENT, app=App())
        found = await machine.reached(started, State.SLEEPING)
        assert found.head.suspect
        await other.stop()
        await machine.worker(limits=PATIENT)
        await machine.time.advance(60)
        end = await machine.ended(started)
        assert sorted(flags[0].replace("x", "")) == ["b", "s"]
        assert (end.output, end.found.head.flags) == ("run", "")


async def test_a_catalogue_that_is_away_counts_against_no_suspect(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """Only the death of a process that had begun its step is a sign of poison."""

    async def step(ctx: Context) -> str:
        return "run"

    app = one_step(step)
    async with open_machine(store_server.address, app, tmp_path, workers=0) as machine:
        started = await machine.start("p")
        holding = Holding(machine.store, TERMS)
        await holding.claim(0, "master", node="dead", number=1, most=1, lease_ms=1)
        # The cells do not know the version, and who does is not to be reached.
        key, field = names.pipeline(0, "default", "p"), f"v:{app.pipelines[0].version}"
        definition = await machine.store.call("HGET", key, field)
        await machine.store.call("HDEL", key, field)
        away = SqliteCatalogue(tmp_path / "away.db")
        machine.pipelines = Pipelines(
            away, machine.store, cells=1, terms=TERMS, clock=machine.clock
        )
        await machine.worker(limits=msgspec.structs.replace(QUICK, lease_ms=100))
        async with asyncio.timeout(10):
            while (found := await machine.found(started)).head.epoch < 12:
                await holding.rescue(0, most=1, rescues_max=3)
                await asyncio.sleep(0.005)
        assert found.head.state is not State.COMPLETE
        assert found.head.rescues == 0
        await machine.store.call("HSET", key, field, definition)
        async with asyncio.timeout(10):
            while (await machine.found(started)).head.state is not State.COMPLETE:
                await holding.rescue(0, most=1, rescues_max=3)
                await asyncio.sleep(0.005)
        assert (await machine.ended(started)).output == "run"
