"""Transactions on the real store, opened for one test, with all of a cell in plain view."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from waystation import App, Context
from waystation.logs.streams import StreamLogs
from waystation.runtime.clock import Clock
from waystation.runtime.ids import CountingIds
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.pubsub import PubSub
from waystation.store.time_machine import TimeMachine
from waystation.transactions import names
from waystation.transactions.archiving import Archiving
from waystation.transactions.cells import Terms, open_cells
from waystation.transactions.entry import Entry, NewTransaction
from waystation.transactions.head import Head, parse
from waystation.transactions.held import Held
from waystation.transactions.holding import Claimed, Holding
from waystation.transactions.log_entry import Fact, unpack
from waystation.transactions.progress import Progress
from waystation.transactions.restoring import Restoring
from waystation.transactions.signals import Signals
from waystation.transactions.states import State

CELL = 0
TAG = names.tag(CELL)
GROUP = "main"
VERSION = "0123456789abcdef"
LEASE_MS = 10_000
GRACE_MS = 30_000
ARCHIVE_MS = 60_000
EXTERNAL_MS = 3_600_000
CACHE_MS = 300_000
LOAD_MS = 30_000
ROLE_MS = 60_000
ROLE_GRACE_MS = 5_000
TERMS = Terms(
    dataset="ds-test",
    archive_delay_ms=ARCHIVE_MS,
    external_id_ms=EXTERNAL_MS,
    cache_ms=CACHE_MS,
    load_ms=LOAD_MS,
)
SETS = ("processingZ", "leaseZ", "sleepingZ", "deadlineZ", "sweepZ", "toArchiveZ")
ASLEEP = (State.SLEEPING, State.WAITING_SWITCH, State.SCHEDULED)


def after(held: Held, moves: int = 1) -> Held:
    """What a holder proves itself with after so many moves."""
    return msgspec.structs.replace(held, commits=held.commits + moves)


@dataclass
class Picture:
    """All of a cell at one moment."""

    heads: dict[str, Head] = field(default_factory=dict)
    kids: dict[str, str] = field(default_factory=dict)
    switches: dict[str, str] = field(default_factory=dict)
    #: Ids of each list, by `qInL:<group>`, `qOutL:<group>`, `holdL:<pipeline>`.
    lists: dict[str, list[str]] = field(default_factory=dict)
    #: Scores by set and id.
    sets: dict[str, dict[str, float]] = field(default_factory=dict)
    #: Id by `<owner>:<external id>`, and the ms it has left: -1 for ever.
    external: dict[str, tuple[str, int]] = field(default_factory=dict)
    #: Ids whose state will expire.
    mortal: set[str] = field(default_factory=set)

    def where(self, transaction_id: str) -> set[str]:
        """Every list and set in which an id stands."""
        holders = {**self.lists, **self.sets}
        return {name for name, ids in holders.items() if transaction_id in ids}

    def check(self) -> None:
        """What always holds, as far as keys tell: 1, 3 (expiry) and 6."""
        for transaction_id, head in self.heads.items():
            self._check_place(transaction_id, head)
        for name, ids in {**self.lists, **self.sets}.items():
            strange = set(ids) - set(self.heads)
            assert not strange, f"{name} has ids without a state: {strange}"
        assert not self.mortal, "only the archive lets a state expire"
        for name, (transaction_id, left_ms) in self.external.items():
            alive = self.heads[transaction_id].state is not State.COMPLETE
            assert (left_ms == -1) == alive, f"{name} is reserved for {left_ms} ms"

    def _check_place(self, transaction_id: str, head: Head) -> None:
        state, where = head.state, self.where(transaction_id)
        entries = sum(ids.count(transaction_id) for ids in self.lists.values())
        told = f"{transaction_id} is {state} and in {where}"
        if state is State.QUEUED:
            list_ = f"q{head.queue.capitalize()}L:{head.group}"
            assert entries == 1, told
            assert list_ in where, told
        elif state is State.HELD:
            assert entries == 1, told
            assert f"holdL:{head.pipeline}" in where, told
        elif state is State.COMPLETE:
            # One that was cancelled in a queue is dropped by a claim.
            assert entries <= 1, told
            assert where - set(self.lists) <= {"toArchiveZ", "sweepZ"}, told
            assert "toArchiveZ" in where, told
        else:
            assert entries == 0, told
        assert (state is State.RUNNING) == ("processingZ" in where), told
        assert (state is State.RUNNING) == ("leaseZ" in where), told
        assert (state in ASLEEP) == ("sleepingZ" in where), told
        assert ("d" in head.flags) == ("deadlineZ" in where), told
        assert bool(head.archive) == ("toArchiveZ" in where), told
        assert (head.status is None) == (state is not State.COMPLETE), told
        if state in ASLEEP:
            assert self.sets["sleepingZ"][transaction_id] == head.wake, told
        if state is State.WAITING_CHILDREN:
            _, total, created, done, *_ = self.kids[transaction_id].split()
            assert int(done) < int(total) == int(created), told


@dataclass(frozen=True)
class TransactionStore:
    """The scripts of transactions, and the store behind them."""

    store: Store
    machine: TimeMachine
    logs: StreamLogs
    entry: Entry
    holding: Holding
    progress: Progress
    signals: Signals
    archiving: Archiving
    restoring: Restoring
    wakeups: PubSub
    identity: CountingIds
    #: It jumps when the machine advances.
    clock: Clock

    async def define(
        self, pipeline: str = "p", *, version: str = VERSION, paused: bool = False
    ) -> None:
        """A pipeline as scripts see it."""
        key = names.pipeline(CELL, "default", pipeline)
        await self.store.call(
            "HSET", key, "revision", 1, "active", version, "type", 1, "paused", int(paused)
        )

    def new(self, **fields: object) -> NewTransaction:
        """A transaction to be started."""
        known: dict[str, object] = {
            "id": names.new_id(CELL, self.identity),
            "owner": "default",
            "pipeline": "p",
            "version": VERSION,
            "group": GROUP,
            "state": b"state-0",
            "detail": b"",
        }
        return NewTransaction(**{**known, **fields})  # type: ignore[arg-type]

    async def start(self, **fields: object) -> str:
        """Starts one; returns its id."""
        new = self.new(**fields)
        (started,) = await self.entry.start(CELL, [new])
        assert started.outcome == "started", started
        return new.id

    async def claim(self, most: int = 1, *, group: str = GROUP, number: int = 1) -> list[Claimed]:
        """Claims what is queued."""
        claim = await self.holding.claim(
            CELL, group, node="node-1", number=number, most=most, lease_ms=LEASE_MS
        )
        return claim.items

    async def running(self, **fields: object) -> Held:
        """Starts one and claims it."""
        await self.start(**fields)
        (claimed,) = await self.claim(group=str(fields.get("group", GROUP)))
        return claimed.held

    async def head(self, transaction_id: str) -> Head:
        """The head of a transaction."""
        return parse(await self.store.call("HGET", names.state(transaction_id), "head"))

    async def fields(self, transaction_id: str) -> dict[str, bytes]:
        """All that is kept of a transaction, but its head."""
        flat = await self.store.call("HGETALL", names.state(transaction_id))
        found = {flat[i].decode(): flat[i + 1] for i in range(0, len(flat), 2)}
        found.pop("head", None)
        return found

    async def facts(self) -> list[Fact]:
        """Everything that the record log tells, in order."""
        entries = (
            await self.logs.read(names.LOG, CELL, 0, limit=100_000, bytes_max=1 << 30)
        ).entries()
        return [fact for entry in entries for fact in unpack(entry.payload).facts]

    async def kinds(self, transaction_id: str) -> list[str]:
        """What was recorded of a transaction."""
        return [fact.kind for fact in await self.facts() if fact.id == transaction_id]

    async def picture(self) -> Picture:
        """All of the cell."""
        picture = Picture(sets={name: {} for name in SETS})
        found = sorted(await self.store.call("KEYS", f"{TAG}*"))
        await asyncio.gather(*(self._add(picture, key.decode()) for key in found))
        return picture

    async def check(self) -> Picture:
        """The picture, in which everything is as it always is."""
        picture = await self.picture()
        picture.check()
        return picture

    @asynccontextmanager
    async def hearing(self, topic: bytes) -> AsyncIterator[asyncio.Queue[str]]:
        """What is published to a topic from now on."""
        heard: asyncio.Queue[str] = asyncio.Queue()

        def note(payload: bytes | None) -> None:
            # None: perhaps something was missed. Here nothing is.
            if payload is not None:
                heard.put_nowait(payload.decode())

        end = self.wakeups.listen(topic, note)
        try:
            async with asyncio.timeout(5):
                while not (await self.store.call("PUBSUB", "NUMSUB", topic))[1]:
                    await asyncio.sleep(0.001)
            yield heard
        finally:
            end()

    async def now_ms(self) -> int:
        """The store's time."""
        return (await self.signals.look(CELL)).now_ms

    async def _add(self, picture: Picture, key: str) -> None:
        name = key.removeprefix(TAG)
        kind, _, rest = name.partition(":")
        if kind == "stateH":
            head, kids, switches = await self.store.call("HMGET", key, "head", "kids", "switches")
            assert head is not None, f"{key} is a stub"
            picture.heads[rest] = parse(head)
            if kids is not None:
                picture.kids[rest] = kids.decode()
            if switches:
                picture.switches[rest] = switches.decode()
            if await self.store.call("PTTL", key) >= 0:
                picture.mortal.add(rest)
        elif kind in ("qInL", "qOutL", "holdL"):
            ids = await self.store.call("LRANGE", key, 0, -1)
            picture.lists[name] = [each.decode() for each in ids]
        elif name in SETS:
            flat = await self.store.call("ZRANGE", key, 0, -1, "WITHSCORES")
            picture.sets[name] = dict(zip(texts(flat[::2]), map(float, flat[1::2]), strict=True))
        elif kind == "externalId":
            left_ms = await self.store.call("PTTL", key)
            picture.external[rest] = ((await self.store.call("GET", key)).decode(), left_ms)


def texts(values: Sequence[bytes]) -> list[str]:
    """Replies as texts."""
    return [each.decode() for each in values]


@asynccontextmanager
async def open_transactions(
    server: EmbeddedServer, *, store: Store | None = None
) -> AsyncIterator[TransactionStore]:
    """Opens transactions on an empty store of one cell, with a time machine and a pipeline `p`."""
    store = store or Store(server.address, test_mode=True)
    wakeups, clock = PubSub(server.address), Clock()
    machine = TimeMachine(store, wakeups, clock)
    logs = StreamLogs(store)
    opened = TransactionStore(
        store=store,
        machine=machine,
        logs=logs,
        entry=Entry(store, TERMS),
        holding=Holding(store, TERMS),
        progress=Progress(store, TERMS),
        signals=Signals(store, TERMS),
        archiving=Archiving(store, TERMS, role_ms=ROLE_MS, grace_ms=ROLE_GRACE_MS),
        restoring=Restoring(store, TERMS),
        wakeups=wakeups,
        identity=CountingIds(),
        clock=clock,
    )
    try:
        await store.call("FLUSHALL")
        await wakeups.start()
        await machine.start()
        await open_cells(store, logs, 1)
        await opened.define()
        yield opened
    finally:
        await machine.stop()
        await wakeups.stop()
        await store.close()


class Note(msgspec.Struct):
    """What steps of these tests pass on: which of them have run."""

    steps: list[str] = []


def app_with(*, names_: str = "abc") -> App:
    """An app of steps that note their own names."""
    app = App()
    for name in names_:

        def make(name: str) -> Any:
            async def step(ctx: Context, note: Note) -> Note:
                return Note([*note.steps, name])

            return step

        app.step(name)(make(name))
    return app


def one_step(step: Any, **options: Any) -> App:
    """An app with a pipeline `p` of one step."""
    app = App()
    app.step("step", **options)(step)
    app.pipeline("p", ["step"])
    return app
