"""What endpoints reach the world with: functions and parts that a node gives them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from waystation.channels.model import Published
from waystation.delivery.addresses import AddressGuard
from waystation.delivery.sender import Sender
from waystation.pools.held import Enqueued, Letter
from waystation.runtime.clock import Clock
from waystation.transactions.order import Order
from waystation.transactions.starter import Result

#: Project, orders: each has a receipt or an error of its own.
StartMany = Callable[[str, Sequence[Order]], Awaitable[list[Result]]]
#: Project, channel, pairs of id and JSON.
PublishMany = Callable[[str, str, Sequence[tuple[str, bytes]]], Awaitable[list[Published]]]
#: Project, pool, messages.
EnqueueMany = Callable[[str, str, Sequence[Letter]], Awaitable[list[Enqueued]]]


@dataclass(frozen=True, kw_only=True)
class Means:
    """All of them are the node's."""

    sender: Sender
    guard: AddressGuard
    start_many: StartMany
    publish_many: PublishMany
    enqueue_many: EnqueueMany
    clock: Clock
