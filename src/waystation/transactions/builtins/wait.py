"""`util/wait`: waits until a switch is set to something that is not false, 0, "" or null."""

from __future__ import annotations

import msgspec

from waystation.runtime.durations import duration_ms
from waystation.transactions.context import Context
from waystation.transactions.outcomes import Fail, Outcome, Success, Wait, require_switch, settle
from waystation.transactions.steps import BuiltInStep

#: What a client was shown while it waited, and nobody needs afterwards.
_SHOWN = ("instruction", "url", "qrcode")
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Options(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """Which switch, and how long at most; without an end, for ever."""

    switch: str
    at_most: str | float | None = None

    def __post_init__(self) -> None:
        require_switch(self.switch)
        if self.at_most is not None:
            duration_ms(self.at_most, field="atMost")


async def run(ctx: Context, given: bytes, options: Options) -> Outcome:
    """Waits until a switch is set."""
    if ctx.switch(options.switch):
        return Success(_without_shown(given))
    if ctx.timed_out:
        return settle(Fail(f"Nobody set switch {options.switch} in time."), given)
    return settle(Wait(options.switch, at_most=options.at_most), given)


def _without_shown(given: bytes) -> bytes:
    try:
        fields = _fields(given)
    except msgspec.ValidationError:
        return given
    if not any(name in fields for name in _SHOWN):
        return given
    return msgspec.json.encode({k: v for k, v in fields.items() if k not in _SHOWN})


STEP = BuiltInStep("util/wait", Options, run)
