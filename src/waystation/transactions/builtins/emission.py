"""What steps share that hand a message over: who can be asked again later, and who cannot."""

from __future__ import annotations

from collections.abc import Awaitable

from waystation.errors import InvalidChannelError, InvalidInputError, NotFoundError, WaystationError
from waystation.transactions.context import Context
from waystation.transactions.outcomes import Fail, Outcome, RetryLater, Success, settle
from waystation.transactions.services import Services

#: What stays as it is, however often one asks: a message that is refused, a place that is not.
_FOR_GOOD = (InvalidInputError, InvalidChannelError, NotFoundError)


def services_of(ctx: Context) -> Services:
    """What the node has given to this process."""
    services = ctx.call.services
    assert services is not None, "a node gives them to whoever runs steps"
    return services


async def emitted(ctx: Context, given: bytes, emitting: Awaitable[object]) -> Outcome:
    """The input passes on once the message is there; what is full or away is asked again."""
    try:
        await emitting
    except _FOR_GOOD as error:
        return settle(Fail(str(error)), given)
    except WaystationError as error:
        later = RetryLater("1s", str(error), factor=2, delay_max="5m", jitter=0.2)
        return settle(later, given, retries=ctx.retries)
    return Success(given)
