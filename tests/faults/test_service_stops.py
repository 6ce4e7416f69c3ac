"""Services on a store that does not answer: each stops within one second and its margin."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.helpers.store_faults import Fate, proxy_to
from waystation.catalogue import SqliteCatalogue
from waystation.config import PoolConfig
from waystation.delivery.addresses import AddressGuard
from waystation.delivery.sender import Sender
from waystation.delivery.states import EndpointStates
from waystation.pools.pools import Pools
from waystation.pools.upkeep import PoolUpkeep
from waystation.runtime.clock import Clock
from waystation.runtime.service import Service
from waystation.store import keys
from waystation.store.client import Store
from waystation.store.membership import Membership
from waystation.store.pubsub import PubSub
from waystation.store.time_machine import TimeMachine
from waystation.subscriptions.standings import Standings
from waystation.testing import private_server
from waystation.transactions.group_settings import Following
from waystation.transactions.nodes import NodeRecord, Nodes
from waystation.transactions.signals import Signals, Terms
from waystation.transactions.watch import Watch

#: One second for the release and a margin for a busy machine.
STOP_S_MAX = 2.5

Build = Callable[[Store, PubSub, Path], Awaitable[Service]]


async def membership(store: Store, pubsub: PubSub, folder: Path) -> Service:
    return Membership(store, keys.PROCESSES, "me", on_change=lambda _: None, clock=Clock())


async def time_machine(store: Store, pubsub: PubSub, folder: Path) -> Service:
    return TimeMachine(store, pubsub, Clock())


async def standings(store: Store, pubsub: PubSub, folder: Path) -> Service:
    return Standings(EndpointStates(store), pubsub, clock=Clock(), node="me")


async def nodes(store: Store, pubsub: PubSub, folder: Path) -> Service:
    return Nodes(store, clock=Clock())


async def group_settings(store: Store, pubsub: PubSub, folder: Path) -> Service:
    return Following(Nodes(store, clock=Clock()), pubsub, "master", claims=False)


async def watch(store: Store, pubsub: PubSub, folder: Path) -> Service:
    sender = Sender(AddressGuard((), loopback=True))
    signals = Signals(store, Terms(dataset="ds", archive_delay_ms=1, external_id_ms=60_000))
    return Watch(store, signals, Nodes(store, clock=Clock()), sender, cells=1, clock=Clock())


async def pool_sweep(store: Store, pubsub: PubSub, folder: Path) -> Service:
    catalogue = SqliteCatalogue(folder / "catalogue.db")
    await catalogue.open()
    pools = Pools(catalogue, store, pubsub, clock=Clock(), settings=PoolConfig())
    await pools.create("default", "orders")
    upkeep = PoolUpkeep(pools, clock=Clock(), sweep_seconds=0.01)
    await upkeep.mend()
    await catalogue.close()
    return upkeep


@pytest.mark.single_server
@pytest.mark.parametrize(
    "build",
    [membership, time_machine, standings, nodes, group_settings, watch, pool_sweep],
    ids=lambda build: build.__name__,
)
async def test_service_on_silent_store_stops_within_its_limit(build: Build, tmp_path: Path) -> None:
    with private_server() as server:
        async with proxy_to(server.address) as proxy:
            store, pubsub = Store(proxy.address), PubSub(proxy.address)
            await pubsub.start()
            service = await build(store, pubsub, tmp_path)
            if isinstance(service, Nodes):
                await service.register(NodeRecord(node_group="master", node_id="nodeId-1"))
            else:
                await service.start()
            await proxy.set_fates(requests=Fate.HOLD)
            # A jump starts the next step, whose calls are never answered.
            service.clock.shift_to(1)
            await asyncio.sleep(0.05)

            async with asyncio.timeout(STOP_S_MAX):
                await service.stop()

            async with asyncio.timeout(STOP_S_MAX):
                await pubsub.stop()
            await store.close()
