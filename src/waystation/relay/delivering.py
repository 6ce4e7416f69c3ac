"""Opens a deliverer as the settings say: its store, its lists, its status door, its events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from waystation.acapy.deliverer import Deliverer
from waystation.acapy.events import EventPump
from waystation.acapy.outbound import OutboundQueue
from waystation.acapy.retry_set import RetrySet
from waystation.acapy.socket_sender import SocketSender
from waystation.config import Config, DelivererConfig
from waystation.delivery.resolver import Resolver
from waystation.delivery.sender import Sender
from waystation.logs.streams import StreamLogs
from waystation.node import open_catalogue, open_topics
from waystation.node_delivery import open_guard
from waystation.relay.server import DoorServer
from waystation.relay.status import status_plan
from waystation.runtime.clock import Clock
from waystation.store.client import Store
from waystation.store.opening import OpenStore, open_store
from waystation.topics.producer import CheckedProducer
from waystation.topics.rate_limits import RateLimiter
from waystation.topics.schemas import SchemaValidator

#: A status door takes no bodies.
_BODY_BYTES_MAX = 1024


class OpenDeliverer(msgspec.Struct, frozen=True):
    """A deliverer that works."""

    opened: OpenStore
    deliverer: Deliverer
    #: Of the status door; 0 without one.
    status_port: int


def retry_set(store: Store, settings: DelivererConfig, *, events: str = "") -> RetrySet:
    """The retry set, and the dead letters beside it; or those of a list of events."""
    name = f"{events}_refused" if events else f"{settings.outbound}_retry"
    return RetrySet(store, name)


@asynccontextmanager
async def open_deliverer(settings: Config) -> AsyncIterator[OpenDeliverer]:
    """Delivers for the length of the block; what is under way then is finished or given back."""
    wanted, clock = settings.deliverer, Clock()
    async with AsyncExitStack() as undo:
        guard = open_guard(settings.delivery)
        opened = await open_store(settings, clock=clock)
        undo.push_async_callback(opened.close)
        resolver = Resolver(guard)
        sender = Sender(guard, resolver=resolver)
        undo.push_async_callback(sender.close)
        deliverer = Deliverer(
            OutboundQueue(opened.store, wanted.outbound),
            retry_set(opened.store, wanted),
            sender,
            SocketSender(guard, resolver),
            clock=clock,
            settings=wanted,
        )
        await _pump_events(settings, opened, undo, clock=clock)
        await deliverer.start()
        undo.push_async_callback(deliverer.stop)
        port = 0
        if wanted.status_api_key:
            place = (wanted.status_host, wanted.status_port)
            plan = status_plan(
                wanted.status_api_key, opened.store, *place, working=lambda: deliverer.alive
            )
            server = DoorServer([plan], body_bytes_max=_BODY_BYTES_MAX)
            (port,) = await server.start()
            undo.push_async_callback(server.stop)
        yield OpenDeliverer(opened, deliverer, port)


async def _pump_events(
    settings: Config, opened: OpenStore, undo: AsyncExitStack, *, clock: Clock
) -> None:
    rules = settings.deliverer.events
    if not rules:
        return
    catalogue = open_catalogue(settings)
    await catalogue.open()
    undo.push_async_callback(catalogue.close)
    logs = StreamLogs(opened.store)
    topics, producer = open_topics(settings, opened, catalogue, logs, clock=clock)
    bytes_max = settings.topics.message_bytes_max
    within = CheckedProducer(
        topics, producer, SchemaValidator(), RateLimiter(clock=clock), bytes_max
    )
    for rule in rules:
        pump = EventPump(opened.store, within, rule)
        await pump.start()
        undo.push_async_callback(pump.stop)
