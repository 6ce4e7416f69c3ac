"""`util/child`: calls another pipeline, whose output is the output of this step."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from waystation.runtime.ids import NAME_PATTERN
from waystation.transactions.context import Context
from waystation.transactions.outcomes import Call, Outcome
from waystation.transactions.steps import BuiltInStep

#: `$` would let a line break pass.
PipelineName = Annotated[str, Meta(pattern=NAME_PATTERN.removesuffix("$") + r"\Z")]


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which pipeline."""

    pipeline: PipelineName


async def run(_: Context, given: bytes, options: Options) -> Outcome:
    """Calls a pipeline with the input of this step."""
    return Call(options.pipeline, given)


STEP = BuiltInStep("util/child", Options, run)
