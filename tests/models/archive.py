"""Model of archiving: steps of archivers and loaders, lost writes, and a replay on the store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Literal, NamedTuple

import msgspec

from tests.transactions.archive_helpers import miss
from tests.transactions.helpers import CELL, GRACE_MS, TAG, TransactionStore
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

#: Queued, running, asleep, complete.
State = Literal["q", "r", "s", "c"]
Mode = Literal["-", "snapshot", "remove", "ttl"]

ARCHIVERS = (0, 1)
#: The first loader wakes the transaction. The others read, switch, cancel, expire or sweep it.
LOADERS = (0, 1, 2)
WAKER = 0


class Row(NamedTuple):
    """Version and state in the archive or in the memory of an archiver or loader."""

    version: int
    state: State
    #: Written after the store lost writes: an equal version can have other content.
    late: bool = False


class Cached(NamedTuple):
    """State of the transaction in the store."""

    version: int
    state: State
    mode: Mode
    mortal: bool = False
    late: bool = False

    @property
    def row(self) -> Row:
        """The same state as a row of the archive."""
        return Row(self.version, self.state, self.late)


class Reading(NamedTuple):
    """Progress of an archiver with the row that it has read."""

    row: Row
    written: bool = False
    #: Archiving was scheduled again after the read.
    anew: bool = False
    #: Version of the archive, if it is higher.
    above: int = 0


class Loading(NamedTuple):
    """Progress of a loader: its nonce, and the row after the read."""

    nonce: int
    row: Row | None = None


class World(NamedTuple):
    """State of the transaction in the store, the archive and all processes."""

    cached: Cached | None
    #: Newest committed state.
    newest: Row
    archived: Row | None = None
    to_archive: bool = False
    sleeping: bool = False
    nonce: int = 0
    #: Last issued nonce.
    nonces: int = 0
    archivers: tuple[Reading | None, ...] = (None, None)
    loaders: tuple[Loading | None, ...] = (None, None, None)
    #: Whether the store has lost writes.
    late: bool = False


class Rules(NamedTuple):
    """Rules of archiving. All apply unless a test turns one off.

    Without any one of them, a state is lost or an old state returns.
    """

    #: The archive accepts only a higher version.
    versions: bool = True
    #: A loaded state is stored only if the nonce of its miss is still valid.
    nonces: bool = True
    #: A confirm applies only to the version that was read.
    confirms: bool = True
    #: Every write removes the expiry.
    persists: bool = True
    #: A wake-up cancels the removal from the store.
    unscheduled: bool = True
    #: If the archive has a higher version after a loss, the store's version is raised above it.
    lifts: bool = True


QUEUED = World(Cached(1, "q", "-"), Row(1, "q"))
SCHEDULED = World(Cached(1, "s", "remove"), Row(1, "s"), to_archive=True, sleeping=True)

Step = tuple[str, World]


def steps(world: World, rules: Rules) -> Iterator[Step]:
    """Yield each possible next step by name.

    A digit at the end is the number of the archiver or loader.
    """
    if world.cached:
        yield from _of_the_store(world, world.cached, rules)
        if world.cached.mortal:
            yield "expiry", world._replace(cached=None)
    if world.nonce:
        yield "nonce-ends", world._replace(nonce=0)
    for number in ARCHIVERS:
        yield from _archiver(world, number, rules)
    for number in LOADERS:
        yield from _loader(world, number, rules)


def _of_the_store(world: World, now: Cached, rules: Rules) -> Iterator[Step]:
    """Yield the steps of the worker and of clients while the store has the transaction."""
    match now.state:
        case "q":
            yield "claim", _put(world, "r", now.mode, rules)
            yield "switch-early", _put(world, "q", now.mode, rules)
            yield "cancel", _put(world, "c", "ttl", rules, archive=True)
        case "r":
            yield "commit", _put(world, "r", now.mode, rules)
            yield "checkpoint", _put(world, "r", "snapshot", rules, archive=True)
            yield "requeue", _put(world, "q", now.mode, rules)
            yield "sleep", _put(world, "s", "remove", rules, archive=True)
            yield "finish", _put(world, "c", "ttl", rules, archive=True)
        case "s":
            yield "wake", _woken(world, rules)
            yield "switch-wakes", _put(world, "q", "snapshot", rules, archive=True)
            yield "switch-other", _put(world, "s", "remove", rules, archive=True)
            yield "cancel", _put(world, "c", "ttl", rules, archive=True)
        case "c":
            yield "note", _put(world, "c", "ttl", rules, archive=True)


def _put(
    world: World, state: State, mode: Mode, rules: Rules, *, archive: bool | None = None
) -> World:
    """Write the next version.

    `archive` schedules or cancels archiving; None leaves it as before.
    """
    assert world.cached
    version = world.cached.version + 1
    mortal = world.cached.mortal and not rules.persists
    after = world._replace(
        cached=Cached(version, state, mode, mortal, world.late),
        newest=Row(version, state, world.late),
        sleeping=state == "s",
    )
    if archive is None:
        return after
    if archive:
        anew = tuple(each and each._replace(anew=True) for each in world.archivers)
        after = after._replace(archivers=anew)
    return after._replace(to_archive=archive)


def _woken(world: World, rules: Rules) -> World:
    archive = False if rules.unscheduled else None
    return _put(world, "q", "-", rules, archive=archive)


# -- Archivers -------------------------------------------------------------------------------


def _archiver(world: World, number: int, rules: Rules) -> Iterator[Step]:
    reading = world.archivers[number]
    if reading is None:
        if world.to_archive and world.cached:
            reading = Reading(world.cached.row)
            yield f"read{number}", _with_archiver(world, number, reading)
        return
    yield f"die{number}", _with_archiver(world, number, None)
    if reading.written:
        yield f"confirm{number}", _confirmed(_with_archiver(world, number, None), reading, rules)
    else:
        yield f"upsert{number}", _upserted(world, number, reading, rules)


def _upserted(world: World, number: int, reading: Reading, rules: Rules) -> World:
    there = world.archived
    if there is None or reading.row.version > there.version or not rules.versions:
        there, above = reading.row, 0
    else:
        above = there.version if there != reading.row else 0
    after = _with_archiver(world, number, reading._replace(written=True, above=above))
    return after._replace(archived=there)


def _confirmed(world: World, reading: Reading, rules: Rules) -> World:
    now = world.cached
    if now is None:
        return world._replace(to_archive=False)
    same = now.version == reading.row.version or not rules.confirms
    if same and reading.above >= now.version:
        lifted = Cached(reading.above + 1, now.state, now.mode, late=world.late)
        after = world._replace(cached=lifted, newest=lifted.row, to_archive=True)
        return after if rules.lifts else world
    if now.mode == "snapshot":
        return world if reading.anew else world._replace(to_archive=False)
    if same and now.mode == "remove":
        return world._replace(cached=None, to_archive=False)
    if same and now.mode == "ttl":
        return world._replace(cached=now._replace(mortal=True), to_archive=False)
    return world._replace(to_archive=False) if same else world


def _with_archiver(world: World, number: int, reading: Reading | None) -> World:
    first, second = world.archivers
    return world._replace(archivers=(first, reading) if number else (reading, second))


# -- Loaders ---------------------------------------------------------------------------------


def _loader(world: World, number: int, rules: Rules) -> Iterator[Step]:
    loading = world.loaders[number]
    if loading is None:
        if world.cached is None and (number != WAKER or world.sleeping):
            yield f"miss{number}", _missed(world, number)
    elif loading.row is None:
        after = _with_loader(world, number, loading._replace(row=world.archived))
        yield f"load{number}", after
    else:
        yield f"restore{number}", _restored(world, number, loading, loading.row, rules)


def _missed(world: World, number: int) -> World:
    if not world.nonce:
        world = world._replace(nonce=world.nonces + 1, nonces=world.nonces + 1)
    return _with_loader(world, number, Loading(world.nonce))


def _restored(world: World, number: int, loading: Loading, row: Row, rules: Rules) -> World:
    world = _with_loader(world, number, None)
    if world.cached is None and (loading.nonce == world.nonce or not rules.nonces):
        mode: Mode = "remove" if row.state == "s" else "ttl"
        cached = Cached(row.version, row.state, mode, True, row.late)
        world = world._replace(cached=cached, nonce=0)
        if row != world.newest:
            return world
    if number == WAKER and world.cached and world.cached.state == "s":
        return _woken(world, rules)
    return world


def _with_loader(world: World, number: int, loading: Loading | None) -> World:
    loaders = list(world.loaders)
    loaders[number] = loading
    return world._replace(loaders=tuple(loaders))


# -- Promises --------------------------------------------------------------------------------


def flaw(world: World) -> str:
    """Return the violated promise; '' if all hold."""
    now, newest = world.cached, world.newest
    if now is None:
        if world.archived != newest:
            return "lost"
        if newest.state not in "sc":
            return "live, but not in the store"
    else:
        if now.row != newest:
            return "an old state in the store"
        if now.mortal and world.archived != newest:
            return "it expires, but the archive does not have it"
        if world.nonce:
            return "a nonce for a state that the store has"
        if now.state in "qr" and (now.mortal or (world.to_archive and now.mode != "snapshot")):
            return "scheduled for removal while it is live"
        if now.state in "sc" and not now.mortal and not world.to_archive:
            return "never archived"
    if world.sleeping != (newest.state == "s"):
        return "asleep without a wake-up time, or the reverse"
    return ""


#: Bound of versions, because after a loss their values matter and not only their order.
VERSION_MAX = 4


class Lossy(NamedTuple):
    """State of the model, and a former state of the store that a crash can restore."""

    world: World
    past: World | None = None


def lossy_steps(now: Lossy, rules: Rules) -> Iterator[tuple[str, Lossy]]:
    """Yield each possible next step, with a backup and a loss of the store.

    One archiver and one loader of each kind take part, to keep the number of states small.
    """
    world, past = now
    if is_over(world):
        return
    for name, after in steps(world, rules):
        if name not in _OF_OTHERS and _is_small(after):
            yield name, Lossy(_found_again(_renumbered(after)), past)
    if past is None and not world.late:
        yield "backup", Lossy(world, world)
    elif past is not None:
        yield "loss", Lossy(_lost(world, past))


#: The second archiver, the third loader.
_OF_OTHERS = {"read1", "miss2"}


def _is_small(world: World) -> bool:
    return world.newest.version <= VERSION_MAX + 2 * world.late


def is_over(world: World) -> bool:
    """Return True if the store has lost the transaction and the archive has only a live state."""
    row = world.archived
    return world.late and world.cached is None and row is not None and row.state in "qr"


def _lost(world: World, past: World) -> World:
    newest = past.cached.row if past.cached else world.archived
    assert newest, "the archive has every state that the store lacks"
    return past._replace(
        archived=world.archived,
        archivers=(None, None),
        loaders=(None, None, None),
        newest=newest,
        nonce=0,
        nonces=0,
        late=True,
    )


def _found_again(world: World) -> World:
    """Replace the newest state by the archive's if that is newer.

    This applies to a transaction that left the store unchanged since the loss.
    """
    row, newest = world.archived, world.newest
    if world.late and world.cached is None and row and not newest.late:
        return world._replace(newest=max(row, newest))
    return world


def _renumbered(world: World) -> World:
    """Return the same state with the lowest nonces, so that equal states compare equal."""
    tickets = {0: 0}
    for nonce in (world.nonce, *(each.nonce for each in world.loaders if each)):
        tickets.setdefault(nonce, len(tickets))
    loaders = tuple(each and each._replace(nonce=tickets[each.nonce]) for each in world.loaders)
    nonce = tickets[world.nonce]
    return world._replace(nonce=nonce, nonces=len(tickets), loaders=loaders)


def lossy_flaw(now: Lossy, rules: Rules) -> str:
    """Return the violated promise; '' if all hold."""
    world = now.world
    if not world.late:
        return flaw(world)
    if is_over(world):
        return ""
    row, cached, newest = world.archived, world.cached, world.newest
    leaves = cached is None or cached.mortal
    if leaves and (row is None or (row != newest if newest.late else row < newest)):
        return "lost"
    if cached and cached.row != newest:
        return "an old state in the store"
    if newest.state == "s" and not world.sleeping:
        return "asleep without a wake-up time"
    if cached and cached.state in "sc" and not cached.mortal and not _settles(world, rules):
        return "never archived"
    return ""


def _settles(world: World, rules: Rules) -> bool:
    """Return True if one archiver alone brings the archive to the state of the store."""
    world = world._replace(archivers=tuple(None for _ in ARCHIVERS))
    for name in ("read0", "upsert0", "confirm0") * 2:
        world = dict(steps(world, rules)).get(name, world)
    return world.archived == world.newest and (world.cached is None or world.cached.mortal)


#: Terms without delays: archiving is due immediately, and so are loads given to another node.
AT_ONCE = Terms(
    dataset="ds-test", archive_delay_ms=0, external_id_ms=1000, cache_ms=300_000, load_ms=0
)
LETTER: dict[str, State] = {"queued": "q", "running": "r", "complete": "c"}


def letter(state: str) -> State:
    """Return the model's letter of a state. All states without a letter are kinds of sleep."""
    return LETTER.get(state, "s")


class Replay:
    """Replay of one path of the model on a real store."""

    def __init__(self, tx: TransactionStore, archive: Archive, number: int) -> None:
        self.tx, self.archive = tx, archive
        self.group = f"g{number}"
        self.id = ""
        self.held: Held | None = None
        self.writes = 0
        #: State by number of the archiver or loader.
        self.turns: dict[int, ArchiveTurn] = {}
        self.confirmed: dict[int, list[Confirmed]] = {}
        self.missing: dict[int, tuple[Missing, LoadMode]] = {}
        self.found: dict[int, Restoration] = {}
        #: Whether the transaction waits for a switch.
        self.waits = False
        store = tx.store
        self.holding, self.progress = Holding(store, AT_ONCE), Progress(store, AT_ONCE)
        self.signals, self.restoring = Signals(store, AT_ONCE), Restoring(store, AT_ONCE)
        self.archiving = Archiving(store, AT_ONCE, role_ms=60_000, grace_ms=5_000)

    async def begin(self, *, scheduled: bool) -> World:
        """Start a transaction whose deadline has passed, so that `expire` can always load it."""
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
        """Run one step of the model."""
        if name[-1].isdigit():
            await getattr(self, f"_{name[:-1]}")(int(name[-1]))
        else:
            await getattr(self, f"_{name.replace('-', '_')}")()

    def next_state(self) -> bytes:
        self.writes += 1
        return b"state-%d" % self.writes

    def after(self) -> Held:
        """Return the current lease, and count the commit that the caller makes with it."""
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
        # Advance the time, so that a confirm can detect writes after the read.
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

    # -- Comparison ----------------------------------------------------------------------------

    async def compare(self, world: World) -> None:
        """Check that store and archive are in the state of the model."""
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
