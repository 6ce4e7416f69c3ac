"""The world of ordered groups: immutable values, and the rules that can be left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

#: A message: incarnation, shard, offset in the main log of that shard.
X = tuple[int, int, int]


class Broken(Exception):  # noqa: N818
    """A promise does not hold; `promise` says which."""

    def __init__(self, promise: str, detail: str) -> None:
        super().__init__(f"{promise}: {detail}")
        self.promise = promise


@dataclass(frozen=True)
class Rules:
    """The rules of the protocol; all of them hold unless a test leaves one out."""

    #: The entry of a group begins with c just below p, not at nothing …
    begins_below: bool = True
    #: … and not at p.
    begins_apart: bool = True
    #: New messages go behind those in retry, even when there are dead letters of the group.
    retry_before_dead: bool = True
    #: A head that failed stays the head.
    stays_head: bool = True
    #: A message out of retry is not held up by itself.
    passes_itself: bool = True
    #: When a message is parked, the rest of its group follows it without attempts.
    rest_follows: bool = True
    #: Under `skip` a dead letter stops nobody, now or later.
    skip_forgets: bool = True
    #: While dead letters are redriven, new messages go behind them.
    redrive_holds: bool = True
    #: What fails again after a redrive stays where it is.
    parks_in_place: bool = True
    #: A group has one message under way in its owner.
    one_at_a_time: bool = True
    #: Commits of an older epoch are refused.
    epochs: bool = True
    #: Who was refused stops, and does not try again.
    refused_stops: bool = True
    #: A message that was acknowledged is not committed a second time.
    knows_repetitions: bool = True
    #: A commit counts for the head alone.
    checks_head: bool = True
    #: A rewind raises the epoch …
    rewind_fences: bool = True
    #: … and the incarnation, by which a message that is read again is another one.
    rewind_renews: bool = True
    #: Messages are acknowledged one by one.
    acknowledges_each: bool = True
    #: A storage topic is finished before the next one is read.
    finishes_storage: bool = True
    #: A group that waits does not hold up its partition.
    reads_on: bool = True
    #: Retry and dead letters lie with the shard that owns the group.
    own_slot: bool = True
    #: A shard takes no commits while its state is copied to a new generation.
    freezes: bool = True
    #: Split: a record counts between c and p alone.
    drops_orphans: bool = True
    #: Split: to drop a duplicate is to settle it.
    drop_settles: bool = True


ALL_RULES = Rules()


class Record(NamedTuple):
    """A message in retry or among dead letters; `y` is its number there."""

    y: int
    group: int
    x: X


class Entry(NamedTuple):
    """A group that is not clean: p and c of retry and of dead letters, and its head."""

    rp: int = 0
    rc: int = 0
    rcx: X = (0, 0, -1)
    dp: int = 0
    dc: int = 0
    dcx: X = (0, 0, -1)
    tries: int = 0
    #: Dead letters up to this number are due; 0: the group is parked.
    upto: int = 0


class Shard(NamedTuple):
    """What a shard has in its slot."""

    epoch: int
    incarnation: int
    acked: frozenset[int]
    retry: tuple[Record, ...]
    dead: tuple[Record, ...]
    entries: tuple[Entry | None, ...]
    last_y: int = 0
    last_z: int = 0
    frozen: bool = False


class Flight(NamedTuple):
    """A message under way in a process: where it came from, and what came of it so far."""

    group: int
    source: str
    number: int
    x: X
    verdict: str = ""
    #: Its number in retry or among dead letters, once it was pushed there.
    target: str = ""
    pushed: int = 0


class Owner(NamedTuple):
    """A process that owns a shard, or believes so; `unclean` are groups as it knows them."""

    epoch: int
    incarnation: int
    unclean: frozenset[int]
    flights: tuple[Flight, ...] = ()
    #: Of one that was taken for dead: offsets that it had read and not begun.
    line: frozenset[int] = frozenset()


class Budget(NamedTuple):
    """How often each thing may still happen that nobody can prevent."""

    crashes: int = 0
    takeovers: int = 0
    losses: int = 0
    rewinds: int = 0
    redrives: int = 0
    skips: int = 0
    purges: int = 0
    changes: int = 0
    reshards: int = 0


class World(NamedTuple):
    """Everything."""

    shards: tuple[Shard, ...]
    live: tuple[Owner | None, ...]
    stale: tuple[Owner | None, ...]
    #: Of a shard that is frozen: its state in the generation to come.
    copies: tuple[Shard | None, ...]
    policy: str
    budget: Budget
    #: Settled for good; and what was acknowledged in incarnations that are over.
    settled: frozenset[X] = frozenset()
    owed: frozenset[X] = frozenset()


def put_at(items: tuple, index: int, item: object) -> tuple:  # type: ignore[type-arg]
    return (*items[:index], item, *items[index + 1 :])


def below(x: X) -> X:
    return (x[0], x[1], x[2] - 1)


def kept(entry: Entry) -> Entry | None:
    """An entry as it is stored: none for a clean group, no redrive without dead letters."""
    if entry.dp <= entry.dc:
        return None if entry.rp <= entry.rc else entry._replace(upto=0)
    return entry


def spend(world: World, what: str) -> World:
    left = getattr(world.budget, what) - 1
    return world._replace(budget=world.budget._replace(**{what: left}))


def seat(world: World, h: int, where: str, owner: Owner | None) -> World:
    """Puts an owner in its place; one that has nothing to say any more is as good as none."""
    if where == "live":
        return world._replace(live=put_at(world.live, h, owner))
    if owner is not None and not owner.flights and not owner.line:
        owner = None
    return world._replace(stale=put_at(world.stale, h, owner))


def swap(world: World, h: int, where: str, flight: Flight, other: Flight | None) -> World:
    owner = (world.live if where == "live" else world.stale)[h]
    assert owner is not None
    flights = list(owner.flights)
    flights.remove(flight)
    if other is not None:
        flights.append(other)
    return seat(world, h, where, owner._replace(flights=tuple(sorted(flights))))


def drop(shard: Shard, flight: Flight) -> Shard:
    """Takes a record out that was settled or moved; one that stays the head stays."""
    if flight.verdict in ("again", "never") and not flight.pushed:
        return shard
    if flight.source == "retry":
        kept = tuple(record for record in shard.retry if record.y != flight.number)
        return shard._replace(retry=kept)
    kept = tuple(record for record in shard.dead if record.y != flight.number)
    return shard._replace(dead=kept)
