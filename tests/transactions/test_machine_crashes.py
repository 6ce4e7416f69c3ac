"""The machine dies at every one of its calls to the store, and another one ends what it began."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, deque
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.transactions.helpers import TERMS
from waystation import App, Context
from waystation.catalogue import ProjectRecord, SqliteCatalogue
from waystation.logs.streams import StreamLogs
from waystation.runtime.clock import Clock
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.testing import CrashPoint, crash_points
from waystation.transactions import names
from waystation.transactions.cells import open_cells
from waystation.transactions.committer import Committer
from waystation.transactions.entry import Entry, NewTransaction
from waystation.transactions.holding import Holding
from waystation.transactions.limits import Limits
from waystation.transactions.log_entry import Fact, StepDetail, unpack
from waystation.transactions.pipelines import Pipelines
from waystation.transactions.progress import Progress
from waystation.transactions.record import Frame, TransactionState, decode, encode
from waystation.transactions.run import Run
from waystation.transactions.services import Services
from waystation.transactions.signals import Signals
from waystation.transactions.slots import Slot
from waystation.transactions.states import State, Status
from waystation.transactions.store_time import StoreTime
from waystation.transactions.switches import CALLBACK_SWITCH
from waystation.transactions.turns import Turns

ID = "tx-0000" + "0" * 36


class World:
    """One app, outside of the store: its bank is a file, its catalogue is, too."""

    def __init__(self, folder: Path, app: App, name: str, data: object) -> None:
        self.folder = folder
        self.app = app
        self.name = name
        self.data = msgspec.json.encode(data)
        self.effects = folder / "effects"
        #: What its steps reach the world with.
        self.services: Services | None = None

    def effect(self, what: str) -> int:
        """Something outside; returns how often anything has happened."""
        with self.effects.open("a") as file:
            file.write(f"{what}\n")
        return len(self.effects.read_text().splitlines())

    async def prepare(self, store: Store) -> None:
        """The transaction is started."""
        self.effects.unlink(missing_ok=True)
        await open_cells(store, StreamLogs(store), 1)
        catalogue = SqliteCatalogue(self.folder / "catalogue.db")
        await catalogue.open()
        if not await catalogue.projects():
            await catalogue.add_project(ProjectRecord(name="default", created_ms=0))
        book = Pipelines(catalogue, store, cells=1, terms=TERMS, clock=Clock())
        for each in self.app.pipelines:
            await book.put("default", each)
        pipeline = await book.active("default", self.name)
        await catalogue.close()
        frame = Frame(pipeline.name, pipeline.version, pipeline.group, 0, self.data)
        new = NewTransaction(
            id=ID,
            owner="default",
            pipeline=pipeline.name,
            version=pipeline.version,
            group=pipeline.group,
            state=encode(TransactionState(type=self.name, data=self.data, frames=[frame])),
        )
        (started,) = await Entry(store, TERMS).start(0, [new])
        assert started.outcome == "started"

    async def drive(self, store: Store) -> None:
        """A worker whose every call to the store is in its place: the same one every time."""
        catalogue = SqliteCatalogue(self.folder / "catalogue.db")
        await catalogue.open()
        clock, line = Clock(), deque[Run]()
        holding, progress, signals = (
            Holding(store, TERMS),
            Progress(store, TERMS),
            Signals(store, TERMS),
        )
        turns = Turns(
            self.app.book(),
            Pipelines(catalogue, store, cells=1, terms=TERMS, clock=clock),
            progress,
            Entry(store, TERMS),
            holding,
            node="n",
            limits=Limits(),
            time=StoreTime(clock),
            services=self.services,
        )
        turns.committer = Committer(progress, turns.on_verdict)
        turns.again, turns.let_go = line.append, lambda _: None
        for number in itertools.count(1):
            claim = await holding.claim(0, "master", node="n", number=number, most=10, lease_ms=1)
            line.extend(Run(each, log_end=claim.log_end) for each in claim.items)
            while line:
                await turns.take(line.popleft(), Slot(clock))
                await asyncio.gather(*turns.committer._tasks)
            if not claim.items and await self.nudge(store, signals):
                break
        await catalogue.close()

    async def nudge(self, store: Store, signals: Signals) -> bool:
        """Time passes, somebody sets a switch; whether all has ended."""
        keys = await store.call("KEYS", f"{names.tag(0)}stateH:*")
        found = await signals.get("", sorted(key.decode().rpartition(":")[2] for key in keys))
        for each in found:
            assert each is not None
            match each.head.state:
                case State.SLEEPING:
                    await signals.wake("", each.id)
                case State.WAITING_SWITCH if each.head.switch == CALLBACK_SWITCH:
                    await self.call_back(signals)
                case State.WAITING_SWITCH:
                    await signals.set_switch("", each.id, each.head.switch, True)
                case State.RUNNING:
                    raise AssertionError(f"nobody goes on with {each.id}: {each.head}")
        return all(each is not None and each.head.state is State.COMPLETE for each in found)

    async def call_back(self, signals: Signals) -> None:
        """Somebody answers who was asked."""
        raise AssertionError("nobody was asked")

    async def finish(self, store: Store) -> tuple[Status | None, Any, list[Fact]]:
        """Another worker, after the death; returns how it ended, and all that was recorded."""
        while (await Holding(store, TERMS).rescue(0, most=100, rescues_max=3)).next_ms >= 0:
            pass  # A lease has a millisecond.
        await self.drive(store)
        (end,) = await Signals(store, TERMS).get("", [ID])
        assert end is not None
        for key in ("processingZ", "leaseZ", "sleepingZ", "deadlineZ", "sweepZ"):
            assert await store.call("ZCARD", names.sorted_set(0, key)) == 0, key
        assert not {b"kids", b"progress"} & end.extras.keys()
        of_steps = (b"once:", b"wait:", b"callback:")
        assert not [name for name in end.extras if name.startswith(of_steps)]
        entries = (await StreamLogs(store).read(names.LOG, 0, 0, limit=1000)).entries()
        facts = [fact for entry in entries for fact in unpack(entry.payload).facts]
        return end.head.status, msgspec.json.decode(decode(end.state).output), facts


def successes(facts: list[Fact]) -> Counter[tuple[str, str]]:
    """How often each step of each transaction was recorded as done."""
    found: Counter[tuple[str, str]] = Counter()
    for fact in facts:
        if fact.kind in ("step", "slept", "passed", "fanned", "finished") and fact.detail:
            detail = msgspec.msgpack.decode(fact.detail, type=StepDetail)
            found.update(
                (fact.id, each.place) for each in detail.attempts if each.outcome == "success"
            )
    return found


@pytest.mark.slow
def test_a_worker_may_die_at_every_call_of_a_pipeline_that_sleeps_waits_calls_and_charges(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """F-01: each step is recorded once, what was charged once stays the only charge."""
    app = App()

    @app.step("charge")
    async def charge(ctx: Context) -> Any:
        return await ctx.once("charge", lambda: world.effect(ctx.idempotency_key))

    @app.step("inner")
    async def inner(ctx: Context, charge: int) -> int:
        return charge * 10

    @app.step("last")
    async def last(ctx: Context, number: int) -> int:
        return number + 1

    app.pipeline("inner", ["inner"])
    steps = ["charge", ("util/delay", {"min": 60_000, "max": 60_000})]
    steps += [("util/wait", {"switch": "go"}), ("util/child", {"pipeline": "inner"}), "last"]
    app.pipeline("p", steps)  # type: ignore[arg-type]
    world = World(tmp_path, app, "p", None)

    async def after(store: Store, point: CrashPoint) -> None:
        recorded = await store.call("HGET", names.state(ID), "once:1:charge")
        status, output, facts = await world.finish(store)
        assert status is Status.SUCCESS
        keys = world.effects.read_text().splitlines()
        assert len(set(keys)) == 1
        # Once more only where it died between the effect and the record.
        assert len(keys) <= 2
        assert output == len(keys) * 10 + 1
        if recorded is not None:
            assert recorded == b"1" == str(len(keys)).encode()
        places = ["1", "2", "3", "4.1", "5"]
        assert successes(facts) == {(ID, place): 1 for place in places}
        assert [each.kind for each in facts].count("finished") == 1

    points = crash_points(store_server.address, world.drive, after, prepare=world.prepare)
    assert len(points) > 60


@pytest.mark.slow
def test_a_parent_may_die_at_every_call_of_a_parallel(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """F-28: no child is created twice, none is missed, and each ends once."""
    app = App()

    @app.step("square")
    async def square(ctx: Context, number: int) -> int:
        world.effect(str(number))
        return number * number

    app.pipeline("square", ["square"])
    app.pipeline("p", [("util/parallel", {"pipeline": "square"})])
    world = World(tmp_path, app, "p", [1, 2, 3])

    async def after(store: Store, point: CrashPoint) -> None:
        status, output, facts = await world.finish(store)
        assert (status, output) == (Status.SUCCESS, [1, 4, 9])
        kinds = Counter(each.kind for each in facts)
        assert (kinds["started"], kinds["finished"]) == (4, 4)
        assert set(Counter(each.id for each in facts if each.kind == "finished").values()) == {1}
        children = {each.id for each in facts if each.kind == "started"} - {ID}
        assert {each for each, _ in successes(facts)} == children
        assert set(successes(facts).values()) == {1}
        assert len(world.effects.read_text().splitlines()) <= 6

    points = crash_points(store_server.address, world.drive, after, prepare=world.prepare)
    assert len(points) > 30
