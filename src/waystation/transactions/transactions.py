"""Transactions for those who look from outside: API, command line, console.

Everything is asked for by project: what belongs to another is unknown, as what was never there.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from waystation.errors import InvalidInputError
from waystation.store import Store
from waystation.transaction_errors import TransactionFinalError, TransactionUnknownError
from waystation.transactions import names
from waystation.transactions.cells import BATCH_MAX
from waystation.transactions.head import parse
from waystation.transactions.kids import Kids, read_kids
from waystation.transactions.record import decode
from waystation.transactions.signals import Found, Signals, Switched
from waystation.transactions.summary import Summary, shown_status, summary_of
from waystation.transactions.switches import Scalar, parse_switches
from waystation.transactions.waiters import Abandonment, WaitingRoom

CAUSE_LENGTH_MAX = 200
#: Of a cancel that names none.
CAUSE = "cancelled by request"


class JournalAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a step."""

    number: int
    outcome: str
    begun_ms: int
    ended_ms: int
    #: The beginning of its id.
    node: str
    note: str
    #: Where the code broke, if it did.
    trace: str


class JournalLine(msgspec.Struct, frozen=True, kw_only=True):
    """What a step has logged."""

    time_ms: int
    level: str
    text: str


class JournalStep(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a step."""

    #: Its path, from 1: `2`, in a child pipeline `2.1`.
    place: str
    type: str
    #: So far; the newest are in `last`.
    attempts: int
    last: list[JournalAttempt]
    logs: list[JournalLine]


class Journal(msgspec.Struct, frozen=True, kw_only=True):
    """What happened in a transaction."""

    id: str
    type: str
    state: str
    status: str
    started_ms: int
    #: What a script has ended it for, or is about to.
    cause: str
    #: What its last step said of the end.
    note: str
    switches: dict[str, Scalar]
    steps: list[JournalStep]


class Child(msgspec.Struct, frozen=True, kw_only=True):
    """A child of a Parallel."""

    #: From 1, in the order of the output.
    number: int
    id: str
    #: Empty for one that was not created.
    state: str
    #: Final status; empty before.
    status: str


class Children(msgspec.Struct, frozen=True, kw_only=True):
    """The Parallel that is under way, or that it has ended in; without one, nothing."""

    total: int
    created: int
    done: int
    policy: str
    children: list[Child]


class CancelReply(msgspec.Struct, frozen=True, kw_only=True):
    """What a cancel has done."""

    #: `asked`: it runs, and ends with its next commit, or after the grace time.
    outcome: Literal["cancelled", "asked", "known"]
    #: As in a summary.
    status: str


class Transactions:
    """Looks at transactions, and reaches them."""

    def __init__(
        self, store: Store, signals: Signals, waiting: WaitingRoom, *, grace_ms: int
    ) -> None:
        self._store = store
        self._signals = signals
        self._waiting = waiting
        self._grace_ms = grace_ms

    async def get(
        self,
        project: str,
        transaction_id: str,
        *,
        wait_seconds: float = 0.0,
        abandonment: Abandonment | None = None,
    ) -> Summary:
        """The summary, after a wait of up to so long for the end."""
        summary = summary_of(await self._found(project, transaction_id))
        if wait_seconds <= 0 or summary.metadata.completion_time is not None:
            return summary
        await self._waiting.ended(transaction_id, wait_seconds, abandonment=abandonment)
        return summary_of(await self._found(project, transaction_id))

    async def journal(self, project: str, transaction_id: str) -> Journal:
        """What happened, step by step."""
        found = await self._found(project, transaction_id)
        kept = decode(found.state)
        return Journal(
            id=found.id,
            type=kept.type,
            state=found.head.state,
            status=found.head.status or "",
            started_ms=kept.started_ms,
            cause=found.extras.get(b"cause", b"").decode(errors="replace"),
            note=kept.note,
            switches=parse_switches(found.extras.get(b"switches", b"")),
            steps=[
                JournalStep(
                    place=step.place,
                    type=step.type,
                    attempts=step.attempts,
                    last=[
                        JournalAttempt(
                            number=each.number,
                            outcome=each.outcome,
                            begun_ms=each.begun_ms,
                            ended_ms=each.ended_ms,
                            node=each.node,
                            note=each.note,
                            trace=each.trace,
                        )
                        for each in step.last
                    ],
                    logs=[
                        JournalLine(time_ms=line.ms, level=line.level, text=line.text)
                        for line in step.logs
                    ],
                )
                for step in kept.journal
            ],
        )

    async def children(self, project: str, transaction_id: str) -> Children:
        """The children of the Parallel that is under way, or that it has ended in."""
        found = await self._found(project, transaction_id)
        kids = read_kids(found.extras.get(b"kids", b""))
        if kids is None:
            return Children(total=0, created=0, done=0, policy="", children=[])
        return Children(
            total=kids.total,
            created=kids.created,
            done=kids.done,
            policy=kids.policy,
            children=await self._children(found, kids),
        )

    async def cancel(self, project: str, transaction_id: str, *, cause: str = CAUSE) -> CancelReply:
        """Cancels: at once, or at the next commit of what runs."""
        if not cause or len(cause) > CAUSE_LENGTH_MAX or not cause.isprintable():
            raise InvalidInputError(
                f"A cause has 1 to {CAUSE_LENGTH_MAX} characters that can be printed.",
                field="cause",
            )
        (done,) = await self._signals.cancel(
            project, [transaction_id], cause=cause, grace_ms=self._grace_ms
        )
        if done.outcome == "unknown":
            raise _unknown(transaction_id)
        if done.outcome == "final":
            raise TransactionFinalError(f"{transaction_id} has ended already: {done.status}.")
        return CancelReply(outcome=done.outcome, status=done.status or "running")

    async def wake(self, project: str, transaction_id: str) -> None:
        """Wakes what sleeps, before its time."""
        await self._signals.wake(project, transaction_id)

    async def set_switch(
        self, project: str, transaction_id: str, name: str, value: Scalar | None
    ) -> Switched:
        """Sets a switch, or deletes it with None; wakes the step that waits for it."""
        return await self._signals.set_switch(project, transaction_id, name, value)

    async def _found(self, project: str, transaction_id: str) -> Found:
        (found,) = await self._signals.get(project, [transaction_id])
        if found is None:
            raise _unknown(transaction_id)
        return found

    async def _children(self, parent: Found, kids: Kids) -> list[Child]:
        numbers = range(1, kids.created + 1)
        ids = [names.child_id(parent.id, kids.round, number) for number in numbers]
        children = []
        for first in range(0, len(ids), BATCH_MAX):
            part = ids[first : first + BATCH_MAX]
            commands = [("HGET", names.state(each), "head") for each in part]
            lines = await self._store.pipeline(commands, repeatable=True)
            for number, (each, line) in enumerate(zip(part, lines, strict=True), first + 1):
                result = parent.extras.get(b"result:%d" % number, b"")
                children.append(_child(number, each, line, result))
        return children


def _child(number: int, child_id: str, line: object, result: bytes) -> Child:
    if isinstance(line, Exception):
        raise line
    head = parse(line) if isinstance(line, bytes) else None
    if head is None:
        status = result.partition(b" ")[0].decode()
        return Child(number=number, id=child_id, state="", status=status)
    shown = shown_status(head.state, None)
    return Child(number=number, id=child_id, state=shown, status=head.status or "")


def _unknown(transaction_id: str) -> TransactionUnknownError:
    return TransactionUnknownError(f"There is no transaction {transaction_id}.")
