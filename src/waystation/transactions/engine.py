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
from waystation.transaction_settings import TransactionSettings
from waystation.transactions.cells import Terms, open_cells
from waystation.transactions.entry import Entry
from waystation.transactions.listing import Listing
from waystation.transactions.nodes import Nodes
from waystation.transactions.pipelines import Pipelines
from waystation.transactions.signals import Signals
from waystation.transactions.starter import Starter
from waystation.transactions.store_time import StoreTime
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
    time: StoreTime
    unfollow: Callable[[], None]

    async def mend(self) -> None:
        """Finishes changes of pipelines that a process died in; a part of upkeep."""
        async for row in self.pipelines.everything():
            await self.pipelines.mend(row)

    async def close(self) -> None:
        """Lets what was taken over be started, and ends all waits."""
        self.waiting.close()
        self.unfollow()
        await self.starter.close()
        await self.nodes.stop()


async def open_engine(
    settings: TransactionSettings,
    opened: OpenStore,
    catalogue: Catalogue,
    logs: Logs,
    *,
    clock: Clock,
    identity: Identity,
) -> Engine:
    """Opens the cells, and all that works on them."""
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
        transactions=Transactions(
            store, signals, waiting, grace_ms=round(settings.grace_seconds * 1000)
        ),
        listing=Listing(store, cells=cells),
        why=Why(signals, pipelines, nodes),
        waiting=waiting,
        time=time,
        unfollow=pipelines.follow(opened.wakeups),
    )
