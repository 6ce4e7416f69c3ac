"""Who gets a recipient key: by turns, by load or by hash; and it stays there."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.pools.pool_slot import PLACE, PoolSlot, open_pool_slot
from waystation.errors import (
    KeyInvalidError,
    KeyTakenError,
    PoolNotFoundError,
    StoreError,
    WorkersFullError,
    WorkerUnknownError,
)
from waystation.pools.names import Place
from waystation.store.embedded.server import EmbeddedServer

WORKERS = ("a", "b", "c")


async def owners(slot: PoolSlot, *keys: str) -> list[str]:
    return [each.owner for each in await slot.send_all(*keys)]


async def test_new_keys_go_round_by_turns_and_the_last_worker_has_its_turn(
    store_server: EmbeddedServer,
) -> None:
    async with open_pool_slot(store_server) as slot:
        await slot.register(*WORKERS)
        found = await owners(slot, *(f"k{i}" for i in range(7)))
        assert found == ["a", "b", "c", "a", "b", "c", "a"]
        await slot.check()


async def test_a_key_stays_with_its_worker_whoever_comes(store_server: EmbeddedServer) -> None:
    async with open_pool_slot(store_server) as slot:
        await slot.register("b")
        assert await owners(slot, "k", "k") == ["b", "b"]
        await slot.register("a", "c")
        assert await owners(slot, "k", "x", "k", "y", "k") == ["b", "c", "b", "a", "b"]


async def test_a_worker_that_comes_or_goes_takes_nobody_s_turn(
    store_server: EmbeddedServer,
) -> None:
    async with open_pool_slot(store_server) as slot:
        await slot.register("a", "c")
        assert await owners(slot, "k1") == ["a"]
        await slot.register("b")
        assert await owners(slot, "k2", "k3") == ["b", "c"]
        await slot.leave("a")
        # Its key was the next turn.
        assert await slot.owner("k1") == "b"
        assert await owners(slot, "k4", "k5", "k6") == ["c", "b", "c"]


async def test_the_least_loaded_is_who_has_the_fewest_messages_then_the_fewest_keys(
    store_server: EmbeddedServer,
) -> None:
    async with open_pool_slot(store_server, policy="least_loaded") as slot:
        await slot.register(*WORKERS)
        assert await owners(slot, "k1", "k2", "k3") == ["a", "b", "c"]
        await slot.send_all("k1", "k1", "k2")
        assert await owners(slot, "k4") == ["c"]
        # Without messages: by keys.
        for uid in WORKERS:
            while taken := await slot.take(uid):
                await slot.ack(uid, *taken)
        assert await owners(slot, "k5") == ["a"]
        slot_now = await slot.check()
        assert slot_now["load"] == {"-": 0, "a": 2**20 + 2, "b": 1, "c": 2}


async def test_a_consistent_hash_moves_only_the_keys_of_who_goes(
    store_server: EmbeddedServer,
) -> None:
    keys = [f"key-{i}" for i in range(600)]
    async with open_pool_slot(store_server, policy="consistent_hash") as slot:
        await slot.register(*WORKERS)
        first = dict(zip(keys, await owners(slot, *keys), strict=True))
        assert all(count > 100 for count in Counter(first.values()).values())
        await slot.leave("b")
        for key in keys[::10]:
            now = await slot.owner(key)
            assert now == first[key] if first[key] != "b" else now in ("a", "c")
        await slot.check()
    # Another pool with these workers, who came in another order, agrees.
    async with open_pool_slot(store_server, policy="consistent_hash") as slot:
        await slot.register("c", "a", "b")
        assert dict(zip(keys, await owners(slot, *keys), strict=True)) == first


@pytest.mark.parametrize("policy", ["round_robin", "least_loaded"])
async def test_the_keys_of_one_who_is_gone_are_spread_evenly(
    store_server: EmbeddedServer, policy: str
) -> None:
    async with open_pool_slot(store_server, policy=policy) as slot:
        await slot.register("z")
        await slot.send_all(*(f"k{i}" for i in range(900)))
        await slot.register(*WORKERS)
        await slot.leave("z")
        slot_now = await slot.check()
        assert "z" not in slot_now["workers"]
        assert "z" not in slot_now["load"]
        assert [len(slot_now[f"keys:{uid}"]) for uid in WORKERS] == [300, 300, 300]


async def test_without_a_live_worker_messages_wait_and_nobody_waits_for_that(
    store_server: EmbeddedServer,
) -> None:
    async with open_pool_slot(store_server) as slot:
        assert [(each.outcome, each.owner) for each in await slot.send_all("k1", "k2", "k1")] == [
            ("added", "-")
        ] * 3
        look = await slot.assignments.look_at(PLACE, slot.terms, "k1")
        assert look is not None
        assert (look.state, look.pending, look.worker) == ("waiting", 2, None)
        assert (await slot.assignments.look(PLACE, slot.terms)).waiting == 3
        await slot.check()
        await slot.register("a")
        await slot.check()
        assert {taken.key for taken in await slot.take("a")} == {"k1", "k2"}


async def test_one_who_was_not_heard_of_gets_no_new_keys_until_it_is_back(
    store_server: EmbeddedServer,
) -> None:
    async with open_pool_slot(store_server) as slot:
        await slot.register("a", "b")
        assert await owners(slot, "k1") == ["a"]
        await slot.later(10)
        await slot.beat("b")
        await slot.later(6)
        assert await owners(slot, "k2", "k3") == ["b", "b"]
        look = await slot.assignments.look(PLACE, slot.terms)
        assert [(each.uid, each.state) for each in look.workers] == [("a", "silent"), ("b", "live")]
        await slot.beat("a")
        assert sorted(await owners(slot, "k4", "k5")) == ["a", "b"]
        await slot.check()


async def test_a_key_can_be_assigned_ahead_and_to_a_worker_by_name(
    store_server: EmbeddedServer,
) -> None:
    async with open_pool_slot(store_server) as slot:
        assign = slot.assignments.assign
        assert await assign(PLACE, slot.terms, "k") == ("-", 0)
        await slot.register("a", "b")
        owner, epoch = await assign(PLACE, slot.terms, "k")
        assert (owner, epoch > 0) == ("a", True)
        assert await assign(PLACE, slot.terms, "k") == (owner, epoch)
        assert (await assign(PLACE, slot.terms, "k", uid="b"))[0] == "b"
        await slot.send("k")
        await slot.take_one("b")
        with pytest.raises(KeyTakenError):
            await assign(PLACE, slot.terms, "k", uid="a")
        with pytest.raises(WorkerUnknownError):
            await assign(PLACE, slot.terms, "k", uid="z")
        await slot.check()


async def test_what_cannot_be_is_refused_and_nothing_is_written(
    store_server: EmbeddedServer,
) -> None:
    async with open_pool_slot(store_server, workers_max=1) as slot:
        await slot.register("a")
        before = await slot.slot()
        with pytest.raises(WorkersFullError):
            await slot.register("b")
        for key in ("", "a\nb", "\0", "\ud800", "x" * 5000):
            with pytest.raises(KeyInvalidError):
                await slot.send(key)
        slot.use(policy="by_chance")
        with pytest.raises(StoreError, match="no such policy"):
            await slot.send("k")
        slot.use(policy="round_robin")
        slot.place = Place("default", "elsewhere")
        with pytest.raises(PoolNotFoundError):
            await slot.send("k")
        slot.place = PLACE
        assert await slot.slot() == before


async def test_a_full_pool_says_so_for_each_message_and_goes_on_when_there_is_room(
    store_server: EmbeddedServer,
) -> None:
    async with open_pool_slot(store_server, messages_max=2, keys_max=2) as slot:
        await slot.register("a")
        outcomes = [each.outcome for each in await slot.send_all("k1", "k1", "k1")]
        assert outcomes == ["added", "added", "full"]
        await slot.ack("a", await slot.take_one("a"))
        outcomes = [each.outcome for each in await slot.send_all("k2")]
        assert outcomes == ["added"]
        slot.use(messages_max=100)
        assert [each.outcome for each in await slot.send_all("k3", "k1")] == ["full", "added"]
        slot.use(bytes_max=10)
        assert (await slot.send("k1", "x" * 9)).outcome == "full"
        await slot.check()
