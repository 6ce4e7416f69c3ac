"""Archive, wake, switch and look racing each other: every order of their calls.

The search knows no store. The replay runs random paths of it on the scripts, with a real archive,
and finds after each step what the model says: so what holds in the one holds in the other.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from functools import cache
from pathlib import Path
from typing import Generic, TypeVar

import pytest

from tests.helpers.examples import EXAMPLES, RAN, RecordProperty
from tests.models.archive import (
    QUEUED,
    SCHEDULED,
    Cached,
    Loading,
    Lossy,
    Reading,
    Replay,
    Row,
    Rules,
    World,
    flaw,
    is_over,
    lossy_flaw,
    lossy_steps,
    steps,
)
from tests.transactions.helpers import TransactionStore, open_transactions
from waystation.archive import Archive, SqliteArchive
from waystation.store.embedded.server import EmbeddedServer

W = TypeVar("W", bound=Hashable)

#: At least so many paths, and more until every step was taken.
PATHS_MIN, PATHS_MAX = max(40, EXAMPLES), 2_000
STEPS = 40


class Search(Generic[W]):
    """Every world that can be reached, the nearest first; ends with the first flaw."""

    def __init__(
        self,
        begin: Iterable[W],
        steps: Callable[[W], Iterable[tuple[str, W]]],
        flaw: Callable[[W], str],
        same: Callable[[W], W] = lambda world: world,
    ) -> None:
        waiting = deque(map(same, begin))
        self.seen: dict[W, tuple[str, W] | None] = dict.fromkeys(waiting)
        self.names: set[str] = set()
        self.flaw = ""
        self.path: list[str] = []
        while waiting and not self.flaw:
            before = waiting.popleft()
            for name, after in steps(before):
                self.names.add(name)
                if after in self.seen:
                    continue
                self.flaw = flaw(after)
                if self.flaw:
                    self.path = [*self._path_to(before), name]
                    break
                found = same(after)
                if found not in self.seen:
                    self.seen[found] = (name, before)
                    waiting.append(found)

    def _path_to(self, world: W) -> list[str]:
        path = []
        while (came := self.seen[world]) is not None:
            name, world = came
            path.append(name)
        return path[::-1]


def canonical(world: World) -> World:
    """The same for all worlds that nobody can tell apart, from what each is yet to do.

    A row that was loaded, and what was written, is the newest or not; what is to be written is
    above or below what the archive has. Of two equals it does not matter which is which.
    """
    newest, there = world.newest, world.archived
    unwritten = [each.row.version for each in world.archivers if each and not each.written]
    known = {newest.version, *unwritten}
    if there:
        known.add(there.version)
    ranks = {version: rank for rank, version in enumerate(sorted(known), 1)}
    top = ranks[newest.version]
    tickets = {world.nonce: 1, 0: 0}
    for each in world.loaders:
        if each:
            tickets.setdefault(each.nonce, len(tickets))
    archivers = [each and _seen_reading(each, ranks, newest.version) for each in world.archivers]
    waker, *others = [
        each and Loading(tickets[each.nonce], _seen_row(each.row, newest.version, top))
        for each in world.loaders
    ]
    now = world.cached
    return World(
        now and Cached(top, now.state, now.mode, now.mortal),
        Row(top, newest.state),
        there and Row(ranks[there.version], there.state),
        world.to_archive,
        world.sleeping,
        tickets[world.nonce],
        len(tickets),
        tuple(sorted(archivers, key=hash)),
        (waker, *sorted(others, key=hash)),
    )


#: Of what is not the newest any more, nothing else matters.
_STALE = Row(0, "q")


def _seen_row(row: Row | None, newest: int, top: int) -> Row | None:
    if row is None:
        return None
    return Row(top, row.state) if row.version == newest else _STALE


def _seen_reading(reading: Reading, ranks: dict[int, int], newest: int) -> Reading:
    row, written, anew, above = reading
    if not written:
        return Reading(Row(ranks[row.version], row.state), False, anew)
    if row.version != newest:
        return Reading(_STALE, True, anew)
    return Reading(Row(ranks[newest], row.state), True, anew, ranks.get(above, 0))


def search(rules: Rules) -> Search[World]:
    """All orders of calls."""
    return Search((QUEUED, SCHEDULED), lambda world: steps(world, rules), flaw, canonical)


def lossy_search(rules: Rules) -> Search[Lossy]:
    """The same, on a store that loses its last writes."""
    return Search(
        (Lossy(QUEUED), Lossy(SCHEDULED)),
        lambda world: lossy_steps(world, rules),
        lambda world: lossy_flaw(world, rules),
    )


@cache
def whole() -> Search[World]:
    """The search with all rules; it takes some seconds."""
    return search(Rules())


def test_no_order_of_calls_loses_a_state_or_brings_an_old_one_back() -> None:
    found = whole()
    assert not found.flaw, f"{found.flaw}: {' '.join(found.path)}"
    assert len(found.seen) > 30_000


@pytest.mark.slow
def test_what_a_store_has_left_after_a_loss_is_archived_whatever_the_archive_has() -> None:
    found = lossy_search(Rules())
    assert not found.flaw, f"{found.flaw}: {' '.join(found.path)}"
    assert len(found.seen) > 100_000
    # Some are lost while they ran: the archive has no more than a snapshot of them.
    assert any(is_over(each.world) for each in found.seen)


def test_without_a_lift_over_the_archive_some_would_never_be_archived_again() -> None:
    assert lossy_search(Rules(lifts=False)).flaw == "never archived"


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ("versions", "lost"),
        ("nonces", "an old state in the store"),
        ("confirms", "lost"),
        ("persists", "it expires, but the archive does not have it"),
        ("unscheduled", "scheduled for removal while it is live"),
    ],
)
def test_without_any_of_its_rules_the_search_finds_what_goes_wrong(rule: str, told: str) -> None:
    found = search(Rules()._replace(**{rule: False}))
    assert found.flaw == told, found.path


# -- The scripts do what the model does -------------------------------------------------------


async def test_the_scripts_take_every_step_as_the_model_does(
    store_server: EmbeddedServer, tmp_path: Path, record_property: RecordProperty
) -> None:
    """A path that fails is told; the same number always gives the same path."""
    archive = SqliteArchive(tmp_path / "archive.db")
    taken: set[str] = set()
    ran = 0
    await archive.open()
    try:
        async with open_transactions(store_server) as tx:
            while ran < PATHS_MIN or (ran < PATHS_MAX and taken != whole().names):
                taken |= await replay(tx, archive, ran)
                ran += 1
    finally:
        await archive.close()
        record_property(RAN, ran)
    assert taken == whole().names


async def replay(tx: TransactionStore, archive: Archive, number: int) -> set[str]:
    """A random path; the steps that it had."""
    rng, one = random.Random(number), Replay(tx, archive, number)
    world, path = await one.begin(scheduled=number % 2 == 1), list[str]()
    await one.compare(world)
    for _ in range(STEPS):
        choice = dict(steps(world, Rules()))
        if not one.waits:
            # What was scheduled waits for its time, and for no switch.
            choice.pop("switch-wakes", None)
        if not choice:
            break
        name = rng.choice(sorted(choice))
        path.append(name)
        world = choice[name]
        try:
            await one.do(name)
            await one.compare(world)
        except Exception as error:
            raise AssertionError(f"path {number}: {' '.join(path)}") from error
    return set(path)
