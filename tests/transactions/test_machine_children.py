"""The machine: children, called and beside each other, end as their parents expect."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.transactions.engine_helpers import QUICK, all_started, open_machine
from tests.transactions.helpers import app_with
from waystation import Abort, App, Child, Context, Parallel, RetryLater
from waystation.store.embedded.server import EmbeddedServer
from waystation.transactions import names
from waystation.transactions.decisions import FRAMES_MAX
from waystation.transactions.states import State, Status

DAY = 86_400
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
            "default", "inner", app.pipelines[0].version, machine.clock.uptime_s()
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


def forking_app() -> App:
    """Each transaction forks two that do the same."""
    app = App()

    @app.step("fork")
    async def fork(ctx: Context) -> Parallel:
        return Parallel([Child("fork"), Child("fork")])

    app.pipeline("fork", ["fork"])
    app.pipeline("nap", [("util/fixed-reply", {"reply": "awake"})])
    return app


async def test_parallel_tree_over_its_limit_fails_with_a_code(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    limits = msgspec.structs.replace(QUICK, descendants_max=50)
    async with open_machine(
        store_server.address, forking_app(), tmp_path, limits=limits
    ) as machine:
        end = await machine.run("fork")
        assert end.status is Status.INTERNAL_ERROR
        told = end.output
        while "code" not in told:
            told = told["output"]
        assert (told["code"], told["limit"]) == ("transaction.tree-too-large", 50)
        assert "transactions.descendants_max" in told["error"]
        ids = {fact.id for fact in await machine.facts()}
        assert len(ids) <= 51


async def test_parallel_tree_over_its_depth_fails_with_a_code(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    limits = msgspec.structs.replace(QUICK, depth_max=3)
    app = App()
    app.pipeline("loop", [("util/child", {"pipeline": "loop"})])
    async with open_machine(store_server.address, app, tmp_path, limits=limits) as machine:
        end = await machine.run("loop")
        assert end.status is Status.INTERNAL_ERROR
        assert (end.output["code"], end.output["limit"]) == ("transaction.tree-too-deep", 3)


@pytest.mark.slow
async def test_cancelled_forking_tree_stops_growing_and_delays_no_sleeper(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    limits = msgspec.structs.replace(QUICK, lease_ms=60_000)
    async with open_machine(
        store_server.address, forking_app(), tmp_path, limits=limits, workers=2
    ) as machine:
        root = await machine.start("fork")
        while await machine.store.call("DBSIZE") < 2000:
            await asyncio.sleep(0.01)
        sleeper = await machine.start("nap", delay_ms=100)
        await machine.signals.cancel("", [root], cause="me", grace_ms=30_000)
        assert (await machine.ended(root, seconds=15)).status is Status.CANCELLED
        assert (await machine.ended(sleeper, seconds=15)).output == "awake"
        # What was open when the root was cancelled may end after it, but nothing is added.
        size = await machine.store.call("DBSIZE")
        heads = [await machine.signals.look(0) for _ in range(20)]
        assert heads[-1].sweep_ms is None
        assert await machine.store.call("DBSIZE") <= size


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
            children = {fact.id for fact in await all_started(machine, 4)} - {started}
            for each in children:
                await machine.reached(each, State.SLEEPING, State.COMPLETE)
            await machine.time.advance(3600)
        end = await machine.ended(started)
        assert end.status is Status.ABORTED
        assert end.output["child"] == 2
        assert end.output["output"] == 2
        rest = "cancelled" if policy == "cancel_rest" else "success"
        ends = {
            (await machine.ended(fact.id)).status.value for fact in await all_started(machine, 4)
        }
        assert ends == {"aborted", rest}
