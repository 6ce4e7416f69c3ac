"""Transactions as those outside use them, on the real store, with the callers of scripts beside.

What a worker would do is done by these callers, so that a test decides when it happens.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from waystation.archive import Archive
from waystation.catalogue import ProjectRecord, SqliteCatalogue
from waystation.config import TransactionConfig
from waystation.logs.streams import StreamLogs
from waystation.runtime.clock import Clock
from waystation.runtime.ids import RandomIds
from waystation.store.address import Address
from waystation.store.client import Store
from waystation.store.leases import LeaseRenewer
from waystation.store.memory import StoreMemory
from waystation.store.opening import OpenStore, read_server_facts
from waystation.store.pubsub import PubSub
from waystation.store.time_machine import TimeMachine
from waystation.transactions import names
from waystation.transactions.cells import open_cells
from waystation.transactions.engine import Engine, open_engine
from waystation.transactions.entry import Entry
from waystation.transactions.holding import Claimed, Holding
from waystation.transactions.log_entry import Fact, unpack
from waystation.transactions.order import Order
from waystation.transactions.pipeline import StepLike, define
from waystation.transactions.pipelines import Pipelines
from waystation.transactions.progress import Finish, Progress
from waystation.transactions.record import TransactionState, decode, encode
from waystation.transactions.services import Services
from waystation.transactions.signals import Signals
from waystation.transactions.states import Status

GROUP = "master"
LEASE_MS = 10_000


@dataclass(frozen=True, kw_only=True)
class Outside:
    """An engine without an app, and what a worker would use."""

    engine: Engine
    store: Store
    clock: Clock
    machine: TimeMachine
    logs: StreamLogs
    entry: Entry
    holding: Holding
    progress: Progress
    signals: Signals
    #: Of another process: it does not share what ours remembers.
    others: Pipelines

    async def define(
        self, name: str = "refund", *steps: StepLike, project: str = "default", **more: Any
    ) -> None:
        """A pipeline, of one step unless others are given."""
        pipeline = define(name, steps or ["refund/pay"], **more)
        await self.engine.pipelines.put(project, pipeline)

    async def start(self, type_: str = "refund", *, project: str = "default", **more: Any) -> str:
        """Starts one; returns its id."""
        return (await self.engine.starter.start(project, Order(type=type_, **more))).id

    async def claim(self, *, most: int = 1, cell: int = 0) -> list[Claimed]:
        """Claims what is queued, as node `n1`."""
        claim = await self.holding.claim(
            cell, GROUP, node="n1", number=1, most=most, lease_ms=LEASE_MS
        )
        return claim.items

    async def running(self, **more: Any) -> Claimed:
        """Starts one and claims it."""
        await self.start(**more)
        (claimed,) = await self.claim()
        return claimed

    async def finish(
        self,
        claimed: Claimed,
        status: Status = Status.SUCCESS,
        output: bytes = b"7",
        note: str = "",
    ) -> None:
        """What a worker does with the last outcome."""
        state = packed(claimed, output=output, note=note)
        move = Finish(held=claimed.held, state=state, status=status, output=b"")
        (verdict,) = await self.progress.finish(names.cell_of(claimed.id), [move])
        assert verdict.outcome == "done", verdict

    async def facts(self, cell: int = 0) -> list[list[Fact]]:
        """What the record log tells: one list per script call."""
        entries = (await self.logs.read(names.LOG, cell, 0, limit=10_000)).entries()
        return [unpack(each.payload).facts for each in entries]

    async def keys(self) -> set[str]:
        """Every key of every cell, but for those that are there from the start."""
        found = {key.decode() for key in await self.store.call("KEYS", "{tx.*")}
        return {key for key in found if ":log" not in key and ":pipelineH:" not in key}


def packed(claimed: Claimed, **changes: Any) -> bytes:
    """The state of a claimed one, with changes."""
    return encode(msgspec.structs.replace(decode(claimed.state), **changes))


def state_of(claimed: Claimed) -> TransactionState:
    """The state of a claimed one, unpacked."""
    return decode(claimed.state)


@asynccontextmanager
async def open_outside(
    address: Address,
    folder: Path,
    *,
    through: Address | None = None,
    clock: Clock | None = None,
    services: Services | None = None,
    archive: Archive | None = None,
    **settings: Any,
) -> AsyncIterator[Outside]:
    """Opens an engine on an empty store; it may reach the store `through` a proxy."""
    plain, clock = Store(address, test_mode=True), clock or Clock()
    store = Store(through or address, test_mode=True)
    wakeups, logs = PubSub(address), StreamLogs(store)
    renewer = LeaseRenewer(store.address, test_mode=True)
    machine = TimeMachine(plain, wakeups, clock)
    catalogue = SqliteCatalogue(folder / "catalogue.db")
    await catalogue.open()
    wanted = TransactionConfig(**{"cells": 1, **settings})
    try:
        await plain.call("FLUSHALL")
        await catalogue.add_project(ProjectRecord(name="shop", created_ms=0))
        await wakeups.start()
        await machine.start()
        opened = OpenStore(
            store=store,
            wakeups=wakeups,
            dataset="ds-1",
            durability="memory",
            facts=(await read_server_facts(plain))[0],
            memory=StoreMemory(store, clock=clock),
            renewer=renewer,
        )
        await open_cells(store, logs, wanted.cells)
        engine = await open_engine(
            wanted,
            opened,
            catalogue,
            logs,
            clock=clock,
            identity=RandomIds(),
            services=services,
            archive=archive,
        )
        terms, cells = engine.terms, wanted.cells
        try:
            yield Outside(
                engine=engine,
                store=plain,
                clock=clock,
                machine=machine,
                logs=logs,
                entry=Entry(plain, terms),
                holding=Holding(plain, terms),
                progress=Progress(plain, terms),
                signals=Signals(plain, terms),
                others=Pipelines(catalogue, plain, cells=cells, terms=terms, clock=Clock()),
            )
        finally:
            await engine.close()
    finally:
        renewer.close()
        await machine.stop()
        await wakeups.stop()
        await store.close()
        await plain.close()
        await catalogue.close()
