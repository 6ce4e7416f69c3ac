"""What is written of ordered groups: the one table of what a commit does to a group."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tests.kit.group_world import (
    ALL_RULES,
    Budget,
    Entry,
    Flight,
    Record,
    Rules,
    Shard,
    World,
    X,
    below,
    drop,
    kept,
    put_at,
)


@dataclass(frozen=True)
class GroupScripts:
    """A subscription. `logs`: for each shard the groups of its messages, in order."""

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
    #: Offset at which the next storage topic begins; 0: there is one alone.
    switched_at: int = 0
    #: Whether an owner that was taken for dead goes on to send what it had read.
    zombies: bool = False

    @cached_property
    def groups(self) -> int:
        """How many groups there are."""
        return 1 + max(group for log in self.logs for group in log)

    # -- Heads -------------------------------------------------------------------------------

    def due(self, shard: Shard, group: int) -> Flight | None:
        """The head of a group, if it is to be attempted, moved or dropped."""
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
            # Before it is moved, too: c.x never goes back.
            verdict = "double"
        elif entry.dp > entry.dc and self.rules.rest_follows:
            if entry.upto:
                return None
            verdict = "follow"
        if not self.rules.passes_itself:
            verdict = "itself"
        return Flight(group, "retry", retry.y, retry.x, verdict)

    def is_double(self, x: X, settled: X) -> bool:
        """Split: whether a record is there a second time, by the message settled before it."""
        if not self.rules.rewind_renews:
            x, settled = (0, *x[1:]), (0, *settled[1:])
        return self.split and x <= settled

    def head(self, shard: Shard, group: int, where: str) -> Record | None:
        """The first record of a group that counts."""
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
        """Where a message is pushed before it is committed; empty: it is not."""
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
        """What a commit writes, all at once; nothing where it was written before."""
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
        """The group's entry after a commit, and whether the message is settled by it."""
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
        """The entry after an attempt for a dead letter."""
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
