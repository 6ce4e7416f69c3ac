"""`util/delay`: sleeps for a while, then passes its input on.

The length is drawn from the identity of the step in its transaction: whoever calls the step again
draws the same one. No worker is held meanwhile, however short the delay is.
"""

from __future__ import annotations

import random
from typing import Annotated

import msgspec
from msgspec import Meta

from waystation.errors import InvalidInputError
from waystation.runtime.durations import duration_ms
from waystation.transactions.context import Context
from waystation.transactions.outcomes import Fail, Outcome, Pause, Success, settle
from waystation.transactions.steps import BuiltInStep

_Milliseconds = Annotated[int, Meta(ge=0, le=36_500 * 86_400_000)]


class Options(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """Milliseconds, from least to most; the field `delay` of the input comes first."""

    min: _Milliseconds = 500
    max: _Milliseconds = 10_000
    #: Of DATP, where a short delay held a worker. Here every sleep is one of the store's.
    force_deep_sleep: bool = False

    def __post_init__(self) -> None:
        if self.min > self.max:
            raise ValueError("min is larger than max")


class _Input(msgspec.Struct):
    delay: msgspec.Raw = msgspec.Raw(b"null")


_read = msgspec.json.Decoder(_Input).decode


async def run(ctx: Context, given: bytes, options: Options) -> Outcome:
    """Sleeps between `min` and `max` milliseconds."""
    try:
        asked = msgspec.json.decode(_read(given).delay)
    except msgspec.ValidationError:
        asked = None  # Not an object: nothing is asked for.
    if asked is None:
        delay_ms = random.Random(ctx.idempotency_key).randint(options.min, options.max)
    else:
        try:
            # Milliseconds, as all of its options.
            numeric = isinstance(asked, int | float) and not isinstance(asked, bool)
            delay_ms = duration_ms(asked / 1000 if numeric else asked, field="delay")
        except (InvalidInputError, OverflowError) as error:
            return settle(Fail(f"The delay of the input cannot be slept: {error}"), given)
    note = f"{delay_ms}ms"
    if ctx.retries or delay_ms == 0:
        return Success(given, note)
    return Pause(delay_ms=delay_ms, note=note)


STEP = BuiltInStep("util/delay", Options, run)
