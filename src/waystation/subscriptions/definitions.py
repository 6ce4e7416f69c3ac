"""Stored definitions of subscriptions."""

from __future__ import annotations

from waystation.db.definitions import Definitions
from waystation.errors import SubscriptionNotFoundError
from waystation.subscriptions.definition import (
    Subscription,
    SubscriptionState,
    decode_subscription,
    encode_subscription,
)
from waystation.subscriptions.names import definition_key

#: States of a subscription that can be changed.
ALIVE: tuple[SubscriptionState, ...] = ("creating", "active")
#: States of a subscription that has keys in the store.
THERE: tuple[SubscriptionState, ...] = (*ALIVE, "deleting")
EVERY: tuple[SubscriptionState, ...] = (*THERE, "deleted")


class SubscriptionDefinitions(Definitions[Subscription]):
    """Definitions of subscriptions. Versions and generations grow across a deletion."""

    kind = "subscription"
    usable_states = ALIVE

    def encode(self, definition: Subscription) -> bytes:
        return encode_subscription(definition)

    def decode(self, body: bytes) -> Subscription:
        return decode_subscription(body)

    def cache_key(self, project: str, name: str) -> str:
        return definition_key(project, name)

    def not_found(self, name: str) -> SubscriptionNotFoundError:
        return SubscriptionNotFoundError(f"There is no subscription {name}.")
