"""Opens a store as the settings say: by URL or embedded, checked, stamped, ready to be used."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec

from waystation.config import Config
from waystation.errors import InvalidInputError, SettingsError, StoreDataLostError
from waystation.runtime.clock import Clock
from waystation.runtime.ids import IdSource, RandomIds
from waystation.runtime.logging import logger
from waystation.store.address import Address, parse_address
from waystation.store.checks import Facts, check_facts, read_facts
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.format import accept_loss, has_lost, stamp_format
from waystation.store.pubsub import PubSub
from waystation.store.room import StoreRoom
from waystation.store.time_machine import TimeMachine
from waystation.types.message import Durability

_log = logger("store")


@dataclass(kw_only=True)
class OpenStore:
    """A store in use, with all that came with opening it. Close it when done."""

    store: Store
    wakeups: PubSub
    dataset: str
    durability: Durability
    facts: Facts
    room: StoreRoom = field(init=False)
    server: EmbeddedServer | None = None
    time_machine: TimeMachine | None = None

    def __post_init__(self) -> None:
        self.room = StoreRoom(self.store)

    @property
    def notes(self) -> list[str]:
        """What was odd about the server's last start, and how full the store is if that matters."""
        return [*(self.server.notes if self.server is not None else []), *self.room.notes]

    async def close(self) -> None:
        """Lets go of everything, the embedded server last."""
        if self.time_machine is not None:
            await self.time_machine.stop()
        await self.room.close()
        await self.wakeups.stop()
        await self.store.close()
        if self.server is not None:
            self.server.close()


async def open_store(
    settings: Config,
    *,
    clock: Clock,
    identity: IdSource | None = None,
    known: Sequence[str] | None = None,
) -> OpenStore:
    """Open, check and stamp a store; StoreRefusedError with the reason if it must not be used.

    `known` are ids of data sets, newest first, that were found in this store before; empty for the
    first time. StoreDataLostError if the store lost the newest one. A process that gives them
    remembers them, and has to be opened anew when an operator accepts a loss; a process that gives
    None goes on by itself then.
    """
    identity = identity or RandomIds()
    wanted = settings.store
    if settings.time_machine and wanted.url:
        raise SettingsError("The time machine needs the embedded store: leave out store.url.")
    server, address = await _start_server(settings)
    store, wakeups = _clients(settings, address)
    try:
        facts = await read_facts(store)
        for each in facts:
            check_facts(each, durability=wanted.durability, ephemeral=wanted.ephemeral)
        dataset = await _stamp(store, identity, known or (), ephemeral=wanted.ephemeral)
        store.data_set.adopts = known is None
        store.data_set.ephemeral = wanted.ephemeral
        if known is not None or not wanted.ephemeral:
            store.data_set.known = dataset
        await wakeups.start()
        opened = OpenStore(
            store=store,
            wakeups=wakeups,
            dataset=dataset,
            durability=wanted.durability,
            facts=facts[0],
            server=server,
        )
        if settings.time_machine:
            opened.time_machine = TimeMachine(store, wakeups, clock)
            await opened.time_machine.start()
        # Last: nothing after it can fail and leave it running.
        await opened.room.start()
    except BaseException:
        await wakeups.stop()
        await store.close()
        if server is not None:
            server.close()
        raise
    return opened


async def _stamp(store: Store, identity: IdSource, known: Sequence[str], *, ephemeral: bool) -> str:
    newest, *earlier = known or ("",)
    try:
        return await stamp_format(store, identity, known=newest)
    except StoreDataLostError as error:
        if not ephemeral:
            raise
        _log.warning("data set lost, as settings allow", problem=error.message)
        return await accept_loss(store, identity, known=newest, earlier=earlier)


async def accept_store_loss(settings: Config, known: Sequence[str]) -> tuple[str, bool]:
    """Accept that the store lost the newest of the known data sets.

    Returns the id that the store has from now on, and whether anything was lost. May be repeated.
    """
    if not known:
        raise InvalidInputError(
            "The catalogue knows of no data set, so that none can be lost.",
            hint="Name the lost data set with --lost; errors and logs of the process tell its id.",
        )
    newest, *earlier = known
    async with _connected(settings) as store:
        if not await has_lost(store, newest):
            return newest, False
        accepted = await accept_loss(store, RandomIds(), known=newest, earlier=earlier)
        return accepted, True


@asynccontextmanager
async def _connected(settings: Config) -> AsyncIterator[Store]:
    """Use a store without any check of its data, and without asking for more durability."""
    relaxed = msgspec.structs.replace(settings.store, durability="memory")
    server, address = await _start_server(msgspec.structs.replace(settings, store=relaxed))
    store, _ = _clients(settings, address)
    try:
        yield store
    finally:
        await store.close()
        if server is not None:
            server.close()


async def _start_server(settings: Config) -> tuple[EmbeddedServer | None, Address]:
    """Return the address of the store, and the embedded server if the settings name no other."""
    wanted = settings.store
    if wanted.url and (wanted.cluster or wanted.port):
        raise SettingsError(
            "store.cluster and store.port are for the embedded store, and store.url names another.",
            hint="A cluster is named by its URL: redis+cluster://host:port,host:port.",
        )
    server: EmbeddedServer | None = None
    if wanted.url:
        address = parse_address(wanted.url)
    else:
        server = EmbeddedServer(
            settings.data_dir / "store",
            durability=wanted.durability,
            cluster=wanted.cluster,
            port=wanted.port,
        )
        try:
            # In a thread: it may wait long, and the process must hear a signal meanwhile.
            await asyncio.to_thread(server.start)
        except asyncio.CancelledError:
            server.close()
            raise
        address = server.address
    return server, address


def _clients(settings: Config, address: Address) -> tuple[Store, PubSub]:
    store = Store(
        address,
        call_seconds_max=settings.store.call_seconds_max,
        test_mode=settings.time_machine,
    )
    return store, PubSub(address)
