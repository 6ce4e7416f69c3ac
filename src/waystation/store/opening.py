"""Opening of a store: starts or connects to the server, checks it, and stamps the data set.

A server that would lose data is refused before anything runs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import msgspec

from waystation.config import Config
from waystation.errors import (
    InvalidInputError,
    SettingsError,
    StoreDataLostError,
    StoreRefusedError,
    StoreReplyError,
)
from waystation.runtime.clock import Clock
from waystation.runtime.ids import IdSource, RandomIds
from waystation.runtime.logging import logger
from waystation.store.address import Address, parse_address
from waystation.store.client import Store, parse_info
from waystation.store.dataset import accept_loss, has_lost, read_or_write_stamp, write_markers
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.leases import LeaseRenewer
from waystation.store.memory import StoreMemory
from waystation.store.migrations import migrate
from waystation.store.pubsub import PubSub
from waystation.store.time_machine import TimeMachine
from waystation.types.message import Durability

_log = logger("store")

#: Oldest supported server: EXPIRE GT and `#!lua` need Redis 7.0.
VERSION_MIN = (7, 0)
#: A pub/sub topic like those of channels, so that the check meets the same ACL rules.
_PROBE_TOPIC = "dsps.c.{waystation}"


@dataclass(kw_only=True)
class OpenStore:
    """A store in use, with everything that was opened for it. The caller closes it."""

    store: Store
    wakeups: PubSub
    dataset: str
    durability: Durability
    facts: ServerFacts
    memory: StoreMemory
    #: Thread that renews the leases of this process. It starts with the first lease.
    renewer: LeaseRenewer
    server: EmbeddedServer | None = None
    time_machine: TimeMachine | None = None
    #: Closes all of them, in the reverse order of their opening.
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    @property
    def notes(self) -> list[str]:
        """Warnings for the operator: about the last start of the server, and about its memory."""
        return [*(self.server.notes if self.server is not None else []), *self.memory.notes]

    async def close(self) -> None:
        """Close all clients, then release the embedded server."""
        await self.stack.aclose()


async def open_store(
    settings: Config,
    *,
    clock: Clock,
    identity: IdSource | None = None,
    known: Sequence[str] | None = None,
) -> OpenStore:
    """Open, check and stamp the store that the settings name.

    `known` lists the ids of data sets that the caller found in this store before, newest first;
    empty the first time. A caller that passes ids stores them, and must open the store again after
    an operator accepted a loss. With None the client continues by itself then.

    Raise StoreRefusedError if the server must not be used, and StoreDataLostError if it lost the
    newest known data set.
    """
    identity = identity or RandomIds()
    wanted = settings.store
    if settings.time_machine and wanted.url:
        raise SettingsError(
            "The time machine works only with the embedded store, but store.url is set.",
            hint="Remove store.url, or start without --time-machine.",
        )
    async with AsyncExitStack() as stack:
        server, address = await _start_server(settings, stack)
        store = _open_client(settings, address, stack)
        facts = await read_server_facts(store)
        for each in facts:
            check_server(each, durability=wanted.durability, ephemeral=wanted.ephemeral)
        dataset = await _stamp(store, identity, known or (), ephemeral=wanted.ephemeral)
        store.data_set.adopts = known is None
        store.data_set.ephemeral = wanted.ephemeral
        if known is not None or not wanted.ephemeral:
            store.data_set.known = dataset
        wakeups = PubSub(address)
        stack.push_async_callback(wakeups.stop)
        await wakeups.start()
        renewer = LeaseRenewer(address, test_mode=settings.time_machine)
        stack.callback(renewer.close)
        memory = await stack.enter_async_context(StoreMemory(store, clock=clock))
        machine = TimeMachine(store, wakeups, clock) if settings.time_machine else None
        if machine is not None:
            await stack.enter_async_context(machine)
        return OpenStore(
            store=store,
            wakeups=wakeups,
            dataset=dataset,
            durability=wanted.durability,
            facts=facts[0],
            memory=memory,
            renewer=renewer,
            server=server,
            time_machine=machine,
            stack=stack.pop_all(),
        )


# -- Data set --------------------------------------------------------------------------------


async def stamp_dataset(store: Store, identity: IdSource, *, known: str = "") -> str:
    """Stamp a new store, migrate an older data set, and return the id of the data set.

    `known` is the id found there before. Raise StoreDataLostError if the store lost that data set,
    and StoreRefusedError if the data cannot be migrated or a newer release wrote it.
    """
    version, found = await read_or_write_stamp(store, identity, known=known)
    await migrate(store, version, identity)
    await write_markers(store, found)
    return found.dataset


async def _stamp(store: Store, identity: IdSource, known: Sequence[str], *, ephemeral: bool) -> str:
    newest, *earlier = known or ("",)
    try:
        return await stamp_dataset(store, identity, known=newest)
    except StoreDataLostError as error:
        if not ephemeral:
            raise
        _log.warning("data set loss accepted", reason="store.ephemeral", error=error.message)
        return await accept_loss(store, identity, known=newest, earlier=earlier)


async def accept_store_loss(settings: Config, known: Sequence[str]) -> tuple[str, bool]:
    """Accept that the store lost the newest of the known data sets.

    Return the new id, and whether the store had lost anything. A second call changes nothing.
    """
    if not known:
        raise InvalidInputError(
            "The database does not contain the id of a data set, so it does not show which one the"
            " store has lost.",
            hint="Name the lost data set with --lost; the error of the failed start shows its id.",
        )
    newest, *earlier = known
    async with _connected(settings) as store:
        if not await has_lost(store, newest):
            return newest, False
        accepted = await accept_loss(store, RandomIds(), known=newest, earlier=earlier)
        return accepted, True


@asynccontextmanager
async def _connected(settings: Config) -> AsyncIterator[Store]:
    """Connect without any check of the data, at durability `memory`."""
    relaxed = msgspec.structs.replace(settings.store, durability="memory")
    async with AsyncExitStack() as stack:
        _, address = await _start_server(msgspec.structs.replace(settings, store=relaxed), stack)
        yield _open_client(settings, address, stack)


# -- Server ----------------------------------------------------------------------------------


async def _start_server(
    settings: Config, stack: AsyncExitStack
) -> tuple[EmbeddedServer | None, Address]:
    """Return the address of the store, and the embedded server unless `store.url` is set."""
    wanted = settings.store
    if wanted.url and (wanted.cluster or wanted.port):
        raise SettingsError(
            "store.cluster and store.port configure the embedded store, but store.url is set.",
            hint="Remove them. The URL of a cluster is redis+cluster://host:port,host:port.",
        )
    if wanted.url:
        return None, parse_address(wanted.url)
    server = EmbeddedServer(
        settings.data_dir / "store",
        durability=wanted.durability,
        cluster=wanted.cluster,
        port=wanted.port,
    )
    # Register `close` before the start, so that it also runs when the start is cancelled.
    stack.callback(server.close)
    # Start it in a thread: a start may take long, and the process must still handle signals.
    await asyncio.to_thread(server.start)
    return server, server.address


def _open_client(settings: Config, address: Address, stack: AsyncExitStack) -> Store:
    store = Store(
        address,
        call_seconds_max=settings.store.call_seconds_max,
        test_mode=settings.time_machine,
    )
    stack.push_async_callback(store.close)
    return store


# -- Checks ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ServerFacts:
    """Version and configuration of a server, as far as it shows them."""

    version: str
    #: Version of Redis with which the server is compatible.
    compatible: tuple[int, ...]
    eviction_policy: str
    append_only: bool
    #: `always`, `everysec`, `no`; empty if the server hides it.
    fsync: str
    #: Whether the server skips fsync while it rewrites the append-only file.
    fsync_pauses: bool = False
    #: Error reply to a PUBLISH; empty if it succeeded.
    publish_problem: str = ""
    #: The server is a node of a cluster, but the address is that of a single server.
    unexpected_cluster: bool = False


async def read_server_facts(store: Store) -> list[ServerFacts]:
    """Read INFO of every server, and CONFIG where it is allowed."""
    infos = await store.call_each("INFO", "everything")
    configs: dict[str, list[bytes]] = {}
    # Hosted stores often forbid CONFIG; the checks then use INFO alone.
    with contextlib.suppress(StoreReplyError):
        configs = await store.call_each("CONFIG", "GET", "*append*")
    publish_problem = await _publish_problem(store)
    alone = store.address.cluster is None
    return [
        _facts(parse_info(info), configs.get(node, []), publish_problem, alone=alone)
        for node, info in infos.items()
    ]


def _facts(
    info: dict[str, str], pairs: list[bytes], publish_problem: str, *, alone: bool
) -> ServerFacts:
    words = [word.decode() for word in pairs]
    config = dict(zip(words[::2], words[1::2], strict=True))
    return ServerFacts(
        version=info.get("valkey_version") or info.get("redis_version", "?"),
        compatible=tuple(int(part) for part in info.get("redis_version", "0").split(".")[:2]),
        eviction_policy=info.get("maxmemory_policy", "noeviction"),
        append_only=info.get("aof_enabled") == "1",
        fsync=config.get("appendfsync", ""),
        fsync_pauses=config.get("no-appendfsync-on-rewrite") == "yes",
        publish_problem=publish_problem,
        unexpected_cluster=alone and info.get("cluster_enabled") == "1",
    )


def check_server(facts: ServerFacts, *, durability: Durability, ephemeral: bool) -> None:
    """Raise StoreRefusedError if the server would lose data or lacks a needed feature."""
    if facts.compatible < VERSION_MIN:
        raise StoreRefusedError(
            f"The store is version {facts.version}, which is too old.",
            hint="Use Redis 7.0 or later, or any version of Valkey.",
        )
    if facts.eviction_policy != "noeviction":
        raise StoreRefusedError(
            "The store deletes accepted messages when its memory is full (maxmemory-policy "
            f"{facts.eviction_policy}).",
            hint="Set maxmemory-policy noeviction on the store.",
        )
    if not facts.append_only and not ephemeral:
        raise StoreRefusedError(
            "The store loses all data at a restart (appendonly no).",
            hint="Set appendonly yes on the store, or pass --ephemeral if you accept that loss.",
        )
    _check_durability(facts, durability=durability, ephemeral=ephemeral)
    if facts.unexpected_cluster:
        raise StoreRefusedError(
            "The store is one node of a cluster, which has only a part of the keys.",
            hint="Use redis+cluster://host:port with any node of the cluster.",
        )
    if facts.publish_problem:
        raise StoreRefusedError(
            f"The store refuses to publish wake-ups: {facts.publish_problem}",
            hint="Grant the user of the store its pub/sub channels: ACL SETUSER … &*.",
        )


def _check_durability(facts: ServerFacts, *, durability: Durability, ephemeral: bool) -> None:
    if durability == "disk":
        found = f"the store has appendfsync {facts.fsync}"
        if not facts.append_only:
            found = "the store has appendonly no"
        elif facts.fsync_pauses:
            found = "the store has no-appendfsync-on-rewrite yes"
        elif not facts.fsync:
            found = "the store does not show its appendfsync"
        elif facts.fsync == "always":
            return
        raise StoreRefusedError(
            f"Durability 'disk' needs an fsync before every reply, but {found}.",
            hint="Set appendfsync always on the store, or use --durability memory.",
        )
    if facts.fsync == "no" and facts.append_only and not ephemeral:
        raise StoreRefusedError(
            "Durability 'memory' loses at most about one second of writes, but the store has"
            " appendfsync no.",
            hint="Set appendfsync everysec on the store, or pass --ephemeral.",
        )


async def _publish_problem(store: Store) -> str:
    """Return the error reply to a PUBLISH, because an ACL can allow commands but no channels."""
    try:
        await store.call("PUBLISH", _PROBE_TOPIC, "probe", repeatable=True)
    except StoreReplyError as error:
        return error.reply
    return ""
