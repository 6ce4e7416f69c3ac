"""One transaction between store and archive, in plain Python: all that can happen to it.

Two archivers, three who load, the worker, those who reach it from outside, and time. Each does one
call at a time, anything may come between two calls, and an archiver may die after each. Versions
and load nonces are numbers that only grow, and nobody looks at more than which is the higher: so a
world is the same as another whose numbers have the same order, and a search that holds to that is
finite without a bound on either.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

#: Queued, running, asleep, complete.
State = Literal["q", "r", "s", "c"]
Mode = Literal["-", "snapshot", "remove", "ttl"]

ARCHIVERS = (0, 1)
#: The first wakes what it loads; the others are a look, a switch, a cancel, a deadline, a sweep.
LOADERS = (0, 1, 2)
WAKER = 0


class Row(NamedTuple):
    """What the archive has, or somebody has in his hands."""

    version: int
    state: State
    #: Written since the store has lost something: the same number may be of another content then.
    late: bool = False


class Cached(NamedTuple):
    """What the store has."""

    version: int
    state: State
    mode: Mode
    mortal: bool = False
    late: bool = False

    @property
    def row(self) -> Row:
        """As the archive would have it."""
        return Row(self.version, self.state, self.late)


class Reading(NamedTuple):
    """An archiver: what it has read, and what became of it."""

    row: Row
    written: bool = False
    #: Archiving was asked for again since it was read.
    anew: bool = False
    #: The version of the archive, if that is higher.
    above: int = 0


class Loading(NamedTuple):
    """One who loads: its nonce, and the row once it has read it."""

    nonce: int
    row: Row | None = None


class World(NamedTuple):
    """The transaction, wherever it is."""

    cached: Cached | None
    #: The newest that ever was.
    newest: Row
    archived: Row | None = None
    to_archive: bool = False
    sleeping: bool = False
    nonce: int = 0
    #: The last nonce that was given out.
    nonces: int = 0
    archivers: tuple[Reading | None, ...] = (None, None)
    loaders: tuple[Loading | None, ...] = (None, None, None)
    #: The store has lost something, see `archive_loss`.
    late: bool = False


class Rules(NamedTuple):
    """What holds it together; without any of them something is lost, or an old state comes back."""

    #: The archive takes a higher version alone.
    versions: bool = True
    #: What was loaded is saved under the nonce of its miss alone.
    nonces: bool = True
    #: A confirm counts for the version that was read.
    confirms: bool = True
    #: Every write takes the expiry away.
    persists: bool = True
    #: What wakes is not to be removed any more.
    unscheduled: bool = True
    #: What the archive has in a higher version, since the store has lost some, gets above that.
    lifts: bool = True


QUEUED = World(Cached(1, "q", "-"), Row(1, "q"))
SCHEDULED = World(Cached(1, "s", "remove"), Row(1, "s"), to_archive=True, sleeping=True)

Step = tuple[str, World]


def steps(world: World, rules: Rules) -> Iterator[Step]:
    """All that can happen next, by name; a digit says which archiver or loader does it."""
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
    """Worker, and those who reach it while it is in the store."""
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
    """The next version; `archive`: whether it is to be archived from now on, None: as before."""
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


# -- What always holds -----------------------------------------------------------------------


def flaw(world: World) -> str:
    """What is wrong; empty if nothing is."""
    now, newest = world.cached, world.newest
    if now is None:
        if world.archived != newest:
            return "lost"
        if newest.state not in "sc":
            return "alive, and not in the store"
    else:
        if now.row != newest:
            return "an old one in the store"
        if now.mortal and world.archived != newest:
            return "it expires, and the archive does not have it"
        if world.nonce:
            return "a nonce for what is there"
        if now.state in "qr" and (now.mortal or (world.to_archive and now.mode != "snapshot")):
            return "to be removed while it is alive"
        if now.state in "sc" and not now.mortal and not world.to_archive:
            return "never archived"
    if world.sleeping != (newest.state == "s"):
        return "asleep, and nobody wakes it; or the reverse"
    return ""
