"""A shard as the host that runs it sees it, and how the host gets one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from waystation.store.leases import Lease
from waystation.subscriptions.definition import Subscription
from waystation.subscriptions.names import Place
from waystation.subscriptions.states import ShardState


class Owned(Protocol):
    """A shard that this node delivers."""

    #: Set when it has ended by itself: it is another's, or broken.
    ended: asyncio.Event

    @property
    def in_flight(self) -> int:
        """Requests under way."""
        ...

    @property
    def throttled(self) -> bool:
        """Whether its subscription lets it send no more for now."""
        ...

    @property
    def fills_full_store(self) -> bool:
        """Whether it stopped reading because the store is full and its messages fail."""
        ...

    def carries(self, member: str) -> bool:
        """Whether a message is on its way to the endpoint."""
        ...

    @property
    def state(self) -> ShardState:
        """What it does, or why it does not."""
        ...

    async def start(self) -> None:
        """Opens it, and begins to deliver."""

    def use(self, subscription: Subscription) -> None:
        """Goes on with a newer definition."""

    async def stop(self, *, grace_seconds: float) -> None:
        """Ends it: what is under way gets the grace time, the rest is given back."""


#: Makes a shard of a lease that was taken; it is started next.
OpenShard = Callable[[Subscription, Place, Lease], Owned]
#: All subscriptions that are to be delivered.
Definitions = Callable[[], Awaitable[Sequence[Subscription]]]
