"""A node: one process with everything it needs, opened in order and closed in reverse."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass

from waystation.access import Gate
from waystation.catalogue import Catalogue, catalogue_at
from waystation.channels import Channels
from waystation.channels.webhooks import endpoints
from waystation.clock import Clock
from waystation.delivery.addresses import AddressGuard
from waystation.delivery.deliverer import Deliverer
from waystation.delivery.desk import Desk
from waystation.delivery.outbox import Outbox
from waystation.delivery.sender import Sender
from waystation.errors import InvalidInputError, SettingsError
from waystation.ids import Identity, RandomIdentity
from waystation.logs.streams import StreamLogs
from waystation.settings import DeliverySettings, Settings
from waystation.store import Census, Heartbeat, Leases
from waystation.store.opening import OpenStore, open_store
from waystation.telemetry.logging import logger
from waystation.topics import Browser, Deduplication, Producer, Topics, Upkeep
from waystation.topics.limits import Limits
from waystation.topics.schemas import Schemas
from waystation.transactions.app import App
from waystation.transactions.engine import Engine, open_engine

_log = logger("node")


@dataclass(kw_only=True)
class Node:
    """The parts of a running process."""

    settings: Settings
    clock: Clock
    identity: Identity
    catalogue: Catalogue
    gate: Gate
    opened: OpenStore
    channels: Channels
    delivery: Delivery
    logs: StreamLogs
    topics: Topics
    producer: Producer
    browser: Browser
    limits: Limits
    schemas: Schemas
    engine: Engine
    upkeep: NodeUpkeep
    census: Census

    async def close(self) -> None:
        """Closes everything, what stands on others first."""
        self.channels.close()
        await self.upkeep.close()
        await self.engine.close()
        await self.delivery.close()
        await self.census.close()
        await self.gate.close()
        await self.opened.close()
        await self.catalogue.close()


@dataclass(frozen=True)
class Delivery:
    """The outgoing side of a node: nothing but its desk when there is nothing to deliver to."""

    desk: Desk
    deliverer: Deliverer | None = None
    sender: Sender | None = None

    async def close(self) -> None:
        """Lets attempts finish, gives the rest back."""
        if self.deliverer is not None:
            await self.deliverer.stop()
        if self.sender is not None:
            await self.sender.close()


class NodeUpkeep:
    """Upkeep of logs, topics and pipelines in a node: whichever node has the lease does it."""

    def __init__(
        self,
        topics: Topics,
        logs: StreamLogs,
        engine: Engine,
        opened: OpenStore,
        *,
        clock: Clock,
        owner: str,
    ) -> None:
        store = opened.store
        self._heartbeat = Heartbeat(store.address, test_mode=store.test_mode)
        leases = Leases(store, self._heartbeat, owner=owner)
        self._upkeep = Upkeep(
            topics,
            logs,
            leases,
            clock=clock,
            chores=[engine.mend, engine.count],
            on_rest=engine.stop_counting,
        )

    @property
    def notes(self) -> list[str]:
        """What a person should know, if this node does it."""
        return self._upkeep.notes

    async def start(self) -> None:
        """Begins."""
        await self._upkeep.start()

    async def close(self) -> None:
        """Lets another node take over at once."""
        await self._upkeep.stop()
        # In a thread: it waits for one, which may be waiting for a store that is away.
        await asyncio.to_thread(self._heartbeat.close)


def open_guard(settings: DeliverySettings) -> AddressGuard:
    """The guard of all outgoing requests."""
    try:
        guard = AddressGuard(settings.allowed_networks, loopback=settings.loopback)
    except ValueError as error:
        raise SettingsError(f"delivery.allowed_networks: {error}.") from error
    if settings.notice_url:
        try:
            guard.check_url(settings.notice_url)
        except InvalidInputError as error:
            raise SettingsError(f"delivery.notice_url: {error.message}") from error
    return guard


async def open_delivery(
    settings: Settings, opened: OpenStore, guard: AddressGuard, *, clock: Clock
) -> Delivery:
    """Begins to deliver, when there is anything that a delivery could go to."""
    book = endpoints(settings.channels.rules, guard)
    outbox = Outbox(opened.store)
    if not book:
        return Delivery(Desk(outbox, book))
    sender = Sender(guard)
    deliverer = Deliverer(
        outbox,
        opened.wakeups,
        sender,
        book.get,
        clock=clock,
        notice_url=settings.delivery.notice_url,
    )
    await deliverer.start()
    return Delivery(Desk(outbox, book, deliverer.standing), deliverer, sender)


async def open_limits(opened: OpenStore, *, clock: Clock, process: str) -> tuple[Limits, Census]:
    """Limits that this process shares with all others that run."""
    limits = Limits(clock=clock)
    census = Census(opened.store, clock=clock, process=process, on_count=limits.share_among)
    await census.start()
    return limits, census


def open_catalogue(settings: Settings) -> Catalogue:
    """The catalogue that the settings name."""
    return catalogue_at(settings.catalogue, folder=settings.data_dir)


async def open_gate(settings: Settings, catalogue: Catalogue, *, clock: Clock) -> Gate:
    """The gate, which must have somebody to let in."""
    gate = Gate(catalogue, clock=clock, insecure=settings.auth.insecure)
    try:
        await gate.start()
        if not gate.insecure and not gate.has_keys:
            raise SettingsError(
                "There is no API key yet, so nobody could come in.",
                hint="Create one with `waystation keys create`, or serve everyone with --insecure.",
            )
    except BaseException:
        await gate.close()
        raise
    return gate


async def open_node(
    settings: Settings,
    *,
    clock: Clock | None = None,
    identity: Identity | None = None,
    app: App | None = None,
) -> Node:
    """Opens a node; raises an error that says why not. An app comes before that of the settings."""
    clock = clock or Clock()
    identity = identity or RandomIdentity()
    async with AsyncExitStack() as undo:
        catalogue = open_catalogue(settings)
        await catalogue.open()
        undo.push_async_callback(catalogue.close)
        gate = await open_gate(settings, catalogue, clock=clock)
        undo.push_async_callback(gate.close)
        opened = await open_store(settings, clock=clock, identity=identity)
        undo.push_async_callback(opened.close)
        for note in opened.notes:
            _log.warning("store", note=note)
        guard = open_guard(settings.delivery)
        channels = Channels(
            opened.store,
            opened.wakeups,
            clock=clock,
            settings=settings.channels,
            guard=guard,
            waiting_max=settings.delivery.waiting_max,
        )
        delivery = await open_delivery(settings, opened, guard, clock=clock)
        undo.push_async_callback(delivery.close)
        logs = StreamLogs(opened.store)
        engine = await open_engine(
            settings.transactions, opened, catalogue, logs, clock=clock, identity=identity, app=app
        )
        undo.push_async_callback(engine.close)
        strict = settings.topics.strict_partitions
        topics = Topics(catalogue, opened.store, logs, clock=clock, strict=strict)
        upkeep = NodeUpkeep(topics, logs, engine, opened, clock=clock, owner=identity.token(16))
        await upkeep.start()
        undo.push_async_callback(upkeep.close)
        limits, census = await open_limits(opened, clock=clock, process=identity.token(16))
        # All is well: from here on the node closes what was opened.
        undo.pop_all()
    return Node(
        settings=settings,
        clock=clock,
        identity=identity,
        catalogue=catalogue,
        gate=gate,
        opened=opened,
        channels=channels,
        delivery=delivery,
        logs=logs,
        topics=topics,
        producer=Producer(
            topics,
            logs,
            Deduplication(opened.store, clock=clock),
            durability=opened.durability,
        ),
        browser=Browser(topics, logs),
        limits=limits,
        schemas=Schemas(),
        engine=engine,
        upkeep=upkeep,
        census=census,
    )
