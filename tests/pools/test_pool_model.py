"""The model of a pool and the real scripts, side by side: whatever happens, in whatever order.

After each step all that always holds is looked up in the slot (`PoolSlot.check`), and owners,
lists, states and dead letters are compared with the model. In the end one worker empties the pool.
"""

from __future__ import annotations

import asyncio
from typing import Any, get_args

from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.examples import EXAMPLES, RAN, RecordProperty, example_settings
from tests.models.pool import ATTEMPTS, LEASE, STALE, PoolModel, Worker
from tests.pools.pool_slot import PoolSlot, open_pool_slot
from waystation.errors import WorkerEvictedError, WorkerUnknownError
from waystation.pools.held import Taken
from waystation.pools.states import Assignment
from waystation.store.embedded.server import EmbeddedServer

STEPS_MAX = 40
UIDS = ("w0", "w1", "w2")
KEYS = ("k0", "k1", "k2,k0")
#: Sums of these are far from the bounds of the model, whatever real time passes meanwhile.
PAUSES = (7, 20)
STEPS = {
    "register": 3, "beat": 2, "drain": 1, "leave": 1, "send": 6, "take": 5, "ack": 4, "nack": 3,
    "time": 3, "sweep": 2,
}  # fmt: skip
GONE = (WorkerEvictedError, WorkerUnknownError)


class SideBySide:
    """A model, and the pool that must look like it."""

    def __init__(self, slot: PoolSlot, data: st.DataObject) -> None:
        self.slot, self.data, self.model = slot, data, PoolModel()
        #: All that was ever given to somebody: what they say of it may come late.
        self.given: list[tuple[str, Taken]] = []

    def draw(self, among: Any, label: str) -> Any:
        return self.data.draw(st.sampled_from(among), label=label)

    async def step(self) -> None:
        names = [name for name, weight in STEPS.items() for _ in range(weight)]
        await getattr(self, self.draw(names, "step"))()
        await self.compare()

    # -- Steps -------------------------------------------------------------------------------

    async def register(self) -> None:
        uid = self.draw(UIDS, "uid")
        self.model.free_all(uid, counted=True)
        await self.slot.register(uid)
        self.model.workers[uid] = Worker(last=self.model.now)

    async def beat(self) -> None:
        await self._as_worker(self.draw(UIDS, "uid"), self.slot.beat)

    async def drain(self) -> None:
        uid = self.draw(UIDS, "uid")
        worker = self.model.workers.get(uid)
        if worker is not None:
            await self.slot.drain(uid)
            if worker.state == "live":
                worker.state = "draining"

    async def leave(self) -> None:
        uid = self.draw(UIDS, "uid")
        if uid in self.model.workers:
            self.model.free_all(uid, counted=False)
            await self.slot.leave(uid)
            del self.model.workers[uid]

    async def send(self) -> None:
        key = self.draw(KEYS, "key")
        sent = await self.slot.send(key)
        await self._evictions()
        self.model.enqueued(key, sent.number)

    async def take(self) -> None:
        uid = self.draw(UIDS, "uid")
        if not self._can_call(uid):
            await self._as_worker(uid, self.slot.take)
            return
        self.model.free_all(uid, counted=True, over=True)
        taken = await self.slot.take(uid, most=2)
        self.model.workers[uid].last = self.model.now
        await self._owners()
        for each in taken:
            self.model.given(uid, each.key, each.number, each.token)
            self.given.append((uid, each))

    async def ack(self) -> None:
        if not self.given:
            return
        uid, taken = self.draw(self.given, "ack")
        valid = self.model.is_held(uid, taken.key, taken.number, taken.token)
        outcome = await self.slot.outcome(uid, taken)
        assert outcome == self._expected(taken, "done" if valid else "lost")
        self._accessed(uid)
        if valid:
            self.model.settle(taken.key)

    async def nack(self) -> None:
        if not self.given:
            return
        uid, taken = self.draw(self.given, "nack")
        verdict = self.draw(("again", "again", "release", "dead"), "verdict")
        valid = self.model.is_held(uid, taken.key, taken.number, taken.token)
        last = verdict == "again" and self.model.tries.get(taken.key, 0) + 1 >= ATTEMPTS
        outcome = await self.slot.nack(uid, taken, verdict, wait_ms=self.draw((0, 10_000), "wait"))
        if valid:
            assert outcome == ("dead" if last or verdict == "dead" else "done")
            if verdict == "dead":
                self.model.settle(taken.key, dead=True)
            else:
                self.model.free(taken.key, counted=verdict == "again")
        else:
            # Freed and not taken since: as good as done.
            assert outcome in (self._expected(taken, "lost"), "known")
        self._accessed(uid)

    async def time(self) -> None:
        pause = self.draw(PAUSES, "seconds")
        await self.slot.later(pause)
        self.model.now += pause

    async def sweep(self) -> None:
        must = {uid for uid in self.model.workers if self.model.must_evict(uid)}
        for uid in (*self.model.workers,):
            self.model.free_all(uid, counted=True, over=True)
        # With their leases over they may have nothing taken any more.
        must = {uid for uid in must if self.model.must_evict(uid)}
        await self.slot.sweep()
        await self._evictions()
        assert all(self.model.workers[uid].state == "evicted" for uid in must)

    # -- What it means -----------------------------------------------------------------------

    def _expected(self, taken: Taken, there: str) -> str:
        numbers = [number for number, _ in self.model.queues.get(taken.key, ())]
        return there if taken.number in numbers else "known"

    def _can_call(self, uid: str) -> bool:
        worker = self.model.workers.get(uid)
        return worker is not None and worker.state in ("live", "draining")

    def _accessed(self, uid: str) -> None:
        if self._can_call(uid):
            self.model.workers[uid].last = self.model.now

    async def _as_worker(self, uid: str, verb: Any) -> None:
        if uid not in self.slot.sessions:
            return
        try:
            await verb(uid)
        except GONE:
            assert not self._can_call(uid)
        else:
            assert self._can_call(uid)
            self._accessed(uid)

    async def _evictions(self) -> None:
        for uid, line in (await self.slot.hash("workers")).items():
            worker = self.model.workers[uid]
            if line.startswith("evicted") and worker.state != "evicted":
                assert self.model.may_evict(uid), f"{uid} was evicted, and is not stale"
                worker.state = "evicted"
                self.model.free_all(uid, counted=True)

    async def _owners(self) -> None:
        for key, line in (await self.slot.hash("keys")).items():
            self.model.move(key, line.split(" ")[0])

    async def compare(self) -> None:
        """The slot is as the model has it."""
        found = await self.slot.check()
        await self._owners()
        states = {uid: line.split(" ")[0] for uid, line in found.get("workers", {}).items()}
        assert states == {uid: worker.state for uid, worker in self.model.workers.items()}
        for key in KEYS:
            numbers = [number for number, _ in await self.slot.queue(key)]
            assert numbers == [number for number, _ in self.model.queues.get(key, ())]
            tries = int(found["keys"][key].split(" ")[3]) if key in found.get("keys", {}) else 0
            assert tries == self.model.tries.get(key, 0)
        held = {key for uid in UIDS for key in found.get(f"taken:{uid}", ())}
        assert held == self.model.held.keys()
        assert {int(each) for each in found.get("dead", ())} == set(self.model.dead)

    async def empty(self) -> None:
        """One worker gets all that is left, in order; nothing was lost on the way."""
        for uid in (*self.model.workers,):
            self.model.free_all(uid, counted=False)
            await self.slot.leave(uid)
        await self.slot.register("last")
        # What was put off is due by then.
        await self.slot.later(14)
        await self.slot.beat("last")
        while taken := await self.slot.take("last"):
            for each in taken:
                number, _ = self.model.queues[each.key].pop(0)
                assert number == each.number
            assert {each.outcome for each in await self.slot.ack("last", *taken)} == {"done"}
        assert not any(self.model.queues.values()), "something was lost"
        slot = await self.slot.check()
        assert slot["head"]["messages"] == "0"


def test_pool_any_sequence_of_steps_keeps_every_promise(
    store_server: EmbeddedServer, record_property: RecordProperty
) -> None:
    ran = 0

    @example_settings()
    @given(data=st.data(), policy=st.sampled_from(get_args(Assignment)))
    def check(data: st.DataObject, policy: Assignment) -> None:
        nonlocal ran
        ran += 1
        asyncio.run(run_example(data, policy))

    async def run_example(data: st.DataObject, policy: Assignment) -> None:
        terms: dict[str, Any] = {"attempts": ATTEMPTS, "policy": policy}
        terms["stale_ms"] = int(STALE * 1000)
        async with open_pool_slot(store_server, record="full", **terms) as slot:
            slot.lease_ms = int(LEASE * 1000)
            both = SideBySide(slot, data)
            for _ in range(STEPS_MAX):
                await both.step()
            await both.empty()

    try:
        check()
    finally:
        record_property(RAN, ran)
    assert ran >= EXAMPLES
