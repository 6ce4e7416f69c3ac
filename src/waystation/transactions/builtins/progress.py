"""`util/progressReport`: tells clients how far the transaction is."""

from __future__ import annotations

from typing import Any

import msgspec

from waystation.transactions.context import Context
from waystation.transactions.outcomes import Outcome, Success
from waystation.transactions.steps import BuiltInStep


class Options(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """What is told."""

    progress_report: dict[str, Any]


async def run(ctx: Context, given: bytes, options: Options) -> Outcome:
    """Puts a progress report in the place of the one before, and passes the input on."""
    await ctx.progress(options.progress_report)
    return Success(given)


STEP = BuiltInStep("util/progressReport", Options, run)
