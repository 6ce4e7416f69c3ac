"""Built-in steps: options of DATP as it had them, without its defects."""

from __future__ import annotations

from typing import Any

import pytest

from tests.transactions.calling import ID, NoRecords, call, step_call
from waystation import App
from waystation.errors import PipelineInvalidError
from waystation.transactions.builtins import BUILT_IN
from waystation.transactions.held import Held, Verdict
from waystation.transactions.outcomes import Call, Calls, Failure, Outcome, Pause, Success
from waystation.transactions.pipeline import define
from waystation.transactions.step_call import StepCall, TransactionFacts

APP = App()


async def run(
    step_type: str, given: bytes = b"{}", *, in_call: StepCall | None = None, **options: Any
) -> Outcome:
    define("checked", [(step_type, options)])
    return await call(APP, step_type, given, options, in_call=in_call)


def of(transaction: int) -> TransactionFacts:
    return TransactionFacts(id=f"tx-0000{transaction:036x}", type="p")


def test_what_is_built_in_and_which_of_it_shares_the_next_commit() -> None:
    assert sorted(BUILT_IN) == [
        "util/checkpoint",
        "util/child",
        "util/delay",
        "util/fixed-reply",
        "util/hand",
        "util/http",
        "util/map",
        "util/parallel",
        "util/produce",
        "util/progressReport",
        "util/publish",
        "util/router",
        "util/validate",
        "util/wait",
    ]
    pure = {each.type for each in BUILT_IN.values() if each.pure}
    assert pure == {"util/router", "util/fixed-reply", "util/map", "util/validate"}
    assert all(each.description.endswith(".") for each in BUILT_IN.values())


# -- delay -----------------------------------------------------------------------------------


async def test_a_delay_sleeps_within_its_bounds_and_then_passes_its_input_on() -> None:
    asleep = [
        await run("util/delay", in_call=step_call(transaction=of(n)), min=50, max=90)
        for n in range(100)
    ]
    delays = [each.delay_ms or 0 for each in asleep if isinstance(each, Pause)]
    assert len(delays) == 100
    assert 50 <= min(delays) < 56
    assert 84 < max(delays) <= 90
    # Whoever calls it again, after a rescue too, draws the same.
    again = await run("util/delay", in_call=step_call(transaction=of(7)), min=50, max=90)
    assert again == asleep[7]
    woken = step_call(transaction=of(7), retries=1)
    done = await run("util/delay", b'{"a": 1.0}', in_call=woken, min=50, max=90)
    assert done == Success(b'{"a": 1.0}', f"{delays[7]}ms")


async def test_a_delay_is_never_held_by_a_worker_however_short_it_is() -> None:
    assert await run("util/delay", min=1, max=1) == Pause(delay_ms=1, note="1ms")
    deep = await run("util/delay", min=1, max=1, forceDeepSleep=True)
    assert deep == Pause(delay_ms=1, note="1ms")
    assert await run("util/delay", min=0, max=0) == Success(b"{}", "0ms")


@pytest.mark.parametrize(
    ("given", "delay_ms"),
    [(b'{"delay":1234}', 1234), (b'{"delay":1.6}', 2), (b'{"delay":"3d"}', 3 * 86_400_000)],
)
async def test_the_input_says_how_long_a_delay_is(given: bytes, delay_ms: int) -> None:
    outcome = await run("util/delay", given, min=1, max=1)
    assert outcome == Pause(delay_ms=delay_ms, note=f"{delay_ms}ms")


@pytest.mark.parametrize("asked", [b"-1", b'"soon"', b"true", b"[]", b"1" * 400])
async def test_a_delay_that_cannot_be_slept_fails(asked: bytes) -> None:
    outcome = await run("util/delay", b'{"delay":' + asked + b"}")
    assert isinstance(outcome, Failure)
    assert outcome.status == "failed"
    assert "cannot be slept" in outcome.note


@pytest.mark.parametrize("given", [b"null", b"[1]", b'"text"', b'{"delay":null}'])
async def test_an_input_that_asks_for_nothing_is_no_harm(given: bytes) -> None:
    assert await run("util/delay", given, min=5, max=5) == Pause(delay_ms=5, note="5ms")


# -- wait ------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [False, 0, 0.0, ""])
async def test_a_switch_that_is_false_does_not_open(value: Any) -> None:
    """DATP kept it as the text `false`, which is true."""
    in_call = step_call(switches={"go": value})
    assert await run("util/wait", switch="go", in_call=in_call) == Pause(switch="go")
    assert in_call.seen == {"go": value}


@pytest.mark.parametrize("value", [True, 1, "yes", "false", "0", -0.5])
async def test_a_switch_that_is_set_opens(value: Any) -> None:
    in_call = step_call(switches={"go": value})
    assert await run("util/wait", b"[1]", switch="go", in_call=in_call) == Success(b"[1]")


async def test_what_was_shown_while_it_waited_does_not_go_on() -> None:
    given = b'{"n":12345678901234567890,"url":"u","f":1.50,"qrcode":"q","instruction":{"a":1}}'
    in_call = step_call(switches={"go": 1})
    outcome = await run("util/wait", given, switch="go", in_call=in_call)
    assert outcome == Success(b'{"n":12345678901234567890,"f":1.50}')


async def test_a_wait_can_have_an_end() -> None:
    assert await run("util/wait", switch="go", atMost="2d") == Pause(
        switch="go", at_most_ms=2 * 86_400_000
    )
    over = step_call(timed_out=True)
    outcome = await run("util/wait", switch="go", atMost="2d", in_call=over)
    assert isinstance(outcome, Failure)
    assert outcome.note == "Nobody set switch go in time."


# -- router ----------------------------------------------------------------------------------

ROUTES = {
    "field": "kind",
    "map": [
        {"value": "a", "pipeline": "to-a"},
        {"value": 1, "pipeline": "to-one"},
        {"value": True, "pipeline": "to-true"},
        {"value": None, "pipeline": "to-null"},
    ],
}


@pytest.mark.parametrize(
    ("value", "pipeline"),
    [
        (b'"a"', "to-a"),
        (b"1", "to-one"),
        (b"1.0", "to-one"),
        (b"true", "to-true"),
        (b"null", "to-null"),
    ],
)
async def test_a_router_compares_as_json_does(value: bytes, pipeline: str) -> None:
    given = b'{"kind":' + value + b"}"
    assert await run("util/router", given, **ROUTES) == Call(pipeline, given)


@pytest.mark.parametrize(
    "given", [b'{"kind":"1"}', b'{"kind":0}', b'{"kind":[]}', b"{}", b"null", b'["kind"]']
)
async def test_what_leads_nowhere_takes_the_default_or_fails(given: bytes) -> None:
    assert await run("util/router", given, **ROUTES, defaultPipeline="other") == Call(
        "other", given
    )
    outcome = await run("util/router", given, **ROUTES)
    assert isinstance(outcome, Failure)
    assert outcome.status == "failed"
    assert outcome.output == b'{"status":"error","error":"Invalid selector field"}'


async def test_the_field_of_a_dash_always_takes_the_default() -> None:
    given = b'{"-":"a"}'
    options: dict[str, Any] = {**ROUTES, "field": "-", "defaultPipeline": "other"}
    assert await run("util/router", given, **options) == Call("other", given)


# -- the others ------------------------------------------------------------------------------


async def test_a_fixed_reply_is_always_the_same() -> None:
    assert await run("util/fixed-reply", b"5", reply={"a": [1.0]}, note="so") == Success(
        b'{"a":[1.0]}', "so"
    )
    assert await run("util/fixed-reply", b"5") == Success(b"5")
    assert await run("util/fixed-reply", b"5", reply=None) == Success(b"null")
    failed = await run("util/fixed-reply", returnError=True, note="no", reply={"code": 1})
    assert failed == Failure("failed", b'{"code":1}', "no")
    assert await run("util/fixed-reply", returnError=True, note="no") == Failure(
        "failed", b'{"error":"no"}', "no"
    )


async def test_a_checkpoint_asks_for_a_snapshot_and_goes_on() -> None:
    assert await run("util/checkpoint", b"[1]") == Success(b"[1]", snapshot=True)


async def test_a_progress_report_is_told_and_the_input_goes_on() -> None:
    class Reports(NoRecords):
        async def report(self, held: Held, progress: bytes) -> Verdict:
            told.append((held.id, progress))
            return Verdict("done", 1, 1)

    told: list[tuple[str, bytes]] = []
    in_call = step_call(records=Reports())
    done = await run("util/progressReport", b"[1]", in_call=in_call, progressReport={"at": "bank"})
    assert done == Success(b"[1]")
    assert told == [(ID, b'{"at":"bank"}')]


async def test_a_child_gets_the_input_of_its_step() -> None:
    assert await run("util/child", b"[1.0]", pipeline="ship") == Call("ship", b"[1.0]")


async def test_parallel_runs_several_pipelines_or_one_for_each_item() -> None:
    several = await run("util/parallel", b"[1]", pipelines=["a", "b"], onFailure="wait_all")
    assert several == Calls((Call("a", b"[1]"), Call("b", b"[1]")), "wait_all")
    each = await run("util/parallel", b'[1.0,{"a":12345678901234567890}]', pipeline="a")
    assert each == Calls(
        (Call("a", b"1.0"), Call("a", b'{"a":12345678901234567890}')), "cancel_rest"
    )
    of_field = await run("util/parallel", b'{"items":["x"]}', pipeline="a", each="items")
    assert of_field == Calls((Call("a", b'"x"'),), "cancel_rest")
    assert await run("util/parallel", b"[]", pipeline="a") == Success(b"[]")


@pytest.mark.parametrize(
    ("given", "each"),
    [
        (b"{}", None),
        (b"{}", "items"),
        (b'{"items":1}', "items"),
        (b"[" + b"1," * 1000 + b"1]", None),
    ],
)
async def test_parallel_fails_without_a_list_that_it_can_run(
    given: bytes, each: str | None
) -> None:
    outcome = await run("util/parallel", given, pipeline="a", each=each)
    assert isinstance(outcome, Failure)
    assert outcome.status == "failed"


# -- Definitions -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step_type", "options", "told"),
    [
        ("util/delay", {"min": 5, "max": 4}, "min is larger"),
        ("util/delay", {"min": -1}, ">= 0"),
        ("util/delay", {"minimum": 5}, "unknown field `minimum`"),
        ("util/wait", {}, "required field `switch`"),
        ("util/wait", {"switch": "a b"}, "not the name of a switch"),
        ("util/wait", {"switch": "a", "atMost": "soon"}, "not a valid duration"),
        ("util/router", {"map": []}, "required field `field`"),
        ("util/router", {"field": "a"}, "required field `map`"),
        ("util/router", {"field": "a", "map": {"x": "y"}}, "Expected `array`"),
        ("util/router", {"field": "a", "map": [{"value": [], "pipeline": "p"}]}, "value"),
        ("util/router", {"field": "-", "map": []}, "defaultPipeline"),
        ("util/fixed-reply", {"returnError": "yes"}, "Expected `bool`"),
        ("util/progressReport", {}, "required field `progressReport`"),
        ("util/checkpoint", {"a": 1}, "unknown field `a`"),
        ("util/child", {"pipeline": "Ship!"}, "pipeline"),
        ("util/child", {"pipeline": "ship\n"}, "pipeline"),
        ("util/parallel", {}, "either `pipelines` or `pipeline`"),
        ("util/parallel", {"pipelines": []}, "length"),
        ("util/parallel", {"pipelines": ["a"], "pipeline": "b"}, "either"),
        ("util/parallel", {"pipelines": ["a"], "each": "b"}, "`each` needs `pipeline`"),
        ("util/parallel", {"pipeline": "a", "onFailure": "hope"}, "hope"),
    ],
)
def test_options_that_cannot_work_are_refused_when_a_pipeline_is_defined(
    step_type: str, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(PipelineInvalidError) as refused:
        define("checked", ["some/step", (step_type, options)])
    assert refused.value.message.startswith("Step 2 of pipeline checked: ")
    assert told in refused.value.message
