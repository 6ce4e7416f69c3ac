"""The book of subscriptions: what each is now, in the catalogue, in the store, in this process."""

from __future__ import annotations

from waystation.db.definitions import Book
from waystation.errors import SubscriptionNotFoundError
from waystation.subscriptions.definition import (
    Subscription,
    SubscriptionState,
    decode_subscription,
    encode_subscription,
)
from waystation.subscriptions.names import working_copy

#: States of a subscription that can be changed.
ALIVE: tuple[SubscriptionState, ...] = ("creating", "active")
#: And of one that has something in the store.
THERE: tuple[SubscriptionState, ...] = (*ALIVE, "deleting")
EVERY: tuple[SubscriptionState, ...] = (*THERE, "deleted")


class SubscriptionBook(Book[Subscription]):
    """Reads and changes subscriptions; their versions and generations go on over a deletion."""

    kind = "subscription"
    alive = ALIVE

    def encode(self, definition: Subscription) -> bytes:
        return encode_subscription(definition)

    def decode(self, body: bytes) -> Subscription:
        return decode_subscription(body)

    def working_copy(self, project: str, name: str) -> str:
        return working_copy(project, name)

    def not_found(self, name: str) -> SubscriptionNotFoundError:
        return SubscriptionNotFoundError(f"There is no subscription {name}.")
