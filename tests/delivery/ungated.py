"""Lanes without gates, as transactions have them: put into by a script of our own."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.delivery.delivering import QUICK, Delivering
from waystation.delivery.addresses import AddressGuard
from waystation.delivery.deliverer import Deliverer, EndpointBook
from waystation.delivery.endpoint import Endpoint
from waystation.delivery.items import Claimed, Item
from waystation.delivery.outbox import Outbox
from waystation.delivery.request import Outcome
from waystation.delivery.sender import Sender
from waystation.delivery.states import EndpointStates
from waystation.runtime.clock import Clock
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.pubsub import PubSub
from waystation.store.scripts import script
from waystation.transactions.reply_lanes import ReplyLayout, lane_of, receiver_of_lane

_PUT = script("tests.store", "put")
LAYOUT = ReplyLayout(cells=2)
RECEIVER = "w.default.0123456789abcdef"
LANE = lane_of(0, RECEIVER)


async def put(store: Store, item: str, event: str = "complete 1", lane: str = LANE) -> None:
    """What the script of a transaction does when something has happened to it."""
    keys = LAYOUT.keys(lane)
    used = [keys.due, keys.items, LAYOUT.register_of(lane), keys.failed]
    await store.run(_PUT, used, [item, event])


def sending_to(
    url: str, *, seconds_max: float = 5.0, **more: Any
) -> Callable[[Sender], EndpointBook]:
    """A book of endpoints that send events as they are to a URL, in a way of their own."""

    def with_sender(sender: Sender) -> EndpointBook:
        async def deliver(lane: str, claimed: Claimed) -> Outcome:
            item = Item(url=url, body=claimed.packed)
            return await sender.send(plain.request(lane, claimed.id, item, now_ms=0))

        plain = Endpoint(name="plain", total_seconds_max=seconds_max)
        options = {"schedule": QUICK, "deliver": deliver, **more}
        return lambda lane: Endpoint(name=receiver_of_lane(lane), **options)

    return with_sender


@asynccontextmanager
async def delivering_ungated(
    server: EmbeddedServer,
    book: Callable[[Sender], EndpointBook],
    *,
    flush: bool = True,
    **more: Any,
) -> AsyncIterator[Delivering]:
    """Delivers from the lanes of two cells."""
    store, wakeups = Store(server.address), PubSub(server.address)
    if flush:
        await store.call("FLUSHALL")
    await wakeups.start()
    sender, outbox, clock = Sender(AddressGuard(loopback=True)), Outbox(store, LAYOUT), Clock()
    options = {"attempts_max": 100, "idle_seconds": 5.0, "rng": random.Random(1), **more}
    deliverer = Deliverer(outbox, wakeups, sender, book(sender), clock=clock, **options)
    await deliverer.start()
    clock.on_jump(wakeups.wake_all)
    try:
        yield Delivering(store, outbox, EndpointStates(store), deliverer, clock)
    finally:
        await deliverer.stop(grace_seconds=0.2)
        await sender.close()
        await wakeups.stop()
        await store.close()
