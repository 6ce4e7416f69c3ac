"""`util/parallel`: runs pipelines beside each other; its output is the list of theirs.

Either several pipelines with the input of this step, or one pipeline for each item of a list in the
input, the input itself or a field of it.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from waystation.transactions.builtins.child import PipelineName
from waystation.transactions.context import Context
from waystation.transactions.outcomes import (
    CHILDREN_MAX,
    Child,
    Fail,
    Outcome,
    Parallel,
    Policy,
    settle,
)
from waystation.transactions.steps import BuiltInStep

_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Options(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """`pipelines`, or `pipeline` and perhaps `each`, the field with the list."""

    pipelines: Annotated[tuple[PipelineName, ...], Meta(min_length=1, max_length=CHILDREN_MAX)] = ()
    pipeline: PipelineName | None = None
    each: str | None = None
    on_failure: Policy = "cancel_rest"

    def __post_init__(self) -> None:
        if bool(self.pipelines) == (self.pipeline is not None):
            raise ValueError("either `pipelines` or `pipeline` is needed")
        if self.each is not None and self.pipeline is None:
            raise ValueError("`each` needs `pipeline`")


async def run(_: Context, given: bytes, options: Options) -> Outcome:
    """Runs pipelines beside each other, and waits for all of them."""
    if options.pipeline is None:
        children = [Child(name) for name in options.pipelines]
        return settle(Parallel(children, options.on_failure), given)
    try:
        source = given if options.each is None else bytes(_fields(given)[options.each])
        items = _items(source)
    except (KeyError, msgspec.ValidationError):
        where = "The input" if options.each is None else f"Field {options.each!r} of the input"
        return settle(Fail(f"{where} is not a list."), given)
    if len(items) > CHILDREN_MAX:
        return settle(Fail(f"{len(items)} items are more than {CHILDREN_MAX}."), given)
    children = [Child(options.pipeline, item) for item in items]
    return settle(Parallel(children, options.on_failure), given)


STEP = BuiltInStep("util/parallel", Options, run)
