"""A deliverer at work on a store of its own, for the tests of deliveries."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tests.helpers.waiting import eventually
from waystation.delivery.addresses import AddressGuard
from waystation.delivery.attempt_log import open_attempt_log
from waystation.delivery.claims import CLAIM_SECONDS
from waystation.delivery.deliverer import Deliverer
from waystation.delivery.endpoint import Endpoint
from waystation.delivery.outbox import Outbox, endpoint_of
from waystation.delivery.schedule import Schedule
from waystation.delivery.sender import Sender
from waystation.delivery.states import EndpointStates
from waystation.logs.streams import StreamLogs
from waystation.runtime.clock import Clock
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.pubsub import PubSub

LANE = "{unit}.out.crm"
QUICK = Schedule(attempts=3, first_seconds=0.02, jitter=0)


@dataclass
class Delivering:
    """What a test gets hold of."""

    store: Store
    outbox: Outbox
    states: EndpointStates
    deliverer: Deliverer
    clock: Clock

    async def until_empty(self, lane: str = LANE) -> None:
        """Waits until nothing waits in a lane."""

        async def is_empty() -> bool:
            return not await self.outbox.waiting(lane)

        await eventually(is_empty)


@asynccontextmanager
async def delivering(
    server: EmbeddedServer,
    *endpoints: Endpoint,
    flush: bool = True,
    notice_url: str = "",
    grace_seconds: float = 0.2,
    claim_seconds: float = CLAIM_SECONDS,
    logged: bool = False,
) -> AsyncIterator[Delivering]:
    """Delivers to `crm`, or to the given endpoints, from an empty store."""
    store, wakeups = Store(server.address), PubSub(server.address)
    if flush:
        await store.call("FLUSHALL")
    await wakeups.start()
    sender = Sender(AddressGuard(loopback=True))
    attempts = await open_attempt_log(StreamLogs(store)) if logged else None
    outbox, clock = Outbox(store, attempts=attempts), Clock()
    book = {each.name: each for each in endpoints or [Endpoint(name="crm", schedule=QUICK)]}
    deliverer = Deliverer(
        outbox,
        wakeups,
        sender,
        lambda lane: book.get(endpoint_of(lane)),
        clock=clock,
        notice_url=notice_url,
        claim_seconds=claim_seconds,
        rng=random.Random(1),
    )
    await deliverer.start()
    clock.on_jump(wakeups.wake_all)
    try:
        yield Delivering(store, outbox, EndpointStates(store), deliverer, clock)
    finally:
        await deliverer.stop(grace_seconds=grace_seconds)
        await sender.close()
        await wakeups.stop()
        await store.close()
