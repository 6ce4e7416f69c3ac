"""A pool as an endpoint: messages wait there for the worker of their key, a hundred with one call.

The key is the group of a message, else what its header `x-waystation-recipient` says, else its id.
A pool knows a message by its delivery id (`identity.py`): a redelivery within the pool's
`dedup_seconds` is there once, while another message with the same id, another subscription and a
reset each hand over their own. A message that was handed over is settled here; from then on the
pool's own attempts count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from waystation.delivery.request import Failure, Outcome
from waystation.errors import InvalidInputError, NotFoundError, WaystationError
from waystation.messages.envelope import pack
from waystation.pools.held import Enqueued, Letter
from waystation.pools.recipient import check_id, check_key
from waystation.subscriptions.definition import Subscription
from waystation.subscriptions.endpoints.identity import delivery_id, hashed_delivery_id
from waystation.subscriptions.endpoints.means import Means
from waystation.subscriptions.endpoints.protocol import Parcel, received

PREFIX = "pool:"
#: Names the recipient of a message that has no group, or is ordered by another.
RECIPIENT_HEADER = "x-waystation-recipient"


class PoolEndpoint:
    """Enqueues in one pool."""

    batch_max = 100

    def __init__(self, subscription: Subscription, means: Means) -> None:
        self._project = subscription.project
        self._pool = subscription.endpoint.removeprefix(PREFIX)
        self._seconds_max = subscription.options.timeout_seconds
        self._enqueue_many = means.enqueue_many
        self.target = f"{PREFIX}{self._project}.{self._pool}"

    def __repr__(self) -> str:
        return f"<PoolEndpoint {self.target}>"

    async def send(self, parcels: Sequence[Parcel]) -> list[Outcome]:
        """Enqueue in order. A message that the pool already has counts as delivered."""
        made = [_letter(each) for each in parcels]
        letters = [each for each in made if isinstance(each, Letter)]
        enqueued = iter(await self._enqueue(letters) if letters else ())
        return [next(enqueued) if isinstance(each, Letter) else each for each in made]

    async def _enqueue(self, letters: list[Letter]) -> list[Outcome]:
        try:
            # Whoever gives up here takes nothing along: what was enqueued is found by its id.
            async with asyncio.timeout(self._seconds_max):
                items = await self._enqueue_many(self._project, self._pool, letters)
        except TimeoutError:
            slow = Outcome(failure=Failure.TIMEOUT, detail="the pool took too long")
            return [slow] * len(letters)
        except WaystationError as error:
            fatal = isinstance(error, InvalidInputError | NotFoundError)
            failure = Failure.REFUSED if fatal else Failure.BUSY
            return [Outcome(failure=failure, detail=error.message)] * len(letters)
        return [self._outcome(each) for each in items]

    def _outcome(self, enqueued: Enqueued) -> Outcome:
        if enqueued.outcome != "full":
            return received(str(enqueued.number), duplicate=enqueued.outcome == "duplicate")
        return Outcome(failure=Failure.BUSY, detail=f"pool {self._pool} is full")


def _letter(parcel: Parcel) -> Letter | Outcome:
    """The message as the pool has it; or why it can never have it."""
    message = parcel.message
    named = dict(message.headers).get(RECIPIENT_HEADER)
    try:
        key = check_key(message.group or named or message.id)
    except InvalidInputError as error:
        return Outcome(failure=Failure.REFUSED, detail=error.message)
    return Letter(id_in_pool(parcel), key, pack(message))


def id_in_pool(parcel: Parcel) -> str:
    """Return the id that a message has in a pool."""
    try:
        return check_id(delivery_id(parcel))
    except InvalidInputError:
        # A topic takes ids that a pool does not, such as one with a space that cannot break.
        return hashed_delivery_id(parcel)
