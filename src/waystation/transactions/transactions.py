"""Transactions for those who look from outside: API, command line, console.

Everything is asked for by project: what belongs to another is unknown, as what was never there.
"""

from __future__ import annotations

import asyncio
from typing import Literal

import msgspec

from waystation.archive import Archive, join_hash
from waystation.errors import (
    InvalidInputError,
    StoreFullError,
    TransactionFinalError,
    TransactionUnknownError,
)
from waystation.store.client import Store
from waystation.transactions import names
from waystation.transactions.cells import BATCH_MAX
from waystation.transactions.found import Found
from waystation.transactions.head import parse
from waystation.transactions.kids import Kids, read_kids
from waystation.transactions.record import decode
from waystation.transactions.signals import Signals, Switched
from waystation.transactions.states import State
from waystation.transactions.summary import Summary, progress_at, shown_status, summary_of
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
        self,
        store: Store,
        signals: Signals,
        waiting: WaitingRoom,
        archive: Archive | None = None,
        *,
        grace_ms: int,
    ) -> None:
        self._store = store
        self._archive = archive
        self._signals = signals
        self._waiting = waiting
        self._grace_ms = grace_ms

    async def get(
        self,
        project: str,
        transaction_id: str,
        *,
        wait_seconds: float | None = None,
        after: int | None = None,
        abandonment: Abandonment | None = None,
        duplicate: bool = False,
    ) -> Summary:
        """The summary, after a wait of up to so long for the end.

        With `after` a progress report ends the wait, too, if it came after that version. Who has
        asked to wait, if for no time at all, is noted as told when the answer has the end.
        """
        found = await self._found(project, transaction_id)
        if wait_seconds is None:
            return summary_of(found, duplicate=duplicate)
        leaving = _Leaving(abandonment)
        if not _is_news(found, after) and wait_seconds > 0:
            await self._waiting.news(
                transaction_id, wait_seconds, after=after, abandonment=leaving.watch
            )
            found = await self._found(project, transaction_id)
        summary = summary_of(found, duplicate=duplicate)
        if found.head.state is not State.COMPLETE or leaving.is_gone:
            return summary
        try:
            replied = await self._signals.replied(project, transaction_id)
        except StoreFullError:
            # There is no room to bring it back for a note; the archive has told us the end.
            return summary
        metadata = msgspec.structs.replace(
            summary.metadata,
            notified_time=replied.notified_ms,
            sequence_of_update=replied.version,
        )
        return msgspec.structs.replace(summary, metadata=metadata)

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
        # Who looks once looks again: what the archive has, too, stays for as long again.
        (found,) = await self._signals.get(project, [transaction_id], renew=True)
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
            results = [
                parent.extras.get(b"result:%d" % number, b"")
                for number in range(first + 1, first + len(part) + 1)
            ]
            told = zip(part, lines, results, strict=True)
            # Neither in the store nor ended: it sleeps in the archive.
            asleep = await self._archived(
                [each for each, line, result in told if line is None and not result]
            )
            rows = zip(part, lines, results, strict=True)
            for number, (each, line, result) in enumerate(rows, first + 1):
                children.append(_child(number, each, line or asleep.get(each), result))
        return children

    async def _archived(self, ids: list[str]) -> dict[str, bytes]:
        """The heads of those that the archive has; they stay there."""
        if not ids or self._archive is None:
            return {}
        rows = await self._archive.get(ids)
        return {key: join_hash(row.packed, row.fields)[b"head"] for key, row in rows.items()}


class _Leaving:
    """Whether the client has hung up while it waited."""

    def __init__(self, abandonment: Abandonment | None) -> None:
        self._abandonment = abandonment
        self._future: asyncio.Future[object] | None = None

    def watch(self) -> asyncio.Future[object]:
        """Done when it hangs up."""
        if self._abandonment is None:
            self._future = asyncio.get_running_loop().create_future()
        else:
            self._future = self._abandonment()
        return self._future

    @property
    def is_gone(self) -> bool:
        """The waiting room cancels what it has watched, unless that is done."""
        watched = self._future
        return watched is not None and watched.done() and not watched.cancelled()


def _is_news(found: Found, after: int | None) -> bool:
    """Whether there is nothing to wait for."""
    return found.head.state is State.COMPLETE or (after is not None and progress_at(found) > after)


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
