"""Cells of transactions on the real store, opened for one test, with their keys in plain view."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from waystation.logs.streams import StreamLogs
from waystation.runtime.clock import Clock
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.pubsub import PubSub
from waystation.store.time_machine import TimeMachine
from waystation.transactions import names
from waystation.transactions.cells import Terms, open_cells
from waystation.transactions.entry import Entry, NewTransaction, Started
from waystation.transactions.head import Head, parse
from waystation.transactions.holding import Claim, Claimed, Holding
from waystation.transactions.log_entry import Fact, unpack

TERMS = Terms(dataset="ds-1", archive_delay_ms=20_000, external_id_ms=60_000)
LEASE_MS = 10_000
#: What a worker would write; scripts never look into it.
STATE = b"\x93packed state\x00"


@dataclass
class CellStore:
    """Entry and holding, and the store behind them."""

    store: Store
    logs: StreamLogs
    wakeups: PubSub
    machine: TimeMachine
    entry: Entry
    holding: Holding
    _ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    async def define(
        self,
        pipeline: str = "refund",
        *,
        project: str = "default",
        version: str = "v1",
        type_: bool = True,
        paused: bool = False,
        cell: int = 0,
    ) -> None:
        """Puts a definition into a cell, as far as scripts look at it."""
        fields = ("active", version, "type", int(type_), "paused", int(paused))
        await self.store.call("HSET", names.pipeline(cell, project, pipeline), *fields)

    def new(self, cell: int = 0, **more: Any) -> NewTransaction:
        """A transaction of pipeline `refund`, as it is to begin."""
        defaults: dict[str, Any] = {
            "id": f"tx-{cell:04x}{next(self._ids):036x}",
            "owner": "default",
            "pipeline": "refund",
            "version": "v1",
            "group": "workers",
            "state": STATE,
        }
        return NewTransaction(**{**defaults, **more})

    async def start(self, **more: Any) -> str:
        """Starts one; returns its id."""
        item = self.new(**more)
        (started,) = await self.entry.start(names.cell_of(item.id), [item])
        assert started == Started("started"), started
        return item.id

    async def claim(self, *, most: int = 100, number: int = 1, **more: Any) -> Claim:
        """Claims as node `n1` for node group `workers` in cell 0."""
        defaults: dict[str, Any] = {"cell": 0, "group": "workers", "node": "n1"}
        defaults |= {"number": number, "most": most, "lease_ms": LEASE_MS}
        return await self.holding.claim(**{**defaults, **more})

    async def started_and_claimed(self, **more: Any) -> Claimed:
        """One transaction, started and claimed."""
        await self.start(**more)
        (claimed,) = (await self.claim()).items
        return claimed

    # -- What is in the store ----------------------------------------------------------------

    async def head(self, transaction_id: str) -> Head:
        """The head of a transaction that is there."""
        return parse(await self.store.call("HGET", names.state(transaction_id), "head"))

    async def fields(self, transaction_id: str) -> dict[str, bytes]:
        """All fields of a transaction."""
        pairs = await self.store.call("HGETALL", names.state(transaction_id))
        return {pairs[i].decode(): pairs[i + 1] for i in range(0, len(pairs), 2)}

    async def listed(self, list_: str, cell: int = 0) -> list[str]:
        """Ids of a list such as `qInL:workers`."""
        found = await self.store.call("LRANGE", names.tag(cell) + list_, 0, -1)
        return [each.decode() for each in found]

    async def scores(self, set_: str, cell: int = 0) -> dict[str, int]:
        """Ids of a sorted set with their scores."""
        key = names.tag(cell) + set_
        pairs = await self.store.call("ZRANGE", key, 0, -1, "WITHSCORES")
        return {pairs[i].decode(): int(pairs[i + 1]) for i in range(0, len(pairs), 2)}

    async def facts(self, cell: int = 0) -> list[Fact]:
        """All that the record log of a cell has."""
        return [fact for entry in await self.entries(cell) for fact in entry]

    async def entries(self, cell: int = 0) -> list[list[Fact]]:
        """The same, by entries: one per script call."""
        read = (await self.logs.read(names.LOG, cell, 0, limit=1000)).entries()
        return [unpack(each.payload).facts for each in read]

    async def counts(self, cell: int = 0) -> dict[str, int]:
        """Counts of all time slots together."""
        found: dict[str, int] = {}
        for key in await self.store.call("KEYS", f"{names.tag(cell)}metric1H:*"):
            pairs = await self.store.call("HGETALL", key)
            for i in range(0, len(pairs), 2):
                name = pairs[i].decode()
                found[name] = found.get(name, 0) + int(pairs[i + 1])
        return found

    async def keys(self) -> set[str]:
        """Every key of every cell, but for those that are there from the start."""
        found = {key.decode() for key in await self.store.call("KEYS", "{tx.*")}
        return {key for key in found if ":log" not in key and ":pipelineH:" not in key}


@asynccontextmanager
async def open_cell_store(
    server: EmbeddedServer, *, cells: int = 1, flush: bool = True
) -> AsyncIterator[CellStore]:
    """Opens cells on an empty store, with a time machine and pipeline `refund` in every cell."""
    store = Store(server.address, test_mode=True)
    wakeups, clock = PubSub(server.address), Clock()
    machine = TimeMachine(store, wakeups, clock)
    logs = StreamLogs(store)
    bench = CellStore(store, logs, wakeups, machine, Entry(store, TERMS), Holding(store, TERMS))
    try:
        if flush:
            await store.call("FLUSHALL")
        await wakeups.start()
        await machine.start()
        await open_cells(store, logs, cells)
        for cell in range(cells):
            await bench.define(cell=cell)
        yield bench
    finally:
        await machine.stop()
        await wakeups.stop()
        await store.close()
