"""Opens a relay as the settings say: its store, its pool, its doors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from waystation.config import Config, RelayConfig
from waystation.errors import ConflictError, MirrorTakenError, PoolNotFoundError, SettingsError
from waystation.logs.streams import StreamLogs
from waystation.node import open_catalogue, open_records
from waystation.pools import Pool, PoolOptions, Pools
from waystation.relay.door import HttpDoor
from waystation.relay.http_app import HttpApp
from waystation.relay.inbox import Inbox
from waystation.relay.mirroring import Mirroring, open_mirroring
from waystation.relay.relay import Relay
from waystation.relay.server import DoorPlan, DoorServer
from waystation.relay.socket_door import SocketDoor
from waystation.relay.status import status_plan
from waystation.runtime.clock import Clock
from waystation.runtime.ids import RandomIds, require_name
from waystation.store.opening import OpenStore, open_store


class OpenRelay(msgspec.Struct, frozen=True):
    """A relay that serves."""

    opened: OpenStore
    #: Kind and address of each door, the status door last.
    doors: list[tuple[str, str]]


@asynccontextmanager
async def open_relay(settings: Config) -> AsyncIterator[OpenRelay]:
    """Serves for the length of the block; what was begun by then is finished."""
    wanted, clock = settings.relay, Clock()
    if not wanted.doors:
        raise SettingsError("relay.doors: a relay needs a door.")
    async with AsyncExitStack() as undo:
        opened = await open_store(settings, clock=clock)
        undo.push_async_callback(opened.close)
        catalogue = open_catalogue(settings)
        await catalogue.open()
        undo.push_async_callback(catalogue.close)
        records = open_records(settings, opened, StreamLogs(opened.store), clock=clock)
        await undo.enter_async_context(records)
        pools = Pools(
            catalogue,
            opened.store,
            opened.wakeups,
            clock=clock,
            settings=settings.pools,
            records=records,
        )
        pool = await provide(pools, wanted)
        mirroring: Mirroring | None = None
        if pool.options.mirror:
            mirroring = await undo.enter_async_context(
                open_mirroring(pools, pool, opened, wanted=wanted)
            )
        relay = _relay(wanted, pools, pool, mirroring)
        undo.push_async_callback(relay.close)
        plans = _plans(wanted, relay)
        kinds: list[str] = [each.kind for each in wanted.doors]
        if wanted.status_api_key:
            place = (wanted.status_host, wanted.status_port)
            plans.append(status_plan(wanted.status_api_key, opened.store, *place))
            kinds.append("status")
        server = DoorServer(plans, body_bytes_max=wanted.body_bytes_max)
        ports = await server.start()
        undo.push_async_callback(server.stop)
        undo.callback(relay.end_waits)
        places = [_url(plan.host, port) for plan, port in zip(plans, ports, strict=True)]
        yield OpenRelay(opened, list(zip(kinds, places, strict=True)))


def _relay(wanted: RelayConfig, pools: Pools, pool: Pool, mirroring: Mirroring | None) -> Relay:
    on_enqueued = mirroring.enqueued if mirroring is not None else None
    return Relay(
        Inbox(pools, pool.place, on_enqueued=on_enqueued),
        pools.answers,
        identity=RandomIds(),
        answer_seconds=wanted.answer_seconds,
    )


async def provide(pools: Pools, wanted: RelayConfig) -> Pool:
    """The pool as it is defined; made where it is missing, also by several relays at once."""
    project = require_name(wanted.project, field="relay.project")
    name = require_name(wanted.pool, field="relay.pool")
    try:
        pool = await pools.get(project, name)
    except PoolNotFoundError:
        try:
            pool = await pools.create(project, name, PoolOptions(mirror=wanted.mirror))
        except MirrorTakenError:
            raise
        except ConflictError:
            pool = await pools.get(project, name)
    if wanted.mirror and not pool.options.mirror:
        raise SettingsError(
            f"relay.mirror: agents cannot serve pool {name}, which was made without a mirror.",
            hint="Name another pool, or delete this one: a pool is mirrored from its creation on.",
        )
    return pool


def _plans(wanted: RelayConfig, relay: Relay) -> list[DoorPlan]:
    bytes_max = wanted.body_bytes_max
    plans = []
    for door in wanted.doors:
        app: object
        if door.kind == "http":
            app = HttpApp("http", HttpDoor(relay).handle, body_bytes_max=bytes_max)
        else:
            idle = wanted.idle_seconds
            app = SocketDoor(relay, idle_seconds=idle, body_bytes_max=bytes_max)
        plans.append(DoorPlan(app, door.host, door.port))
    return plans


def _url(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
