"""The machine: pipelines of every kind run to their right end, on the real store."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.transactions.engine_helpers import QUICK, all_started, open_machine
from tests.transactions.helpers import app_with
from waystation import Abort, App, Context, Fail, Wait
from waystation.errors import TransactionFinalError
from waystation.runtime.clock import Clock
from waystation.store.embedded.server import EmbeddedServer
from waystation.transactions.log_entry import StepDetail
from waystation.transactions.states import State, Status
from waystation.transactions.turns import UNSERVED_MS

DAY = 86_400


async def test_steps_run_in_order_and_each_gets_the_output_of_the_one_before(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    app = app_with()
    app.pipeline("three", ["a", "b", "c"])
    async with open_machine(store_server.address, app, tmp_path) as machine:
        end = await machine.run("three", {"steps": []})
        assert end.status is Status.SUCCESS
        assert end.output == {"steps": ["a", "b", "c"]}
        assert [each.place for each in end.state.journal] == ["1", "2", "3"]
        assert await machine.kinds(end.found.id) == ["started", "step", "step", "finished"]
        # Three steps of one node group, and one claim: the queue was passed once.
        assert end.found.head.epoch == 1


async def test_a_step_begins_only_after_the_one_before_is_committed(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """What always holds, 4."""
    app = app_with(names_="a")
    seen: list[tuple[int, list[str]]] = []

    @app.step("look")
    async def look(ctx: Context) -> None:
        found = await machine.found(ctx.transaction.id)
        kinds = await machine.kinds(ctx.transaction.id)
        seen.append((found.head.commits, kinds))

    app.pipeline("p", ["a", "look"])
    async with open_machine(store_server.address, app, tmp_path) as machine:
        await machine.run("p", {})
        assert seen == [(1, ["started", "step"])]


async def test_pure_steps_share_the_next_commit(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    app = app_with(names_="a")
    reply = ("util/fixed-reply", {"reply": {"steps": ["fixed"]}})
    app.pipeline("p", [reply, reply, "a", reply])
    async with open_machine(store_server.address, app, tmp_path) as machine:
        end = await machine.run("p")
        assert end.output == {"steps": ["fixed"]}
        facts = [each for each in await machine.facts() if each.id == end.found.id]
        assert [each.kind for each in facts] == ["started", "step", "finished"]
        details = [
            msgspec.msgpack.decode(each.detail or b"", type=StepDetail) for each in facts[1:]
        ]
        places = [[attempt.place for attempt in each.attempts] for each in details]
        assert places == [["1", "2", "3"], ["4"]]


async def test_plain_functions_run_in_threads(store_server: EmbeddedServer, tmp_path: Path) -> None:
    app = App()

    @app.step("plain")
    def plain(ctx: Any) -> str:
        return threading.current_thread().name

    app.pipeline("p", ["plain"])
    async with open_machine(store_server.address, app, tmp_path) as machine:
        assert (await machine.run("p")).output == "step"


# -- Ends ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("returned", "status", "output"),
    [
        (Fail("no money"), Status.FAILED, {"error": "no money"}),
        (Abort("look at it", {"why": 7}), Status.ABORTED, {"why": 7}),
    ],
)
async def test_a_failure_ends_the_transaction_from_within_children_too(
    store_server: EmbeddedServer, tmp_path: Path, returned: object, status: Status, output: object
) -> None:
    app, after = App(), []

    @app.step("fails")
    async def fails(ctx: Context) -> object:
        return returned

    @app.step("after")
    async def never(ctx: Context) -> None:
        after.append(1)

    app.pipeline("inner", ["fails", "after"])
    app.pipeline("outer", [("util/child", {"pipeline": "inner"}), "after"])
    async with open_machine(store_server.address, app, tmp_path) as machine:
        for name in ("inner", "outer"):
            end = await machine.run(name)
            assert (end.status, end.output) == (status, output)
        assert end.outcomes("1.1") == [status.value]
        assert after == []


async def test_an_exception_is_an_internal_error_whose_trace_only_the_journal_has(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    app = App()

    @app.step("breaks")
    async def breaks(ctx: Context) -> None:
        ctx.log.info("about to break", secret=1)
        raise ValueError("the password is hunter2")

    app.pipeline("p", ["breaks"])
    async with open_machine(store_server.address, app, tmp_path) as machine:
        end = await machine.run("p")
        assert end.status is Status.INTERNAL_ERROR
        assert b"hunter2" not in end.state.output
        (attempt,) = end.journal("1").last
        assert "hunter2" in attempt.trace
        assert [line.text for line in end.journal("1").logs] == ["about to break secret=1"]
        for fact in await machine.facts():
            assert b"hunter2" not in (fact.detail or b"")


async def test_a_step_over_its_time_ends_as_timeout_and_frees_its_slot(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    app, forever = App(), threading.Event()

    @app.step("slow", timeout="100ms")
    async def slow(ctx: Context) -> None:
        await asyncio.sleep(3600)

    @app.step("stubborn", timeout="100ms")
    async def stubborn(ctx: Context) -> str:
        for _ in range(3):
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                continue
        return "as if it were in time"

    @app.step("blocked", timeout="100ms")
    def blocked(ctx: Any) -> None:
        forever.wait(30)

    for name in ("slow", "stubborn", "blocked"):
        app.pipeline(name, [name])
    limits = msgspec.structs.replace(QUICK, workers=1)
    async with open_machine(store_server.address, app, tmp_path, limits=limits) as machine:
        for name in ("slow", "stubborn", "blocked", "slow"):
            end = await machine.run(name)
            assert end.status is Status.TIMEOUT, name
            assert end.output == {"error": f"Step {name} took longer than 0.1 s."}
            assert end.outcomes("1") == ["timeout"]
        forever.set()


async def test_a_state_that_grows_too_large_ends_with_a_reason(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    app = App()

    @app.step("grow")
    async def grow(ctx: Context) -> str:
        return "x" * 20_000

    @app.step("chatty")
    async def chatty(ctx: Context) -> str:
        for _ in range(100):
            ctx.log.info("y" * 400)
        return "quiet"

    app.pipeline("grow", ["grow", "grow"])
    app.pipeline("chatty", ["chatty"] * 3)
    app.pipeline("long", ["chatty"] * 100)
    limits = msgspec.structs.replace(QUICK, state_bytes_max=60_000)
    async with open_machine(store_server.address, app, tmp_path, limits=limits) as machine:
        # What steps have logged makes room.
        assert (await machine.run("chatty")).output == "quiet"
        # Even of itself, and of many steps: a journal never ends a transaction.
        limits = msgspec.structs.replace(QUICK, state_bytes_max=4_000)
        await machine.workers[0].stop()
        await machine.worker(limits=limits)
        end = await machine.run("long")
        assert (end.status, end.output) == (Status.SUCCESS, "quiet")
        assert [each.place for each in end.state.journal][-1] == "100"
    limits = msgspec.structs.replace(QUICK, state_bytes_max=10_000)
    async with open_machine(store_server.address, app, tmp_path, limits=limits) as machine:
        end = await machine.run("grow")
        assert end.status is Status.INTERNAL_ERROR
        assert "may have 10000 bytes" in end.output["error"]


# -- Ended from outside ----------------------------------------------------------------------


async def test_a_cancel_takes_effect_at_the_boundary_of_a_step(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    app, begun, may_end, after = App(), asyncio.Event(), asyncio.Event(), []

    @app.step("long")
    async def long(ctx: Context) -> None:
        begun.set()
        await may_end.wait()

    @app.step("after")
    async def never(ctx: Context) -> None:
        after.append(1)

    app.pipeline("p", ["long", "after"])
    async with open_machine(store_server.address, app, tmp_path) as machine:
        started = await machine.start("p")
        await begun.wait()
        (asked,) = await machine.signals.cancel("", [started], cause="no more", grace_ms=60_000)
        assert asked.outcome == "asked"
        may_end.set()
        end = await machine.ended(started)
        assert (end.status, end.cause, after) == (Status.CANCELLED, "no more", [])
        # What the step did is in the journal.
        assert end.outcomes("1") == ["success"]
        with pytest.raises(TransactionFinalError):
            await machine.signals.set_switch("", started, "late", 1)


async def test_a_step_that_outlives_the_grace_time_is_given_up(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    app, begun, told = App(), asyncio.Event(), asyncio.Event()

    @app.step("long")
    async def long(ctx: Context) -> None:
        begun.set()
        try:
            await asyncio.sleep(3600)
        finally:
            told.set()

    app.pipeline("p", ["long"])
    async with open_machine(store_server.address, app, tmp_path) as machine:
        started = await machine.start("p")
        await begun.wait()
        await machine.signals.cancel("", [started], cause="now", grace_ms=100)
        assert (await machine.ended(started)).status is Status.CANCELLED
        async with asyncio.timeout(5):
            await told.wait()
            while machine.workers[0].held:
                await asyncio.sleep(0.001)


async def test_a_deadline_ends_what_sleeps_and_what_runs(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    app, begun = App(), asyncio.Event()

    @app.step("long")
    async def long(ctx: Context) -> None:
        begun.set()
        await asyncio.sleep(3600)

    app.pipeline("runs", ["long"])
    app.pipeline("sleeps", [("util/delay", {"min": DAY * 1000, "max": DAY * 1000})])
    limits = msgspec.structs.replace(QUICK, cancel_grace_ms=100)
    async with open_machine(store_server.address, app, tmp_path, limits=limits) as machine:
        for name in ("runs", "sleeps"):
            started = await machine.start(name, deadline_in_ms=300)
            assert (await machine.ended(started)).status is Status.TIMEOUT


async def test_a_cancelled_parent_takes_its_children_along(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    app = App()
    app.pipeline("child", [("util/wait", {"switch": "go"})])
    app.pipeline("p", [("util/parallel", {"pipelines": ["child"] * 3})])
    async with open_machine(store_server.address, app, tmp_path) as machine:
        started = await machine.start("p")
        await machine.reached(started, State.WAITING_CHILDREN)
        await machine.signals.cancel("", [started], cause="all", grace_ms=60_000)
        for fact in await all_started(machine, 4):
            assert (await machine.ended(fact.id)).status is Status.CANCELLED


async def test_a_step_that_nobody_serves_waits_for_somebody_who_does(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    app = app_with(names_="a")
    app.pipeline("p", ["a", "b"])
    async with open_machine(store_server.address, app, tmp_path) as machine:
        started = await machine.start("p", {})
        await machine.reached(started, State.SLEEPING)
        machine.workers[0].use(app_with().book())
        await machine.time.advance(UNSERVED_MS / 1000)
        end = await machine.ended(started)
        assert end.output == {"steps": ["a", "b"]}
        # Nothing was tried meanwhile.
        assert end.outcomes("2") == ["success"]


# -- What else a pipeline may meet -----------------------------------------------------------


async def test_a_progress_report_and_a_snapshot_are_there_while_it_runs(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    app = App()
    report = ("util/progressReport", {"progressReport": {"done": 1}})
    app.pipeline("p", [report, "util/checkpoint", ("util/wait", {"switch": "go"})])

    @app.step("look")
    async def look(ctx: Context) -> list[str]:
        found = await machine.found(ctx.transaction.id)
        return [found.extras[b"progress"].decode(), found.head.archive]

    app.pipeline("looked", [report, "util/checkpoint", "look"])
    async with open_machine(store_server.address, app, tmp_path) as machine:
        end = await machine.run("looked")
        assert end.output == ['{"done":1}', "snapshot"]
        assert b"progress" not in end.found.extras


async def test_a_delayed_start_begins_in_its_time(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    app = app_with(names_="a")
    app.pipeline("p", ["a"])
    async with open_machine(store_server.address, app, tmp_path) as machine:
        started = await machine.start("p", {}, delay_ms=7 * DAY * 1000)
        await machine.time.advance(7 * DAY - 60)
        assert (await machine.found(started)).head.state is State.SCHEDULED
        await machine.time.advance(60)
        assert (await machine.ended(started)).output == {"steps": ["a"]}


async def test_a_paused_pipeline_is_held_and_goes_on_when_it_is_resumed(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    app = app_with(names_="ab")
    app.pipeline("inner", ["b"])
    app.pipeline("outer", ["a", ("util/child", {"pipeline": "inner"})])
    async with open_machine(store_server.address, app, tmp_path) as machine:
        await machine.pipelines.pause("default", "inner")
        started = await machine.start("outer", {})
        held = await machine.reached(started, State.HELD)
        assert held.head.pipeline == "inner"
        await machine.pipelines.resume("default", "inner")
        assert (await machine.ended(started)).output == {"steps": ["a", "b"]}


class _Skewed(Clock):
    """The clock of a machine that is wrong."""

    hours = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.hours * 3_600_000


@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_worker_whose_clock_is_wrong_does_everything_in_time(
    store_server: EmbeddedServer, tmp_path: Path, hours: int
) -> None:
    """F-15: due times, leases and the journal follow the store's clock alone."""
    app = App()

    @app.step("wait")
    async def wait(ctx: Context) -> object:
        return "timed out" if ctx.timed_out else Wait("go", at_most="100ms")

    app.pipeline("p", [("util/delay", {"min": 100, "max": 100}), "wait"])
    clock = _Skewed()
    clock.hours = hours
    async with open_machine(store_server.address, app, tmp_path, clock=clock) as machine:
        before = (await machine.signals.look(0)).now_ms
        end = await machine.run("p")
        after = (await machine.signals.look(0)).now_ms
        assert (end.output, end.found.head.epoch) == ("timed out", 3)
        assert 200 <= after - before < 5000
        for journal in end.state.journal:
            for attempt in journal.last:
                # Its own clock would be wrong by an hour.
                assert before - 5000 <= attempt.begun_ms <= attempt.ended_ms <= after + 5000
