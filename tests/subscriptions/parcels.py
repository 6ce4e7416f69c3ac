"""Subscriptions, parcels and means for the tests of endpoints."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from waystation.channels.model import Published
from waystation.delivery.addresses import AddressGuard
from waystation.delivery.sender import Sender
from waystation.messages.envelope import Envelope
from waystation.pools.held import Enqueued, Letter
from waystation.runtime.clock import Clock
from waystation.subscriptions.definition import Subscription, SubscriptionOptions
from waystation.subscriptions.endpoints.means import Means
from waystation.subscriptions.endpoints.protocol import Parcel
from waystation.subscriptions.positions import Position
from waystation.topics.model import StorageTopicDefinition
from waystation.transactions.order import Order
from waystation.transactions.starter import Result


def subscription_to(endpoint: str, *, incarnation: int = 1, **options: Any) -> Subscription:
    """A subscription `billing` of topic `orders`."""
    inner = (StorageTopicDefinition(number=0, partitions=1),)
    return Subscription(
        project="default",
        name="billing",
        version=1,
        topic="orders",
        endpoint=endpoint,
        shards=1,
        options=SubscriptionOptions(**options),
        state="active",
        incarnation=incarnation,
        retry=inner,
        dead=inner,
        start="end",
    )


def parcel(
    data: bytes = b'{"n": 1}',
    *,
    id: str = "o17-0",  # noqa: A002
    group: str | None = "order-17",
    attempt: int = 1,
    incarnation: int = 1,
    offset: int = 17,
    subscription: str = "billing",
    **more: Any,
) -> Parcel:
    """A message of that topic, on its way."""
    return Parcel(
        message=Envelope(id=id, project="default", data=data, group=group, **more),
        position=Position(incarnation, 0, 3, offset),
        attempt=attempt,
        subscription=subscription,
        incarnation=incarnation,
    )


async def _nothing_starts(project: str, orders: Sequence[Order]) -> list[Result]:
    raise AssertionError("no pipeline is delivered to")


async def _nothing_is_published(
    project: str, channel: str, messages: Sequence[tuple[str, bytes]]
) -> list[Published]:
    raise AssertionError("no channel is delivered to")


async def _nothing_is_enqueued(
    project: str, pool: str, letters: Sequence[Letter]
) -> list[Enqueued]:
    raise AssertionError("no pool is delivered to")


@asynccontextmanager
async def means_with(*, loopback: bool = True, **more: Any) -> AsyncIterator[Means]:
    """What endpoints use: a real sender, and what a test gives."""
    guard = AddressGuard(loopback=loopback)
    sender = Sender(guard)
    given: dict[str, Any] = {
        "start_many": _nothing_starts,
        "publish_many": _nothing_is_published,
        "enqueue_many": _nothing_is_enqueued,
        "clock": Clock(),
        **more,
    }
    try:
        yield Means(sender=sender, guard=guard, **given)
    finally:
        await sender.close()
