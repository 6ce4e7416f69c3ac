"""`util/publish`: the input, or a field of it, goes to a channel as a message; the input passes on.

The id of the message is made from the step's idempotency key: whoever calls the step again, after a
death, say, publishes a duplicate, which the channel drops while it keeps the first.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from waystation.runtime.ids import NAME_PATTERN
from waystation.transactions.builtins.emission import emitted, services_of
from waystation.transactions.builtins.field_paths import FieldPath, field_in
from waystation.transactions.context import Context, idempotency_key_of
from waystation.transactions.outcomes import Fail, Outcome, settle
from waystation.transactions.steps import BuiltInStep

#: An id in a channel is a name: it is shorter than a key.
_ID_LENGTH = 40
_Name = Annotated[str, Meta(pattern=NAME_PATTERN.removesuffix("$") + r"\Z")]


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which channel; which field of the input is the content, if not all of it."""

    channel: _Name
    content: FieldPath | None = None


async def run(ctx: Context, given: bytes, options: Options) -> Outcome:
    """Publishes the input in a channel."""
    content: bytes | None = given
    if options.content is not None:
        content = field_in(given, options.content)
    if content is None:
        return settle(Fail(f"Field {options.content} is to be published, and is missing."), given)
    message_id = channel_id_of(ctx.transaction.id, ctx.place)
    publishing = services_of(ctx).publish(
        ctx.transaction.project, options.channel, message_id, content
    )
    return await emitted(ctx, given, publishing)


def channel_id_of(transaction_id: str, place: str) -> str:
    """Return the id that the message of a step has in a channel."""
    return idempotency_key_of(transaction_id, place)[:_ID_LENGTH]


STEP = BuiltInStep("util/publish", Options, run)
