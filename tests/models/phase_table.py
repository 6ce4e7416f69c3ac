"""Contract of cache, TTL, archive and sleep as one table, and its comparison with the store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tests.transactions.engine_helpers import waiting_events
from tests.transactions.helpers import ARCHIVE_MS, CACHE_MS, CELL, TERMS, TransactionStore
from waystation.archive import Archive
from waystation.store.scripts import script
from waystation.transactions import names
from waystation.transactions.archive_writing import Batch, write
from waystation.transactions.head import parse
from waystation.transactions.held import Held
from waystation.transactions.loader import Loader
from waystation.transactions.signals import Signals
from waystation.transactions.states import State

#: Longest time between two scripts of one step of the walk.
SLACK_MS = 10_000
_RESUME = script("waystation.transactions", "resume")


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Row of the table: the expected places of a transaction in one phase."""

    #: Lists that may have the transaction: `in` and `out` are queues; '': no list has it.
    lists: frozenset[str] = frozenset([""])
    #: Allowed states; empty: the hash does not exist.
    states: frozenset[State] = frozenset()
    modes: frozenset[str] = frozenset()
    mortal: bool = False
    #: Whether archiving is scheduled; `snapshot`: only in that mode.
    to_archive: Literal["no", "snapshot", "delayed"] = "no"
    running: bool = False
    #: Whether it is in the set of sleepers; `kept`: as in the phase before.
    sleeping: Literal["no", "yes", "kept"] = "no"
    #: Kind of reply event that may be pending.
    event: Literal["status", "complete", "kept"] = "status"


def _of(*states: State) -> frozenset[State]:
    return frozenset(states)


_ALIVE = frozenset(["-", "snapshot"])
_REMOVE, _TTL = frozenset(["remove"]), frozenset(["ttl"])
_ASLEEP = _of(State.SLEEPING, State.WAITING_SWITCH, State.SCHEDULED)

PHASES = {
    "waiting in queue": Phase(
        lists=frozenset(["in", "out"]),
        states=_of(State.QUEUED),
        modes=_ALIVE,
        to_archive="snapshot",
    ),
    "held": Phase(
        lists=frozenset(["hold"]), states=_of(State.HELD), modes=_ALIVE, to_archive="snapshot"
    ),
    "scheduled start": Phase(
        states=_of(State.SCHEDULED), modes=_REMOVE, to_archive="delayed", sleeping="yes"
    ),
    "running": Phase(states=_of(State.RUNNING), modes=_ALIVE, to_archive="snapshot", running=True),
    "waiting for children": Phase(
        states=_of(State.WAITING_CHILDREN), modes=_ALIVE, to_archive="snapshot"
    ),
    "sleeping 1": Phase(
        states=_of(State.SLEEPING), modes=_REMOVE, to_archive="delayed", sleeping="yes"
    ),
    "sleeping 2": Phase(sleeping="yes"),
    "waiting for switch 1": Phase(
        states=_of(State.WAITING_SWITCH), modes=_REMOVE, to_archive="delayed", sleeping="yes"
    ),
    "waiting for switch 2": Phase(sleeping="yes"),
    "waiting to be archived": Phase(
        states=_of(State.COMPLETE), modes=_TTL, to_archive="delayed", event="complete"
    ),
    "archived, still cached": Phase(
        states=_of(State.COMPLETE), modes=_TTL, mortal=True, event="complete"
    ),
    "archived": Phase(event="complete"),
    "restored, not dirty": Phase(
        states=_ASLEEP | {State.COMPLETE},
        modes=_REMOVE | _TTL,
        mortal=True,
        sleeping="kept",
        event="kept",
    ),
    "after dirtying": Phase(
        states=_ASLEEP | {State.COMPLETE},
        modes=_REMOVE | _TTL,
        to_archive="delayed",
        sleeping="kept",
        event="kept",
    ),
    "cancelled while queued": Phase(
        lists=frozenset(["in", "out"]),
        states=_of(State.COMPLETE),
        modes=_TTL,
        to_archive="delayed",
        event="complete",
    ),
}


@dataclass
class Seen:
    """State of a transaction in the store at one moment."""

    lists: list[str]
    state: State | None
    mode: str
    version: int
    #: Time until expiry; None: the hash does not expire or does not exist.
    left_ms: int | None
    scores: dict[str, float]
    event: str

    @property
    def sleeping(self) -> float | None:
        return self.scores.get("sleepingZ")


@dataclass
class Walk:
    """Transaction that a test moves through all phases, with the services that move it."""

    tx: TransactionStore
    archive: Archive
    signals: Signals
    loader: Loader
    id: str = ""
    visited: list[str] = field(default_factory=list)
    before: Seen | None = None

    # -- Checks --------------------------------------------------------------------------------

    async def look(self, transaction_id: str) -> Seen:
        """Read all stored state of a transaction."""
        picture = await self.tx.picture()
        kinds = {"qInL": "in", "qOutL": "out", "holdL": "hold"}
        key = names.state(transaction_id)
        line, left = await self.tx.store.call("HGET", key, "head"), None
        if line is not None:
            left = await self.tx.store.call("PTTL", key)
        head = parse(line) if line is not None else None
        events = await waiting_events(self.tx.store)
        return Seen(
            lists=[
                kinds[name.partition(":")[0]]
                for name, ids in picture.lists.items()
                for each in ids
                if each == transaction_id
            ],
            state=head.state if head else None,
            mode=(head.archive or "-") if head else "",
            version=head.version if head else 0,
            left_ms=left if left is not None and left >= 0 else None,
            scores={
                name: ids[transaction_id]
                for name, ids in picture.sets.items()
                if transaction_id in ids
            },
            event=events.get(transaction_id, ""),
        )

    async def at(self, phase: str, *, event: str | None = None, other: str = "") -> Seen:
        """Check that the transaction is in a phase, and return its state.

        `event` is the kind of the pending reply event, '' for none.
        """
        row, seen, now_ms = PHASES[phase], await self.look(other or self.id), await self.tx.now_ms()
        told = f"{phase}: {seen}"
        assert frozenset(seen.lists or [""]) <= row.lists, told
        assert len(seen.lists) <= 1, told
        if row.states:
            assert seen.state in row.states, told
            assert seen.mode in row.modes, told
        else:
            assert seen.state is None, told
        if row.mortal:
            assert 0 < (seen.left_ms or 0) <= CACHE_MS, told
        else:
            assert seen.left_ms is None, told
        self._check_sets(row, seen, now_ms, told)
        if not other:
            self._check_before(row, seen, event, told)
            self.before = seen
        self.visited.append(phase)
        return seen

    def _check_sets(self, row: Phase, seen: Seen, now_ms: int, told: str) -> None:
        due = seen.scores.get("toArchiveZ")
        match row.to_archive:
            case "no":
                assert due is None, told
            case "snapshot":
                assert due is None or (seen.mode == "snapshot" and due <= now_ms), told
            case "delayed":
                assert due is not None, told
                assert now_ms + ARCHIVE_MS - SLACK_MS <= due <= now_ms + ARCHIVE_MS, told
        for name in ("processingZ", "leaseZ"):
            assert (name in seen.scores) == row.running, told
        if row.sleeping != "kept":
            assert (seen.sleeping is not None) == (row.sleeping == "yes"), told

    def _check_before(self, row: Phase, seen: Seen, event: str | None, told: str) -> None:
        before = self.before
        if row.sleeping == "kept":
            assert before, told
            assert seen.sleeping == before.sleeping, told
        kind = seen.event.partition(" ")[0]
        if row.event == "kept":
            assert before, told
            assert seen.event == before.event or event is not None, told
        else:
            assert kind in ("", row.event), told
        if event is not None:
            assert kind == event, told

    # -- Moves ---------------------------------------------------------------------------------

    async def archived(self) -> None:
        """Archive all due transactions and confirm them."""
        await self.tx.machine.advance(ARCHIVE_MS / 1000 + 1)
        await self.tx.archiving.turn(CELL, node="a", most=0, flight="leave")
        turn = await self.tx.archiving.turn(CELL, node="a", most=100)
        assert self.id in {each.id for each in turn.items}
        done = await write(self.archive, Batch.of(turn.items, turn.now_ms))
        await self.tx.archiving.turn(CELL, node="a", most=0, confirmed=done)

    async def row_version(self) -> int:
        """Return the version of the transaction in the archive."""
        return (await self.archive.get([self.id]))[self.id].version

    async def claimed(self) -> Held:
        """Claim the transaction."""
        (claimed,) = await self.tx.claim()
        assert claimed.held.id == self.id
        return claimed.held

    async def pause(self, *, paused: bool) -> None:
        """Pause or resume the pipeline of the transaction."""
        await self.tx.define(paused=paused)
        if not paused:
            words = (TERMS.argument, "p", 100)
            await self.tx.store.run(_RESUME, [names.log(CELL)], words)
