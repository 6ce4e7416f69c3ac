"""`util/fixed-reply`: always the same outcome."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from waystation.transactions.context import Context
from waystation.transactions.outcomes import Fail, Outcome, Success, settle
from waystation.transactions.steps import BuiltInStep


class Options(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """What it answers; without a reply a success passes its input on."""

    return_error: bool = False
    note: str = ""
    reply: Any = UNSET


async def run(_: Context, given: bytes, options: Options) -> Outcome:
    """Succeeds, or fails, with a reply."""
    if options.return_error:
        return settle(Fail(options.note, options.reply), given)
    output = given if options.reply is UNSET else msgspec.json.encode(options.reply)
    return Success(output, options.note)


STEP = BuiltInStep("util/fixed-reply", Options, run, pure=True)
