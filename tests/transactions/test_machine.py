"""The machine: pipelines of every kind run to their right end, on the real store."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.kit.transaction_machine import QUICK, open_machine
from waystation import Abort, App, Child, Context, Fail, Parallel, RetryLater, Wait
from waystation.clock import Clock
from waystation.store.embedded import EmbeddedServer
from waystation.transaction_errors import TransactionFinalError
from waystation.transactions import names
from waystation.transactions.decisions import FRAMES_MAX
from waystation.transactions.log_entry import StepDetail
from waystation.transactions.states import State, Status
from waystation.transactions.turns import UNSERVED_MS

DAY = 86_400


class Note(msgspec.Struct):
    """What steps of these tests pass on: which of them have run."""

    steps: list[str] = []


def app_with(*, names_: str = "abc") -> App:
    """An app of steps that note their own names."""
    app = App()
    for name in names_:

        def make(name: str) -> Any:
            async def step(ctx: Context, note: Note) -> Note:
                return Note([*note.steps, name])

            return step

        app.step(name)(make(name))
    return app


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


# -- Sleeping and waiting --------------------------------------------------------------------


async def test_a_retry_comes_back_after_its_delay_and_counts(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    app, delays = App(), []

    @app.step("flaky")
    async def flaky(ctx: Context) -> object:
        if ctx.retries < 3:
            return RetryLater("1h", factor=2, jitter=0.1, delay_max="2d", note="not yet")
        return ctx.retries

    app.pipeline("p", ["flaky"])
    async with open_machine(store_server.address, app, tmp_path) as machine:
        started = await machine.start("p")
        for _ in range(3):
            found = await machine.reached(started, State.SLEEPING)
            delays.append(found.head.wake - found.head.since)
            await machine.time.advance(delays[-1] / 1000)
            await machine.reached(started, State.RUNNING, State.QUEUED, State.SLEEPING)
            while (await machine.found(started)).head.version == found.head.version:
                await asyncio.sleep(0.001)
        end = await machine.ended(started)
        assert end.output == 3
        assert end.outcomes("1") == ["retry", "retry", "retry", "success"]
        hour = 3_600_000
        for delay, whole in zip(delays, (hour, 2 * hour, 4 * hour), strict=True):
            assert 0.9 * whole <= delay <= 1.1 * whole
            assert delay != whole


async def test_a_sleep_of_days_ends_at_its_millisecond(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    app = app_with(names_="a")
    app.pipeline("p", ["a", ("util/delay", {"min": 3 * DAY * 1000, "max": 3 * DAY * 1000}), "a"])
    async with open_machine(store_server.address, app, tmp_path) as machine:
        started = await machine.start("p", {})
        asleep = await machine.reached(started, State.SLEEPING)
        await machine.time.advance(3 * DAY - 60)
        assert (await machine.found(started)).head.state is State.SLEEPING
        await machine.time.advance(60)
        end = await machine.ended(started)
        assert end.output == {"steps": ["a", "a"]}
        late_ms = end.found.head.since - asleep.head.wake
        assert 0 <= late_ms < 1000


async def test_many_sleepers_wake_together_in_bulk(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    app = App()
    app.pipeline("p", [("util/delay", {"min": DAY * 1000, "max": DAY * 1000})])
    async with open_machine(store_server.address, app, tmp_path) as machine:
        new = [await machine.new("p") for _ in range(250)]
        for at in range(0, 250, 50):
            await machine.entry.start(0, new[at : at + 50])
        for each in new:
            await machine.reached(each.id, State.SLEEPING)
        await machine.time.advance(DAY + 1)
        for each in new:
            assert (await machine.ended(each.id)).status is Status.SUCCESS


async def test_a_switch_is_seen_before_during_and_after_the_wait(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """F-29."""
    app, calls = App(), []
    looked, may_wait = asyncio.Event(), asyncio.Event()

    @app.step("wait")
    async def wait(ctx: Context) -> object:
        value = ctx.switch("go")
        calls.append(value)
        if value is not None:
            return value
        if ctx.options.get("slowly"):
            looked.set()
            await may_wait.wait()
        return Wait("go", at_most="1d")

    app.pipeline("plain", ["wait"])
    app.pipeline("slowly", [("wait", {"slowly": True})])
    async with open_machine(store_server.address, app, tmp_path, workers=0) as machine:
        before = await machine.start("plain")
        await machine.signals.set_switch("", before, "go", 1)
        await machine.worker()
        assert (await machine.ended(before)).output == 1
        during = await machine.start("slowly")
        await looked.wait()
        await machine.signals.set_switch("", during, "go", 2)
        may_wait.set()
        assert (await machine.ended(during)).output == 2
        after = await machine.start("plain")
        await machine.reached(after, State.WAITING_SWITCH)
        await machine.signals.set_switch("", after, "go", 3)
        assert (await machine.ended(after)).output == 3
        assert calls == [1, None, 2, None, 3]


async def test_timed_out_is_true_only_when_at_most_has_passed(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """The default wake-up calls the step with it false; `at_most` runs from the first Wait."""
    app, told = App(), []

    @app.step("wait")
    async def wait(ctx: Context) -> object:
        told.append(ctx.timed_out)
        return Fail("nobody answered") if ctx.timed_out else Wait("go", at_most="3h")

    app.pipeline("p", ["wait"])
    async with open_machine(store_server.address, app, tmp_path) as machine:
        started = await machine.start("p")
        for hours, calls in ((2, 2), (1, 3)):
            await machine.reached(started, State.WAITING_SWITCH)
            await machine.time.advance(hours * 3600)
            while len(told) < calls:
                await asyncio.sleep(0.001)
        end = await machine.ended(started)
        assert told == [False, False, True]
        assert end.output == {"error": "nobody answered"}
        # What the store kept for the step is gone with it.
        assert not [name for name in end.found.extras if name.startswith(b"wait:")]


async def test_timed_out_is_of_the_switch_that_the_step_has_waited_for_last(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """That an answer came late must not make the next question time out."""
    app, told = App(), []

    @app.step("ask")
    async def ask(ctx: Context) -> object:
        told.append(ctx.timed_out)
        if ctx.switch("first") is None:
            return Wait("first", at_most="3h")
        return Fail("nobody answered") if ctx.timed_out else Wait("second", at_most="3h")

    app.pipeline("p", ["ask"])
    async with open_machine(store_server.address, app, tmp_path) as machine:

        async def called(times: int) -> None:
            while len(told) < times:
                await asyncio.sleep(0.001)
            await machine.reached(started, State.WAITING_SWITCH)

        started = await machine.start("p")
        await called(1)
        await machine.time.advance(1 * 3600)
        await machine.signals.set_switch("default", started, "first", "yes")
        await called(2)
        # That of the first is over by now; the second has an hour left.
        await machine.time.advance(2 * 3600 + 1)
        await called(3)
        await machine.time.advance(1 * 3600)
        assert (await machine.ended(started)).output == {"error": "nobody answered"}
        assert told == [False, False, False, True]


async def test_a_step_that_comes_back_to_a_wait_that_is_over_is_told_at_once(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    app, told = App(), []

    @app.step("ask")
    async def ask(ctx: Context) -> object:
        told.append(ctx.timed_out)
        match len(told):
            case 1 | 3:
                return Wait("first", at_most="1h")
            case 2:
                return Wait("second")
            case 4:
                return Wait("first", at_most="1h")  # It was told, and does not spin.
            case _:
                return "done"

    app.pipeline("p", ["ask"])
    async with open_machine(store_server.address, app, tmp_path) as machine:
        started = await machine.start("p")
        for calls in (1, 2):
            while len(told) < calls:
                await asyncio.sleep(0.001)
            await machine.reached(started, State.WAITING_SWITCH)
            await machine.time.advance(calls * 1800)
            name = "first" if calls == 1 else "second"
            await machine.signals.set_switch("default", started, name, "yes")
        while len(told) < 4:
            await asyncio.sleep(0.001)
        found = await machine.reached(started, State.WAITING_SWITCH)
        assert found.head.wake - found.head.since == 2 * 3_600_000
        assert told == [False, False, False, True]


async def test_once_is_kept_until_its_step_ends(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    app, charged = App(), []

    @app.step("charge")
    async def charge(ctx: Context) -> object:
        await ctx.once("charge", lambda: charged.append(1))
        return "paid" if ctx.retries else RetryLater("1d")

    app.pipeline("p", ["charge", ("util/wait", {"switch": "end"})])
    async with open_machine(store_server.address, app, tmp_path) as machine:
        started = await machine.start("p")
        asleep = await machine.reached(started, State.SLEEPING)
        assert b"once:1:charge" in asleep.extras
        await machine.time.advance(DAY)
        waiting = await machine.reached(started, State.WAITING_SWITCH)
        assert b"once:1:charge" not in waiting.extras
        assert charged == [1]
        await machine.signals.set_switch("", started, "end", True)
        assert (await machine.ended(started)).output == "paid"


# -- Children --------------------------------------------------------------------------------


async def test_a_child_runs_in_the_same_transaction_by_the_queues_of_its_node_group(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    app = app_with()
    app.pipeline("inner", ["b"], group="gpu", startable=False)
    app.pipeline("outer", ["a", ("util/child", {"pipeline": "inner"}), "c"])
    async with open_machine(store_server.address, app, tmp_path) as machine:
        started = await machine.start("outer", {})
        found = await machine.reached(started, State.QUEUED, State.COMPLETE)
        while found.head.group != "gpu":
            found = await machine.found(started)
        # Nobody serves that node group yet.
        assert (found.head.state, found.head.queue, found.head.pipeline) == (
            "queued",
            "in",
            "inner",
        )
        await machine.worker(group="gpu")
        end = await machine.ended(started)
        assert end.output == {"steps": ["a", "b", "c"]}
        assert [each.place for each in end.state.journal] == ["1", "2", "2.1", "3"]
        assert end.journal("2.1").last[0].node == "n2"
        assert (end.found.head.group, end.found.head.queue) == ("master", "out")
        kinds = ["started", "step", "passed", "passed", "finished"]
        assert await machine.kinds(started) == kinds


async def test_a_child_gets_the_version_that_is_active_when_it_starts(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    app = app_with()
    app.pipeline("inner", ["b"])
    app.pipeline("outer", [("util/wait", {"switch": "go"}), ("util/child", {"pipeline": "inner"})])
    other = App()
    other.pipeline("inner", ["c"])
    other.pipeline("outer", ["a"])
    async with open_machine(store_server.address, app, tmp_path) as machine:
        assert (await machine.run("inner", {})).output == {"steps": ["b"]}
        started = await machine.start("outer", {})
        await machine.reached(started, State.WAITING_SWITCH)
        await machine.define(other)
        # A worker that knows an old version is told so by the script.
        machine.pipelines._remember_active(
            "default", "inner", app.pipelines[0].version, machine.clock.real_seconds()
        )
        await machine.signals.set_switch("", started, "go", True)
        assert (await machine.ended(started)).output == {"steps": ["c"]}
        assert (await machine.run("outer", {})).output == {"steps": ["a"]}


async def test_a_child_that_nobody_has_defined_is_an_internal_error(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    app = App()

    @app.step("calls")
    async def calls(ctx: Context) -> Child:
        return Child("nowhere")

    app.pipeline("p", ["calls"])
    async with open_machine(store_server.address, app, tmp_path) as machine:
        end = await machine.run("p")
        assert end.status is Status.INTERNAL_ERROR
        assert end.output == {"error": "There is no pipeline nowhere."}


async def test_pipelines_that_call_themselves_end(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    app = App()
    app.pipeline("loop", [("util/child", {"pipeline": "loop"})])
    async with open_machine(store_server.address, app, tmp_path) as machine:
        end = await machine.run("loop")
        assert end.status is Status.INTERNAL_ERROR
        assert f"More than {FRAMES_MAX} pipelines" in end.output["error"]


async def test_a_router_leads_by_a_field(store_server: EmbeddedServer, tmp_path: Path) -> None:
    app = App()
    for name in ("one", "other"):
        app.pipeline(name, [("util/fixed-reply", {"reply": name})])
    options = {
        "field": "kind",
        "map": [{"value": 1, "pipeline": "one"}],
        "defaultPipeline": "other",
    }
    app.pipeline("p", [("util/router", options)])
    async with open_machine(store_server.address, app, tmp_path) as machine:
        assert (await machine.run("p", {"kind": 1})).output == "one"
        assert (await machine.run("p", {"kind": 2})).output == "other"


# -- Parallel --------------------------------------------------------------------------------


async def test_parallel_children_are_transactions_and_their_outputs_are_in_order(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    app = App()

    @app.step("square")
    async def square(ctx: Context, number: int) -> object:
        if number % 3 == 0 and not ctx.retries:
            return RetryLater(0.001)
        return number * number

    @app.step("sum")
    async def total(ctx: Context, numbers: list[int]) -> int:
        return sum(numbers)

    app.pipeline("square", ["square"], startable=False)
    app.pipeline("p", [("util/parallel", {"pipeline": "square"}), "sum"])
    app.pipeline("list", [("util/parallel", {"pipeline": "square"})])
    async with open_machine(store_server.address, app, tmp_path, cells=2) as machine:
        numbers = list(range(250))
        end = await machine.run("p", numbers, cell=0)
        assert end.output == sum(n * n for n in numbers)
        assert not [name for name in end.found.extras if name.startswith((b"kids", b"result"))]
        assert end.state.fan is None
        end = await machine.run("list", numbers[:7], cell=1)
        assert end.output == [n * n for n in numbers[:7]]
        fact = next(each for each in await machine.facts(1) if each.kind == "fanned")
        assert names.cell_of(fact.id) == 1
        children = {each.id for each in await machine.facts(1) if each.kind == "started"}
        assert len(children) == 8


async def test_results_that_no_state_could_have_are_not_gathered(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """A thousand children, each with as much as a state may have, must not fill their parent."""
    app = App()

    @app.step("grow")
    async def grow(ctx: Context) -> str:
        return "x" * 15_000

    @app.step("fan")
    async def fan(ctx: Context, children: int) -> Parallel:
        return Parallel([Child("grow")] * children)

    app.pipeline("grow", ["grow"])
    app.pipeline("p", ["fan", ("util/fixed-reply", {"reply": "all of it did fit"})])
    limits = msgspec.structs.replace(QUICK, state_bytes_max=64_000)
    async with open_machine(store_server.address, app, tmp_path, limits=limits) as machine:
        assert (await machine.run("p", 3)).output == "all of it did fit"
        # What is gathered is looked at while it grows.
        started = await machine.start("p", 12)
        seen: dict[bytes, bytes] = {}
        while (found := await machine.found(started)).head.state is not State.COMPLETE:
            seen |= found.extras
            await asyncio.sleep(0.001)
        end = await machine.ended(started)
        assert sum(len(each) for name, each in seen.items() if name.startswith(b"result:")) < 65_000
        assert end.status is Status.INTERNAL_ERROR
        assert "64000 bytes" in end.output["error"]
        extras = end.found.extras
        assert not [name for name in extras if name.startswith((b"kids", b"result", b"room"))]


async def test_a_child_whose_input_no_state_could_have_is_not_created(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    app = app_with(names_="a")

    @app.step("fan")
    async def fan(ctx: Context) -> Parallel:
        return Parallel([Child("a", {"steps": ["x" * 6000]})])

    app.pipeline("a", ["a"])
    app.pipeline("p", ["fan"])
    limits = msgspec.structs.replace(QUICK, state_bytes_max=10_000)
    async with open_machine(store_server.address, app, tmp_path, limits=limits) as machine:
        end = await machine.run("p")
        assert end.status is Status.INTERNAL_ERROR
        assert "may have 10000 bytes" in end.output["error"]
        assert {fact.id for fact in await machine.facts()} == {end.found.id}


async def test_parallels_of_parallels_end(store_server: EmbeddedServer, tmp_path: Path) -> None:
    """As pipelines that call themselves do: each child is deeper than its parent."""
    app = App()

    @app.step("deeper")
    async def deeper(ctx: Context) -> Parallel:
        return Parallel([Child("p")])

    app.pipeline("p", ["deeper"])
    async with open_machine(store_server.address, app, tmp_path) as machine:
        end = await machine.run("p")
        assert end.status is Status.INTERNAL_ERROR
        ids = {fact.id for fact in await machine.facts()}
        assert len(ids) == FRAMES_MAX


async def test_two_parallels_of_one_pipeline_do_not_meet(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    app = App()

    @app.step("more")
    async def more(ctx: Context, number: int) -> int:
        return number + 1

    app.pipeline("more", ["more"])
    each = ("util/parallel", {"pipeline": "more"})
    app.pipeline("p", [each, each, each])
    async with open_machine(store_server.address, app, tmp_path) as machine:
        assert (await machine.run("p", [1, 10])).output == [4, 13]


@pytest.mark.parametrize("policy", ["cancel_rest", "wait_all"])
async def test_a_child_that_fails_fails_its_parent_and_the_policy_decides_on_the_others(
    store_server: EmbeddedServer, tmp_path: Path, policy: Any
) -> None:
    app = App()

    @app.step("child")
    async def child(ctx: Context, number: int) -> object:
        if number == 2:
            return Abort("two", number)
        return number if ctx.retries else RetryLater("1h")

    app.pipeline("child", ["child"])

    @app.step("fan")
    async def fan(ctx: Context) -> Parallel:
        return Parallel([Child("child", n) for n in (1, 2, 3)], on_failure=policy)

    app.pipeline("p", ["fan"])
    async with open_machine(store_server.address, app, tmp_path) as machine:
        started = await machine.start("p")
        if policy == "wait_all":
            children = {fact.id for fact in await _started(machine, 4)} - {started}
            for each in children:
                await machine.reached(each, State.SLEEPING, State.COMPLETE)
            await machine.time.advance(3600)
        end = await machine.ended(started)
        assert end.status is Status.ABORTED
        assert end.output["child"] == 2
        assert end.output["output"] == 2
        rest = "cancelled" if policy == "cancel_rest" else "success"
        ends = {(await machine.ended(fact.id)).status.value for fact in await _started(machine, 4)}
        assert ends == {"aborted", rest}


async def _started(machine: Any, count: int) -> list[Any]:
    while True:
        facts = [each for each in await machine.facts() if each.kind == "started"]
        if len(facts) == count:
            return facts
        await asyncio.sleep(0.002)


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
        for fact in await _started(machine, 4):
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
                assert before <= attempt.begun_ms <= attempt.ended_ms <= after + 50
