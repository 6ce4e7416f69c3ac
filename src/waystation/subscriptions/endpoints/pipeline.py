"""A pipeline as an endpoint: every message starts a transaction, a hundred with one call.

The external id is `<subscription>:<incarnation>:<message id>`: a redelivery starts nothing twice,
while another subscription and a rewind start theirs. The message itself is the data, so it has to
be JSON. What can never be started is refused; what may start later is told as busy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from waystation.channels.message import is_json
from waystation.delivery.request import Failure, Outcome
from waystation.errors import InvalidInputError, WaystationError
from waystation.subscriptions.definition import Subscription
from waystation.subscriptions.endpoints.means import Means
from waystation.subscriptions.endpoints.protocol import Parcel
from waystation.transaction_errors import DuplicateTransactionError, PipelineUnknownError
from waystation.transactions.order import Order
from waystation.transactions.starter import Result

PREFIX = "pipeline:"

_STARTED = Outcome(status=200)
_NOT_JSON = Outcome(
    failure=Failure.REFUSED,
    detail="the body is not JSON, which the data of a transaction has to be",
)


class PipelineEndpoint:
    """Starts transactions of one pipeline."""

    batch_max = 100

    def __init__(self, subscription: Subscription, means: Means) -> None:
        self._project = subscription.project
        self._pipeline = subscription.endpoint.removeprefix(PREFIX)
        self._seconds_max = subscription.options.timeout_seconds
        self._start_many = means.start_many
        self.target = f"{PREFIX}{self._project}.{self._pipeline}"

    def __repr__(self) -> str:
        return f"<PipelineEndpoint {self.target}>"

    async def send(self, parcels: Sequence[Parcel]) -> list[Outcome]:
        """Starts what can be started; what was started before is a success."""
        outcomes: list[Outcome | None] = [
            None if is_json(parcel.message.data) else _NOT_JSON for parcel in parcels
        ]
        orders = [
            self._order(parcel)
            for parcel, outcome in zip(parcels, outcomes, strict=True)
            if outcome is None
        ]
        started = iter(await self._start(orders)) if orders else iter(())
        return [next(started) if outcome is None else outcome for outcome in outcomes]

    async def _start(self, orders: list[Order]) -> list[Outcome]:
        try:
            # Whoever gives up here takes nothing along: what was started is found by its id.
            async with asyncio.timeout(self._seconds_max):
                results = await self._start_many(self._project, orders)
        except TimeoutError:
            slow = Outcome(failure=Failure.TIMEOUT, detail="the start took too long")
            return [slow] * len(orders)
        except WaystationError as error:
            return [_outcome(error)] * len(orders)
        return [_outcome(each) for each in results]

    def _order(self, parcel: Parcel) -> Order:
        message = parcel.message
        return Order(
            type=self._pipeline,
            data=message.data,
            external_id=f"{parcel.subscription}:{parcel.incarnation}:{message.id}",
            traceparent=message.traceparent or "",
        )


def _outcome(result: Result) -> Outcome:
    if not isinstance(result, WaystationError):
        return _STARTED
    if isinstance(result, PipelineUnknownError):
        # It may be defined later, so this is as with a host that has no address yet.
        return Outcome(failure=Failure.NAME, detail=result.message)
    fatal = isinstance(result, DuplicateTransactionError | InvalidInputError)
    return Outcome(failure=Failure.REFUSED if fatal else Failure.BUSY, detail=result.message)
