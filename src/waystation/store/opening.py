"""Opens a store as the settings say: by URL or embedded, checked, stamped, ready to be used."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from waystation.clock import Clock
from waystation.errors import SettingsError
from waystation.ids import Identity, RandomIdentity
from waystation.settings import Durability, Settings
from waystation.store.address import Address, parse_address
from waystation.store.checks import Facts, check_facts, read_facts
from waystation.store.client import Store
from waystation.store.embedded import EmbeddedServer
from waystation.store.format import stamp_format
from waystation.store.time_machine import TimeMachine
from waystation.store.wakeups import Wakeups


@dataclass(kw_only=True)
class OpenStore:
    """A store in use, with all that came with opening it. Close it when done."""

    store: Store
    wakeups: Wakeups
    dataset: str
    durability: Durability
    facts: Facts
    server: EmbeddedServer | None = None
    time_machine: TimeMachine | None = None

    @property
    def notes(self) -> list[str]:
        """What was odd about the last start of the server, which may have been under us."""
        return self.server.notes if self.server is not None else []

    async def close(self) -> None:
        """Lets go of everything, the embedded server last."""
        if self.time_machine is not None:
            await self.time_machine.close()
        await self.wakeups.close()
        await self.store.close()
        if self.server is not None:
            self.server.close()


async def open_store(
    settings: Settings, *, clock: Clock, identity: Identity | None = None
) -> OpenStore:
    """Opens, checks and stamps; raises StoreRefusedError with the reason if it must not be used."""
    identity = identity or RandomIdentity()
    wanted = settings.store
    if settings.time_machine and wanted.url:
        raise SettingsError("The time machine needs the embedded store: leave out store.url.")
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
    store, wakeups = _clients(settings, address)
    try:
        facts = await read_facts(store)
        for each in facts:
            check_facts(each, durability=wanted.durability, ephemeral=wanted.ephemeral)
        dataset = await stamp_format(store, identity)
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
    except BaseException:
        await wakeups.close()
        await store.close()
        if server is not None:
            server.close()
        raise
    return opened


def _clients(settings: Settings, address: Address) -> tuple[Store, Wakeups]:
    store = Store(
        address,
        call_seconds_max=settings.store.call_seconds_max,
        test_mode=settings.time_machine,
    )
    return store, Wakeups(address)
