"""`util/map` and `util/validate`: values pass byte for byte, and each field at fault is told."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.transactions.calling import call
from waystation import App
from waystation.errors import PipelineInvalidError
from waystation.transactions.outcomes import Failure, Success
from waystation.transactions.pipeline import define

GIVEN = (
    b'{"order":{"total":12.50,"n":1.0,"items":[1,2]},"who":"Ann","a.b":0,'
    b'"big":12345678901234567890}'
)


async def mapped(fields: dict[str, Any], *, given: bytes = GIVEN, keep: bool = False) -> bytes:
    options = {"fields": fields, "keep": keep}
    define("checked", [("util/map", options)])
    outcome = await call(App(), "util/map", given, options)
    assert isinstance(outcome, Success)
    return outcome.output


@pytest.mark.parametrize(
    ("fields", "output"),
    [
        ({"total": "order.total"}, b'{"total":12.50}'),
        ({"big": "big", "n": "order.n"}, b'{"big":12345678901234567890,"n":1.0}'),
        ({"pay.cents": "order.n", "pay.by": "who"}, b'{"pay":{"cents":1.0,"by":"Ann"}}'),
        ({"kind": {"value": {"x": [1]}}, "no": {"value": None}}, b'{"kind":{"x":[1]},"no":null}'),
        ({"gone": "order.missing", "deep": "who.name", "list": "order.items.0"}, b"{}"),
        ({}, b"{}"),
    ],
)
async def test_a_map_takes_values_over_as_they_are(fields: dict[str, Any], output: bytes) -> None:
    assert await mapped(fields) == output


async def test_a_map_that_keeps_the_rest_changes_only_what_it_names() -> None:
    given = b'{"a":{"x":1.0,"y":2},"b":3}'
    kept = await mapped({"a.y": "b", "c": {"value": 4}}, given=given, keep=True)
    assert kept == b'{"a":{"x":1.0,"y":3},"b":3,"c":4}'
    # What stands in the way of a path goes.
    assert await mapped({"b.c": "a.x"}, given=given, keep=True) == (
        b'{"a":{"x":1.0,"y":2},"b":{"c":1.0}}'
    )


@pytest.mark.parametrize("given", [b"1", b"null", b'"text"', b"[]"])
@pytest.mark.parametrize("step_type", ["util/map", "util/validate"])
async def test_an_input_that_is_no_object_fails(step_type: str, given: bytes) -> None:
    options: dict[str, Any] = {"fields": {}} if step_type == "util/map" else {}
    outcome = await call(App(), step_type, given, options)
    assert isinstance(outcome, Failure)
    assert outcome.status == "failed"


async def test_a_valid_input_passes_on_as_it_came() -> None:
    options = {
        "required": ["who", "order.total"],
        "types": {
            "who": "string",
            "order": "object",
            "order.n": "integer",
            "order.total": ["number", "null"],
            "order.items": "array",
            "not.there": "boolean",
        },
    }
    define("checked", [("util/validate", options)])
    assert await call(App(), "util/validate", GIVEN, options) == Success(GIVEN)


async def test_each_field_at_fault_is_told_in_a_sentence() -> None:
    options = {
        "required": ["who", "order.id", "none"],
        "types": {"who": "integer", "order.total": ["integer", "null"], "flag": "number"},
    }
    given = b'{"order":{"total":12.5},"who":"Ann","flag":true,"none":null}'
    outcome = await call(App(), "util/validate", given, options)
    assert isinstance(outcome, Failure)
    told = msgspec.json.decode(outcome.output)
    assert [each["detail"] for each in told["errors"]] == [
        "Field order.id is missing.",
        "Field who is not of type integer.",
        "Field order.total is not of type integer or null.",
        "Field flag is not of type number.",
    ]
    assert told["error"] == outcome.note == " ".join(each["detail"] for each in told["errors"])


@pytest.mark.parametrize(
    ("step_type", "options"),
    [
        ("util/map", {}),
        ("util/map", {"fields": {"a": 1}}),
        ("util/map", {"fields": {"a": {"valu": 1}}}),
        ("util/map", {"fields": {"a..b": "c"}}),
        ("util/map", {"fields": {"": "c"}}),
        ("util/map", {"fields": {"a": ".c"}}),
        ("util/validate", {"types": {"a": "text"}}),
        ("util/validate", {"required": [""]}),
        ("util/produce", {"topic": "Not a name"}),
        ("util/produce", {}),
        ("util/publish", {"channel": "a\n"}),
    ],
)
def test_bad_options_are_refused_at_definition(step_type: str, options: dict[str, Any]) -> None:
    with pytest.raises(PipelineInvalidError, match="Step 1 of pipeline p"):
        define("p", [(step_type, options)])
