"""Model of ordered groups: state and scripts of a subscription, and the steps of its owners."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

#: A message: incarnation, shard, offset in the main log of that shard.
X = tuple[int, int, int]


class Broken(Exception):  # noqa: N818
    """Violation of the promise that `promise` names."""

    def __init__(self, promise: str, detail: str) -> None:
        super().__init__(f"{promise}: {detail}")
        self.promise = promise


@dataclass(frozen=True)
class Rules:
    """Rules of the protocol. All apply unless a test turns one off."""

    #: The entry of a group starts with c just below p, not at 0 …
    begins_below: bool = True
    #: … and not at p.
    begins_apart: bool = True
    #: New messages go behind those in retry, even when there are dead letters of the group.
    retry_before_dead: bool = True
    #: A head that failed stays the head.
    stays_head: bool = True
    #: A message in retry does not block itself.
    passes_itself: bool = True
    #: If a message is parked, the rest of its group becomes dead letters without attempts.
    rest_follows: bool = True
    #: Under `skip`, a dead letter never blocks its group.
    skip_forgets: bool = True
    #: While dead letters are redriven, new messages go behind them.
    redrive_holds: bool = True
    #: A dead letter that fails again after a redrive keeps its place.
    parks_in_place: bool = True
    #: A group has at most one delivery in progress in its owner.
    one_at_a_time: bool = True
    #: The store rejects commits of an older epoch.
    epochs: bool = True
    #: An owner whose commit was rejected stops and does not repeat it.
    refused_stops: bool = True
    #: A commit of an acknowledged message changes nothing.
    knows_repetitions: bool = True
    #: A commit applies only to the head of the group.
    checks_head: bool = True
    #: A rewind raises the epoch …
    rewind_fences: bool = True
    #: … and the incarnation, so that a message that is read again counts as another message.
    rewind_renews: bool = True
    #: Messages are acknowledged one by one.
    acknowledges_each: bool = True
    #: A storage topic is finished before the next one is read.
    finishes_storage: bool = True
    #: A blocked group does not block its partition.
    reads_on: bool = True
    #: Retries and dead letters are in the cluster slot of the shard that owns the group.
    own_slot: bool = True
    #: A shard takes no commits while its state is copied to a new generation.
    freezes: bool = True
    #: Split writes: a record is valid only between c and p.
    drops_orphans: bool = True
    #: Split writes: dropping a duplicate settles it.
    drop_settles: bool = True


ALL_RULES = Rules()


class Record(NamedTuple):
    """Message in retry or among dead letters; `y` is its number there."""

    y: int
    group: int
    x: X


class Entry(NamedTuple):
    """State of a group that is not clean: p and c of retry and of dead letters, and its head."""

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
    """Stored state of a shard."""

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
    """Delivery in progress: the source of the message, and its outcome so far."""

    group: int
    source: str
    number: int
    x: X
    verdict: str = ""
    #: Queue to which the message was pushed, and its number there.
    target: str = ""
    pushed: int = 0


class Owner(NamedTuple):
    """Process that owns a shard, or that has not noticed the loss of its lease."""

    epoch: int
    incarnation: int
    unclean: frozenset[int]
    flights: tuple[Flight, ...] = ()
    #: Of a stale owner: offsets that it read and has not started to deliver.
    line: frozenset[int] = frozenset()


class Budget(NamedTuple):
    """Number of faults and operations of each kind that can still happen."""

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
    """State of the whole model: shards, owners and settled messages."""

    shards: tuple[Shard, ...]
    live: tuple[Owner | None, ...]
    stale: tuple[Owner | None, ...]
    #: State of a frozen shard in the next generation.
    copies: tuple[Shard | None, ...]
    policy: str
    budget: Budget
    #: Settled messages; and messages acknowledged in former incarnations.
    settled: frozenset[X] = frozenset()
    owed: frozenset[X] = frozenset()


def put_at(items: tuple, index: int, item: object) -> tuple:  # type: ignore[type-arg]
    return (*items[:index], item, *items[index + 1 :])


def below(x: X) -> X:
    return (x[0], x[1], x[2] - 1)


def kept(entry: Entry) -> Entry | None:
    """Return the entry to store: None for a clean group, no redrive without dead letters."""
    if entry.dp <= entry.dc:
        return None if entry.rp <= entry.rc else entry._replace(upto=0)
    return entry


def spend(world: World, what: str) -> World:
    left = getattr(world.budget, what) - 1
    return world._replace(budget=world.budget._replace(**{what: left}))


def seat(world: World, h: int, where: str, owner: Owner | None) -> World:
    """Replace an owner. A stale owner without pending work is removed."""
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
    """Remove a record that was settled or moved. A head that stays the head is not removed."""
    if flight.verdict in ("again", "never") and not flight.pushed:
        return shard
    if flight.source == "retry":
        kept = tuple(record for record in shard.retry if record.y != flight.number)
        return shard._replace(retry=kept)
    kept = tuple(record for record in shard.dead if record.y != flight.number)
    return shard._replace(dead=kept)


@dataclass(frozen=True)
class GroupScripts:
    """Scripts of a subscription. `logs` has the groups of the messages of each shard, in order."""

    logs: tuple[tuple[int, ...], ...]
    budget: Budget
    rules: Rules = ALL_RULES
    policy: str = "park"
    #: Attempts after the first.
    retries: int = 1
    outcomes: tuple[str, ...] = ("ok", "again")
    split: bool = False
    #: Messages (shard, offset) with a time before which they are not delivered.
    delayed: frozenset[tuple[int, int]] = frozenset()
    #: First offset of the next storage topic; 0: the topic has one storage topic.
    switched_at: int = 0
    #: Whether a stale owner continues to send messages that it has read.
    zombies: bool = False

    @cached_property
    def groups(self) -> int:
        """Number of groups."""
        return 1 + max(group for log in self.logs for group in log)

    # -- Heads -------------------------------------------------------------------------------

    def due(self, shard: Shard, group: int) -> Flight | None:
        """Return the head of a group if it must be attempted, moved or dropped, else None."""
        entry = shard.entries[group]
        if entry is None:
            if not self.rules.drops_orphans:
                found = [record for record in shard.retry if record.group == group]
                return Flight(group, "retry", found[0].y, found[0].x) if found else None
            return None
        dead, retry = self.head(shard, group, "dead"), self.head(shard, group, "retry")
        if entry.dp > entry.dc and dead is not None and entry.upto:
            verdict = "double" if self.is_double(dead.x, entry.dcx) else ""
            return Flight(group, "dead", dead.y, dead.x, verdict)
        if retry is None:
            return None
        verdict = ""
        if self.is_double(retry.x, entry.rcx):
            # Check this before a move, too, because c.x never decreases.
            verdict = "double"
        elif entry.dp > entry.dc and self.rules.rest_follows:
            if entry.upto:
                return None
            verdict = "follow"
        if not self.rules.passes_itself:
            verdict = "itself"
        return Flight(group, "retry", retry.y, retry.x, verdict)

    def is_double(self, x: X, settled: X) -> bool:
        """Return True if a record is a duplicate of the message settled before it.

        Only split writes create duplicates.
        """
        if not self.rules.rewind_renews:
            x, settled = (0, *x[1:]), (0, *settled[1:])
        return self.split and x <= settled

    def head(self, shard: Shard, group: int, where: str) -> Record | None:
        """Return the first valid record of a group in retry or among its dead letters."""
        records = shard.retry if where == "retry" else shard.dead
        for record in records:
            if record.group == group and (
                not self.rules.drops_orphans or self.counts(shard, record, where)
            ):
                return record
        return None

    @staticmethod
    def counts(shard: Shard, record: Record, where: str) -> bool:
        entry = shard.entries[record.group]
        if entry is None:
            return False
        low, high = (entry.rc, entry.rp) if where == "retry" else (entry.dc, entry.dp)
        return low < record.y <= high

    # -- The table ---------------------------------------------------------------------------

    def target(self, world: World, h: int, flight: Flight) -> str:
        """Return the queue to which a commit moves the message: `retry`, `dead`, or ''."""
        shard = world.shards[self._slot(h)]
        entry = shard.entries[flight.group]
        tries = entry.tries if entry is not None and flight.source == "retry" else 0
        match flight.verdict:
            case "late" | "itself":
                return "retry"
            case "follow":
                return "dead"
            case "behind":
                return self._behind(entry)
            case "again" if flight.source != "dead":
                if tries >= self.retries:
                    return "dead"
                tail = not self.rules.stays_head
                return "retry" if flight.source == "main" or tail else ""
            case "never" if flight.source != "dead":
                return "dead"
            case "again" | "never" if not self.rules.parks_in_place and entry is not None:
                return "dead" if flight.verdict == "never" or entry.tries >= self.retries else ""
        return ""

    def _behind(self, entry: Entry | None) -> str:
        if entry is None:
            return "retry"
        if entry.dp > entry.dc and not (self.rules.retry_before_dead and entry.rp > entry.rc):
            return "dead"
        return "retry"

    def _slot(self, h: int) -> int:
        return h if self.rules.own_slot else (h + 1) % len(self.logs)

    def push(self, world: World, h: int, target: str, flight: Flight) -> tuple[World, int]:
        slot = self._slot(h)
        shard = world.shards[slot]
        if target == "retry":
            y = shard.last_y + 1
            record = Record(y, flight.group, flight.x)
            shard = shard._replace(last_y=y, retry=(*shard.retry, record))
        else:
            y = shard.last_z + 1
            record = Record(y, flight.group, flight.x)
            shard = shard._replace(last_z=y, dead=(*shard.dead, record))
        return world._replace(shards=put_at(world.shards, slot, shard)), y

    def commit(self, world: World, h: int, flight: Flight) -> World:
        """Apply a commit atomically. A repeated commit changes nothing."""
        shard = world.shards[h]
        if flight.source == "main":
            if flight.number in shard.acked and self.rules.knows_repetitions:
                return world
        elif self.rules.checks_head:
            head = self.head(shard, flight.group, flight.source)
            if head is None or head.y != flight.number:
                return world
        if not self.split and (target := self.target(world, h, flight)):
            world, y = self.push(world, h, target, flight)
            flight = flight._replace(target=target, pushed=y)
        slot = self._slot(h)
        shard = world.shards[slot]
        entry, settled = self._entry(world, shard, flight)
        if flight.source != "main":
            shard = drop(shard, flight)
        shard = shard._replace(entries=put_at(shard.entries, flight.group, entry))
        world = world._replace(shards=put_at(world.shards, slot, shard))
        if flight.source == "main":
            shard = world.shards[h]
            acked = {flight.number} if self.rules.acknowledges_each else range(flight.number + 1)
            shard = shard._replace(acked=shard.acked.union(acked))
            world = world._replace(shards=put_at(world.shards, h, shard))
        return world._replace(settled=world.settled | {flight.x}) if settled else world

    def _entry(self, world: World, shard: Shard, flight: Flight) -> tuple[Entry | None, bool]:
        """Return the group's entry after a commit, and whether the commit settles the message."""
        entry = shard.entries[flight.group] or Entry()
        x = flight.x
        y = flight.pushed if flight.target == "retry" else 0
        z = flight.pushed if flight.target == "dead" else 0
        settled = flight.verdict == "ok"
        if flight.source == "retry" and (flight.target or flight.verdict in ("ok", "double")):
            if flight.verdict != "double" or self.rules.drop_settles:
                rcx = entry.rcx if flight.verdict == "double" else x
                entry = entry._replace(rc=flight.number, rcx=rcx, tries=0)
        elif flight.source == "retry":
            entry = entry._replace(tries=entry.tries + 1)
        elif flight.source == "dead":
            entry = self._redriven(entry, flight, z)
        if y:
            fresh = entry.rp <= entry.rc
            entry = entry._replace(rp=y)
            if fresh:
                tries = 1 if flight.verdict == "again" else 0
                entry = entry._replace(rc=y - self.rules.begins_apart, rcx=below(x), tries=tries)
                if not self.rules.begins_below:
                    entry = entry._replace(rc=0, rcx=Entry().rcx)
        if z and flight.source != "dead":
            parks = flight.verdict in ("behind", "follow") or world.policy == "park"
            settled = not parks
            if parks or not self.rules.skip_forgets:
                if entry.dp <= entry.dc:
                    entry = entry._replace(dc=z - 1, dcx=below(x))
                entry = entry._replace(dp=z)
        return kept(entry), settled

    def _redriven(self, entry: Entry, flight: Flight, z: int) -> Entry:
        """Return the entry after an attempt for a dead letter."""
        if flight.verdict in ("ok", "double"):
            if flight.verdict == "double" and not self.rules.drop_settles:
                return entry
            upto = entry.upto if entry.upto > flight.number else 0
            dcx = entry.dcx if flight.verdict == "double" else flight.x
            return entry._replace(dc=flight.number, dcx=dcx, tries=0, upto=upto)
        if flight.verdict == "again" and entry.tries < self.retries:
            return entry._replace(tries=entry.tries + 1)
        if z:
            return entry._replace(dp=z, dc=flight.number, dcx=flight.x, tries=0, upto=0)
        return entry._replace(tries=0, upto=0)


#: Name of a step, and the state after it. A step whose name starts with `!` is optional.
Label = tuple[object, ...]
Step = tuple[Label, World]


class GroupModel(GroupScripts):
    """Steps of owners, faults and operations, and the checks of all promises."""

    def begin(self) -> World:
        """Return the state of a new subscription whose shards have no owner."""
        count = len(self.logs)
        shard = Shard(0, 1, frozenset(), (), (), (None,) * self.groups)
        none = (None,) * count
        return World((shard,) * count, none, none, none, self.policy, self.budget)

    # -- Steps -------------------------------------------------------------------------------

    def steps(self, world: World) -> Iterator[Step]:
        """Yield each possible next step with its label."""
        for h, live in enumerate(world.live):
            if live is None:
                if not world.shards[h].frozen:
                    yield ("acquire", h), self._acquire(world, h)
            else:
                yield from self._work(world, h, live)
                yield from self._land(world, h, live, stale=False)
            if (stale := world.stale[h]) is not None:
                yield from self._go_on(world, h, stale)
                yield from self._land(world, h, stale, stale=True)
        for h in range(len(self.logs)):
            yield from self._faults(world, h)
            yield from self._operations(world, h)

    def _acquire(self, world: World, h: int) -> World:
        shard = world.shards[h]
        shard = shard._replace(epoch=shard.epoch + 1)
        unclean = frozenset(g for g, entry in enumerate(shard.entries) if entry is not None)
        owner = Owner(shard.epoch, shard.incarnation, unclean)
        return world._replace(
            shards=put_at(world.shards, h, shard), live=put_at(world.live, h, owner)
        )

    def _work(self, world: World, h: int, owner: Owner) -> Iterator[Step]:
        """Yield the deliveries that the owner can start, from the main log and from due heads."""
        busy = {flight.group for flight in owner.flights}
        shard = world.shards[h]
        for g in range(self.groups):
            if g in busy and self.rules.one_at_a_time:
                continue
            off = self._next(shard, h, g, owner)
            if off is not None and self.may_read(shard, g):
                x = (owner.incarnation, h, off)
                verdict = "late" if (h, off) in self.delayed else ""
                verdict = "behind" if g in owner.unclean else verdict
                entry = shard.entries[g]
                if not self.rules.redrive_holds and entry is not None and entry.upto:
                    verdict = ""
                flight = Flight(g, "main", off, x, verdict)
                yield ("read", flight), self._take(world, h, owner, flight)
            if g in busy:
                continue
            if (head := self.due(shard, g)) is not None:
                yield ("due", head), self._take(world, h, owner, head)

    def _go_on(self, world: World, h: int, stale: Owner) -> Iterator[Step]:
        """Yield the deliveries that a stale owner still starts from messages in its memory.

        They are the reason why a message can arrive twice.
        """
        busy = {flight.group for flight in stale.flights} | stale.unclean
        for g in set(range(self.groups)) - busy:
            offsets = [off for off in stale.line if self.logs[h][off] == g]
            if offsets:
                off = min(offsets)
                flight = Flight(g, "main", off, (stale.incarnation, h, off))
                self._check_order(world, flight)
                flights = tuple(sorted((*stale.flights, flight)))
                after = stale._replace(flights=flights, line=stale.line - {off})
                yield ("stale reads", flight), seat(world, h, "stale", after)

    def may_read(self, shard: Shard, group: int) -> bool:
        """Return True if the owner may read further messages of a group."""
        others = (entry for g, entry in enumerate(shard.entries) if g != group)
        return self.rules.reads_on or all(entry is None for entry in others)

    def _next(self, shard: Shard, h: int, group: int, owner: Owner) -> int | None:
        """Return the offset of the next unread message of a group; None at the end of the log."""
        taken = {flight.number for flight in owner.flights if flight.source == "main"}
        left = [off for off in range(len(self.logs[h])) if off not in shard.acked]
        if not self.rules.finishes_storage:
            left.sort(key=lambda off: off < self.switched_at)
        elif left and left[0] < self.switched_at:
            left = [off for off in left if off < self.switched_at]
        return next((off for off in left if off not in taken and self.logs[h][off] == group), None)

    def _take(self, world: World, h: int, owner: Owner, flight: Flight) -> World:
        """Start a delivery. Check its order, unless the message is only moved."""
        if not flight.verdict:
            self._check_order(world, flight)
            if flight.x in world.settled:
                raise Broken("settled once", f"{flight.x} is attempted again")
        owner = owner._replace(flights=tuple(sorted((*owner.flights, flight))))
        return world._replace(live=put_at(world.live, h, owner))

    def _check_order(self, world: World, flight: Flight) -> None:
        """Raise Broken unless all earlier messages of the group are settled."""
        incarnation, h, off = flight.x
        for earlier, of in enumerate(self.logs[h][:off]):
            if of == flight.group and (incarnation, h, earlier) not in world.settled:
                raise Broken("order", f"{flight.x} is attempted before {earlier}")
        for x in world.owed - world.settled:
            if x < flight.x and self.logs[x[1]][x[2]] == flight.group:
                raise Broken("order", f"{flight.x} is attempted before {x}")

    # -- Outcomes ----------------------------------------------------------------------------

    def _land(self, world: World, h: int, owner: Owner, *, stale: bool) -> Iterator[Step]:
        """Yield the ends of attempts, and the pushes and commits of their outcomes."""
        where = "stale" if stale else "live"
        for flight in owner.flights:
            if flight.verdict:
                verdicts: tuple[str, ...] = (flight.verdict,)
            else:
                verdicts = self.outcomes
            for verdict in verdicts:
                named = flight._replace(verdict=verdict)
                target = "" if flight.pushed else self.target(world, h, named)
                if self.split and target:
                    pushed, y = self.push(world, h, target, named)
                    landed = named._replace(target=target, pushed=y)
                    yield (where, "pushes", landed), swap(pushed, h, where, flight, landed)
                else:
                    label = (where, "commits", named)
                    yield label, self._committed(world, h, where, flight, named)
                    if world.budget.losses and not stale:
                        # The reply is lost, so the owner sends the same commit again.
                        done = self._committed(world, h, where, flight, named, keep=True)
                        yield ("!lost", *label), spend(done, "losses")

    def _committed(
        self, world: World, h: int, where: str, flight: Flight, named: Flight, *, keep: bool = False
    ) -> World:
        """Apply the commit script, and the reaction of its caller to the reply."""
        shard = world.shards[h]
        owner = (world.live if where == "live" else world.stale)[h]
        assert owner is not None
        refused = owner.epoch != shard.epoch and self.rules.epochs
        if refused or (shard.frozen and self.rules.freezes):
            if not self.rules.refused_stops:
                again = owner._replace(epoch=shard.epoch)
                return seat(world, h, where, again)
            return seat(world, h, where, None)
        world = self.commit(world, h, named)
        unclean = owner.unclean - {flight.group}
        if world.shards[h].entries[flight.group] is not None:
            unclean |= {flight.group}
        world = seat(world, h, where, owner._replace(unclean=unclean))
        return swap(world, h, where, flight, named if keep else None)

    # -- Faults and operations -----------------------------------------------------------------

    def _faults(self, world: World, h: int) -> Iterator[Step]:
        live, budget = world.live[h], world.budget
        if live is not None and budget.crashes:
            yield ("!crash", h), spend(seat(world, h, "live", None), "crashes")
        if live is not None and budget.takeovers and not world.shards[h].frozen:
            if self.zombies:
                taken = {flight.number for flight in live.flights if flight.source == "main"}
                rest = frozenset(range(len(self.logs[h]))) - world.shards[h].acked - taken
                live = live._replace(line=rest)
            stalled = seat(seat(world, h, "stale", live), h, "live", None)
            yield ("!take over", h), spend(self._acquire(stalled, h), "takeovers")
        if budget.changes:
            other = "skip" if world.policy == "park" else "park"
            yield ("!policy", other), spend(world._replace(policy=other), "changes")

    def _operations(self, world: World, h: int) -> Iterator[Step]:
        shard, budget = world.shards[h], world.budget
        if budget.rewinds and not shard.frozen:
            yield ("!rewind", h), spend(self._rewind(world, h), "rewinds")
        for g, entry in enumerate(shard.entries):
            if entry is None or shard.frozen:
                continue
            if budget.redrives and entry.dp > entry.dc and not entry.upto:
                # Redrive the whole group with later messages, or only its first message.
                first = self.head(shard, g, "dead")
                for upto in {10**6, first.y if first is not None else entry.dc + 1}:
                    marked = put_at(shard.entries, g, entry._replace(upto=upto, tries=0))
                    shards = put_at(world.shards, h, shard._replace(entries=marked))
                    changed = world._replace(shards=shards)
                    yield ("!redrive", g, upto), spend(changed, "redrives")
            if budget.skips:
                yield from self._skip(world, h, g, entry)
            if budget.purges:
                yield ("!purge", g), spend(self._purge(world, h, g), "purges")
        yield from self._reshard(world, h)

    def _skip(self, world: World, h: int, g: int, entry: Entry) -> Iterator[Step]:
        """Yield the settlement of a group's head.

        The rest becomes due without notice to the owner.
        """
        shard = world.shards[h]
        where = "dead" if entry.dp > entry.dc else "retry"
        head = self.head(shard, g, where)
        if head is None:
            return
        if where == "dead":
            changed = entry._replace(dc=head.y, dcx=head.x, tries=0, upto=10**6)
        else:
            changed = entry._replace(rc=head.y, rcx=head.x, tries=0)
        shard = drop(shard, Flight(g, where, head.y, head.x))
        shard = shard._replace(entries=put_at(shard.entries, g, kept(changed)))
        world = world._replace(
            shards=put_at(world.shards, h, shard), settled=world.settled | {head.x}
        )
        yield ("!skip", head), spend(world, "skips")

    def _purge(self, world: World, h: int, g: int) -> World:
        """Settle all messages of a group. The owner gets no notice."""
        shard = world.shards[h]
        gone = {record.x for record in (*shard.retry, *shard.dead) if record.group == g}
        shard = shard._replace(
            retry=tuple(record for record in shard.retry if record.group != g),
            # A standalone dead letter was settled when it failed, so it stays.
            dead=tuple(record for record in shard.dead if not self._is_kept(shard, record, g)),
            entries=put_at(shard.entries, g, None),
        )
        return world._replace(shards=put_at(world.shards, h, shard), settled=world.settled | gone)

    def _is_kept(self, shard: Shard, record: Record, g: int) -> bool:
        return record.group == g and self.counts(shard, record, "dead")

    def _rewind(self, world: World, h: int) -> World:
        """Return to the start of the log, in a new incarnation and a new epoch."""
        shard = world.shards[h]
        owed = world.owed | {(shard.incarnation, h, off) for off in shard.acked}
        shard = shard._replace(acked=frozenset(), incarnation=shard.incarnation + 1)
        world = world._replace(owed=owed)
        if self.rules.rewind_fences:
            shard = shard._replace(epoch=shard.epoch + 1)
            world = seat(seat(world, h, "stale", world.live[h]), h, "live", None)
        return world._replace(shards=put_at(world.shards, h, shard))

    def _reshard(self, world: World, h: int) -> Iterator[Step]:
        """Yield the steps of a reshard: freeze, copy, publish.

        Before the last step, unfreeze can cancel it.
        """
        shard, copy = world.shards[h], world.copies[h]
        if not shard.frozen:
            if world.budget.reshards:
                frozen = put_at(world.shards, h, shard._replace(frozen=True))
                yield ("!freeze", h), spend(world._replace(shards=frozen), "reshards")
            return
        if copy is None:
            yield ("copy", h), world._replace(copies=put_at(world.copies, h, shard))
            return
        released = put_at(world.shards, h, shard._replace(frozen=False))
        over = world._replace(copies=put_at(world.copies, h, None))
        yield ("!unfreeze", h), over._replace(shards=released)
        opened = copy._replace(frozen=False, epoch=max(copy.epoch, shard.epoch) + 1)
        over = over._replace(shards=put_at(world.shards, h, opened))
        yield ("publish", h), seat(seat(over, h, "stale", world.live[h]), h, "live", None)

    # -- Promises ----------------------------------------------------------------------------

    def _stored(self, world: World) -> Iterator[Record]:
        """Yield all valid records of all shards."""
        for shard in world.shards:
            for where, records in (("retry", shard.retry), ("dead", shard.dead)):
                yield from (each for each in records if self.counts(shard, each, where))

    def check(self, world: World) -> None:
        """Raise Broken if a promise does not hold in this state."""
        stored = [record.x for record in self._stored(world)]
        kept = {*stored, *world.settled}
        for x in world.owed:
            if x not in kept:
                raise Broken("no loss", f"{x} is lost")
        if not self.split and len(set(stored)) < len(stored):
            raise Broken("settled once", f"kept twice: {stored}")
        if not self.split and not world.settled.isdisjoint(stored):
            raise Broken("settled once", f"settled and kept: {stored}")
        for h, shard in enumerate(world.shards):
            for off in shard.acked:
                if (shard.incarnation, h, off) not in kept:
                    raise Broken("no loss", f"{off} of shard {h} is acknowledged and lost")
            self._check_shard(world, h, shard, stored)

    def _check_shard(self, world: World, h: int, shard: Shard, stored: list[X]) -> None:
        if not self.split:
            incarnations = sum(each.incarnation for each in world.shards)
            if max(shard.last_y, shard.last_z) > 4 * incarnations * sum(map(len, self.logs)):
                raise Broken("independence", "messages are pushed round and round")
            for where, records in (("retry", shard.retry), ("dead", shard.dead)):
                for record in records:
                    if not self.counts(shard, record, where) and record.x not in world.settled:
                        raise Broken("no loss", f"{record} in {where} belongs to no group")
            for off in range(len(self.logs[h])):
                if off not in shard.acked and (shard.incarnation, h, off) in stored:
                    raise Broken("settled once", f"{off} is kept and will be read again")
        live = world.live[h]
        for g, entry in enumerate(shard.entries):
            if entry is not None and (entry.rp < entry.rc or entry.dp < entry.dc):
                raise Broken("settled once", f"c of group {g} is beyond p: {entry}")
            if live is None or entry is not None or any(f.group == g for f in live.flights):
                continue
            if self._next(shard, h, g, live) is not None and not self.may_read(shard, g):
                raise Broken("independence", f"group {g} waits for another")

    def check_end(self, world: World) -> None:
        """Raise Broken if a final state has messages that are neither settled nor parked."""
        for h, shard in enumerate(world.shards):
            if len(shard.acked) < len(self.logs[h]):
                raise Broken("progress", f"shard {h} makes no progress")
            for g, entry in enumerate(shard.entries):
                if entry is not None and (entry.rp > entry.rc or entry.upto):
                    raise Broken("progress", f"group {g} makes no progress: {entry}")
