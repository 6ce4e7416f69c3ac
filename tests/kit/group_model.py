"""Ordered groups in plain Python: all that can happen to them, one step at a time.

A world is an immutable value; `GroupModel.steps` lists every step that is possible in it, with the
world that comes of it. A step is what one process or one script does without being interrupted: to
send a request, to commit its outcome, to die, to be taken for dead, to redrive. Time is left out:
whatever waits may be due at any moment. `GroupModel.check` and the sending of a request raise
`Broken` where a promise does not hold.

Each rule of `Rules` can be left out, to see that the promises depend on it. With `split` the push
and the commit are two steps, as they must be where the log of retries is not in the shard's slot.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.kit.group_scripts import GroupScripts
from tests.kit.group_world import (
    Broken,
    Entry,
    Flight,
    Owner,
    Record,
    Shard,
    World,
    X,
    drop,
    kept,
    put_at,
    seat,
    spend,
    swap,
)

#: What happens, and the world after it. What begins with `!` need never happen.
Label = tuple[object, ...]
Step = tuple[Label, World]


class GroupModel(GroupScripts):
    """The steps and the promises."""

    def begin(self) -> World:
        """A new subscription; nobody owns its shards yet."""
        count = len(self.logs)
        shard = Shard(0, 1, frozenset(), (), (), (None,) * self.groups)
        none = (None,) * count
        return World((shard,) * count, none, none, none, self.policy, self.budget)

    # -- Steps -------------------------------------------------------------------------------

    def steps(self, world: World) -> Iterator[Step]:
        """All that can happen next."""
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
        """The owner reads the main log, and looks after heads that are due."""
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
        """Who was taken for dead sends what it had read: so a message may come a second time."""
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
        """Whether the owner reads on for a group."""
        others = (entry for g, entry in enumerate(shard.entries) if g != group)
        return self.rules.reads_on or all(entry is None for entry in others)

    def _next(self, shard: Shard, h: int, group: int, owner: Owner) -> int | None:
        """The next message of a group in the main log."""
        taken = {flight.number for flight in owner.flights if flight.source == "main"}
        left = [off for off in range(len(self.logs[h])) if off not in shard.acked]
        if not self.rules.finishes_storage:
            left.sort(key=lambda off: off < self.switched_at)
        elif left and left[0] < self.switched_at:
            left = [off for off in left if off < self.switched_at]
        return next((off for off in left if off not in taken and self.logs[h][off] == group), None)

    def _take(self, world: World, h: int, owner: Owner, flight: Flight) -> World:
        """A message is under way; unless it is only to be moved, a request is sent for it."""
        if not flight.verdict:
            self._check_order(world, flight)
            if flight.x in world.settled:
                raise Broken("settled once", f"{flight.x} is attempted again")
        owner = owner._replace(flights=tuple(sorted((*owner.flights, flight))))
        return world._replace(live=put_at(world.live, h, owner))

    def _check_order(self, world: World, flight: Flight) -> None:
        """The promise of order: all before it is settled."""
        incarnation, h, off = flight.x
        for earlier, of in enumerate(self.logs[h][:off]):
            if of == flight.group and (incarnation, h, earlier) not in world.settled:
                raise Broken("order", f"{flight.x} is attempted before {earlier}")
        for x in world.owed - world.settled:
            if x < flight.x and self.logs[x[1]][x[2]] == flight.group:
                raise Broken("order", f"{flight.x} is attempted before {x}")

    # -- Outcomes ----------------------------------------------------------------------------

    def _land(self, world: World, h: int, owner: Owner, *, stale: bool) -> Iterator[Step]:
        """Requests end, and what came of them is pushed and committed."""
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
                        # The reply is lost: the same commit will be sent again.
                        done = self._committed(world, h, where, flight, named, keep=True)
                        yield ("!lost", *label), spend(done, "losses")

    def _committed(
        self, world: World, h: int, where: str, flight: Flight, named: Flight, *, keep: bool = False
    ) -> World:
        """The commit script, and what its caller makes of the reply."""
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

    # -- What nobody can prevent, and what operators do ----------------------------------------

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
                # The whole group with all that will come, or its first message alone.
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
        """Settles the head of a group; the rest is due. The owner is not told."""
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
        """Settles all that a group has; the owner is not told."""
        shard = world.shards[h]
        gone = {record.x for record in (*shard.retry, *shard.dead) if record.group == g}
        shard = shard._replace(
            retry=tuple(record for record in shard.retry if record.group != g),
            # What stands alone was settled when it died.
            dead=tuple(record for record in shard.dead if not self._is_kept(shard, record, g)),
            entries=put_at(shard.entries, g, None),
        )
        return world._replace(shards=put_at(world.shards, h, shard), settled=world.settled | gone)

    def _is_kept(self, shard: Shard, record: Record, g: int) -> bool:
        return record.group == g and self.counts(shard, record, "dead")

    def _rewind(self, world: World, h: int) -> World:
        """Back to the beginning, in a new incarnation and a new epoch."""
        shard = world.shards[h]
        owed = world.owed | {(shard.incarnation, h, off) for off in shard.acked}
        shard = shard._replace(acked=frozenset(), incarnation=shard.incarnation + 1)
        world = world._replace(owed=owed)
        if self.rules.rewind_fences:
            shard = shard._replace(epoch=shard.epoch + 1)
            world = seat(seat(world, h, "stale", world.live[h]), h, "live", None)
        return world._replace(shards=put_at(world.shards, h, shard))

    def _reshard(self, world: World, h: int) -> Iterator[Step]:
        """Into a new generation: freeze, copy, publish; or give it up before that."""
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
        """All records that count, in all shards."""
        for shard in world.shards:
            for where, records in (("retry", shard.retry), ("dead", shard.dead)):
                yield from (each for each in records if self.counts(shard, each, where))

    def check(self, world: World) -> None:
        """What must hold in every world."""
        stored = [record.x for record in self._stored(world)]
        kept = {*stored, *world.settled}
        for x in world.owed:
            if x not in kept:
                raise Broken("no loss", f"{x} is gone")
        if not self.split and len(set(stored)) < len(stored):
            raise Broken("settled once", f"kept twice: {stored}")
        if not self.split and not world.settled.isdisjoint(stored):
            raise Broken("settled once", f"settled and kept: {stored}")
        for h, shard in enumerate(world.shards):
            for off in shard.acked:
                if (shard.incarnation, h, off) not in kept:
                    raise Broken("no loss", f"{off} of shard {h} is acknowledged and gone")
            self._check_shard(world, h, shard, stored)

    def _check_shard(self, world: World, h: int, shard: Shard, stored: list[X]) -> None:
        if not self.split:
            incarnations = sum(each.incarnation for each in world.shards)
            if max(shard.last_y, shard.last_z) > 4 * incarnations * sum(map(len, self.logs)):
                raise Broken("independence", "messages are pushed round and round")
            for where, records in (("retry", shard.retry), ("dead", shard.dead)):
                for record in records:
                    if not self.counts(shard, record, where) and record.x not in world.settled:
                        raise Broken("no loss", f"{record} in {where} is nobody's")
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
        """Where nothing more happens by itself, all is settled or parked."""
        for h, shard in enumerate(world.shards):
            if len(shard.acked) < len(self.logs[h]):
                raise Broken("progress", f"shard {h} does not go on")
            for g, entry in enumerate(shard.entries):
                if entry is not None and (entry.rp > entry.rc or entry.upto):
                    raise Broken("progress", f"group {g} does not go on: {entry}")
