"""`util/produce`: the input goes to a topic as a message, and passes on.

The id of the message is the step's idempotency key: whoever calls the step again, after a death,
say, produces a duplicate, which the topic drops.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from waystation.messages.envelope import Envelope
from waystation.runtime.ids import NAME_PATTERN
from waystation.transactions.builtins.emission import emitted, services_of
from waystation.transactions.builtins.field_paths import FieldPath, text_in
from waystation.transactions.context import Context
from waystation.transactions.outcomes import Fail, Outcome, settle
from waystation.transactions.steps import BuiltInStep

_Name = Annotated[str, Meta(pattern=NAME_PATTERN.removesuffix("$") + r"\Z")]
_JSON = ("content-type", "application/json")


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which topic; which field of the input is the group of the message."""

    topic: _Name
    group: FieldPath | None = None
    headers: dict[str, str] = {}


async def run(ctx: Context, given: bytes, options: Options) -> Outcome:
    """Produces the input to a topic."""
    group = None
    if options.group is not None:
        group = text_in(given, options.group)
        if group is None:
            told = f"Field {options.group} of the input is to be the group, and is no text."
            return settle(Fail(told), given)
    facts, headers = ctx.transaction, {name.lower(): v for name, v in options.headers.items()}
    envelope = Envelope(
        id=ctx.idempotency_key,
        project=facts.project,
        data=given,
        group=group,
        headers=tuple(({_JSON[0]: _JSON[1]} | headers).items()),
        cause=facts.id,
        traceparent=facts.traceparent or None,
    )
    producing = services_of(ctx).produce(facts.project, options.topic, envelope)
    return await emitted(ctx, given, producing)


STEP = BuiltInStep("util/produce", Options, run)
