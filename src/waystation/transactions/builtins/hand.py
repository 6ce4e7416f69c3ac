"""`util/hand`: the input, or a field of it, waits in a pool for the worker of its recipient key.

The id of the message is the step's idempotency key: whoever calls the step again, after a death,
say, hands over a duplicate, which the pool drops. With `wait` the transaction sleeps until the
worker has answered, once: its answer, which is JSON, is the output. Else the input passes on.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from waystation.errors import InvalidInputError
from waystation.messages.envelope import Envelope
from waystation.runtime.durations import Duration, duration_ms
from waystation.runtime.ids import NAME_PATTERN
from waystation.transactions.builtins.emission import emitted, services_of
from waystation.transactions.builtins.field_paths import FieldPath, field_in, text_in
from waystation.transactions.context import Context
from waystation.transactions.outcomes import Fail, Outcome, Pause, Success, settle
from waystation.transactions.steps import BuiltInStep
from waystation.transactions.switches import CALLBACK_SWITCH

_Name = Annotated[str, Meta(pattern=NAME_PATTERN.removesuffix("$") + r"\Z")]
_JSON = ("content-type", "application/json")


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which pool; which fields of the input are the recipient key and the content."""

    pool: _Name
    #: Left out: the id of the transaction.
    key: FieldPath | None = None
    #: Left out: all of the input.
    data: FieldPath | None = None
    #: Whether an answer is waited for; a duration: and for how long at most.
    wait: bool | str | float = False

    def __post_init__(self) -> None:
        if not isinstance(self.wait, bool):
            try:
                duration_ms(self.wait, field="wait")
            except InvalidInputError as error:
                # Within a struct, this is what becomes an error of validation.
                raise ValueError(error.message) from error

    @property
    def at_most(self) -> Duration | None:
        """How long an answer may take; None: as long as it takes."""
        return None if isinstance(self.wait, bool) else self.wait

    @property
    def waits(self) -> bool:
        """Whether an answer is waited for."""
        return self.wait is not False


async def run(ctx: Context, given: bytes, options: Options) -> Outcome:
    """Hands the input over to the worker of a recipient key, and waits for its answer."""
    call = ctx.call
    if call.callback.startswith(b"+"):
        return Success(call.callback[1:])
    if ctx.timed_out:
        return settle(Fail("No worker answered in time."), given)
    if "handed" in call.recorded:
        return _wait(options)
    facts, services = ctx.transaction, services_of(ctx)
    key: str | None = facts.id
    if options.key is not None:
        key = text_in(given, options.key)
    if not key:
        told = f"Field {options.key} of the input is to be the recipient key, and is no text."
        return settle(Fail(told), given)
    data = given if options.data is None else field_in(given, options.data)
    if data is None:
        return settle(Fail(f"Field {options.data} is to be handed over, and is missing."), given)
    answer_to = ""
    if options.waits:
        answer_to = services.answer_to(facts.id, ctx.place)
        await call.open_callback()
    message = Envelope(
        id=ctx.idempotency_key,
        project=facts.project,
        data=data,
        group=key,
        headers=(_JSON,),
        cause=facts.id,
        traceparent=facts.traceparent or None,
    )
    handing = services.hand(facts.project, options.pool, key, message, answer_to)
    outcome = await emitted(ctx, given, handing)
    if isinstance(outcome, Success) and options.waits:
        # A pool knows the id for a while only, and an answer may take longer.
        await ctx.once("handed", lambda: True)
        return _wait(options)
    return outcome


def _wait(options: Options) -> Pause:
    at_most = options.at_most
    return Pause(
        switch=CALLBACK_SWITCH,
        at_most_ms=None if at_most is None else duration_ms(at_most, field="wait"),
        note="waiting for an answer",
    )


STEP = BuiltInStep("util/hand", Options, run)
