"""The engine: all that a process has of transactions, opened in order and closed in reverse.

Every process can start transactions, look at them and reach them. One that was given an app runs
its steps, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from waystation import __version__
from waystation.archive import Archive
from waystation.catalogue import Catalogue
from waystation.config import TransactionConfig
from waystation.errors import SettingsError
from waystation.logs.operations import OperationLog
from waystation.logs.protocol import Logs
from waystation.messages.redaction import UNRECORDED
from waystation.runtime.clock import Clock
from waystation.runtime.ids import IdSource
from waystation.store.client import Store
from waystation.store.opening import OpenStore
from waystation.telemetry import metrics
from waystation.transactions.app import App
from waystation.transactions.app_host import AppHost
from waystation.transactions.archivist import Archivist
from waystation.transactions.callbacks import Callbacks, CallbackUrls, open_secret
from waystation.transactions.cells import Terms
from waystation.transactions.count_slots import CountSlots
from waystation.transactions.entry import Entry
from waystation.transactions.finder import Finder
from waystation.transactions.holding import Holding
from waystation.transactions.limits import Limits
from waystation.transactions.listing import Listing
from waystation.transactions.loader import Loader
from waystation.transactions.nodes import NodeRecord, Nodes, new_node_id
from waystation.transactions.pipelines import Pipelines
from waystation.transactions.services import Services
from waystation.transactions.signals import Signals
from waystation.transactions.starter import Starter
from waystation.transactions.store_time import StoreTime
from waystation.transactions.timekeeper import Timekeeper
from waystation.transactions.transactions import Transactions
from waystation.transactions.waiters import WaitingRoom
from waystation.transactions.why import Why


@dataclass(frozen=True, kw_only=True)
class Engine:
    """The parts that others use."""

    terms: Terms
    signals: Signals
    pipelines: Pipelines
    nodes: Nodes
    starter: Starter
    transactions: Transactions
    listing: Listing
    why: Why
    waiting: WaitingRoom
    callbacks: Callbacks
    urls: CallbackUrls
    #: Who does what is due: a worker has a timekeeper of its own.
    runner: AppHost | Timekeeper
    unfollow: Callable[[], None]
    #: Who archives and brings back, and who finds what has left the store; None without an archive.
    archivist: Archivist | None = None
    finder: Finder | None = None
    #: How long the archive keeps what has ended; 0: for ever.
    retention_days: float = 0.0

    async def mend(self) -> None:
        """Finishes changes of pipelines that a process died in; a part of upkeep."""
        async for row in self.pipelines.everything():
            await self.pipelines.mend(row)

    async def count(self) -> None:
        """Tells how many sleep, for all nodes; a part of upkeep, too."""
        metrics.transactions_sleeping.set(await self.listing.asleep())

    async def forget(self) -> None:
        """Deletes what the archive has kept for long enough; a part of upkeep, too."""
        if self.archivist is not None and self.retention_days > 0:
            now_ms = (await self.signals.look(0)).now_ms
            await self.archivist.forget(now_ms, self.retention_days)

    def archive_error(self) -> str:
        """What this process has against the archive; empty if nothing."""
        return self.archivist.archiver.state.error if self.archivist is not None else ""

    def stop_counting(self) -> None:
        """Another node counts: figures are summed up over all of them."""
        metrics.transactions_sleeping.set(0)

    @property
    def host(self) -> AppHost | None:
        """What runs an app in this process, if it was given one."""
        return self.runner if isinstance(self.runner, AppHost) else None

    async def close(self) -> None:
        """Lets steps end, and what was taken over be started; ends all waits."""
        self.waiting.close()
        stopping = [self.runner.stop(), self.nodes.stop()]
        if self.archivist is not None:
            stopping.append(self.archivist.stop())
        await asyncio.gather(*stopping)
        self.unfollow()
        await self.starter.close()
        if self.archivist is not None:
            await self.archivist.close()


async def open_engine(
    settings: TransactionConfig,
    opened: OpenStore,
    catalogue: Catalogue,
    logs: Logs,
    *,
    clock: Clock,
    identity: IdSource,
    app: App | None = None,
    services: Services | None = None,
    urls: CallbackUrls | None = None,
    archive: Archive | None = None,
    retention_days: float = 0.0,
    recorded: bool = True,
) -> Engine:
    """Start everything that works on the cells, which are open; run the steps of an app, if given.

    `settings.cells` is the actual number of cells, never 0.
    """
    store, cells = opened.store, settings.cells
    dataset = opened.dataset if recorded else UNRECORDED
    terms, node_id = _terms(settings, dataset), new_node_id(identity)
    nodes = Nodes(store, clock=clock)
    archivist = _archivist(settings, opened, archive, nodes, app, node_id, terms, clock, logs)
    loader = archivist.loader if archivist is not None else None
    signals = Signals(store, terms, loader)
    finder = Finder(store, signals, archive, cells=cells) if archive is not None else None
    urls = urls or CallbackUrls(await open_secret(store, identity))
    check = services.check if services is not None else None
    pipelines = Pipelines(catalogue, store, cells=cells, terms=terms, clock=clock, check=check)
    waiting = WaitingRoom(store, opened.wakeups, signals, clock=clock)
    runner = await _open_runner(
        settings,
        opened,
        pipelines,
        nodes,
        signals,
        app,
        clock=clock,
        node_id=node_id,
        terms=terms,
        services=services,
        loader=loader,
    )
    if archivist is not None:
        await archivist.start()
    return Engine(
        terms=terms,
        signals=signals,
        pipelines=pipelines,
        nodes=nodes,
        starter=_starter(settings, signals, pipelines, services, store, terms, clock, identity),
        transactions=Transactions(
            store, signals, waiting, archive, grace_ms=_limits(settings).cancel_grace_ms
        ),
        listing=Listing(store, archive, cells=cells),
        why=Why(signals, pipelines, nodes, finder),
        waiting=waiting,
        callbacks=Callbacks(signals, urls, terms=terms, identity=identity),
        urls=urls,
        runner=runner,
        unfollow=pipelines.follow(opened.wakeups),
        archivist=archivist,
        finder=finder,
        retention_days=retention_days,
    )


def _archivist(
    settings: TransactionConfig,
    opened: OpenStore,
    archive: Archive | None,
    nodes: Nodes,
    app: App | None,
    node_id: str,
    terms: Terms,
    clock: Clock,
    logs: Logs,
) -> Archivist | None:
    if archive is None:
        return None
    return Archivist(
        settings,
        opened,
        archive,
        nodes,
        terms=terms,
        operations=OperationLog(logs),
        node_id=node_id,
        claims=bool(app or settings.app),
        clock=clock,
    )


def _starter(
    settings: TransactionConfig,
    signals: Signals,
    pipelines: Pipelines,
    services: Services | None,
    store: Store,
    terms: Terms,
    clock: Clock,
    identity: IdSource,
) -> Starter:
    return Starter(
        Entry(store, terms),
        signals,
        pipelines,
        StoreTime(clock),
        cells=settings.cells,
        clock=clock,
        identity=identity,
        state_bytes_max=settings.state_bytes_max,
        services=services,
    )


async def _open_runner(
    settings: TransactionConfig,
    opened: OpenStore,
    pipelines: Pipelines,
    nodes: Nodes,
    signals: Signals,
    app: App | None,
    *,
    clock: Clock,
    node_id: str,
    terms: Terms,
    services: Services | None,
    loader: Loader | None,
) -> AppHost | Timekeeper:
    """Who runs the app, or else keeps time; either way this node is on the list from now on."""
    loaded, limits = app or settings.app, _limits(settings)
    if loaded:
        host = AppHost(
            opened,
            pipelines,
            nodes,
            clock=clock,
            node_id=node_id,
            terms=terms,
            cells=settings.cells,
            group=settings.group,
            limits=limits,
            services=services,
            loader=loader,
        )
        await host.start(loaded, reload=settings.reload)
        return host
    await nodes.register(
        NodeRecord(node_group=settings.group, node_id=node_id, datp_version=__version__)
    )
    timekeeper = Timekeeper(
        signals,
        Holding(opened.store, terms),
        CountSlots(opened.store),
        opened.wakeups,
        clock=clock,
        cells=settings.cells,
        limits=limits,
        loader=loader,
    )
    timekeeper.start()
    return timekeeper


def _terms(settings: TransactionConfig, dataset: str) -> Terms:
    delay, reserved = settings.archive_delay_seconds, settings.external_id_seconds
    if reserved <= delay:
        raise SettingsError(
            f"transactions.external_id_seconds is {reserved}; it must be more than"
            f" transactions.archive_delay_seconds, which is {delay}.",
            hint="Otherwise an external id is found nowhere between the one and the other.",
        )
    return Terms(
        dataset=dataset,
        archive_delay_ms=round(delay * 1000),
        external_id_ms=round(reserved * 1000),
        cache_ms=round(settings.cache_seconds * 1000),
        load_ms=round(settings.load_pause_seconds * 1000),
    )


def _limits(settings: TransactionConfig) -> Limits:
    return Limits(
        workers=settings.workers,
        prefetch=settings.prefetch,
        lease_ms=round(settings.lease_seconds * 1000),
        rescues_max=settings.rescues_max,
        grace_seconds=settings.grace_seconds,
        cancel_grace_ms=round(settings.cancel_grace_seconds * 1000),
        step_seconds_max=settings.step_seconds_max,
        state_bytes_max=settings.state_bytes_max,
        depth_max=settings.depth_max,
        descendants_max=settings.descendants_max,
    )
