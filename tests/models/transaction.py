"""Model of transactions in plain Python: the expected effect of each script of one cell.

Time is in seconds since the start. Only `advance` moves it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from waystation.transactions import names
from waystation.transactions.held import Held
from waystation.transactions.states import State, Status

LEASE_SECONDS = 50
GRACE_SECONDS = 100
EXTERNAL_SECONDS = 3600
ASLEEP = (State.SLEEPING, State.WAITING_SWITCH, State.SCHEDULED)


@dataclass
class ModelKids:
    """Progress of the children of a `Parallel`."""

    round: int
    total: int
    policy: str
    created: int = 0
    done: int = 0
    swept: int = 0
    failed: str = "-"

    def __str__(self) -> str:
        return (
            f"{self.round} {self.total} {self.created} {self.done}"
            f" {self.policy} {self.swept} {self.failed}"
        )


@dataclass
class ModelTransaction:
    """Expected state of one transaction."""

    id: str
    state: State = State.QUEUED
    version: int = 1
    epoch: int = 0
    commits: int = 0
    flags: set[str] = field(default_factory=set)
    queue: str = "in"
    status: Status | None = None
    wake: int = 0
    switch: str = ""
    rescues: int = 0
    claimed: int = 0
    deadline: int | None = None
    external: str = ""
    parent: tuple[str, int, int] | None = None
    kids: ModelKids | None = None
    results: set[int] = field(default_factory=set)
    #: Value as JSON, '' if deleted during a step; and whether no step has seen the change.
    switches: dict[str, tuple[str, bool]] = field(default_factory=dict)
    #: By switch: end of the wait, from the option `at_most`.
    waits: dict[str, int] = field(default_factory=dict)

    @property
    def switches_text(self) -> str:
        """Switches in their stored form."""
        parts = []
        for name, (value, unseen) in self.switches.items():
            if value:
                parts.append(f"{'!' if unseen else ''}{name}={value}")
            elif unseen:
                parts.append(f"!{name}")
        return ",".join(parts)

    def tidy(self) -> None:
        """Remove deleted switches that every step has seen."""
        self.switches = {
            name: (value, unseen)
            for name, (value, unseen) in self.switches.items()
            if value or unseen
        }


@dataclass
class TransactionModel:
    """Expected state of one cell with one node group."""

    now: int = 0
    all: dict[str, ModelTransaction] = field(default_factory=dict)
    queues: dict[str, list[str]] = field(default_factory=lambda: {"out": [], "in": []})
    #: By external id: transaction, and the time at which the id is released.
    external: dict[str, tuple[str, int | None]] = field(default_factory=dict)
    sweeps: set[str] = field(default_factory=set)
    #: Ended children that were not reported to their parents yet.
    untold: list[ModelTransaction] = field(default_factory=list)

    # -- In ----------------------------------------------------------------------------------

    def advance(self, seconds: int) -> None:
        """Advance the time and release expired external ids."""
        self.now += seconds
        self.external = {
            name: (owner, until)
            for name, (owner, until) in self.external.items()
            if until is None or until > self.now
        }

    def start(
        self, transaction_id: str, *, external: str = "", delay: int = 0, deadline: int = 0
    ) -> tuple[str, str]:
        """Start a transaction. Return outcome and detail."""
        if external in self.external:
            return "duplicate", self.external[external][0]
        one = ModelTransaction(transaction_id, external=external)
        if external:
            self.external[external] = (transaction_id, None)
            one.flags.add("e")
        if deadline:
            one.deadline = self.now + deadline
            one.flags.add("d")
        if delay:
            one.state, one.wake = State.SCHEDULED, self.now + delay
        else:
            self.queues["in"].append(transaction_id)
        self.all[transaction_id] = one
        return "started", ""

    def claim(self, most: int) -> list[ModelTransaction]:
        """Claim up to `most` queued transactions and return them."""
        found = []
        for queue in self.queues.values():
            looked, queue[:] = queue[:most], queue[most:]
            most -= len(looked)
            for one in map(self.all.__getitem__, looked):
                if one.state is State.QUEUED:
                    one.state, one.epoch, one.commits = State.RUNNING, one.epoch + 1, 0
                    one.version += 1
                    one.claimed = self.now
                    found.append(one)
        return found

    # -- Moves -------------------------------------------------------------------------------

    def _refusal(self, held: Held) -> str:
        one = self.all[held.id]
        if one.epoch != held.epoch:
            return "refused"
        if one.commits == held.commits + 1:
            return "known"
        if one.state is not State.RUNNING or one.commits != held.commits:
            return "refused"
        return ""

    def _move(self, held: Held, *, needs_tree: bool = False) -> tuple[ModelTransaction, str]:
        """Return the transaction, and the reason why it cannot be moved; '' if it can.

        With `needs_tree`, cancel the transaction if no transaction above it needs its result.
        """
        one = self.all[held.id]
        refusal = self._refusal(held)
        if refusal == "known" and one.state is State.COMPLETE:
            refusal = "cancelled"
        if not refusal:
            one.commits += 1
            stopped = self._stopped(one)
            if needs_tree and not stopped and not self._is_wanted(one):
                stopped = Status.CANCELLED
            if stopped:
                self._complete(one, stopped)
                self.tell_parents()
                return one, "cancelled"
        return one, refusal

    def _is_wanted(self, one: ModelTransaction) -> bool:
        """Return False if a transaction above was cancelled, has ended or has a failed child."""
        link = one.parent
        while link:
            parent_id, round_, _ = link
            parent = self.all[parent_id]
            kids = parent.kids
            if parent.state is State.COMPLETE or self._stopped(parent):
                return False
            if not kids or kids.round != round_:
                return False
            if kids.policy == "cancel_rest" and kids.failed != "-":
                return False
            link = parent.parent
        return True

    def _moved(self, one: ModelTransaction) -> None:
        if "s" in one.flags:
            one.rescues = 0
        one.flags -= {"s", "b"}
        one.version += 1

    def commit(self, held: Held) -> str:
        """Commit a step. Return the outcome.

        Remove the waits of the step, and its children if all of them have ended.
        """
        one, refusal = self._move(held)
        if refusal:
            return refusal
        self._moved(one)
        one.waits = {}
        if one.kids and one.kids.done == one.kids.total:
            one.kids, one.results = None, set()
        return "done"

    def finish(self, held: Held, status: Status) -> str:
        """End a transaction. Return the outcome."""
        one, refusal = self.all[held.id], self._refusal(held)
        if refusal == "refused" and one.epoch == held.epoch and one.state is not State.RUNNING:
            return "not-running"
        if refusal:
            return refusal
        one.commits += 1
        self._complete(one, status)
        self.tell_parents()
        return "done"

    def sleep(
        self,
        held: Held,
        *,
        delay: int | None,
        switch: str,
        at_most: int | None,
        seen: dict[str, str],
    ) -> str:
        """Suspend a step. Return the outcome.

        `seen` has the value of each switch that the step read; '' for a switch that was not set.
        """
        one, refusal = self._move(held)
        if refusal:
            return refusal
        wake = self.now + (delay if delay is not None else 7200 if switch else 300)
        if switch and at_most is not None:
            til = one.waits.get(switch)
            if til is None:
                one.waits[switch] = til = self.now + at_most
                one.flags.add("x")
            wake = min(wake, til)
        for name, value in seen.items():
            if name in one.switches and one.switches[name][0] == value:
                one.switches[name] = (value, False)
        one.tidy()
        if one.switches.get(switch, ("", False))[1]:
            one.switches = {name: (value, False) for name, (value, _) in one.switches.items()}
            one.tidy()
            self._queue(one, "in")
            self._moved(one)
            return "queued"
        one.state = State.WAITING_SWITCH if switch else State.SLEEPING
        one.wake, one.switch = wake, switch
        self._moved(one)
        return "waiting"

    def fan_open(self, held: Held, round_: int, total: int, policy: str) -> str:
        """Open a new round of children. Return the outcome."""
        one, refusal = self._move(held, needs_tree=True)
        if refusal:
            return refusal
        one.kids = ModelKids(round_, total, policy)
        one.results = set()
        one.flags.add("x")
        self._moved(one)
        return "done"

    def fan_out(self, held: Held, count: int) -> tuple[str, list[str]]:
        """Create up to `count` children. Return outcome and ids."""
        one = self.all[held.id]
        mine = (one.epoch, one.commits) == (held.epoch, held.commits)
        if one.state is not State.RUNNING or not mine or not one.kids:
            return "refused", []
        kids, before, made = one.kids, one.kids.created, []
        failed = kids.policy == "cancel_rest" and kids.failed != "-"
        unwanted = not self._stopped(one) and not self._is_wanted(one)
        for n in range(kids.created + 1, min(kids.created + count, kids.total) + 1):
            kids.created = n
            if failed or unwanted or self._stopped(one):
                kids.done += 1
                one.results.add(n)
                continue
            child = ModelTransaction(names.child_id(one.id, kids.round, n), flags={"p"})
            child.parent = (one.id, kids.round, n)
            self.all[child.id] = child
            self.queues["in"].append(child.id)
            made.append(child.id)
        if unwanted and kids.created > before:
            one.flags.add("c")
        one.version += kids.created > before
        return "done", made

    def fan_wait(self, held: Held) -> str:
        """Wait for the children. Return the outcome."""
        one, refusal = self._move(held)
        if refusal:
            return refusal
        if not one.kids or one.kids.created < one.kids.total:
            one.commits -= 1
            return "fan-incomplete"
        if one.kids.done == one.kids.total:
            self._queue(one, "out")
        else:
            one.state = State.WAITING_CHILDREN
        self._moved(one)
        return "queued" if one.state is State.QUEUED else "waiting"

    def begin(self, held: Held) -> str:
        """Mark that a suspect starts to run. Return the outcome."""
        one = self.all[held.id]
        mine = (one.epoch, one.commits) == (held.epoch, held.commits)
        if one.state is not State.RUNNING or not mine:
            return "refused"
        if "b" not in one.flags:
            one.flags.add("b")
            one.version += 1
        return "done"

    # -- From outside, and by time -----------------------------------------------------------

    def set_switch(self, transaction_id: str, name: str, value: str) -> str:
        """Set a switch; an empty value deletes it. Return the outcome."""
        one = self.all[transaction_id]
        if one.switches.get(name, ("", False))[0] == value:
            return "nochange"
        if one.state is State.COMPLETE:
            return "final"
        one.switches[name] = (value, bool(value) or one.state is State.RUNNING)
        one.tidy()
        one.flags.add("x")
        one.version += 1
        if one.state is State.WAITING_SWITCH and one.switch == name:
            self._queue(one, "in")
            return "woken"
        return "updated"

    def wake(self, transaction_id: str) -> str:
        """Wake a sleeping transaction as an operator does. Return the outcome."""
        one = self.all[transaction_id]
        if one.state not in ASLEEP:
            return "final" if one.state is State.COMPLETE else "not-sleeping"
        self._queue(one, "in")
        one.version += 1
        return "done"

    def wake_due(self) -> int:
        """Wake all transactions whose time has come. Return their number."""
        due = [one for one in self.all.values() if one.state in ASLEEP and one.wake <= self.now]
        for one in due:
            self.wake(one.id)
        return len(due)

    def rescue(self, rescues_max: int) -> int:
        """Return transactions with expired leases to their queues. Return their number."""
        over = [
            one
            for one in self.all.values()
            if one.state is State.RUNNING and one.claimed + LEASE_SECONDS <= self.now
        ]
        for one in over:
            one.epoch += 1
            if stopped := self._stopped(one):
                self._complete(one, stopped)
                continue
            one.rescues += "b" in one.flags
            if one.rescues > rescues_max:
                self._complete(one, Status.INTERNAL_ERROR)
                continue
            one.flags = one.flags - {"b"} | {"s"}
            self._queue(one, one.queue, front=True)
            one.version += 1
        self.tell_parents()
        return len(over)

    def cancel(self, transaction_id: str) -> str:
        """Cancel a transaction. Return the outcome."""
        one = self.all[transaction_id]
        if one.state is State.COMPLETE:
            return "known" if one.status is Status.CANCELLED else "final"
        outcome = self._stop(one, "c")
        self.tell_parents()
        return outcome

    def expire(self) -> int:
        """Stop transactions whose deadline has passed. Return their number."""
        due = [
            one
            for one in self.all.values()
            if one.deadline is not None and one.deadline <= self.now
        ]
        for one in due:
            if stopped := self._stopped(one):
                one.epoch += 1
                self._complete(one, stopped)
            else:
                one.deadline = None
                self._stop(one, "t")
        self.tell_parents()
        return len(due)

    def sweep(self) -> None:
        """Cancel the children of all parents that do not need them."""
        while self.sweeps:
            parent = self.all[self.sweeps.pop()]
            kids = parent.kids
            if not kids:
                continue
            failed = kids.policy == "cancel_rest" and kids.failed != "-"
            ended = parent.state is State.COMPLETE
            if not failed and not ended and not self._stopped(parent):
                continue
            parent.version += kids.swept < kids.created
            while kids.swept < kids.created:
                kids.swept += 1
                child = self.all.get(names.child_id(parent.id, kids.round, kids.swept))
                if child and child.state is not State.COMPLETE:
                    self._stop(child, "c")
            self.tell_parents()
            # Remove it again, because a child may have added it; all children are done.
            self.sweeps.discard(parent.id)

    # -- Shared ------------------------------------------------------------------------------

    def _stopped(self, one: ModelTransaction) -> Status | None:
        if "c" in one.flags:
            return Status.CANCELLED
        return Status.TIMEOUT if "t" in one.flags else None

    def _queue(self, one: ModelTransaction, queue: str, *, front: bool = False) -> None:
        one.state, one.queue, one.wake, one.switch = State.QUEUED, queue, 0, ""
        self.queues[queue].insert(0 if front else len(self.queues[queue]), one.id)

    def _stop(self, one: ModelTransaction, letter: str) -> str:
        if one.state not in (State.RUNNING, State.WAITING_CHILDREN):
            one.epoch += 1
            self._complete(one, Status.CANCELLED if letter == "c" else Status.TIMEOUT)
            return "cancelled"
        if not self._stopped(one):
            til = self.now + GRACE_SECONDS
            one.deadline = til if one.deadline is None else min(one.deadline, til)
            one.flags |= {letter, "d", "x"}
            one.version += 1
            if one.state is State.WAITING_CHILDREN:
                self.sweeps.add(one.id)
        return "asked"

    def _complete(self, one: ModelTransaction, status: Status) -> None:
        if one.kids and one.kids.done < one.kids.created:
            self.sweeps.add(one.id)
        one.flags -= set("ctsbd")
        one.state, one.status, one.wake, one.switch = State.COMPLETE, status, 0, ""
        one.deadline = None
        one.version += 1
        if one.external:
            self.external[one.external] = (one.id, self.now + EXTERNAL_SECONDS)
        if one.parent:
            self.untold.append(one)

    def tell_parents(self) -> None:
        """Report ended children to their parents, up to the top of the tree."""
        while self.untold:
            child = self.untold.pop(0)
            assert child.parent
            parent_id, round_, n = child.parent
            parent = self.all[parent_id]
            kids = parent.kids
            if parent.state is State.COMPLETE or not kids or kids.round != round_:
                continue
            kids.done += 1
            parent.results.add(n)
            if child.status is not Status.SUCCESS and kids.failed == "-":
                kids.failed = str(n)
                if kids.policy == "cancel_rest":
                    self.sweeps.add(parent.id)
            if parent.state is not State.WAITING_CHILDREN or kids.done < kids.total:
                parent.version += 1
            elif stopped := self._stopped(parent):
                self._complete(parent, stopped)
            else:
                self._queue(parent, "out")
                parent.version += 1
