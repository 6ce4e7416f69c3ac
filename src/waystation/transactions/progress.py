"""The scripts by which the holder of a transaction moves it on.

One call moves many transactions of a cell, and answers each: a late holder's move is `refused`, and
changes nothing, neither of its transaction nor of the others. A move whose reply was lost may be
sent again: it is `known`, and stands in the record log once. A transaction that was to end, because
it was cancelled or its deadline has passed, ends with the next move, which says `cancelled`; only
`finish` is stronger, since the work is done.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from waystation.errors import (
    IllegalTransitionError,
    LeaseLostError,
    NotRunningError,
    StatusInvalidError,
    TooLargeError,
    TransactionUnknownError,
)
from waystation.store.client import Store
from waystation.store.connection import Reply
from waystation.store.scripts import Script, script
from waystation.transactions import names
from waystation.transactions.cells import BATCH_MAX, Terms
from waystation.transactions.held import Held, Verdict
from waystation.transactions.outcomes import Policy
from waystation.transactions.states import State, Status

_COMMIT = script(__package__, "commit")
_FAN_OPEN = script(__package__, "fan_open")
_FAN_WAIT = script(__package__, "fan_wait")
_FINISH = script(__package__, "finish")
_ONCE = script(__package__, "once")
_PASS_ON = script(__package__, "pass_on")
_REPORT = script(__package__, "report")
_SLEEP = script(__package__, "sleep")

#: A result of `once`, or a progress report, is read with every claim.
FIELD_BYTES_MAX = 262_144

#: What `callback:<place>` holds until it is used; then `+` and what was posted.
CALLBACK_OPEN = b"-"

#: More than any holder commits under one epoch.
_ROUNDS = 1_000_000
#: For callers who have only the word.
_FINAL = frozenset(each.value for each in Status)

_Words = tuple[str | bytes | int, ...]


class _Move(msgspec.Struct, frozen=True, kw_only=True):
    """What every move has."""

    #: As the holder knows it before the move.
    held: Held
    #: The packed state as it will be.
    state: bytes
    #: msgpack for the record log; empty for none.
    detail: bytes = b""
    #: Fields of the step that has ended: `once:…`, `wait:…`, `result:…`, `kids`.
    drop: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Bytes that it carries."""
        return len(self.state) + len(self.detail)


class Commit(_Move, frozen=True, kw_only=True):
    """Keeps what came of a step; its holder goes on."""

    #: Has the state archived as it is now, without leaving the store.
    snapshot: bool = False

    def words(self) -> _Words:
        """What only this move says."""
        return ("snapshot" if self.snapshot else "",)


class Finish(_Move, frozen=True, kw_only=True):
    """The end."""

    status: Status
    #: JSON; for its parent, if it has one.
    output: bytes

    @property
    def size(self) -> int:
        """Bytes that it carries."""
        return len(self.state) + len(self.detail) + len(self.output)

    def words(self) -> _Words:
        """What only this move says."""
        return (self.status, self.output)


class PassOn(_Move, frozen=True, kw_only=True):
    """To a queue: into a child pipeline, back to a parent frame, or to another node group."""

    group: str
    #: `in` or `out`.
    queue: str
    #: Of the frame that is on top then.
    pipeline: str
    #: The version that begins with it; empty where one only goes on. Another active one is `stale`.
    version: str = ""
    snapshot: bool = False

    def words(self) -> _Words:
        """What only this move says."""
        snapshot = "snapshot" if self.snapshot else ""
        return (snapshot, self.group, self.queue, self.pipeline, self.version)


class Sleep(_Move, frozen=True, kw_only=True):
    """Until a time, or until a switch changes."""

    #: None: 2 hours with a switch, 5 minutes without.
    delay_ms: int | None = None
    switch: str = ""
    #: From the first Wait of this step on this switch.
    at_most_ms: int | None = None
    place: str = ""
    #: What the step has seen of switches: `seen_text`.
    acknowledged: str = ""
    snapshot: bool = False
    #: The step was not called: what is known of it, a suspicion, say, stays as it is.
    untried: bool = False

    def words(self) -> _Words:
        """What only this move says."""
        return (
            "snapshot" if self.snapshot else "",
            "" if self.delay_ms is None else self.delay_ms,
            self.switch,
            self.place,
            "" if self.at_most_ms is None else self.at_most_ms,
            self.acknowledged,
            "untried" if self.untried else "",
        )


class FanOpen(_Move, frozen=True, kw_only=True):
    """Opens the counter of parallel children; the state lists them."""

    #: `next_round(held)`.
    round: int
    total: int
    policy: Policy = "cancel_rest"
    #: Bytes that results of children may have together; those beyond are left out.
    room: int = 1_048_576
    #: Descendants that the tree may have; beyond that the move is refused: `tree-full`.
    descendants_max: int = 100_000

    def words(self) -> _Words:
        """What only this move says."""
        return (self.round, self.total, self.policy, self.room, self.descendants_max)


class FanWait(_Move, frozen=True, kw_only=True):
    """Waits for the children, all of which are created."""

    def words(self) -> _Words:
        """What only this move says."""
        return ()


def next_round(held: Held) -> int:
    """The number of a Parallel that is opened now; no other of this transaction ever has it.

    Ids of children are made from it, so they are not those of a Parallel before, either.
    """
    return held.epoch * _ROUNDS + held.commits


Move = Commit | Finish | PassOn | Sleep | FanOpen | FanWait


class Progress:
    """Moves what the caller holds."""

    def __init__(self, store: Store, terms: Terms) -> None:
        self._store = store
        self._terms = terms

    async def commit(self, cell: int, items: Sequence[Commit]) -> list[Verdict]:
        """Commits steps: `done`, `known`, `cancelled`, `refused`."""
        return await self._move(_COMMIT, cell, items)

    async def finish(self, cell: int, items: Sequence[Finish]) -> list[Verdict]:
        """Completes: `done`, `known`, `refused`, `not-running`."""
        for item in items:
            if item.status not in _FINAL:
                raise StatusInvalidError(f"{item.status!r} is not a final status.", field="status")
        return await self._move(_FINISH, cell, items)

    async def pass_on(self, cell: int, items: Sequence[PassOn]) -> list[Verdict]:
        """Queues elsewhere: `done`, `stale`, and as commit."""
        return await self._move(_PASS_ON, cell, items)

    async def sleep(self, cell: int, items: Sequence[Sleep]) -> list[Verdict]:
        """Puts to sleep: `waiting`, or `queued` where the switch has changed; and as commit."""
        return await self._move(_SLEEP, cell, items)

    async def fan_open(self, cell: int, items: Sequence[FanOpen]) -> list[Verdict]:
        """Open counters of children: `tree-full`, and as commit.

        A transaction is `cancelled` if a transaction above it was cancelled or has ended.
        """
        return await self._move(_FAN_OPEN, cell, items)

    async def fan_wait(self, cell: int, items: Sequence[FanWait]) -> list[Verdict]:
        """Waits for children: `waiting`, `queued`, `fan-incomplete`, and as commit."""
        return await self._move(_FAN_WAIT, cell, items)

    async def once(self, held: Held, place: str, name: str, result: bytes) -> Verdict:
        """Keeps a result before its step uses it: `done`, `known` (another stays), `refused`."""
        return await self._note(_ONCE, held, [f"once:{place}:{name}", _bounded(result)])

    async def open_callback(self, held: Held, place: str) -> Verdict:
        """Lets the callback of a step be used: `done`, `known` (it was, or is used), `refused`."""
        return await self._note(_ONCE, held, [f"callback:{place}", CALLBACK_OPEN])

    async def report(self, held: Held, progress: bytes) -> Verdict:
        """Keeps the newest progress report: `done`, `known` (the same), `refused`."""
        return await self._note(_REPORT, held, [_bounded(progress)])

    async def _move(self, verb: Script, cell: int, items: Sequence[Move]) -> list[Verdict]:
        assert len(items) <= BATCH_MAX, "no loop in a script is longer"
        if not items:
            return []
        arguments: list[str | bytes | int] = [self._terms.argument]
        for item in items:
            held = item.held
            arguments += (held.id, held.epoch, held.commits + 1, item.state, item.detail)
            arguments += (len(item.drop), *item.drop, *item.words())
        reply = await self._store.run(verb, [names.log(cell)], arguments)
        log_end = int(reply[0])
        return [_verdict(reply[i], reply[i + 1], log_end) for i in range(1, len(reply), 2)]

    async def _note(self, verb: Script, held: Held, words: list[str | bytes]) -> Verdict:
        arguments = [held.id, held.epoch, held.commits, *words]
        key = names.log(names.cell_of(held.id))
        outcome, version, log_end = await self._store.run(verb, [key], arguments)
        return _verdict(outcome, version, int(log_end))


def raise_refusal(held: Held, verdict: Verdict) -> None:
    """Raises what a verdict means to one who cannot go on with it."""
    match verdict.outcome:
        case "refused":
            raise LeaseLostError(f"{held.id} is not held under epoch {held.epoch} any more.")
        case "unknown":
            raise TransactionUnknownError(f"There is no transaction {held.id}.")
        case "not-running":
            raise NotRunningError(f"{held.id} does not run.")
        case "status-invalid":
            raise StatusInvalidError("That is not a final status.", field="status")
        case "fan-incomplete":
            raise IllegalTransitionError(
                f"{held.id} cannot wait for children that are not created.",
                from_state=State.RUNNING,
                to_state=State.WAITING_CHILDREN,
            )


def _verdict(outcome: Reply, version: Reply, log_end: int) -> Verdict:
    return Verdict(outcome.decode(), int(version), log_end)


def _bounded(value: bytes) -> bytes:
    if len(value) > FIELD_BYTES_MAX:
        raise TooLargeError(f"{len(value)} bytes are too much; {FIELD_BYTES_MAX} are kept.")
    return value
