"""A path of the model of one transaction, walked on the scripts, with a real archive."""

from __future__ import annotations

import asyncio

import msgspec

from tests.kit.archive_model import QUEUED, SCHEDULED, WAKER, Cached, Mode, Row, State, World
from tests.kit.archive_shelf import miss
from tests.kit.transaction_store import CELL, GRACE_MS, TAG, TransactionStore
from waystation.archive import Archive, join_hash
from waystation.transactions import names
from waystation.transactions.archive_writing import Batch, write
from waystation.transactions.archiving import ArchiveTurn, Archiving, Confirmed
from waystation.transactions.cells import Terms
from waystation.transactions.entry import Entry
from waystation.transactions.head import parse
from waystation.transactions.held import Held
from waystation.transactions.holding import Holding
from waystation.transactions.progress import Commit, Finish, Progress, Sleep
from waystation.transactions.restoring import LoadMode, Missing, Restoration, Restoring
from waystation.transactions.signals import Signals
from waystation.transactions.states import Status

#: What is to be archived is due at once, and so is what somebody else was given to load.
AT_ONCE = Terms(
    dataset="ds-test", archive_delay_ms=0, external_id_ms=1000, cache_ms=300_000, load_ms=0
)
LETTER: dict[str, State] = {"queued": "q", "running": "r", "complete": "c"}


def letter(state: str) -> State:
    """A state as the model calls it; all others are kinds of sleep."""
    return LETTER.get(state, "s")


class Replay:
    """One path of the model, on the store."""

    def __init__(self, tx: TransactionStore, archive: Archive, number: int) -> None:
        self.tx, self.archive = tx, archive
        self.group = f"g{number}"
        self.id = ""
        self.held: Held | None = None
        self.writes = 0
        #: By archiver, and by loader.
        self.turns: dict[int, ArchiveTurn] = {}
        self.confirmed: dict[int, list[Confirmed]] = {}
        self.missing: dict[int, tuple[Missing, LoadMode]] = {}
        self.found: dict[int, Restoration] = {}
        #: Whether it sleeps until a switch changes.
        self.waits = False
        store = tx.store
        self.holding, self.progress = Holding(store, AT_ONCE), Progress(store, AT_ONCE)
        self.signals, self.restoring = Signals(store, AT_ONCE), Restoring(store, AT_ONCE)
        self.archiving = Archiving(store, AT_ONCE, role_ms=60_000, grace_ms=5_000)

    async def begin(self, *, scheduled: bool) -> World:
        """A transaction whose deadline is over, so that expire may load it whenever it is asked."""
        kept = {names.log(CELL), f"{names.log(CELL)}:head", names.pipeline(CELL, "default", "p")}
        old = {key.decode() for key in await self.tx.store.call("KEYS", f"{TAG}*")} - kept
        if old:
            await self.tx.store.call("DEL", *old)
        delay_ms = 1 if scheduled else 0
        new = self.tx.new(group=self.group, deadline_in_ms=1, delay_ms=delay_ms)
        (started,) = await Entry(self.tx.store, AT_ONCE).start(CELL, [new])
        assert started.outcome == "started", started
        self.id = new.id
        await self.tx.machine.advance(0.01)
        return SCHEDULED if scheduled else QUEUED

    async def do(self, name: str) -> None:
        """One step."""
        if name[-1].isdigit():
            await getattr(self, f"_{name[:-1]}")(int(name[-1]))
        else:
            await getattr(self, f"_{name.replace('-', '_')}")()

    def next_state(self) -> bytes:
        self.writes += 1
        return b"state-%d" % self.writes

    def after(self) -> Held:
        """Whom the holder is now; the next move has one commit more."""
        assert self.held
        held, self.held = (
            self.held,
            msgspec.structs.replace(self.held, commits=self.held.commits + 1),
        )
        return held

    # -- Worker --------------------------------------------------------------------------------

    async def _claim(self) -> None:
        claim = await self.holding.claim(
            CELL, self.group, node="n", number=1, most=100, lease_ms=60_000
        )
        (claimed,) = claim.items
        self.held = claimed.held

    async def _commit(self, *, snapshot: bool = False) -> None:
        commit = Commit(held=self.after(), state=self.next_state(), snapshot=snapshot)
        (verdict,) = await self.progress.commit(CELL, [commit])
        assert verdict.outcome == "done"

    async def _checkpoint(self) -> None:
        await self._commit(snapshot=True)

    async def _requeue(self) -> None:
        assert self.held
        await self.holding.release(CELL, [self.held])

    async def _sleep(self) -> None:
        kept = await self.tx.store.call("HGET", names.state(self.id), "switches") or b""
        sleep = Sleep(
            held=self.after(),
            state=self.next_state(),
            delay_ms=0,
            switch="go",
            acknowledged=kept.decode().replace("!", ""),
        )
        (verdict,) = await self.progress.sleep(CELL, [sleep])
        assert verdict.outcome == "waiting"
        self.waits = True

    async def _finish(self) -> None:
        finish = Finish(
            held=self.after(), state=self.next_state(), status=Status.SUCCESS, output=b"1"
        )
        (verdict,) = await self.progress.finish(CELL, [finish])
        assert verdict.outcome == "done"

    # -- From outside, and by time -------------------------------------------------------------

    async def _switch(self, name: str) -> str:
        self.writes += 1
        return (await self.signals.set_switch("default", self.id, name, self.writes)).outcome

    async def _switch_early(self) -> None:
        assert await self._switch("early") == "updated"

    async def _switch_other(self) -> None:
        assert await self._switch("other") == "updated"

    async def _switch_wakes(self) -> None:
        assert await self._switch("go") == "woken"

    async def _wake(self) -> None:
        assert (await self.signals.wake_due(CELL)).done == 1

    async def _cancel(self) -> None:
        (done,) = await self.signals.cancel("default", [self.id], cause="", grace_ms=GRACE_MS)
        assert done.outcome == "cancelled"

    async def _note(self) -> None:
        await self.signals.note_replies(CELL, [(self.id, "failed", self.next_state().decode())])

    async def _expiry(self) -> None:
        assert await self.tx.store.call("PTTL", names.state(self.id)) > 0
        await self.tx.store.call("PEXPIRE", names.state(self.id), 0)

    async def _nonce_ends(self) -> None:
        await self.tx.machine.advance(120)

    # -- Archivers -----------------------------------------------------------------------------

    async def _read(self, number: int) -> None:
        # Later than what it reads was asked for, so that a confirm can tell what came since.
        await self.tx.machine.advance(0.002)
        await self.archiving.turn(CELL, node=f"a{1 - number}", most=0, flight="leave")
        turn = await self.archiving.turn(CELL, node=f"a{number}", most=1)
        assert [each.id for each in turn.items] == [self.id]
        self.turns[number] = turn

    async def _upsert(self, number: int) -> None:
        turn = self.turns[number]
        self.confirmed[number] = await write(self.archive, Batch.of(turn.items, turn.now_ms))

    async def _confirm(self, number: int) -> None:
        done = self.confirmed.pop(number)
        await self.archiving.turn(CELL, node=f"a{number}", most=0, confirmed=done)

    async def _die(self, number: int) -> None:
        self.turns.pop(number, None)
        self.confirmed.pop(number, None)

    # -- Loaders -------------------------------------------------------------------------------

    async def _miss(self, number: int) -> None:
        deadline = await self.tx.store.call("ZSCORE", f"{TAG}deadlineZ", self.id)
        mode: LoadMode = ""
        if number == WAKER:
            mode, due = "wake", await self.signals.wake_due(CELL, loads=1)
            (missing,) = due.missing
        elif number == 2 and deadline is not None:
            mode, due = "deadline", await self.signals.expire(CELL, grace_ms=GRACE_MS, loads=1)
            (missing,) = due.missing
        else:
            (missing,) = await miss(self.tx, self.id)
        self.missing[number] = missing, mode

    async def _load(self, number: int) -> None:
        missing, _ = self.missing[number]
        row = (await self.archive.get([self.id]))[self.id]
        self.found[number] = Restoration(missing, join_hash(row.packed, row.fields))

    async def _restore(self, number: int) -> None:
        _, mode = self.missing.pop(number)
        await self.restoring.restore(CELL, [self.found.pop(number)], mode=mode)

    # -- What there is -------------------------------------------------------------------------

    async def compare(self, world: World) -> None:
        """What the store and the archive have is what the model has."""
        call, key = self.tx.store.call, names.state(self.id)
        minute = await self.tx.now_ms() // 60_000
        loads = [names.load_nonces(CELL, minute - back) for back in (0, 1)]
        line, left, due, asleep, *nonces, rows = await asyncio.gather(
            call("HGET", key, "head"),
            call("PTTL", key),
            call("ZSCORE", f"{TAG}toArchiveZ", self.id),
            call("ZSCORE", f"{TAG}sleepingZ", self.id),
            *(call("HGET", each, self.id) for each in loads),
            self.archive.get([self.id]),
        )
        row = rows.get(self.id)
        assert world == world._replace(
            cached=Cached(*_facts(line), _mode(line), left >= 0) if line else None,
            archived=Row(*_facts(join_hash(row.packed, row.fields)[b"head"])) if row else None,
            to_archive=due is not None,
            sleeping=asleep is not None,
            nonce=max((int(each) for each in nonces if each), default=0),
        )


def _facts(line: bytes) -> tuple[int, State]:
    head = parse(line)
    return head.version, letter(head.state)


def _mode(line: bytes) -> Mode:
    modes: dict[str, Mode] = {"snapshot": "snapshot", "remove": "remove", "ttl": "ttl", "": "-"}
    return modes[parse(line).archive]
