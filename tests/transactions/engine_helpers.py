"""Workers on the real store, opened for one test: an app runs, and its ends can be waited for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tests.transactions.helpers import TERMS
from waystation import App
from waystation.catalogue import ProjectRecord, SqliteCatalogue
from waystation.logs.streams import StreamLogs
from waystation.runtime.clock import Clock
from waystation.runtime.ids import CountingIds
from waystation.store.address import Address
from waystation.store.client import Store
from waystation.store.leases import LeaseRenewer
from waystation.store.memory import StoreMemory
from waystation.store.pubsub import PubSub
from waystation.store.time_machine import TimeMachine
from waystation.transactions import names
from waystation.transactions.cells import BATCH_MAX, open_cells
from waystation.transactions.entry import Entry, NewTransaction
from waystation.transactions.found import Found
from waystation.transactions.holding import Holding
from waystation.transactions.limits import Limits
from waystation.transactions.log_entry import Fact, unpack
from waystation.transactions.pipelines import Pipelines
from waystation.transactions.record import Frame, StepJournal, TransactionState, decode, encode
from waystation.transactions.reply_lanes import ReplyLayout, item_hash, reply_word
from waystation.transactions.services import Services
from waystation.transactions.signals import Signals
from waystation.transactions.states import State, Status
from waystation.transactions.wanted import Wanted
from waystation.transactions.worker import Worker

OWNER = "default"
#: Short, so that a rescue can be waited for.
LEASE_MS = 300
QUICK = Limits(lease_ms=LEASE_MS, workers=20, prefetch=20, grace_seconds=1.0)
#: So long that no rescue can be the reason for anything.
PATIENT = Limits(workers=5, prefetch=5, lease_ms=60_000, grace_seconds=1.0)


@dataclass(frozen=True)
class End:
    """How a transaction has ended."""

    found: Found
    state: TransactionState

    @property
    def status(self) -> Status:
        assert self.found.head.status is not None
        return self.found.head.status

    @property
    def output(self) -> Any:
        return msgspec.json.decode(self.state.output) if self.state.output else None

    @property
    def cause(self) -> str:
        return self.found.extras.get(b"cause", b"").decode()

    def journal(self, place: str) -> StepJournal:
        (found,) = [each for each in self.state.journal if each.place == place]
        return found

    def outcomes(self, place: str) -> list[str]:
        return [attempt.outcome for attempt in self.journal(place).last]


@dataclass
class Machine:
    """Workers, and everything that a test wants of them."""

    app: App
    store: Store
    wakeups: PubSub
    clock: Clock
    time: TimeMachine
    logs: StreamLogs
    pipelines: Pipelines
    entry: Entry
    signals: Signals
    cells: int
    identity: CountingIds = field(default_factory=CountingIds)
    workers: list[Worker] = field(default_factory=list)
    renewers: list[LeaseRenewer] = field(default_factory=list)
    deaf: list[str] = field(default_factory=list)
    #: What steps reach the world with.
    services: Services | None = None
    _turn: int = 0

    async def worker(
        self,
        *,
        group: str = "master",
        limits: Limits = QUICK,
        app: App | None = None,
        store: Store | None = None,
        memory: StoreMemory | None = None,
        on_deaf: Callable[[str], None] | None = None,
    ) -> Worker:
        """One more worker."""
        store = store or self.store
        renewer = LeaseRenewer(store.address, test_mode=store.test_mode)
        self.renewers.append(renewer)
        worker = Worker(
            store,
            self.wakeups,
            self.pipelines,
            (app or self.app).book(),
            renewer=renewer,
            clock=self.clock,
            terms=TERMS,
            cells=self.cells,
            group=group,
            node=f"n{len(self.workers) + 1}",
            limits=limits,
            services=self.services,
            memory=memory,
            on_deaf=on_deaf or self.deaf.append,
        )
        self.workers.append(worker)
        await worker.start()
        return worker

    async def define(self, app: App | None = None) -> None:
        """Puts the pipelines of an app into the book."""
        for pipeline in (app or self.app).pipelines:
            await self.pipelines.put(OWNER, pipeline)

    async def new(
        self, name: str, data: object = None, *, cell: int | None = None, **more: Any
    ) -> NewTransaction:
        """A transaction that is to begin."""
        if cell is None:
            self._turn += 1
            cell = self._turn % self.cells
        pipeline = await self.pipelines.active(OWNER, name)
        packed = msgspec.json.encode(data)
        state = TransactionState(
            type=name,
            data=packed,
            frames=[Frame(name, pipeline.version, pipeline.group, 0, packed)],
        )
        return NewTransaction(
            id=names.new_id(cell, self.identity),
            owner=OWNER,
            pipeline=name,
            version=pipeline.version,
            group=pipeline.group,
            state=encode(state),
            **more,
        )

    async def start(self, name: str, data: object = None, **more: Any) -> str:
        """Starts one; returns its id."""
        new = await self.new(name, data, **more)
        (started,) = await self.entry.start(names.cell_of(new.id), [new])
        assert started.outcome == "started", started
        return new.id

    async def found(self, transaction_id: str) -> Found:
        """A transaction as it is now."""
        (found,) = await self.signals.get("", [transaction_id])
        assert found is not None
        return found

    async def ended(self, transaction_id: str, *, seconds: float = 10.0) -> End:
        """Waits for the end of a transaction."""
        cell = names.cell_of(transaction_id)
        try:
            async with asyncio.timeout(seconds):
                with self.wakeups.waiting(names.ended_topic(cell)) as waiter:
                    while True:
                        waiter.clear()
                        await self.signals.mark([transaction_id], wait_ms=60_000)
                        found = await self.found(transaction_id)
                        if found.head.state is State.COMPLETE:
                            return End(found, decode(found.state))
                        await waiter.wait(1.0)
        except TimeoutError:
            found = await self.found(transaction_id)
            raise AssertionError(f"{found.head}, {decode(found.state)}") from None

    async def run(self, name: str, data: object = None, **more: Any) -> End:
        """Starts one and waits for its end."""
        return await self.ended(await self.start(name, data, **more))

    async def reached(self, transaction_id: str, *states: State, seconds: float = 10.0) -> Found:
        """Waits until a transaction is in a state."""
        try:
            async with asyncio.timeout(seconds):
                while (found := await self.found(transaction_id)).head.state not in states:
                    await asyncio.sleep(0.002)
        except TimeoutError:
            raise AssertionError(f"{transaction_id} is {found.head}") from None
        return found

    async def rescue(self, transaction_id: str) -> None:
        """Takes a transaction from its holder, as if that had died, however often it renews."""
        cell, epoch = names.cell_of(transaction_id), (await self.found(transaction_id)).head.epoch
        while (await self.found(transaction_id)).head.epoch == epoch:
            lease = names.sorted_set(cell, "leaseZ")
            await self.store.call("ZADD", lease, "XX", 1, transaction_id)
            await Holding(self.store, TERMS).rescue(cell, most=BATCH_MAX, rescues_max=3)

    async def facts(self, cell: int = 0) -> list[Fact]:
        """All that the record log of a cell tells."""
        entries = (
            await self.logs.read(names.LOG, cell, 0, limit=100_000, bytes_max=1 << 30)
        ).entries()
        return [fact for entry in entries for fact in unpack(entry.payload).facts]

    async def kinds(self, transaction_id: str) -> list[str]:
        """What was recorded of a transaction."""
        facts = await self.facts(names.cell_of(transaction_id))
        return [fact.kind for fact in facts if fact.id == transaction_id]


@asynccontextmanager
async def open_machine(
    address: Address,
    app: App,
    folder: Path,
    *,
    cells: int = 1,
    workers: int = 1,
    limits: Limits = QUICK,
    flush: bool = True,
    clock: Clock | None = None,
    services: Services | None = None,
) -> AsyncIterator[Machine]:
    """Opens an app on an empty store, with a time machine and so many workers."""
    store, wakeups, clock = Store(address, test_mode=True), PubSub(address), clock or Clock()
    catalogue = SqliteCatalogue(folder / "catalogue.db")
    logs = StreamLogs(store)
    machine = Machine(
        app=app,
        store=store,
        wakeups=wakeups,
        clock=clock,
        time=TimeMachine(store, wakeups, clock),
        logs=logs,
        pipelines=Pipelines(catalogue, store, cells=cells, terms=TERMS, clock=clock),
        entry=Entry(store, TERMS),
        signals=Signals(store, TERMS),
        cells=cells,
        services=services,
    )
    await catalogue.open()
    try:
        if flush:
            await store.call("FLUSHALL")
        if OWNER not in [each.name for each in await catalogue.projects()]:
            await catalogue.add_project(ProjectRecord(name=OWNER, created_ms=0))
        await wakeups.start()
        await machine.time.start()
        await open_cells(store, logs, cells)
        await machine.define()
        for _ in range(workers):
            await machine.worker(limits=limits)
        yield machine
    finally:
        await asyncio.gather(*(each.stop() for each in machine.workers))
        for renewer in machine.renewers:
            renewer.close()
        await machine.time.stop()
        await wakeups.stop()
        await store.close()
        await catalogue.close()


async def start_many(machine: Machine, count: int, name: str = "p") -> list[str]:
    """Starts so many, each with its number; returns their ids."""
    new = [await machine.new(name, number) for number in range(count)]
    for cell in range(machine.cells):
        here = [each for each in new if names.cell_of(each.id) == cell]
        for at in range(0, len(here), BATCH_MAX):
            await machine.entry.start(cell, here[at : at + BATCH_MAX])
    return [each.id for each in new]


async def all_started(machine: Machine, count: int) -> list[Fact]:
    """The records of all starts, once there are so many."""
    while True:
        facts = [each for each in await machine.facts() if each.kind == "started"]
        if len(facts) == count:
            return facts
        await asyncio.sleep(0.002)


HOOK = "http://hook.example/refunds?token=1"


def word(letters: str = "", *, webhook: str = HOOK, channel: str = "", topic: str = "") -> str:
    """The field `reply` of a transaction of the default project."""
    wanted = Wanted(
        webhook=webhook,
        channel=channel,
        topic=topic,
        progress="p" in letters,
        status="s" in letters,
        poll_cancels="k" in letters,
    )
    return reply_word("default", wanted)


async def waiting_events(store: Store, cell: int = 0) -> dict[str, str]:
    """What waits, item → `<event> <version>`; each in one lane, each lane in the register."""
    (register,) = (each for each in ReplyLayout(cell + 1).registers if names.tag(cell) in each)
    lanes = [key.decode() for key in await store.call("KEYS", f"{names.tag(cell)}webhooksZ:*")]
    listed = {each.decode() for each in await store.call("ZRANGE", register, 0, -1)}
    assert set(lanes) <= listed, "a lane that nobody finds"
    found: dict[str, str] = {}
    for lane in lanes:
        for item in await store.call("ZRANGE", lane, 0, -1):
            event = await store.call("HGET", item_hash(cell), item)
            assert event is not None, f"{item} waits, and nobody knows for what"
            assert item.decode() not in found
            found[item.decode()] = event.decode()
    return found
