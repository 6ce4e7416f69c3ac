"""The engine: all that a process has of transactions, opened in order and closed in reverse.

Every process can start transactions, look at them and reach them. One that was given an app runs
its steps, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from waystation.catalogue import Catalogue
from waystation.clock import Clock
from waystation.ids import Identity
from waystation.logs import Logs
from waystation.store.opening import OpenStore
from waystation.telemetry import metrics
from waystation.transaction_settings import TransactionSettings
from waystation.transactions.app import App
from waystation.transactions.app_host import AppHost
from waystation.transactions.cells import Terms, open_cells
from waystation.transactions.count_slots import CountSlots
from waystation.transactions.entry import Entry
from waystation.transactions.holding import Holding
from waystation.transactions.limits import Limits
from waystation.transactions.listing import Listing
from waystation.transactions.nodes import Nodes
from waystation.transactions.pipelines import Pipelines
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
    pipelines: Pipelines
    nodes: Nodes
    starter: Starter
    transactions: Transactions
    listing: Listing
    why: Why
    waiting: WaitingRoom
    #: Who does what is due: a worker has a timekeeper of its own.
    runner: AppHost | Timekeeper
    unfollow: Callable[[], None]

    async def mend(self) -> None:
        """Finishes changes of pipelines that a process died in; a part of upkeep."""
        async for row in self.pipelines.everything():
            await self.pipelines.mend(row)

    async def count(self) -> None:
        """Tells how many sleep, for all nodes; a part of upkeep, too."""
        metrics.transactions_sleeping.set(await self.listing.asleep())

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
        await self.runner.stop()
        self.unfollow()
        await self.starter.close()


async def open_engine(
    settings: TransactionSettings,
    opened: OpenStore,
    catalogue: Catalogue,
    logs: Logs,
    *,
    clock: Clock,
    identity: Identity,
    app: App | None = None,
) -> Engine:
    """Opens the cells, and all that works on them; runs the steps of an app, if there is one."""
    store, cells = opened.store, settings.cells
    await open_cells(store, logs, cells)
    terms = Terms(
        dataset=opened.dataset,
        archive_delay_ms=round(settings.archive_delay_seconds * 1000),
        external_id_ms=round(settings.external_id_seconds * 1000),
    )
    signals = Signals(store, terms)
    pipelines = Pipelines(catalogue, store, cells=cells, terms=terms, clock=clock)
    nodes, time = Nodes(store, clock=clock), StoreTime(clock)
    waiting = WaitingRoom(store, opened.wakeups, signals, clock=clock)
    limits = _limits(settings)
    runner: AppHost | Timekeeper
    loaded = app or settings.app
    if not loaded:
        runner = Timekeeper(
            signals,
            Holding(store, terms),
            CountSlots(store),
            opened.wakeups,
            clock=clock,
            cells=cells,
            limits=limits,
        )
        runner.start()
    else:
        runner = AppHost(
            opened,
            pipelines,
            nodes,
            clock=clock,
            identity=identity,
            terms=terms,
            cells=cells,
            group=settings.group,
            limits=limits,
        )
        await runner.start(loaded, reload=settings.reload)
    return Engine(
        terms=terms,
        pipelines=pipelines,
        nodes=nodes,
        starter=Starter(
            Entry(store, terms),
            signals,
            pipelines,
            time,
            cells=cells,
            clock=clock,
            identity=identity,
            state_bytes_max=settings.state_bytes_max,
        ),
        transactions=Transactions(store, signals, waiting, grace_ms=limits.cancel_grace_ms),
        listing=Listing(store, cells=cells),
        why=Why(signals, pipelines, nodes),
        waiting=waiting,
        runner=runner,
        unfollow=pipelines.follow(opened.wakeups),
    )


def _limits(settings: TransactionSettings) -> Limits:
    return Limits(
        workers=settings.workers,
        prefetch=settings.prefetch,
        lease_ms=round(settings.lease_seconds * 1000),
        rescues_max=settings.rescues_max,
        grace_seconds=settings.grace_seconds,
        cancel_grace_ms=round(settings.cancel_grace_seconds * 1000),
        step_seconds_max=settings.step_seconds_max,
        state_bytes_max=settings.state_bytes_max,
    )
