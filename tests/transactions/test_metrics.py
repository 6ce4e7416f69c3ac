"""What a worker tells Prometheus: claims, steps, commits, what was due, and how late it was."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.transactions.engine_helpers import Machine, open_machine
from tests.transactions.helpers import TERMS
from waystation import Abort, App, Child, Context, Fail, Parallel, RetryLater, Wait
from waystation.config import Config
from waystation.store.embedded.server import EmbeddedServer
from waystation.telemetry import metrics
from waystation.testing.station import serving
from waystation.transactions.holding import Holding
from waystation.transactions.limits import Limits
from waystation.transactions.order import Order
from waystation.transactions.states import State, Status

#: So long that no rescue happens by itself.
PATIENT = Limits(workers=5, prefetch=5, lease_ms=60_000, grace_seconds=1.0)
OUTCOMES = (
    *("success", "failed", "aborted", "internal-error", "timeout"),
    *("retry", "waiting", "child", "parallel"),
)


def told(name: str, **labels: str) -> float:
    value = metrics.registry.get_sample_value(f"waystation_{name}", labels)
    assert value is not None, f"{name} {labels} is not told"
    return value


def steps() -> dict[str, float]:
    return {each: told("transaction_steps_total", outcome=each) for each in OUTCOMES}


def every_kind() -> App:
    app = App()

    @app.step("all/kinds", timeout="200ms")
    async def kinds(ctx: Context, kind: str) -> Any:
        match kind:
            case "failed":
                return Fail("no")
            case "aborted":
                return Abort("no further")
            case "internal-error":
                raise RuntimeError("broken")
            case "timeout":
                await asyncio.sleep(60)
            case "retry" if not ctx.retries:
                return RetryLater("1ms")
            case "waiting" if ctx.switch("go") is None:
                return Wait("go")
            case "child":
                return Child("kinds", "success")
            case "parallel":
                return Parallel([Child("kinds", "success"), Child("kinds", "success")])
        return kind

    app.pipeline("kinds", ["all/kinds"])
    return app


async def switch_on(machine: Machine, transaction_id: str) -> None:
    await machine.reached(transaction_id, State.WAITING_SWITCH)
    await machine.signals.set_switch("default", transaction_id, "go", True)


async def test_steps_are_counted_by_outcome_and_timed(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_machine(
        store_server.address, every_kind(), tmp_path, limits=PATIENT
    ) as machine:
        before = steps()
        timed = told("transaction_step_seconds_count")
        late = told("transaction_step_seconds_bucket", le="0.025")
        for kind in OUTCOMES:
            started = await machine.start("kinds", kind)
            if kind == "waiting":
                await switch_on(machine, started)
            await machine.ended(started)
        counted = {kind: count - before[kind] for kind, count in steps().items()}
        # Three end well after all, and so do a child, and two that ran beside each other.
        assert counted == {**dict.fromkeys(OUTCOMES, 1), "success": 1 + 2 + 1 + 2}
        assert told("transaction_step_seconds_count") - timed == sum(counted.values())
        slow = sum(counted.values()) - (told("transaction_step_seconds_bucket", le="0.025") - late)
        assert slow >= 1, "the one that was over its time"


async def test_claims_and_what_they_brought_are_counted(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_machine(store_server.address, every_kind(), tmp_path, workers=0) as machine:
        work = told("transaction_claims_total", outcome="work")
        empty = told("transaction_claims_total", outcome="empty")
        claimed = told("transactions_claimed_total")
        started = [await machine.start("kinds", "success") for _ in range(7)]
        await machine.worker()
        for each in started:
            await machine.ended(each)
        assert told("transactions_claimed_total") - claimed == 7
        assert told("transaction_claims_total", outcome="work") > work
        async with asyncio.timeout(5):
            while told("transaction_claims_total", outcome="empty") == empty:
                await asyncio.sleep(0.01)


async def test_what_is_held_is_told_while_it_is(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    may_end = asyncio.Event()
    app = App()

    @app.step("hold/on")
    async def hold(ctx: Context) -> None:
        await may_end.wait()

    app.pipeline("hold", ["hold/on"])
    async with open_machine(store_server.address, app, tmp_path, limits=PATIENT) as machine:
        started = [await machine.start("hold") for _ in range(3)]
        for expected in (3, 0):
            async with asyncio.timeout(5):
                while told("transactions_held") != expected:
                    await asyncio.sleep(0.01)
            may_end.set()
        for each in started:
            assert (await machine.ended(each)).status is Status.SUCCESS


async def test_a_commit_that_is_refused_is_counted(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    calls = 0
    app = App()

    @app.step("late")
    async def late(ctx: Context) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            await machine.rescue(ctx.transaction.id)

    app.pipeline("p", ["late"])
    async with open_machine(store_server.address, app, tmp_path, limits=PATIENT) as machine:
        refused = told("transaction_commits_total", outcome="refused")
        done = told("transaction_commits_total", outcome="done")
        assert (await machine.run("p")).status is Status.SUCCESS
        async with asyncio.timeout(20):
            # The one that was rescued may commit behind the one that took its place.
            while told("transaction_commits_total", outcome="refused") == refused:
                await asyncio.sleep(0.01)
        assert told("transaction_commits_total", outcome="refused") - refused == 1
        assert told("transaction_commits_total", outcome="done") - done == 1


async def test_what_was_due_is_counted_with_how_late_it_was(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_machine(
        store_server.address, every_kind(), tmp_path, limits=PATIENT
    ) as machine:
        acts = ("woken", "rescued", "expired", "swept")
        before = {act: told("transaction_due_total", outcome=act) for act in acts}
        looks = told("transaction_due_lag_seconds_count")
        assert (await machine.run("kinds", "retry")).status is Status.SUCCESS
        waiting = await machine.start("kinds", "waiting", deadline_in_ms=300)
        assert (await machine.ended(waiting)).status is Status.TIMEOUT
        counted = {act: told("transaction_due_total", outcome=act) - before[act] for act in acts}
        assert counted == {"woken": 1, "rescued": 0, "expired": 1, "swept": 0}
        assert told("transaction_due_lag_seconds_count") - looks >= 2


async def test_a_rescue_is_counted(store_server: EmbeddedServer, tmp_path: Path) -> None:
    async with open_machine(store_server.address, every_kind(), tmp_path, workers=0) as machine:
        before = told("transaction_due_total", outcome="rescued")
        started = await machine.start("kinds", "success")
        # Somebody claims it, and is not heard of any more.
        holding = Holding(machine.store, TERMS)
        claim = await holding.claim(0, "master", node="gone", number=1, most=1, lease_ms=1)
        assert [each.id for each in claim.items] == [started]
        await machine.worker()
        assert (await machine.ended(started)).status is Status.SUCCESS
        assert told("transaction_due_total", outcome="rescued") - before == 1


async def test_who_does_upkeep_tells_how_many_sleep(settings: Config) -> None:
    app = App()
    app.pipeline("nap", [("util/delay", {"min": 3_600_000, "max": 3_600_000})])
    async with serving(settings, app=app) as running:
        node = running.node
        for _ in range(3):
            await node.engine.starter.start("default", Order(type="nap"))
        async with asyncio.timeout(10):
            while told("transactions_sleeping") != 3:
                await node.engine.count()
    assert told("transactions_sleeping") == 0, "another node tells from now on"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("transaction_steps", OUTCOMES),
        ("transaction_claims", ("work", "empty", "failed")),
        ("transaction_due", ("woken", "rescued", "expired", "swept")),
    ],
)
def test_labels_are_of_fixed_sets_and_told_from_the_start(
    name: str, values: tuple[str, ...]
) -> None:
    """S-12: nothing that a caller names becomes a label."""
    (family,) = [each for each in metrics.registry.collect() if each.name == f"waystation_{name}"]
    assert {sample.labels["outcome"] for sample in family.samples} == set(values)
