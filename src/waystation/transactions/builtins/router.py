"""`util/router`: calls one of several pipelines, by a field of the input.

Values are equal as JSON has them: `1` is `1.0`, and neither `"1"` nor `true`. The field `-` always
takes the default.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from waystation.transactions.builtins.child import PipelineName
from waystation.transactions.context import Context
from waystation.transactions.outcomes import Call, Fail, Outcome, settle
from waystation.transactions.steps import BuiltInStep

_ALWAYS_DEFAULT = "-"
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode = msgspec.json.Decoder().decode


class Branch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A value, and where it leads."""

    value: str | int | float | bool | None
    pipeline: PipelineName


class Options(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """The first branch that fits is taken."""

    field: Annotated[str, Meta(min_length=1)]
    map: tuple[Branch, ...]
    default_pipeline: PipelineName | None = None

    def __post_init__(self) -> None:
        if self.field == _ALWAYS_DEFAULT and self.default_pipeline is None:
            raise ValueError("field '-' needs `defaultPipeline`")


async def run(_: Context, given: bytes, options: Options) -> Outcome:
    """Calls the pipeline that a field of the input leads to."""
    pipeline = options.default_pipeline
    if options.field != _ALWAYS_DEFAULT:
        try:
            value = _decode(_fields(given)[options.field])
        except (KeyError, msgspec.ValidationError):
            pass  # No such field, or not even an object: the default.
        else:
            chosen = (each.pipeline for each in options.map if _equal(each.value, value))
            pipeline = next(chosen, pipeline)
    if pipeline is None:
        told = {"status": "error", "error": "Invalid selector field"}
        return settle(Fail(f"Field {options.field!r} leads nowhere.", told), given)
    return Call(pipeline, given)


def _equal(one: Any, other: Any) -> bool:
    # In Python true is 1; in JSON it is not.
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


STEP = BuiltInStep("util/router", Options, run, pure=True)
