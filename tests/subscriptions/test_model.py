"""The model of ordered groups and the real scripts, side by side: any path leads to the same slot.

Every step of the model that writes is a script call; after each of them groups, records, positions
and the places of heads are compared. What follows a dead letter is moved by one call here and by
single steps in the model, so the model is led on until nothing follows.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.examples import EXAMPLES, RAN, RecordProperty, example_settings
from tests.models.groups import Budget, Entry, Flight, GroupModel, Label, World
from tests.subscriptions.shard_slot import PLACE, ShardSlot, ended, main, open_shard_slot
from waystation.errors import ShardLostError
from waystation.store.embedded.server import EmbeddedServer
from waystation.subscriptions.held import Head, Settled, Settlement
from waystation.subscriptions.operating import PurgeStep
from waystation.subscriptions.record import unpack
from waystation.subscriptions.terms import Terms

STEPS_MAX = 45
WITHOUT_END = 10**6
MODEL = GroupModel(
    ((0, 1, 0, 0, 1, 0, 2, 0),),
    Budget(crashes=2, takeovers=2, losses=3, redrives=4, changes=2, skips=2, purges=1, rewinds=1),
    outcomes=("ok", "again", "never"),
    delayed=frozenset({(0, 6)}),
)


class SideBySide:
    """A world of the model, and the shard that must look like it."""

    def __init__(self, slot: ShardSlot) -> None:
        self.slot = slot
        self.world: World = MODEL.begin()
        self.held: dict[int, Head] = {}
        self.stale_terms: Terms | None = None
        #: Commits whose reply was lost, with the number of their call.
        self.lost: dict[Flight, tuple[int, Settlement]] = {}
        self.owners = self.operations = 0
        self.before = self.world

    def choices(self) -> list[tuple[Label, World]]:
        """What can happen next, but for what the model counts twice and the scripts once."""
        return [
            (label, after)
            for label, after in MODEL.steps(self.world)
            if label[0] != "!lost" or self._is_moved(label[-1])
        ]

    def _is_moved(self, flight: Any) -> bool:
        target = MODEL.target(self.world, 0, flight)
        return flight.source == "main" or flight.verdict == "ok" or bool(target)

    async def follow(self, label: Label, after: World) -> None:
        """Does with the scripts what the model has done."""
        before, self.before, self.world = self.world, self.world, after
        match label:
            case ("acquire", _) | ("!take over", _):
                if label[0] == "!take over":
                    self.stale_terms = self.slot.terms
                await self._acquire()
            case ("!crash", _):
                self.held.clear()
                self.lost.clear()
            case ("due", flight):
                await self._take(flight)
            case ("live", "commits", flight):
                await self._commit(before, flight)
            case ("!lost", "live", "commits", flight):
                await self._commit(before, flight, lost=True)
            case ("stale", "commits", flight):
                assert self.stale_terms is not None
                item = self._item(before, flight)
                with pytest.raises(ShardLostError):
                    await self.slot.commits.commit(PLACE, self.stale_terms, [item], call=1)
            case ("!policy", policy):
                self.slot.use(policy=policy)
                if self.stale_terms is not None:
                    self.stale_terms = msgspec.structs.replace(self.stale_terms, policy=policy)
            case ("!redrive", _, _) | ("!skip", _) | ("!purge", _) | ("!rewind", _):
                await self._operate(label)
            case _:
                assert label[0] in ("read", "stale reads"), label

    async def _operate(self, label: Any) -> None:
        """What an operator does, beside the owner and without telling it; each of them twice."""
        slot, self.operations = self.slot, self.operations + 1
        operation = f"op-{self.operations}"
        if label[0] == "!rewind":
            self.stale_terms = slot.terms
            slot.use(incarnation=self.world.shards[0].incarnation)
        for once in (True, False):
            match label:
                case ("!redrive", group, upto):
                    number = None if upto == WITHOUT_END else upto
                    assert await slot.redriven(f"g{group}", number, operation)
                case ("!skip", record):
                    queue = "d" if record in self.before.shards[0].dead else "r"
                    args = (operation, f"g{record.group}", f"{queue}{record.y}")
                    assert await slot.operating.skip(PLACE, *args) == "done"
                    self.held.pop(record.group, None)
                case ("!purge", group):
                    step = PurgeStep(operation=operation, group=f"g{group}", failed_before_ms=0)
                    assert ((await slot.operating.purge(PLACE, step)).messages > 0) is once
                    self.held.pop(group, None)
                case _:
                    number = self.world.shards[0].incarnation
                    assert await slot.operating.reset(PLACE, number, {"0.0": 0}) is once

    async def _acquire(self) -> None:
        self.held.clear()
        self.lost.clear()
        self.owners += 1
        await self.slot.acquire(f"owner-{self.owners}")
        await self.slot.shard.open(PLACE, self.slot.terms)

    async def _take(self, flight: Any) -> None:
        if flight.group not in self.held:
            for head in await self.slot.heads():
                self.held[int(head.group[1:])] = head
        assert self.held[flight.group].member.startswith(f"{flight.source[0]}{flight.number}.")

    def _item(self, before: World, flight: Any) -> Settlement:
        group = f"g{flight.group}"
        verdict = {"ok": "done", "never": "dead"}.get(flight.verdict, flight.verdict)
        if flight.source == "main":
            if verdict == "again" and MODEL.target(before, 0, flight) == "dead":
                verdict = "dead"
            return main(flight.number, group, verdict)
        entry = before.shards[0].entries[flight.group]
        tries = entry.tries if entry is not None else 0
        if verdict == "again" and tries >= MODEL.retries:
            verdict = "dead"
        return ended(f"{flight.source[0]}{flight.number}.{tries}", group, verdict)

    async def _commit(self, before: World, flight: Any, *, lost: bool = False) -> None:
        slot, known = self.slot, self.lost.pop(flight, None)
        slot.calls += 1
        call, item = known or (slot.calls, self._item(before, flight))
        (settled,) = await slot.commit(item, call=call)
        # An operation may have settled what was under way.
        passed = MODEL.commit(before, 0, flight) == before
        assert settled.outcome == ("known" if known or passed else "done")
        if flight.source != "main" and known is None and not passed:
            self.held.pop(flight.group, None)
        if lost:
            self.lost[flight] = (call, item)
        elif settled.next is not None:
            self.held[flight.group] = settled.next
        await self._follow_on(flight.group)
        if not lost and known is None:
            self._check_told(flight.group, settled)

    async def _follow_on(self, group: int) -> None:
        while (flight := MODEL.due(self.world.shards[0], group)) and flight.verdict == "follow":
            self.world = MODEL.commit(self.world, 0, flight)
        while await self.slot.shard.follow(PLACE, self.slot.terms, f"g{group}"):
            pass

    def _check_told(self, group: int, settled: Settled) -> None:
        entry = self.world.shards[0].entries[group]
        assert (settled.state == "clean") is (entry is None)

    async def compare(self) -> None:
        """The slot is as the model has it."""
        shard, slot = self.world.shards[0], self.slot
        lines = await slot.hash("groups")
        entries = {f"g{g}": entry for g, entry in enumerate(shard.entries) if entry is not None}
        assert lines.keys() == entries.keys()
        head = await slot.hash("head")
        assert (int(head.get("y", 0)), int(head.get("z", 0))) == (shard.last_y, shard.last_z)
        for which, records in (("retry", shard.retry), ("dead", shard.dead)):
            pairs = await slot.store.call("HGETALL", slot.key(which))
            found = {}
            for i in range(0, len(pairs), 2):
                record = unpack(pairs[i + 1])
                found[int(pairs[i])] = (record.group, record.position.offset)
            assert found == {each.y: (f"g{each.group}", each.x[2]) for each in records}
            size = sum(len(each) for each in pairs[1::2])
            count, bytes_ = head.get(f"{which}_count", "0"), head.get(f"{which}_bytes", "0")
            assert (count, bytes_) == (str(len(found)), str(size))
        low = await slot.low()
        assert {*range(low), *await slot.acks()} == shard.acked
        places = {name: set(await slot.scores(name)) for name in ("due", "taken", "failed")}
        wanted = set()
        for group, entry in entries.items():
            wanted.add(self._compare_group(group, entry, lines[group].split(" "), places))
        waiting = places["due"] | places["taken"]
        assert waiting == {each for each in wanted if " " not in each}, "nobody else waits"
        assert not places["due"] & places["taken"]

    def _compare_group(
        self, group: str, entry: Entry, words: list[str], places: dict[str, set[str]]
    ) -> str:
        """One group; returns where its head must be, once."""
        upto = WITHOUT_END if words[9] == "-" else int(words[9])
        rp, rc, rh, rn, dp, dc, dh, dn, tries = (int(each) for each in words[:9])
        found = (rp, rc, dp, dc, tries, upto)
        assert found == (entry.rp, entry.rc, entry.dp, entry.dc, entry.tries, entry.upto)
        assert (rn > 0) is (rp > rc)
        assert (dn > 0) is (dp > dc)
        if dn and not upto:
            assert f"{dh} {group}" in places["failed"]
            return f"{dh} {group}"
        member = f"d{dh}.{tries}" if dn else f"r{rh}.{tries}"
        assert (member in places["due"]) != (member in places["taken"]), "in one place, once"
        return member


async def walk(server: EmbeddedServer, data: st.DataObject) -> None:
    """One path of the model, with the scripts beside it."""
    async with open_shard_slot(server) as slot:
        both = SideBySide(slot)
        for _ in range(STEPS_MAX):
            choices = both.choices()
            if not choices:
                break
            label, after = data.draw(st.sampled_from(choices), label="step")
            await both.follow(label, after)
            MODEL.check(both.world)
            await both.compare()


def test_any_path_of_the_model_leads_to_the_same_slot(
    store_server: EmbeddedServer, record_property: RecordProperty
) -> None:
    """EXAMPLES=1000 and --timeout=0 look harder; a failure prints how to replay it."""
    ran = 0

    @example_settings(shrink=False)
    @given(data=st.data())
    def paths(data: st.DataObject) -> None:
        nonlocal ran
        ran += 1
        asyncio.run(walk(store_server, data))

    try:
        paths()
    finally:
        record_property(RAN, ran)
    assert ran >= EXAMPLES
