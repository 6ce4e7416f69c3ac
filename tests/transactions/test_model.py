"""A state machine drives the scripts on the real store and a model of them side by side.

After every rule the whole cell is compared with the model, and what always holds is checked: an id
is where its state says (1), an epoch has one holder (2), versions only rise (3), what is final
stays (5), an external id leads to one living transaction (6), records and keys tell the same (7).
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from tests.helpers.examples import RecordProperty, run_machine
from tests.models.transaction import (
    EXTERNAL_SECONDS,
    GRACE_SECONDS,
    LEASE_SECONDS,
    TransactionModel,
)
from tests.transactions.helpers import (
    CELL,
    EXTERNAL_MS,
    GROUP,
    TAG,
    VERSION,
    Picture,
    TransactionStore,
    open_transactions,
)
from waystation.errors import NotSleepingError, TransactionFinalError
from waystation.runtime.ids import CountingIds
from waystation.store.embedded.server import EmbeddedServer
from waystation.transactions import names
from waystation.transactions.cells import open_cells
from waystation.transactions.entry import NewTransaction
from waystation.transactions.head import Head
from waystation.transactions.held import Held
from waystation.transactions.outcomes import POLICIES, Policy
from waystation.transactions.progress import (
    Commit,
    FanOpen,
    FanWait,
    Finish,
    Sleep,
    next_round,
)
from waystation.transactions.states import State, Status
from waystation.transactions.switches import encode_value

_T = TypeVar("_T")

#: Time moves in steps of fifty seconds: what a run takes in real time must not be mistaken for one.
STEP_SECONDS = 50
#: Of the model; not 0, which means never.
START_SECONDS = 1000
RESCUES_MAX = 1
SWITCHES = ("go", "stop")

assert EXTERNAL_SECONDS * 1000 == EXTERNAL_MS

counts = st.sampled_from([1, 1, 2, 3, 7])
delays = st.sampled_from([0, 0, 0, 50, 150])
deadlines = st.sampled_from([0, 0, 50, 100, 400])
externals = st.sampled_from(["", "", "r-1", "r-2"])
statuses = st.sampled_from([Status.SUCCESS, Status.SUCCESS, Status.FAILED])
#: Counted from the newest: mostly those that hold something, now and then one that is late.
LATE = 8
places = st.sampled_from([0, 0, 0, 1, 1, 2, 3, 5, LATE])
switch_names = st.sampled_from(SWITCHES)
switch_values = st.sampled_from(["yes", True, 3, None])


class Bridge:
    """Runs coroutines on one event loop, with one set of connections for all runs."""

    def __init__(self, server: EmbeddedServer) -> None:
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        opening = self._stack.enter_async_context(open_transactions(server))
        self.opened: TransactionStore = self.wait(opening)

    def wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Runs to the end."""
        return self._runner.run(work)

    def close(self) -> None:
        """Closes the connections."""
        self.wait(self._stack.aclose())
        self._runner.close()


@pytest.fixture(scope="module")
def bridge(store_server: EmbeddedServer) -> Iterator[Bridge]:
    made = Bridge(store_server)
    yield made
    made.close()


class TransactionMachine(RuleBasedStateMachine):
    """One cell, one node group, two switches."""

    bridge: Bridge

    @initialize(several=st.integers(1, 4))
    def begin(self, several: int) -> None:
        """Empties the cell. Not FLUSHALL: the time machine keeps its time there.

        Something is held, and something is there, from the first rule on: no rule asks whether it
        may run. What is due, and in which order, follows real time, and Hypothesis must draw the
        same whatever the time is; so are ids the same in every run.
        """
        self.tx = dataclasses.replace(self.bridge.opened, identity=CountingIds())
        self.model = TransactionModel(now=START_SECONDS)
        #: What claims and moves have given to holders, the newest last; and what they saw then.
        self.holds: list[tuple[Held, dict[str, str]]] = []
        self.epochs: set[tuple[str, int]] = set()
        self.before: dict[str, Head] = {}
        self.base_ms = self.wait(self.empty()) - START_SECONDS * 1000
        for number in range(several):
            self.start("r-1" if number == 0 else "", 0, 0)
        self.claim(several)

    def wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        return self.bridge.wait(work)

    async def empty(self) -> int:
        tx = self.tx
        await tx.store.unlink(await tx.store.call("KEYS", f"{TAG}*"))
        await open_cells(tx.store, tx.logs, 1)
        await tx.define()
        return await tx.now_ms()

    def hold(self, place: int) -> tuple[Held, dict[str, str]]:
        return self.holds[-1 - place % len(self.holds)]

    def moved(self, held: Held, seen: dict[str, str]) -> None:
        """Its holder goes on; the one before stays, to come late."""
        self.holds.append((Held(held.id, held.epoch, held.commits + 1), seen))

    def some(self, place: int) -> str:
        """Mostly one that is alive."""
        alive = [each.id for each in self.model.all.values() if each.status is None]
        ids = alive if alive and place < LATE else list(self.model.all)
        return ids[-1 - place % len(ids)]

    # -- In ----------------------------------------------------------------------------------

    @rule(external=externals, delay=delays, deadline=deadlines)
    def start(self, external: str, delay: int, deadline: int) -> None:
        new = self.tx.new(
            external_id=external, delay_ms=delay * 1000, deadline_in_ms=deadline * 1000
        )
        (started,) = self.wait(self.tx.entry.start(CELL, [new]))
        expected = self.model.start(new.id, external=external, delay=delay, deadline=deadline)
        assert (started.outcome, started.detail) == expected

    @rule(most=counts)
    def claim(self, most: int) -> None:
        claimed = self.wait(
            self.tx.holding.claim(
                CELL, GROUP, node="n", number=1, most=most, lease_ms=LEASE_SECONDS * 1000
            )
        ).items
        expected = self.model.claim(most)
        assert [each.id for each in claimed] == [each.id for each in expected]
        for each, one in zip(claimed, expected, strict=True):
            epoch = (each.id, each.head.epoch)
            assert epoch not in self.epochs, "an epoch has one holder"
            self.epochs.add(epoch)
            kept = one.switches_text
            assert each.extras.get(b"switches", b"").decode() == kept
            seen = {name: one.switches.get(name, ("", False))[0] for name in SWITCHES}
            self.holds.append((each.held, seen))

    # -- Moves -------------------------------------------------------------------------------

    @rule(place=places)
    def commit(self, place: int) -> None:
        held, seen = self.hold(place)
        kids = self.model.all[held.id].kids
        drop = [f"wait:1:{name}" for name in SWITCHES]
        if kids and kids.done == kids.total:
            drop += ["kids", *(f"result:{n}" for n in range(1, kids.total + 1))]
        move = Commit(held=held, state=b"s", drop=tuple(drop))
        (verdict,) = self.wait(self.tx.progress.commit(CELL, [move]))
        assert verdict.outcome == self.model.commit(held)
        if verdict.outcome == "done":
            self.moved(held, seen)

    @rule(place=places, status=statuses)
    def finish(self, place: int, status: Status) -> None:
        held, _ = self.hold(place)
        move = Finish(held=held, state=b"e", status=status, output=b"1")
        (verdict,) = self.wait(self.tx.progress.finish(CELL, [move]))
        assert verdict.outcome == self.model.finish(held, status)

    @rule(
        place=places,
        delay=st.sampled_from([None, 0, 100]),
        switch=st.sampled_from(["", "go", "go", "stop"]),
        at_most=st.sampled_from([None, 50, 200]),
        blind=st.booleans(),
    )
    def sleep(
        self, place: int, delay: int | None, switch: str, at_most: int | None, blind: bool
    ) -> None:
        held, view = self.hold(place)
        seen = {} if blind else view
        move = Sleep(
            held=held,
            state=b"z",
            delay_ms=None if delay is None else delay * 1000,
            switch=switch,
            place="1",
            at_most_ms=None if at_most is None else at_most * 1000,
            acknowledged=",".join(
                f"{name}={value}" if value else name for name, value in seen.items()
            ),
        )
        (verdict,) = self.wait(self.tx.progress.sleep(CELL, [move]))
        expected = self.model.sleep(held, delay=delay, switch=switch, at_most=at_most, seen=seen)
        assert verdict.outcome == expected

    @rule(place=places, name=switch_names, value=switch_values, early=st.booleans())
    def wait_for_it(
        self, place: int, name: str, value: str | bool | int | None, early: bool
    ) -> None:
        """A step waits, its switch is set, before or after, and it is called again."""
        held, _ = self.hold(place)
        if early:
            self.set_switch_of(held.id, name, value)
        self.sleep(place, None, name, 50, False)
        self.set_switch_of(held.id, name, value)
        self.claim(2)

    @rule(place=places)
    def begin_suspect(self, place: int) -> None:
        held, _ = self.hold(place)
        verdict = self.wait(self.tx.holding.begin(held))
        assert verdict.outcome == self.model.begin(held)

    # -- Children ----------------------------------------------------------------------------

    @rule(place=places, total=st.integers(1, 3), policy=st.sampled_from(POLICIES))
    def fan_open(self, place: int, total: int, policy: Policy) -> None:
        held, seen = self.hold(place)
        round_ = next_round(held)
        move = FanOpen(held=held, state=b"f", round=round_, total=total, policy=policy)
        (verdict,) = self.wait(self.tx.progress.fan_open(CELL, [move]))
        assert verdict.outcome == self.model.fan_open(held, round_, total, policy)
        if verdict.outcome == "done":
            self.moved(held, seen)

    @rule(place=places, count=st.integers(1, 3))
    def fan_out(self, place: int, count: int) -> None:
        held, _ = self.hold(place)
        kids = self.model.all[held.id].kids
        round_, first = (kids.round, kids.created + 1) if kids else (1, 1)
        items = [
            NewTransaction(
                id=names.child_id(held.id, round_, n),
                owner="default",
                pipeline="p",
                version=VERSION,
                group=GROUP,
                state=b"c",
                inside=True,
            )
            for n in range(first, first + count)
        ]
        made = self.wait(self.tx.entry.fan_out(held, round_=round_, first=first, items=items))
        assert made.outcome == self.model.fan_out(held, count)[0]

    @rule(place=places)
    def fan_wait(self, place: int) -> None:
        held, _ = self.hold(place)
        (verdict,) = self.wait(self.tx.progress.fan_wait(CELL, [FanWait(held=held, state=b"w")]))
        assert verdict.outcome == self.model.fan_wait(held)

    @rule(
        place=places,
        total=st.integers(1, 3),
        policy=st.sampled_from(POLICIES),
        early=st.integers(0, 3),
        status=statuses,
    )
    def parallel(self, place: int, total: int, policy: Policy, early: int, status: Status) -> None:
        """What a worker does, one after the other; some children end before it waits."""
        newest = len(self.holds)
        self.fan_open(place, total, policy)
        if len(self.holds) == newest:
            return
        parent = self.holds[-1]
        self.fan_out(0, total)
        self.claim(early)
        for number in range(len(self.holds) - newest - 1):
            self.finish(number, status)
        self.holds.append(parent)
        self.fan_wait(0)
        self.claim(2)

    # -- From outside, and by time -----------------------------------------------------------

    @rule(place=places, name=switch_names, value=switch_values)
    def set_switch(self, place: int, name: str, value: str | bool | int | None) -> None:
        self.set_switch_of(self.some(place), name, value)

    def set_switch_of(self, transaction_id: str, name: str, value: str | bool | int | None) -> None:
        setting = self.tx.signals.set_switch("default", transaction_id, name, value)
        text = "" if value is None else encode_value(value)
        expected = self.model.set_switch(transaction_id, name, text)
        if expected == "final":
            with pytest.raises(TransactionFinalError):
                self.wait(setting)
        else:
            assert self.wait(setting).outcome == expected

    @rule(place=places)
    def wake(self, place: int) -> None:
        transaction_id = self.some(place)
        expected = self.model.wake(transaction_id)
        waking = self.tx.signals.wake("default", transaction_id)
        if expected == "done":
            self.wait(waking)
        else:
            refusals = {"final": TransactionFinalError, "not-sleeping": NotSleepingError}
            with pytest.raises(refusals[expected]):
                self.wait(waking)

    @rule(place=places)
    def cancel(self, place: int) -> None:
        transaction_id = self.some(place)
        (told,) = self.wait(
            self.tx.signals.cancel(
                "default", [transaction_id], cause="me", grace_ms=GRACE_SECONDS * 1000
            )
        )
        assert told.outcome == self.model.cancel(transaction_id)

    @rule(
        steps=st.sampled_from([1, 1, 1, 2, 4, 8, 80, 150]),
        then=st.permutations(["wake_due", "rescue", "expire", "sweep", "claim"]),
        passes=st.integers(0, 5),
    )
    def time_passes(self, steps: int, then: list[str], passes: int) -> None:
        """And timekeepers do some of what is due, in any order."""
        self.wait(self.tx.machine.advance(steps * STEP_SECONDS))
        self.model.advance(steps * STEP_SECONDS)
        for name in then[:passes]:
            if name == "claim":
                self.claim(3)
            else:
                getattr(self, name)()

    @rule()
    def wake_due(self) -> None:
        assert self.wait(self.tx.signals.wake_due(CELL)).done == self.model.wake_due()
        self.adopt_order()

    @rule()
    def rescue(self) -> None:
        rescued = self.wait(self.tx.holding.rescue(CELL, most=100, rescues_max=RESCUES_MAX))
        assert rescued.done == self.model.rescue(RESCUES_MAX)
        self.adopt_order()

    @rule()
    def expire(self) -> None:
        due = self.wait(self.tx.signals.expire(CELL, grace_ms=GRACE_SECONDS * 1000))
        assert due.done == self.model.expire()
        self.adopt_order()

    @rule()
    def sweep(self) -> None:
        while self.wait(self.tx.signals.sweep(CELL, grace_ms=GRACE_SECONDS * 1000)).next_ms >= 0:
            pass
        self.model.sweep()
        self.adopt_order()

    def adopt_order(self) -> None:
        """Which of those that are due in one moment is first is the store's to say."""
        lists = self.wait(self.tx.picture()).lists
        for queue, ids in self.model.queues.items():
            found = lists.get(f"q{queue.capitalize()}L:{GROUP}", [])
            assert Counter(found) == Counter(ids)
            ids[:] = found

    # -- What always holds -------------------------------------------------------------------

    @invariant()
    def store_and_model_agree(self) -> None:
        picture = self.wait(self.tx.check())
        assert set(picture.heads) == set(self.model.all)
        for transaction_id, head in picture.heads.items():
            self.compare(transaction_id, head, picture)
            self.compare_with_before(transaction_id, head)
        for queue, ids in self.model.queues.items():
            assert picture.lists.get(f"q{queue.capitalize()}L:{GROUP}", []) == ids
        assert set(picture.sets["sweepZ"]) == self.model.sweeps
        assert {name: owner for name, (owner, _) in picture.external.items()} == {
            f"default:{name}": owner for name, (owner, _) in self.model.external.items()
        }
        self.compare_with_records()

    def compare(self, transaction_id: str, head: Head, picture: Picture) -> None:
        one = self.model.all[transaction_id]
        found = (head.state, head.version, head.epoch, head.commits, set(head.flags), head.status)
        assert found == (one.state, one.version, one.epoch, one.commits, one.flags, one.status)
        assert (head.queue, head.switch, head.rescues) == (one.queue, one.switch, one.rescues)
        assert picture.kids.get(transaction_id, "") == str(one.kids or "")
        assert picture.switches.get(transaction_id, "") == one.switches_text
        for expected, at_ms in (
            (one.wake or None, head.wake or None),
            (one.deadline, picture.sets["deadlineZ"].get(transaction_id)),
        ):
            assert (expected is None) == (at_ms is None)
            if expected is not None and at_ms is not None:
                seconds = (at_ms - self.base_ms) / 1000
                assert expected <= seconds < expected + STEP_SECONDS

    def compare_with_before(self, transaction_id: str, head: Head) -> None:
        before = self.before.get(transaction_id, head)
        assert head.version >= before.version
        assert head.version > before.version or head == before, "no change without a version"
        if before.state is State.COMPLETE:
            assert (head.state, head.status) == (before.state, before.status)
        self.before[transaction_id] = head

    def compare_with_records(self) -> None:
        facts = self.wait(self.tx.facts())
        begun = [fact.id for fact in facts if fact.kind == "started"]
        assert sorted(begun) == sorted(self.before), "each that is there was started once"
        ended = {fact.id: fact.status for fact in facts if fact.state == "complete"}
        assert len(ended) == sum(fact.state == "complete" for fact in facts), "and ends once"
        assert ended == {
            each: head.status for each, head in self.before.items() if head.status is not None
        }
        versions: dict[str, int] = {}
        for fact in facts:
            assert fact.version > versions.get(fact.id, 0)
            versions[fact.id] = fact.version
            assert fact.version <= self.before[fact.id].version


def test_transactions_behave_as_their_model_does(
    bridge: Bridge, record_property: RecordProperty
) -> None:
    """EXAMPLES=2000 and --timeout=0 look harder; a failure prints how to replay it."""
    TransactionMachine.bridge = bridge
    run_machine(TransactionMachine, record_property, steps=60)
