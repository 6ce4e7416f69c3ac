"""A pipeline as an endpoint: every message starts a transaction, a hundred with one call.

The external id is the delivery id (`identity.py`): a redelivery starts no second transaction, while
another message with the same id, another subscription and a reset each start their own. The message
itself is the data, so it has to be JSON. What can never be started is refused; what may start later
is told as busy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from waystation.delivery.request import Failure, Outcome
from waystation.errors import (
    DuplicateTransactionError,
    InvalidInputError,
    PipelineUnknownError,
    WaystationError,
)
from waystation.runtime.json_text import (
    is_json,
    is_too_deep,
    lone_surrogate_path,
    lone_surrogate_problem,
    too_deep,
)
from waystation.subscriptions.definition import Subscription
from waystation.subscriptions.endpoints.identity import delivery_id, hashed_delivery_id
from waystation.subscriptions.endpoints.means import Means
from waystation.subscriptions.endpoints.protocol import Parcel, received
from waystation.transactions.order import EXTERNAL_ID_LENGTH_MAX, Order
from waystation.transactions.starter import Result

PREFIX = "pipeline:"

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
        """Start transactions. A message that already started one counts as delivered."""
        outcomes: list[Outcome | None] = [
            # Steps decode the data strictly, so a lone surrogate would fail in each of them.
            None
            if is_json(parcel.message.data, lone_surrogates=False)
            else _refusal(parcel.message.data)
            for parcel in parcels
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
            external_id=external_id_of(parcel),
            traceparent=message.traceparent or "",
        )


def external_id_of(parcel: Parcel) -> str:
    """Return the external id of the transaction that a message starts."""
    known = delivery_id(parcel)
    return known if len(known) <= EXTERNAL_ID_LENGTH_MAX else hashed_delivery_id(parcel)


def _refusal(data: bytes) -> Outcome:
    if is_too_deep(data):
        return Outcome(failure=Failure.REFUSED, detail=too_deep("data").message)
    path = lone_surrogate_path(data, root="data")
    if path is None:
        return _NOT_JSON
    return Outcome(failure=Failure.REFUSED, detail=lone_surrogate_problem(path))


def _outcome(result: Result) -> Outcome:
    if not isinstance(result, WaystationError):
        return received(result.id, duplicate=result.duplicate)
    if isinstance(result, PipelineUnknownError):
        # It may be defined later, so this is as with a host that has no address yet.
        return Outcome(failure=Failure.NAME, detail=result.message)
    fatal = isinstance(result, DuplicateTransactionError | InvalidInputError)
    return Outcome(failure=Failure.REFUSED if fatal else Failure.BUSY, detail=result.message)
