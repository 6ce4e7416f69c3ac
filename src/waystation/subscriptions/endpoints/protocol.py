"""What a shard gives an endpoint, and what every endpoint can do with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from waystation.delivery.request import Outcome
from waystation.messages.envelope import Envelope
from waystation.subscriptions.positions import Position


class Parcel(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message on its way to an endpoint."""

    message: Envelope
    position: Position
    #: 1 is the first; those before a redrive do not count.
    attempt: int
    subscription: str
    incarnation: int
    #: When its first attempt failed; 0: none has.
    first_ms: int = 0


#: Status of a delivery to a receiver of our own: it took the message, or had it already.
ACCEPTED = 200
DUPLICATE = 208


def received(receipt: str, *, duplicate: bool) -> Outcome:
    """Return the outcome of a message that a receiver of our own has.

    The receipt is the name that the receiver gave the message: a clock, a number, a transaction.
    A duplicate has the receipt of its first time. Both are recorded, so that the audit finds two
    messages of which the receiver has only one.
    """
    return Outcome(status=DUPLICATE if duplicate else ACCEPTED, receipt=receipt)


class Endpoint(Protocol):
    """Where the messages of a subscription go."""

    #: What is disabled, held back or left alone as one; all that share it share a standing.
    target: str
    #: Parcels that one call takes at most; they are of different groups.
    batch_max: int

    async def send(self, parcels: Sequence[Parcel]) -> list[Outcome]:
        """What came of each, in their order. A failure is an outcome, never an exception."""
        ...


@runtime_checkable
class DirectEndpoint(Protocol):
    """An endpoint whose requests nobody has to wait for in a task."""

    def begin(self, parcel: Parcel, done: Callable[[Outcome], None]) -> Callable[[], None] | None:
        """Begins an attempt; `done` hears its outcome later. The returned function gives it up.

        None: it cannot begin at once; it is to be sent.
        """
        ...
