"""A deliverer on the real store, with agents that put messages into its list."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.helpers.waiting import eventually
from waystation.acapy.deliverer import Deliverer
from waystation.acapy.outbound import OutboundQueue
from waystation.acapy.retry_set import RetrySet
from waystation.acapy.socket_sender import SocketSender
from waystation.config import DelivererConfig
from waystation.delivery.addresses import AddressGuard
from waystation.delivery.resolver import Resolver
from waystation.delivery.schedule import Schedule
from waystation.delivery.sender import Sender
from waystation.runtime.clock import Clock
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer

LIST, RETRY = "acapy_outbound", "acapy_outbound_retry"
#: Six attempts as the plugin makes them, in less time.
QUICK = Schedule(attempts=6, first_seconds=0.02, multiplier=1.2, jitter=0.0)


def message(url: str, payload: bytes = b"hello", **more: Any) -> bytes:
    """What an agent writes."""
    text = base64.urlsafe_b64encode(payload).decode()
    return json.dumps({"service": {"url": url}, "payload": text, "headers": {}, **more}).encode()


@dataclass
class Outbox:
    """The list, the retry set and what came of it."""

    store: Store
    lookup: Callable[[str], list[str]] = lambda _: ["127.0.0.1"]
    retries: RetrySet = field(init=False)

    def __post_init__(self) -> None:
        self.retries = RetrySet(self.store, RETRY)

    async def push(self, *messages: bytes) -> None:
        """Agents put messages into their list."""
        await self.store.call("RPUSH", LIST, *messages)

    async def left(self) -> tuple[int, int, int]:
        """Messages in the list, taken off it, and in the retry set."""
        calls = (("LLEN", LIST), ("HLEN", f"{{{LIST}}}.taken"), ("ZCARD", RETRY))
        first, second, third = [int(await self.store.call(*each)) for each in calls]
        return first, second, third

    async def until_settled(self) -> None:
        """Waits until nothing is left to be delivered."""
        await eventually(lambda: self._is(0, 0, 0))

    async def until_dead(self, count: int) -> list[Any]:
        """Waits for so many dead letters."""

        async def there() -> bool:
            return await self.retries.dead_count() >= count

        await eventually(there)
        return await self.retries.dead()

    async def _is(self, *counts: int) -> bool:
        return await self.left() == counts

    @asynccontextmanager
    async def delivering(
        self, *, schedule: Schedule = QUICK, loopback: bool = True, **settings: Any
    ) -> AsyncIterator[Deliverer]:
        """Runs a deliverer."""
        guard = AddressGuard(loopback=loopback)
        resolver = Resolver(guard, lookup=self.lookup)
        sender = Sender(guard, resolver=resolver)
        deliverer = Deliverer(
            OutboundQueue(self.store, LIST),
            self.retries,
            sender,
            SocketSender(guard, resolver),
            clock=Clock(),
            settings=DelivererConfig(**settings),
            schedule=schedule,
        )
        await deliverer.start()
        try:
            yield deliverer
        finally:
            await deliverer.stop(grace_seconds=0.5)
            await sender.close()


@asynccontextmanager
async def open_outbox(server: EmbeddedServer) -> AsyncIterator[Outbox]:
    """An empty store for one test."""
    store = Store(server.address)
    try:
        await store.call("FLUSHALL")
        yield Outbox(store)
    finally:
        await store.close()
