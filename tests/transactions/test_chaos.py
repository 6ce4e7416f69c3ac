"""Everything at once: pipelines of every kind, cancels, lost leases, dead claimers, a bad line.

Whatever happens, each transaction that was started ends, and ends once; nothing is left behind.
A failure prints its seed: SEED=… runs the same again, as far as time allows.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from tests.helpers.store_faults import Fate, Proxy, proxy_to, store_at
from tests.transactions.engine_helpers import QUICK, Machine, open_machine
from tests.transactions.helpers import TERMS
from waystation import App, Child, Context, Fail, Parallel, RetryLater, Wait
from waystation.errors import NotSleepingError, TransactionFinalError
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.transactions import names
from waystation.transactions.holding import Holding
from waystation.transactions.states import State

CHAOS_SECONDS = 3.0
DRAIN_SECONDS = 30.0
LIMITS = msgspec.structs.replace(QUICK, lease_ms=600, cancel_grace_ms=300)
SETS = ("processingZ", "leaseZ", "sleepingZ", "deadlineZ", "sweepZ")


def app_of(rng: random.Random) -> App:
    """Steps that do anything that a step may do."""
    app = App()

    @app.step("leaf")
    async def leaf(ctx: Context) -> object:
        match rng.randrange(12):
            case 0:
                return RetryLater(rng.choice([0, 0.01, 0.05]))
            case 1 if not ctx.timed_out:
                return Wait("go", at_most=rng.choice([0.02, 0.05, 0.2]))
            case 2:
                return Fail("not this time")
            case 3:
                await asyncio.sleep(rng.choice([0.01, 0.05, 0.4]))
            case 4:
                await ctx.once("effect", lambda: 1)
        return 1

    @app.step("fan")
    async def fan(ctx: Context, most: int) -> Parallel:
        names_ = [rng.choice(["leaf", "leaf", "calls"]) for _ in range(rng.randint(1, most))]
        policy = rng.choice(["cancel_rest", "wait_all"])
        return Parallel([Child(each, 3) for each in names_], on_failure=policy)

    app.pipeline("leaf", ["leaf"])
    app.pipeline("calls", ["leaf", ("util/child", {"pipeline": "leaf"}), "leaf"])
    app.pipeline("fans", [("util/fixed-reply", {"reply": 3}), "fan", "leaf"])
    app.pipeline("wide", [("util/fixed-reply", {"reply": 130}), "fan"])
    return app


async def spoil_line(proxy: Proxy, rng: random.Random) -> None:
    """Requests and replies are lost now and then, or come late."""
    while True:
        await asyncio.sleep(rng.choice([0.05, 0.2, 0.4]))
        fate = rng.choice([Fate.CUT, Fate.CUT, Fate.HOLD])
        await proxy.set_fates(**{rng.choice(["replies", "requests"]): fate})
        await asyncio.sleep(rng.choice([0, 0.01, 0.1]))
        await proxy.set_fates()


async def meddle(machine: Machine, store: Store, one: str, rng: random.Random) -> None:
    """One thing that somebody does to a transaction, or to a worker."""
    match rng.randrange(40):
        case 0 | 1 | 2 | 3 | 4 | 5:
            await machine.signals.cancel("default", [one], cause="chaos", grace_ms=200)
        case 6 | 7 | 8 | 9 | 10 | 11:
            value = rng.choice([True, None, "a"])
            await machine.signals.set_switch("default", one, "go", value)
        case 12 | 13 | 14:
            await machine.signals.wake("default", one)
        case 15:
            worker = machine.workers.pop(0)
            await worker.stop(grace_seconds=rng.choice([0, 0.05]))
            await machine.worker(limits=LIMITS, store=store)
        case 16:
            number = rng.randrange(1 << 30)
            holding = Holding(machine.store, TERMS)
            await holding.claim(0, "master", node="dead", number=number, most=3, lease_ms=100)
        case 17:
            for run in machine.workers[0]._renewal.held[:5]:
                await machine.store.call("ZADD", names.sorted_set(0, "leaseZ"), "XX", 1, run.id)
            await machine.store.call("PUBLISH", names.due_topic(0), "leaseZ")


async def alive(machine: Machine) -> tuple[int, list[str]]:
    """How many transactions there are, and which have not ended."""
    keys = await machine.store.call("KEYS", f"{names.tag(0)}stateH:*")
    ids = [key.decode().rpartition(":")[2] for key in keys]
    found = [await machine.found(each) for each in ids]
    return len(ids), [each.id for each in found if each.head.state is not State.COMPLETE]


@pytest.mark.slow
async def test_whatever_happens_each_transaction_ends_once_and_nothing_is_left_behind(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """F-01, F-11, F-13, F-28, F-29 at once."""
    seed = int(os.environ.get("SEED", random.randrange(1 << 32)))
    replay, rng = f"SEED={seed}", random.Random(seed)
    loop = asyncio.get_running_loop()
    async with (
        proxy_to(store_server.address) as proxy,
        store_at(proxy.address, test_mode=True, call_seconds_max=1.0) as store,
        open_machine(store_server.address, app_of(rng), tmp_path, workers=0) as machine,
    ):
        for _ in range(2):
            await machine.worker(limits=LIMITS, store=store)
        spoiling = loop.create_task(spoil_line(proxy, rng))
        ids, until = [], loop.time() + CHAOS_SECONDS
        while loop.time() < until:
            name = rng.choice(["leaf", "calls", "fans", "fans", "wide"])
            ids.append(await machine.start(name, deadline_in_ms=rng.choice([0, 0, 50, 300])))
            for _ in range(5):
                with suppress(TransactionFinalError, NotSleepingError):
                    await meddle(machine, store, rng.choice(ids), rng)
                await asyncio.sleep(rng.choice([0, 0, 0.005, 0.02]))
        spoiling.cancel()
        await asyncio.gather(spoiling, return_exceptions=True)
        await proxy.set_fates()
        until = loop.time() + DRAIN_SECONDS
        while (left := (await alive(machine))[1]) and loop.time() < until:
            await asyncio.sleep(0.05)
        assert not left, (replay, [(await machine.found(each)).head for each in left[:5]])
        total, facts = (await alive(machine))[0], await machine.facts()
        started = Counter(fact.id for fact in facts if fact.kind == "started")
        ended = Counter(fact.id for fact in facts if fact.state == "complete")
        assert set(started.values()) == set(ended.values()) == {1}, replay
        assert len(ended) == len(started) == total >= len(ids), replay
        for name in SETS:
            assert await machine.store.call("ZCARD", names.sorted_set(0, name)) == 0, (name, replay)
        archived = await machine.store.call("ZCARD", names.sorted_set(0, "toArchiveZ"))
        assert archived == total, replay
        # A line this bad may deafen a worker; a good one is heard by all of them again.
        async with asyncio.timeout(DRAIN_SECONDS):
            while not all(worker.healthy for worker in machine.workers):
                await asyncio.sleep(0.05)
