"""Pools: made, changed, deleted; the catalogue has the truth, and whoever dies is finished."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.pools.pool_bench import NAME, PROJECT, PoolBench, open_bench
from waystation.errors import (
    ConflictError,
    InvalidInputError,
    KeyBusyError,
    PoolClosedError,
    PoolFullError,
    PoolNotFoundError,
    WorkerUnknownError,
)
from waystation.pools import PoolOptions
from waystation.pools.held import Letter
from waystation.pools.states import KeyState
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.testing.crash_points import CrashPoint, crash_points

OPTIONS = PoolOptions(assignment="least_loaded", stale_seconds=3.0)


async def test_a_name_is_enough_and_everyone_reads_the_same(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with (
        open_bench(store_server, tmp_path) as bench,
        open_bench(store_server, tmp_path, empty=False) as other,
    ):
        made = await bench.create()
        assert (made.state, made.version, made.incarnation) == ("active", 1, 1)
        assert made.options == PoolOptions()
        assert await other.pools.get(PROJECT, NAME) == made == other.pools.known(PROJECT, NAME)
        assert await other.pools.list(PROJECT, limit=9) == [made]
        assert other.pools.known("shop", NAME) is None
        with pytest.raises(PoolNotFoundError):
            await other.pools.get("shop", NAME)
        with pytest.raises(ConflictError):
            await other.create()


async def test_a_change_is_made_to_the_version_that_was_read(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.create()
        changed = await bench.pools.change(PROJECT, NAME, OPTIONS, version=1)
        assert (changed.version, changed.options) == (2, OPTIONS)
        with pytest.raises(ConflictError, match="version 2, not 1"):
            await bench.pools.change(PROJECT, NAME, PoolOptions(), version=1)
        assert await bench.pools.get(PROJECT, NAME) == changed
        with pytest.raises(PoolNotFoundError):
            await bench.pools.change(PROJECT, "none", OPTIONS, version=1)
        twisted = PoolOptions(first_seconds=10, max_seconds=1)
        with pytest.raises(InvalidInputError, match="longer than the longest"):
            await bench.pools.change(PROJECT, NAME, twisted, version=2)


async def test_of_many_changes_at_once_one_wins_and_the_others_hear_it(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.create()
        options = [PoolOptions(attempts=n) for n in range(1, 11)]
        changes = (bench.pools.change(PROJECT, NAME, each, version=1) for each in options)
        results = await asyncio.gather(*changes, return_exceptions=True)
        (won,) = [each for each in results if not isinstance(each, BaseException)]
        assert sum(isinstance(each, ConflictError) for each in results) == 9
        assert await bench.pools.get(PROJECT, NAME) == won


async def test_options_hold_from_the_next_call_on(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with (
        open_bench(store_server, tmp_path) as bench,
        open_bench(store_server, tmp_path, empty=False) as other,
    ):
        pool = await bench.create()
        assert [each.outcome for each in await other.send("k", "k")] == ["added", "added"]
        full = PoolOptions(messages_max=2)
        await bench.pools.change(PROJECT, NAME, full, version=pool.version)
        assert [each.outcome for each in await bench.send("k")] == ["full"]
        # Another process believes what it has read for two seconds, and no longer.
        async with asyncio.timeout(10):
            while (await other.send("k"))[0].outcome != "full":
                await asyncio.sleep(0.1)


@pytest.mark.parametrize("assignment", ["round_robin", "least_loaded", "consistent_hash"])
async def test_keys_are_given_by_the_rule_of_the_definition(
    store_server: EmbeddedServer, tmp_path: Path, assignment: Any
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        pool = await bench.create(assignment=assignment)
        for uid in ("a", "b"):
            await bench.register(pool, uid)
        heavy = await bench.send(*["heavy"] * 10)
        keys = [f"k-{n}" for n in range(8)]
        owners = [each.owner for each in await bench.send(*keys)]
        counts = {uid: owners.count(uid) for uid in ("a", "b")}
        if assignment == "least_loaded":
            assert counts[heavy[0].owner] == 0, "who has ten messages gets no more keys"
        elif assignment == "round_robin":
            assert counts == {"a": 4, "b": 4}
        again = await bench.create("twin", assignment=assignment)
        for uid in ("a", "b"):
            await bench.register(again, uid)
        twins = [each.owner for each in await bench.send(*keys, name="twin")]
        if assignment == "consistent_hash":
            assert twins == owners, "two pools with the same workers agree"


# -- Deleting --------------------------------------------------------------------------------


async def test_a_deleted_pool_leaves_its_counters_and_nothing_else(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        pool = await bench.create()
        await bench.register(pool, "a")
        await bench.kill(pool, "a", "x", "y")
        # More keys than one step deletes.
        await bench.send(*(f"k-{n}" for n in range(250)))
        await bench.pools.delete(PROJECT, NAME)
        found = await bench.everything()
        assert found.keys() == {"{pool.default.agents}:definition", pool.place.head}
        assert found[pool.place.head].keys() == {
            *(b"number", b"epoch", b"session", b"version", b"incarnation", b"former")
        }
        with pytest.raises(PoolNotFoundError):
            await bench.send("k")
        with pytest.raises(PoolNotFoundError):
            await bench.take(pool, "a")
        with pytest.raises(PoolNotFoundError):
            await bench.pools.delete(PROJECT, NAME)
        assert await bench.pools.list(PROJECT, limit=9) == []


async def test_nothing_of_a_former_pool_concerns_the_next_one_of_its_name(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        pool = await bench.create()
        await bench.register(pool, "a")
        letter = Letter("m", "k", b"first")
        await bench.pools.enqueue(PROJECT, NAME, [letter])
        (late,) = await bench.take(pool, "a")
        await bench.pools.delete(PROJECT, NAME)
        again = await bench.create()
        assert (again.version, again.incarnation) == (4, 2)
        # The id of a message that went with the former pool is no repetition: it would be lost.
        (enqueued,) = await bench.pools.enqueue(PROJECT, NAME, [letter])
        assert (enqueued.outcome, enqueued.pending) == ("added", 1)
        (twice,) = await bench.pools.enqueue(PROJECT, NAME, [letter])
        assert twice.outcome == "duplicate"
        # A worker of the former one has the session of nobody, and its message is another.
        with pytest.raises(WorkerUnknownError):
            await bench.take(again, "a")
        session = bench.sessions["a"]
        (acked,) = await bench.pools.mail.ack(
            again.place, bench.pools.terms(again), session, [late]
        )
        assert acked.outcome == "known", "what it had is gone, and the new one is untouched"
        await bench.register(again, "a")
        (taken,) = await bench.take(again, "a")
        assert taken.packed == b"first"
        assert taken.number > late.number
        assert taken.epoch > late.epoch


async def test_who_is_late_with_the_deletion_of_a_former_pool_does_not_touch_the_next(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        former = await bench.create()
        await bench.pools.delete(PROJECT, NAME)
        again = await bench.create()
        await bench.send("k")
        await bench.pools.mend(former.changed(state="deleting"))
        await bench.pools.mend(former)
        assert await bench.pools.get(PROJECT, NAME) == again
        assert [each.outcome for each in await bench.send("k")] == ["added"]


async def test_a_pool_that_is_being_deleted_takes_nothing_new(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        pool = await bench.create()
        await bench.register(pool, "a")
        await bench.send("k")
        await bench.store.call("HSET", pool.place.head, "closed", 1)
        with pytest.raises(PoolClosedError):
            await bench.send("k")
        with pytest.raises(PoolClosedError):
            await bench.register(pool, "b")
        with pytest.raises(PoolNotFoundError):
            await bench.take(pool, "a")


def _deaths(
    server: EmbeddedServer, folder: Path, verb: Any, check: Any, *, made: bool = True
) -> int:
    """A verb dies at every call to the store; then upkeep comes, twice."""

    async def prepare(store: Store) -> None:
        for file in folder.glob("catalogue.db*"):
            file.unlink()
        if made:
            async with open_bench(server, folder, empty=False, store=store) as bench:
                pool = await bench.create()
                await bench.register(pool, "a")
                await bench.send(*(f"k-{n}" for n in range(120)))

    async def scenario(store: Store) -> None:
        async with open_bench(server, folder, empty=False, store=store) as bench:
            await verb(bench)

    async def after(store: Store, _: CrashPoint) -> None:
        async with open_bench(server, folder, empty=False, store=store) as bench:
            await bench.upkeep.mend()
            await check(bench)
            found = await bench.everything()
            await bench.upkeep.mend()
            assert await bench.everything() == found, "a second pass has nothing to do"

    return len(crash_points(server.address, scenario, after, prepare=prepare))


def test_a_creation_that_dies_anywhere_is_finished_or_never_was(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    finished = []

    async def check(bench: PoolBench) -> None:
        if await bench.pools._definitions.read_row(PROJECT, NAME) is None:
            assert await bench.everything() == {}
            return
        pool = await bench.pools.get(PROJECT, NAME)
        await bench.register(pool, "a")
        assert (await bench.send("k"))[0].owner == "a"
        finished.append(pool)

    assert _deaths(store_server, tmp_path, PoolBench.create, check, made=False) >= 9
    assert finished


def test_a_change_that_dies_anywhere_is_seen_by_all_or_never_was(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    seen = set()

    async def verb(bench: PoolBench) -> None:
        await bench.pools.change(PROJECT, NAME, OPTIONS, version=1)

    async def check(bench: PoolBench) -> None:
        pool = await bench.pools.get(PROJECT, NAME)
        assert pool == await bench.pools._definitions.read_row(PROJECT, NAME)
        seen.add(pool.version)

    _deaths(store_server, tmp_path, verb, check)
    assert seen == {1, 2}


@pytest.mark.slow
def test_a_deletion_that_dies_anywhere_is_finished_or_never_was(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    finished = []

    async def verb(bench: PoolBench) -> None:
        await bench.pools.delete(PROJECT, NAME)

    async def check(bench: PoolBench) -> None:
        row = await bench.pools._definitions.read_row(PROJECT, NAME)
        assert row is not None
        if row.state == "active":
            look = await bench.pools.assignments.look(row.place, bench.pools.terms(row))
            assert (look.keys, look.pending) == (120, 120)
            return
        assert row.state == "deleted"
        assert len(await bench.everything()) == 2
        finished.append(row)

    assert _deaths(store_server, tmp_path, verb, check) >= 15
    assert finished


async def test_a_store_that_was_lost_is_filled_again_from_the_catalogue(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        made = await bench.create()
        await bench.store.call("FLUSHALL")
        async with open_bench(store_server, tmp_path, empty=False) as other:
            assert await other.pools.get(PROJECT, NAME) == made
            assert [each.outcome for each in await other.send("k")] == ["added"]


async def test_a_catalogue_that_was_lost_takes_a_pool_over_with_its_messages(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    folders = [tmp_path / "old", tmp_path / "new"]
    for folder in folders:
        folder.mkdir()
    async with open_bench(store_server, folders[0]) as bench:
        await bench.create()
        await bench.send("k")
    async with open_bench(store_server, folders[1], empty=False) as bench:
        again = await bench.create()
        assert (again.version, again.incarnation) == (2, 1)
        assert [each.pending for each in await bench.send("k")] == [2]


# -- Sweeping --------------------------------------------------------------------------------


async def test_the_node_whose_turn_it_is_sweeps_pools_by_their_definitions(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        pool = await bench.create(stale_seconds=0.1, key_retention_seconds=1)
        lasting = await bench.create("lasting")
        for each in (pool, lasting):
            await bench.register(each, "dead")
            await bench.send("k", name=each.name)
        await bench.send("idle", name="lasting")
        await bench.upkeep.sweep()
        owners = await _owners(bench, pool)
        assert owners == {"k": "dead"}, "nobody's turn: nothing is swept"
        await bench.upkeep.mend()
        async with asyncio.timeout(10):
            while (await _owners(bench, pool)) != {"k": "-"}:
                await bench.upkeep.sweep()
        assert await _owners(bench, lasting) == {"k": "dead", "idle": "dead"}
        bench.upkeep.rest()
        await bench.register(pool, "next")
        await bench.pools.assignments.assign(pool.place, bench.pools.terms(pool), "new")
        assert (await _owners(bench, pool))["new"] == "next"


async def _owners(bench: PoolBench, pool: Any) -> dict[str, str]:
    page = await bench.pools.assignments.page(pool.place, bench.pools.terms(pool))
    return {each.key: each.owner for each in page.items}


async def test_a_pool_that_cannot_be_swept_keeps_nobody_from_the_others(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        broken = await bench.create("broken")
        pool = await bench.create(stale_seconds=0.1)
        await bench.register(pool, "dead")
        await bench.send("k")
        await bench.upkeep.mend()
        await bench.store.call("SET", broken.place.key("workers"), "no hash")
        async with asyncio.timeout(10):
            while (await _owners(bench, pool)) != {"k": "-"}:
                await bench.upkeep.sweep()


# -- The map and dead letters ----------------------------------------------------------------


async def test_the_map_is_read_by_pages_whole_or_of_one_worker(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        pool = await bench.create()
        terms, keys = bench.pools.terms(pool), {f"k-{n}" for n in range(700)}
        for uid in ("a", "b"):
            await bench.register(pool, uid)
        await bench.send(*keys)
        taken = {each.key for each in await bench.take(pool, "a")}
        for uid, wanted in (("", 700), ("a", 350), ("b", 350)):
            found, cursor, pages = {}, "", 0
            while pages == 0 or cursor:
                page = await bench.pools.assignments.page(
                    pool.place, terms, uid=uid, cursor=cursor, limit=50
                )
                found |= {each.key: each for each in page.items}
                cursor, pages = page.cursor, pages + 1
            assert len(found) == wanted
            assert pages > 3
            assert all(each.pending == 1 and each.reason == "new" for each in found.values())
            assert uid in ("", *{each.owner for each in found.values()})
            states = {each.key for each in found.values() if each.state is KeyState.TAKEN}
            assert states == (taken if uid != "b" else set())
        for bad in ("x", "-1", "9" * 40):
            with pytest.raises(InvalidInputError, match="no cursor"):
                await bench.pools.assignments.page(pool.place, terms, cursor=bad)


async def test_a_key_without_messages_can_be_forgotten_and_no_other(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        pool = await bench.create()
        terms, assignments = bench.pools.terms(pool), bench.pools.assignments
        await bench.register(pool, "a")
        await assignments.assign(pool.place, terms, "idle")
        await bench.send("busy")
        assert await assignments.forget(pool.place, terms, "idle") is True
        assert await assignments.forget(pool.place, terms, "idle") is False
        with pytest.raises(KeyBusyError):
            await assignments.forget(pool.place, terms, "busy")
        assert await _owners(bench, pool) == {"busy": "a"}
        look = await assignments.look(pool.place, terms)
        assert (look.keys, look.workers[0].keys, look.workers[0].pending) == (1, 1, 1)


async def test_dead_letters_are_listed_in_the_order_in_which_they_failed(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        pool = await bench.create()
        await bench.register(pool, "a")
        terms, letters = bench.pools.terms(pool), bench.pools.dead_letters
        numbers = []
        for key in ("x", "}{ ü", "z"):
            numbers += await bench.kill(pool, "a", key)
            # Of one millisecond some may come again, where the last that was seen has gone.
            await asyncio.sleep(0.002)
        first = await letters.page(pool.place, terms, limit=2)
        assert [each.key for each in first.items] == ["x", "}{ ü"]
        assert {each.cause for each in first.items} == {"no use"}
        assert [each.packed for each in first.items] == [b"x", "}{ ü".encode()]
        # What was seen last may go before the next page is read.
        await letters.purge(pool.place, terms, [numbers[1]])
        rest = await letters.page(pool.place, terms, cursor=first.cursor)
        assert [each.number for each in rest.items] == numbers[2:]
        assert not (await letters.page(pool.place, terms, cursor=rest.cursor)).items
        for bad in ("x", "1-", "-1", "1-x", "1-" + "0" * 37, "1-" + "0" * 38, "9" * 50 + "-1"):
            with pytest.raises(InvalidInputError, match="no cursor"):
                await letters.page(pool.place, terms, cursor=bad)


async def test_dead_letters_come_again_behind_what_their_key_has(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        pool = await bench.create()
        await bench.register(pool, "a")
        terms, letters = bench.pools.terms(pool), bench.pools.dead_letters
        one, two = await bench.kill(pool, "a", "x", "y")
        await bench.send("x")
        assert await letters.redrive(pool.place, terms, [one]) == 1
        assert await letters.redrive(pool.place, terms, [one]) == 0, "by number: once"
        look = await bench.pools.assignments.look_at(pool.place, terms, "x")
        assert look is not None
        assert (look.pending, look.owner, look.tries) == (2, "a", 0)
        # All that are left, more than one step takes.
        await bench.kill(pool, "a", *(f"k-{n}" for n in range(100)))
        await bench.kill(pool, "a", *(f"k-{n}" for n in range(50)))
        there = await bench.pools.assignments.look(pool.place, terms)
        assert await letters.redrive(pool.place, terms) == there.dead > 100
        after = await bench.pools.assignments.look(pool.place, terms)
        assert (after.dead, after.pending) == (0, there.pending + there.dead)
        assert two > one


async def test_a_dead_letter_that_finds_no_room_stays_one(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        pool = await bench.create(messages_max=2)
        await bench.register(pool, "a")
        terms, letters = bench.pools.terms(pool), bench.pools.dead_letters
        await bench.kill(pool, "a", "x", "y")
        await bench.send("z")
        with pytest.raises(PoolFullError):
            await letters.redrive(pool.place, terms)
        look = await bench.pools.assignments.look(pool.place, terms)
        assert (look.pending, look.dead) == (2, 1), "one found room"
        assert await letters.purge(pool.place, terms) == 1
        assert await letters.purge(pool.place, terms) == 0
