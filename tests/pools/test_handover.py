"""How a key goes from one worker to another: in order, complete, and never to two at once."""

from __future__ import annotations

import pytest

from tests.pools.pool_slot import PLACE, PoolSlot, open_pool_slot
from waystation.errors import WorkerEvictedError, WorkerUnknownError
from waystation.pools.held import Session
from waystation.pools.states import Verdict
from waystation.store.embedded.server import EmbeddedServer


async def drink(slot: PoolSlot, uid: str) -> list[tuple[str, int]]:
    """All that a worker can get, acknowledged one by one."""
    found = []
    while taken := await slot.take(uid):
        found += [(each.key, each.number) for each in taken]
        assert {each.outcome for each in await slot.ack(uid, *taken)} == {"done"}
    return found


async def test_a_drain_hands_free_keys_over_at_once_and_taken_ones_when_they_are_settled(
    store_server: EmbeddedServer,
) -> None:
    async with open_pool_slot(store_server) as slot:
        await slot.register("a")
        await slot.send_all("busy", "free", "busy", "free", "busy")
        (busy,) = await slot.take("a", most=1)
        assert busy.key == "busy"
        await slot.register("b")
        assert await slot.drain("a") == 1
        await slot.check()
        assert (await slot.owner("busy"), await slot.owner("free")) == ("a", "b")
        # What comes meanwhile goes behind; the new owner has nothing of it yet.
        await slot.send("busy")
        assert [key for key, _ in await drink(slot, "b")] == ["free", "free"]
        assert await slot.take("a") == [], "a drained worker gets nothing more"
        # When
        (acked,) = await slot.ack("a", busy, next_lease_ms=1000)
        assert (acked.outcome, acked.next) == ("done", None)
        # Then
        await slot.check()
        assert await drink(slot, "b") == [("busy", 3), ("busy", 5), ("busy", 6)]
        await slot.leave("a")
        assert "a" not in (await slot.check())["workers"]


@pytest.mark.parametrize("verdict", ["again", "release", "dead"])
async def test_what_a_draining_worker_gives_back_is_the_next_one_s_first(
    store_server: EmbeddedServer, verdict: Verdict
) -> None:
    async with open_pool_slot(store_server) as slot:
        await slot.register("a")
        await slot.send_all("k", "k")
        taken = await slot.take_one("a")
        await slot.register("b")
        await slot.drain("a")
        await slot.nack("a", taken, verdict)
        await slot.check()
        assert await drink(slot, "b") == [("k", n) for n in (1, 2) if n == 2 or verdict != "dead"]


async def test_one_who_leaves_gives_back_what_it_has_taken_uncounted(
    store_server: EmbeddedServer,
) -> None:
    async with open_pool_slot(store_server) as slot:
        await slot.register("a")
        await slot.send_all("k", "k")
        taken = await slot.take_one("a")
        await slot.register("b")
        await slot.leave("a")
        await slot.check()
        assert await slot.outcome("a", taken) == "lost"
        again = await slot.take_one("b")
        assert (again.number, again.tries, again.crashes) == (1, 0, 0)
        assert again.epoch > taken.epoch
        with pytest.raises(WorkerUnknownError):
            await slot.take("a")
        await slot.leave("a")


async def test_messages_of_a_dead_worker_come_again_in_order_and_its_late_word_changes_nothing(
    store_server: EmbeddedServer,
) -> None:
    """F-13: it stood still, another has its key; F-30: one owner per epoch."""
    async with open_pool_slot(store_server) as slot:
        await slot.register("a")
        await slot.send_all("k", "k", "k")
        taken = await slot.take_one("a")
        await slot.register("b")
        await slot.later(10)
        await slot.beat("b")
        await slot.later(6)
        assert (await slot.sweep()).evicted == ["a"]
        before = await slot.check()
        # When it goes on as if nothing had been
        assert await slot.outcome("a", taken) == "lost"
        assert await slot.nack("a", taken) == "lost"
        for verb in (slot.take("a"), slot.beat("a")):
            with pytest.raises(WorkerEvictedError):
                await verb
        with pytest.raises(WorkerEvictedError):
            await slot.mail.renew(PLACE, slot.terms, slot.sessions["a"], [taken], lease_ms=1000)
        # Then
        assert await slot.check() == before
        again = await slot.take_one("b")
        assert (again.number, again.tries, again.crashes) == (1, 1, 1)
        assert await slot.outcome("a", taken) == "lost"
        assert await slot.outcome("b", again) == "done"
        assert await slot.outcome("a", taken) == "known"
        assert await drink(slot, "b") == [("k", 2), ("k", 3)]


async def test_what_an_evicted_worker_settles_before_its_key_moved_is_settled(
    store_server: EmbeddedServer,
) -> None:
    async with open_pool_slot(store_server) as slot:
        await slot.register("a")
        keys = [f"k{i:03}" for i in range(150)]
        await slot.send_all(*keys, *keys)
        taken = {each.key: each for _ in range(2) for each in await slot.take("a")}
        assert len(taken) == 150
        await slot.register("b")
        await slot.later(10)
        await slot.beat("b")
        await slot.later(6)
        # One call of enqueue moves its own key and a hundred more: the rest is left for others.
        await slot.send_all("k000")
        left = next(iter((await slot.check())["keys:a"]))
        assert await slot.outcome("a", taken[left]) == "done"
        assert await slot.owner(left) == "b"
        await slot.check()
        following = [number for number, _ in await slot.queue(left)]
        assert following == [taken[left].number + 150]


async def test_an_eviction_that_stopped_half_way_is_finished_by_whoever_comes_next(
    store_server: EmbeddedServer,
) -> None:
    async with open_pool_slot(store_server) as slot:
        await slot.register("a")
        keys = [f"k{i:03}" for i in range(300)]
        await slot.send_all(*keys)
        await slot.register("b")
        await slot.later(10)
        await slot.beat("b")
        await slot.later(6)
        # As if the one who enqueued had died before it moved the rest.
        (first,) = await slot.send_all("k000")
        assert first.owner == "b"
        left = (await slot.check())["keys:a"]
        assert 0 < len(left) < 300
        # A key that is left moves before anything else happens to it.
        (late,) = await slot.send_all(next(iter(left)))
        assert late.owner == "b"
        await slot.check()
        while (await slot.sweep()).more:
            await slot.check()
        assert len((await slot.check())["keys:b"]) == 300


async def test_another_process_under_the_same_name_takes_its_place_and_the_former_is_refused(
    store_server: EmbeddedServer,
) -> None:
    async with open_pool_slot(store_server) as slot:
        await slot.register("a", nonce="first")
        await slot.send_all("k", "k")
        taken, former = await slot.take_one("a"), slot.sessions["a"]
        await slot.register("a", nonce="second")
        assert slot.sessions["a"].number > former.number
        # The former process
        slot.sessions["old"] = former
        with pytest.raises(WorkerUnknownError):
            await slot.take("old")
        assert await slot.outcome("old", taken) == "lost"
        await slot.leave("old")
        # The new one
        again = await slot.take_one("a")
        assert (again.number, again.crashes) == (1, 1)
        assert (await slot.check())["workers"]["a"].startswith("live")


async def test_the_last_worker_drains_and_the_next_one_to_come_has_everything(
    store_server: EmbeddedServer,
) -> None:
    async with open_pool_slot(store_server) as slot:
        await slot.register("a")
        await slot.send_all("k1", "k2", "k1")
        assert await slot.drain("a") == 0
        await slot.leave("a")
        assert (await slot.check()).get("workers") is None
        await slot.register("b")
        assert sorted(await drink(slot, "b")) == [("k1", 1), ("k1", 3), ("k2", 2)]


async def test_a_rolling_deploy_keeps_the_order_of_every_key(store_server: EmbeddedServer) -> None:
    keys = [f"k{i}" for i in range(20)]
    seen: dict[str, list[int]] = {key: [] for key in keys}
    async with open_pool_slot(store_server) as slot:
        await slot.register("w0", "w1")
        for generation in range(2, 8):
            await slot.send_all(*keys)
            old, new = f"w{generation - 2}", f"w{generation}"
            held = await slot.take(old, most=5)
            await slot.register(new)
            await slot.drain(old)
            await slot.send_all(*keys)
            for each in held:
                seen[each.key].append(each.number)
            await slot.ack(old, *held)
            await slot.leave(old)
            await slot.check()
        for uid in ("w6", "w7"):
            for key, number in await drink(slot, uid):
                seen[key].append(number)
        assert (await slot.check())["head"]["messages"] == "0"
    assert all(len(numbers) == 12 and numbers == sorted(numbers) for numbers in seen.values())


async def test_an_operator_drains_and_evicts_any_worker(store_server: EmbeddedServer) -> None:
    async with open_pool_slot(store_server) as slot:
        await slot.register("a", "b", "c")
        await slot.send_all("k1", "k2", "k3")
        assert await slot.members.drain(PLACE, slot.terms, Session("a")) == 0
        assert await slot.assignments.reassign(PLACE, slot.terms, "b", asked=True) == 2
        assert len((await slot.check())["keys:c"]) == 3
        with pytest.raises(WorkerUnknownError):
            await slot.members.drain(PLACE, slot.terms, Session("z"))
