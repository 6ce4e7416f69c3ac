"""Steps of users: types in and out, one outcome, threads, and code that breaks."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import Any

import msgspec
import pytest

from tests.transactions.calling import ID, call, step_call
from waystation import Abort, App, BlockingContext, Child, Context, Fail, RetryLater, Wait
from waystation.errors import InvalidInputError
from waystation.transactions.outcomes import Call, Failure, Pause, Success
from waystation.transactions.step_call import StepEnded


class Refund(msgspec.Struct):
    cents: int
    currency: str = "EUR"


class Receipt(msgspec.Struct):
    number: str


# -- Types -----------------------------------------------------------------------------------


async def test_the_input_is_read_as_the_type_of_the_step_and_the_output_is_json() -> None:
    app = App()

    @app.step("refund/pay")
    async def pay(ctx: Context, refund: Refund) -> Receipt:
        assert ctx.input is refund
        return Receipt(f"{refund.cents} {refund.currency}")

    assert await call(app, "refund/pay", b'{"cents":500}') == Success(b'{"number":"500 EUR"}')


async def test_a_step_without_types_gets_what_json_says() -> None:
    app = App()

    @app.step("any")
    async def step(ctx, given):  # type: ignore[no-untyped-def]
        return given

    given = b'{"n":12345678901234567890,"f":1.0,"l":[]}'
    assert await call(app, "any", given) == Success(given)


async def test_a_step_may_do_without_its_input() -> None:
    app = App()

    @app.step("blind")
    async def step(ctx: Context) -> int:
        return 7

    assert await call(app, "blind", b'{"whatever":1}') == Success(b"7")


async def test_raw_input_passes_byte_for_byte() -> None:
    app = App()

    @app.step("raw")
    async def step(ctx: Context, given: msgspec.Raw) -> msgspec.Raw:
        return given

    assert await call(app, "raw", b'{ "a" : 1.50 }') == Success(b'{ "a" : 1.50 }')


async def test_input_that_does_not_fit_fails_with_the_reason_and_calls_nothing() -> None:
    app = App()

    @app.step("refund/pay")
    async def pay(ctx: Context, refund: Refund) -> None:
        raise AssertionError("it was called")

    outcome = await call(app, "refund/pay", b'{"cents":"many"}')
    assert isinstance(outcome, Failure)
    assert outcome.status == "failed"
    assert "refund/pay" in outcome.note
    assert "$.cents" in outcome.output.decode()


async def test_output_that_its_own_type_cannot_read_is_the_fault_of_the_step() -> None:
    app = App()

    @app.step("refund/pay")
    async def pay(ctx: Context) -> Receipt | Fail:
        return {"nr": 1}  # type: ignore[return-value]

    outcome = await call(app, "refund/pay")
    assert isinstance(outcome, Failure)
    assert outcome.status == "internal-error"
    assert "missing required field `number`" in outcome.trace


async def test_outcomes_in_a_return_type_are_not_taken_for_output() -> None:
    app = App()

    @app.step("a")
    async def a(ctx: Context) -> Receipt | Wait | Child | None:
        return {"1": Wait("s"), "2": Child("other"), "3": None}[ctx.place]  # type: ignore[return-value]

    assert await call(app, "a", in_call=step_call(place="1")) == Pause(switch="s")
    assert await call(app, "a", b"5", in_call=step_call(place="2")) == Call("other", b"5")
    assert await call(app, "a", b"5", in_call=step_call(place="3")) == Success(b"5")


async def test_a_type_that_stands_further_down_is_found() -> None:
    app = App()

    @app.step("late")
    async def late(ctx: Context, given: Later) -> int:
        return given.n

    assert await call(app, "late", b'{"n":3}') == Success(b"3")


class Later(msgspec.Struct):
    n: int


def test_an_annotation_that_cannot_be_read_is_told_by_the_name_of_its_step() -> None:
    app = App()

    @app.step("refund/pay")
    async def pay(ctx: Context, refund: Nowhere) -> None:  # type: ignore[name-defined]  # noqa: F821
        return None

    with pytest.raises(InvalidInputError, match=r"refund/pay.*Nowhere"):
        app.book()


@pytest.mark.parametrize("written", ["msgspec.Strct", "not Python", "1 / 0"])
def test_whatever_is_wrong_with_an_annotation_is_told(written: str) -> None:
    app = App()

    async def pay(ctx: Context, refund: object) -> None:
        return None

    pay.__annotations__["refund"] = written
    app.step("refund/pay")(pay)
    with pytest.raises(InvalidInputError, match="The annotations of step refund/pay cannot be"):
        app.book()


# -- Exactly one outcome ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        (Fail, "the class Fail"),
        ([Child("a"), Child("b")], "several outcomes"),
        ((Fail("x"), {"a": 1}), "several outcomes"),
        (object(), "object"),
        ({"s": "\ud800"}, "surrogates"),
    ],
)
async def test_what_is_no_outcome_is_an_internal_error(returned: object, told: str) -> None:
    app = App()

    @app.step("odd")
    async def odd(ctx: Context) -> Any:
        return returned

    outcome = await call(app, "odd")
    assert isinstance(outcome, Failure)
    assert outcome.status == "internal-error"
    assert told in outcome.trace


async def test_a_forgotten_await_is_told() -> None:
    app = App()

    async def inner() -> int:
        return 1

    @app.step("forgetful")
    async def forgetful(ctx: Context) -> Any:
        return inner()

    outcome = await call(app, "forgetful")
    assert isinstance(outcome, Failure)
    assert "Is an `await` missing?" in outcome.trace


async def test_a_task_that_is_left_behind_records_nothing() -> None:
    app = App()
    tasks = []

    @app.step("leaves")
    async def leaves(ctx: Context) -> int:
        async def later() -> None:
            await gate.wait()
            await ctx.once("late", lambda: 1)

        tasks.append(asyncio.ensure_future(later()))
        return 1

    gate = asyncio.Event()
    assert await call(app, "leaves") == Success(b"1")
    gate.set()
    with pytest.raises(StepEnded, match="ended already"):
        await tasks[0]


# -- Code that breaks ------------------------------------------------------------------------


async def test_an_exception_is_an_internal_error_whose_trace_is_not_for_clients() -> None:
    app = App()

    @app.step("refund/pay")
    async def pay(ctx: Context) -> None:
        raise RuntimeError("the secret is 42")

    outcome = await call(app, "refund/pay")
    assert isinstance(outcome, Failure)
    assert outcome.status == "internal-error"
    assert outcome.note == "RuntimeError in step refund/pay"
    told = msgspec.json.decode(outcome.output)
    assert told == {
        "error": "Internal error: exception in step.",
        "transactionId": ID,
        "place": "1",
    }
    # From the user's code on: ours would only be in the way.
    assert outcome.trace.splitlines()[1].endswith("in pay")
    assert outcome.trace.endswith("RuntimeError: the secret is 42\n")


async def test_an_exception_is_told_in_the_log_of_the_process_without_its_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """S-12: what broke and where, for whoever runs the app; the text may hold a payload."""
    app = App()

    @app.step("refund/pay")
    async def pay(ctx: Context) -> None:
        raise RuntimeError("the secret is 42")

    await call(app, "refund/pay")
    (record,) = [each for each in caplog.records if each.getMessage() == "a step broke"]
    fields = record.__dict__["fields"]
    assert fields["problem"] == "RuntimeError in step refund/pay"
    assert (fields["transaction"], fields["place"]) == (ID, "1")
    line = pay.__code__.co_firstlineno + 2
    assert fields["where"] == f"{__file__}, line {line}"
    assert "secret" not in str(record.__dict__)


async def test_a_long_trace_keeps_its_end() -> None:
    app = App()

    @app.step("deep")
    async def deep(ctx: Context) -> None:
        raise ValueError("x" * 20_000 + " the end")

    outcome = await call(app, "deep")
    assert isinstance(outcome, Failure)
    assert len(outcome.trace.encode()) == 8192
    assert outcome.trace.endswith("the end\n")


async def test_a_step_cannot_end_the_process() -> None:
    app = App()

    @app.step("exits")
    async def exits(ctx: Context) -> None:
        sys.exit(3)

    outcome = await call(app, "exits")
    assert isinstance(outcome, Failure)
    assert outcome.note == "SystemExit in step exits"


async def test_cancelling_a_call_gives_it_up() -> None:
    app = App()
    begun = asyncio.Event()

    @app.step("slow")
    async def slow(ctx: Context) -> None:
        begun.set()
        await asyncio.Event().wait()

    in_call = step_call()
    task = asyncio.ensure_future(call(app, "slow", in_call=in_call))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert in_call.over


async def test_a_cancellation_of_the_steps_own_making_is_its_failure() -> None:
    app = App()

    @app.step("own")
    async def own(ctx: Context) -> None:
        task = asyncio.ensure_future(asyncio.Event().wait())
        task.cancel()
        await task

    outcome = await call(app, "own")
    assert isinstance(outcome, Failure)
    assert outcome.note == "CancelledError in step own"


# -- Threads ---------------------------------------------------------------------------------


async def test_a_plain_function_runs_in_a_thread_and_is_marked_so() -> None:
    app = App()
    where = []

    @app.step("plain")
    def plain(ctx: BlockingContext, refund: Refund) -> Receipt:
        where.append(threading.current_thread())
        return Receipt(f"{refund.cents} {ctx.retries}")

    outcome = await call(app, "plain", b'{"cents":5}', in_call=step_call(retries=2))
    assert outcome == Success(b'{"number":"5 2"}')
    assert where != [threading.current_thread()]
    step = app.book().find("plain")
    assert step is not None
    assert step.in_thread


async def test_an_exception_in_a_thread_is_one_of_the_step() -> None:
    app = App()

    @app.step("plain")
    def plain(ctx: BlockingContext) -> None:
        raise KeyError("gone")

    outcome = await call(app, "plain")
    assert isinstance(outcome, Failure)
    assert outcome.note == "KeyError in step plain"
    assert "in plain" in outcome.trace


async def test_a_thread_that_is_left_behind_records_nothing() -> None:
    app = App()
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()
    stopped: list[BaseException] = []

    @app.step("plain")
    def plain(ctx: BlockingContext) -> None:
        begun.set()
        go_on.wait(10)
        try:
            ctx.once("late", lambda: 1)
        except BaseException as error:
            stopped.append(error)
            ended.set()
            raise

    task = asyncio.ensure_future(call(app, "plain"))
    await asyncio.to_thread(begun.wait, 10)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    go_on.set()
    assert await asyncio.to_thread(ended.wait, 10)
    assert isinstance(stopped[0], StepEnded)


# -- What a function may look like -----------------------------------------------------------


def test_a_function_that_cannot_be_a_step_is_refused_when_it_is_made_one() -> None:
    app = App()

    async def generator(ctx: Context) -> Any:
        yield 1

    async def too_many(ctx: Context, a: int, b: int) -> None: ...

    async def none() -> None: ...

    async def named(ctx: Context, *, key: str) -> None: ...

    for fn in (generator, too_many, none, named):
        with pytest.raises(InvalidInputError, match="Step odd"):
            app.step("odd")(fn)
    assert not app.book().find("odd")


async def test_a_method_and_an_object_can_be_steps() -> None:
    class Bank:
        async def pay(self, ctx: Context, refund: Refund) -> int:
            return refund.cents

        async def __call__(self, ctx: Context, refund: Refund) -> int:
            return -refund.cents

    app, bank = App(), Bank()
    app.step("method")(bank.pay)
    app.step("object")(bank)
    assert await call(app, "method", b'{"cents":5}') == Success(b"5")
    assert await call(app, "object", b'{"cents":5}') == Success(b"-5")


@pytest.mark.parametrize("step_type", ["", "/a", "a/", "a//b", "a b", "a\n", "x" * 128, None])
def test_a_step_type_is_made_of_parts_between_slashes(step_type: Any) -> None:
    with pytest.raises(InvalidInputError):
        App().step(step_type)(lambda ctx: None)


def test_a_step_type_is_taken_once_and_built_in_ones_are_taken() -> None:
    app = App()
    app.step("a")(lambda ctx: None)
    with pytest.raises(InvalidInputError, match="two steps a"):
        app.step("a")(lambda ctx: None)
    with pytest.raises(InvalidInputError, match="built in"):
        app.step("util/delay")(lambda ctx: None)


def test_the_time_that_a_step_may_take_is_a_duration() -> None:
    app = App()
    app.step("a", timeout="1m30s")(lambda ctx: None)
    step = app.book().find("a")
    assert step is not None
    assert step.timeout_seconds == 90
    for timeout in ("0", "soon", -1):
        with pytest.raises(InvalidInputError) as refused:
            app.step("b", timeout=timeout)
        assert refused.value.field == "timeout"


async def test_the_options_of_a_step_are_in_its_context() -> None:
    app = App()

    @app.step("opted")
    async def opted(ctx: Context) -> Any:
        return dict(ctx.options)

    assert await call(app, "opted", options={"a": [1]}) == Success(b'{"a":[1]}')

    @app.step("careless")
    async def careless(ctx: Context) -> None:
        ctx.options["a"] = 2  # type: ignore[index]

    outcome = await call(app, "careless", options={"a": 1})
    assert isinstance(outcome, Failure)
    assert "does not support item assignment" in outcome.trace


async def test_a_step_that_says_abort_or_retry_is_taken_at_its_word() -> None:
    app = App()

    @app.step("odd")
    async def odd(ctx: Context) -> Any:
        return Abort("stop") if ctx.retries else RetryLater("1s", factor=3)

    assert await call(app, "odd") == Pause(delay_ms=1000)
    outcome = await call(app, "odd", in_call=step_call(retries=1))
    assert outcome == Failure("aborted", b'{"error":"stop"}', "stop")


def test_the_names_for_steps_come_without_libraries_for_http_and_the_store() -> None:
    code = (
        "import sys, waystation; waystation.App, waystation.Fail;"
        "heavy = {'aiohttp', 'hiredis', 'litestar', 'typer', 'prometheus_client', 'jwt'};"
        "sys.exit(sorted(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
