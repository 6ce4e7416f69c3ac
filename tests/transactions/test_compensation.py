"""Compensation: what was done is undone, once, and the transaction ends as its step did."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.transactions.engine_helpers import End, Machine, open_machine
from tests.transactions.helpers import TERMS
from waystation import Abort, App, Child, Context, Fail, Parallel, RetryLater, Wait
from waystation.errors import PipelineInvalidError
from waystation.store.embedded.server import EmbeddedServer
from waystation.transactions.decisions import FRAMES_MAX
from waystation.transactions.limits import Limits
from waystation.transactions.pipeline import define, parse_pipelines
from waystation.transactions.pipelines import Pipelines
from waystation.transactions.states import State, Status


class Shop:
    """An app whose steps note what they did."""

    def __init__(self) -> None:
        self.app = App()
        self.done: list[Any] = []
        self.keys: list[str] = []
        self.machine: Machine | None = None

        @self.app.step("do")
        async def do(ctx: Context, given: Any) -> Any:
            self.done.append("do")
            return given

        @self.app.step("undo")
        async def undo(ctx: Context, told: Any) -> Any:
            self.done.append((ctx.place, told))
            self.keys.append(ctx.idempotency_key)
            return {"undone": True}

        @self.app.step("fail")
        async def fail(ctx: Context, given: Any) -> Any:
            return Fail("no money", output={"code": 7})

        @self.app.step("fail/undo")
        async def fail_undo(ctx: Context, told: Any) -> Any:
            self.done.append("tried")
            return Fail("no bank")

        @self.app.step("abort")
        async def abort(ctx: Context) -> Any:
            return Abort("stop")

        @self.app.step("break")
        async def broken(ctx: Context) -> Any:
            raise RuntimeError

        @self.app.step("slow", timeout="50ms")
        async def slow(ctx: Context) -> Any:
            await asyncio.Event().wait()

        @self.app.step("large")
        async def large(ctx: Context) -> Any:
            return "x" * 40_000

        @self.app.step("fail/large")
        async def fail_large(ctx: Context) -> Any:
            return Fail("large", output="x" * 15_000)

        @self.app.step("fan")
        async def fan(ctx: Context) -> Any:
            return Parallel([Child("failing", 1)])

        self.app.pipeline("undo", ["undo"], startable=False)
        self.app.pipeline("failing", ["fail"])

    @property
    def undone(self) -> list[tuple[str, Any]]:
        return [each for each in self.done if isinstance(each, tuple)]

    async def run(
        self, server: EmbeddedServer, folder: Path, name: str = "p", data: Any = 1, **more: Any
    ) -> End:
        async with open_machine(server.address, self.app, folder, **more) as machine:
            self.machine = machine
            return await machine.run(name, data)


# -- One pipeline ----------------------------------------------------------------------------


async def test_what_was_done_is_undone_and_the_transaction_ends_as_its_step_did(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    shop = Shop()
    shop.app.pipeline("p", ["do", "fail", "do"], on_failure="undo")
    end = await shop.run(store_server, tmp_path, data={"cents": 5})
    assert end.status is Status.FAILED
    assert end.output == {"code": 7}
    assert end.state.note == "no money"
    told = {"status": "failed", "output": {"code": 7}, "note": "no money", "place": "2"}
    assert shop.done == ["do", ("2~.1", {**told, "input": {"cents": 5}})]
    assert [each.place for each in end.state.journal] == ["1", "2", "2~.1"]
    assert end.state.failing is None


async def test_a_success_is_not_compensated(store_server: EmbeddedServer, tmp_path: Path) -> None:
    shop = Shop()
    shop.app.pipeline("p", ["do", "do"], on_failure="undo")
    end = await shop.run(store_server, tmp_path)
    assert end.status is Status.SUCCESS
    assert shop.done == ["do", "do"]


@pytest.mark.parametrize(
    ("step", "status"),
    [
        ("abort", Status.ABORTED),
        ("break", Status.INTERNAL_ERROR),
        ("slow", Status.TIMEOUT),
        ("fan", Status.FAILED),
        ("util/fixed-reply", Status.FAILED),
        (("util/child", {"pipeline": "nowhere"}), Status.INTERNAL_ERROR),
    ],
)
async def test_every_way_in_which_a_step_fails_is_compensated(
    store_server: EmbeddedServer, tmp_path: Path, step: Any, status: Status
) -> None:
    shop = Shop()
    if step == "util/fixed-reply":
        step = (step, {"returnError": True})
    shop.app.pipeline("p", ["do", step], on_failure="undo")
    end = await shop.run(store_server, tmp_path)
    assert end.status is status
    ((place, told),) = shop.undone
    assert (place, told["status"], told["input"]) == ("2~.1", status.value, 1)
    assert told["output"] == end.output


async def test_an_end_by_a_cancel_runs_nothing_more(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    shop = Shop()
    shop.app.pipeline("p", ["do", ("util/wait", {"switch": "go"})], on_failure="undo")
    async with open_machine(store_server.address, shop.app, tmp_path) as machine:
        transaction_id = await machine.start("p")
        await machine.reached(transaction_id, State.WAITING_SWITCH)
        await machine.signals.cancel("", [transaction_id], cause="me", grace_ms=1000)
        end = await machine.ended(transaction_id)
        assert end.status is Status.CANCELLED
        assert shop.done == ["do"]


async def test_a_compensation_may_sleep_wait_and_call(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    shop = Shop()

    @shop.app.step("patient")
    async def patient(ctx: Context, told: Any) -> Any:
        if not ctx.retries:
            return RetryLater("1ms")
        return told if ctx.switch("go") else Wait("go")

    shop.app.pipeline("long", ["patient", ("util/child", {"pipeline": "undo"}), "do"])
    shop.app.pipeline("p", ["fail"], on_failure="long")
    async with open_machine(store_server.address, shop.app, tmp_path) as machine:
        transaction_id = await machine.start("p", 1)
        await machine.reached(transaction_id, State.WAITING_SWITCH)
        await machine.signals.set_switch("default", transaction_id, "go", True)
        end = await machine.ended(transaction_id)
        assert end.status is Status.FAILED
        assert end.output == {"code": 7}
        assert [each.place for each in end.state.journal] == ["1", "1~.1", "1~.2", "1~.2.1", "1~.3"]


# -- Frames ----------------------------------------------------------------------------------


async def test_the_nearest_frame_compensates_first_and_outer_ones_after_it_each_once(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    shop = Shop()
    shop.app.pipeline("inner", ["do", "fail"], on_failure="undo")
    shop.app.pipeline("middle", [("util/child", {"pipeline": "inner"}), "do"])
    shop.app.pipeline("p", ["do", ("util/child", {"pipeline": "middle"})], on_failure="undo")
    end = await shop.run(store_server, tmp_path)
    assert end.status is Status.FAILED
    assert [place for place, _ in shop.undone] == ["2.1.2~.1", "2~.1"]
    assert [told["place"] for _, told in shop.undone] == ["2.1.2", "2.1.2"]
    assert len(set(shop.keys)) == 2, "keys of no two steps are the same"
    assert shop.done.count("do") == 2


async def test_what_compensates_is_no_child_of_the_step_that_failed(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """A child has run in its place before: its keys must not be used again."""
    shop = Shop()
    shop.app.pipeline("twice", ["undo", "fail"])
    shop.app.pipeline("p", [("util/child", {"pipeline": "twice"})], on_failure="undo")
    await shop.run(store_server, tmp_path)
    assert [place for place, _ in shop.undone] == ["1.1", "1~.1"]
    assert len(set(shop.keys)) == 2


async def test_a_compensation_that_fails_is_named_and_outer_ones_still_run(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    shop = Shop()
    # With one of its own, which is not called.
    shop.app.pipeline("bad-undo", ["fail/undo", "do"], on_failure="bad-undo")
    shop.app.pipeline("inner", ["fail"], on_failure="bad-undo")
    shop.app.pipeline("p", [("util/child", {"pipeline": "inner"})], on_failure="undo")
    end = await shop.run(store_server, tmp_path)
    assert end.status is Status.FAILED
    assert end.output == {"code": 7}
    assert end.state.note == "no money Compensation bad-undo ended as failed: no bank"
    assert shop.done[0] == "tried"
    assert [place for place, _ in shop.undone] == ["1~.1"]
    assert shop.done.count("tried") == 1


async def test_a_compensation_that_is_not_there_is_named(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    shop = Shop()
    shop.app.pipeline("inner", ["fail"], on_failure="nowhere")
    shop.app.pipeline("p", [("util/child", {"pipeline": "inner"})], on_failure="undo")
    end = await shop.run(store_server, tmp_path)
    assert end.state.note == "no money Compensation nowhere is not there."
    assert [place for place, _ in shop.undone] == ["1~.1"]


async def test_too_many_frames_are_compensated_too(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    shop = Shop()
    shop.app.pipeline("p", [("util/child", {"pipeline": "p"})], on_failure="undo")
    end = await shop.run(store_server, tmp_path)
    assert end.status is Status.INTERNAL_ERROR
    assert len(shop.undone) == FRAMES_MAX


# -- Deaths and changes ----------------------------------------------------------------------


async def test_a_rescue_in_the_middle_goes_on_where_it_was(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    shop = Shop()

    @shop.app.step("dying")
    async def dying(ctx: Context, told: Any) -> Any:
        shop.done.append("dying")
        if shop.done.count("dying") == 1:
            assert shop.machine is not None
            await shop.machine.rescue(ctx.transaction.id)
        return told

    shop.app.pipeline("long", ["undo", "dying", "do"], startable=False)
    shop.app.pipeline("p", ["do", "fail"], on_failure="long")
    end = await shop.run(store_server, tmp_path)
    assert end.status is Status.FAILED
    assert end.output == {"code": 7}
    names_ = [each if isinstance(each, str) else "undo" for each in shop.done]
    assert names_ == ["do", "undo", "dying", "dying", "do"], "what was committed is not repeated"


async def test_a_compensation_that_was_changed_just_now_is_called_as_it_is_now(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    shop = Shop()

    @shop.app.step("change")
    async def change(ctx: Context) -> Any:
        machine = shop.machine
        assert machine is not None
        await machine.pipelines.active("default", "undo")
        other = Pipelines(
            machine.pipelines._catalogue, machine.store, cells=1, terms=TERMS, clock=machine.clock
        )
        await other.put("default", define("undo", ["do", "undo"]))
        return Fail("no money")

    shop.app.pipeline("p", ["change"], on_failure="undo")
    end = await shop.run(store_server, tmp_path)
    assert end.state.note == "no money"
    assert [each if isinstance(each, str) else each[0] for each in shop.done] == ["do", "1~.2"]


# -- Size ------------------------------------------------------------------------------------

SMALL = Limits(lease_ms=300, state_bytes_max=20_000)


async def test_an_output_that_is_too_large_is_compensated_in_its_own_place(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    shop = Shop()
    shop.app.pipeline("inner", ["do", "large"], on_failure="undo")
    shop.app.pipeline("p", [("util/child", {"pipeline": "inner"}), "do"])
    end = await shop.run(store_server, tmp_path, limits=SMALL)
    assert end.status is Status.INTERNAL_ERROR
    assert "A transaction may have 20000 bytes." in end.output["error"]
    ((place, told),) = shop.undone
    assert (place, told["place"], told["input"]) == ("1.2~.1", "1.2", 1)


async def test_a_compensation_is_told_less_where_it_would_be_too_large(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    shop = Shop()
    shop.app.pipeline("p", ["fail/large"], on_failure="undo")
    end = await shop.run(store_server, tmp_path, limits=SMALL)
    assert end.output == "x" * 15_000
    ((_, told),) = shop.undone
    assert (told["status"], told["output"], told["input"]) == ("failed", None, None)


# -- Definitions -----------------------------------------------------------------------------


def test_on_failure_is_a_part_of_the_definition() -> None:
    plain, undoing = define("p", ["a"]), define("p", ["a"], on_failure="undo")
    assert plain.version != undoing.version
    assert b"on_failure" not in plain.encoded, "definitions of before keep their version"
    text = b'{"name": "p", "steps": ["a"], "on_failure": "undo"}'
    assert parse_pipelines(text, source="x") == [undoing]
    with pytest.raises(PipelineInvalidError, match="on_failure"):
        define("p", ["a"], on_failure="Not a name")
