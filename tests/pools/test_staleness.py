"""When a worker is stale: a message is pending, and neither it nor the worker moved for 15 s."""

from __future__ import annotations

import pytest

from tests.pools.pool_slot import PLACE, PoolSlot, open_pool_slot
from waystation.errors import NotStaleError, WorkerEvictedError
from waystation.store.embedded.server import EmbeddedServer


async def assert_not_stale(slot: PoolSlot, uid: str) -> None:
    with pytest.raises(NotStaleError):
        await slot.assignments.reassign(PLACE, slot.terms, uid)
    assert (await slot.sweep()).evicted == []


async def test_a_healthy_idle_worker_is_not_evicted_by_two_quick_messages(
    store_server: EmbeddedServer,
) -> None:
    """The second term: without it the second message finds one pending and an old last access."""
    async with open_pool_slot(store_server) as slot:
        await slot.register("a", "b")
        assert (await slot.send("k")).owner == "a"
        await slot.ack("a", await slot.take_one("a"))
        await slot.later(20)
        assert [(await slot.send("k")).owner for _ in range(3)] == ["a", "a", "a"]
        await assert_not_stale(slot, "a")
        assert (await slot.take_one("a")).key == "k"
        await slot.check()


async def test_a_missing_last_access_is_never_stale(store_server: EmbeddedServer) -> None:
    """As in the plugin; only an agent can have none."""
    async with open_pool_slot(store_server) as slot:
        await slot.register("a", "b", agent=True)
        assert (await slot.send("k")).owner == "a"
        await slot.later(3600)
        assert (await slot.send("k")).owner == "a"
        await assert_not_stale(slot, "a")
        assert (await slot.check())["live"] == {"a": 0, "b": 0}


async def test_idle_without_a_message_is_never_stale(store_server: EmbeddedServer) -> None:
    async with open_pool_slot(store_server) as slot:
        await slot.register("a", "b")
        await slot.send("k")
        await slot.ack("a", await slot.take_one("a"))
        await slot.later(3000)
        await assert_not_stale(slot, "a")
        assert await slot.owner("k") == "a"


async def test_one_that_works_is_never_stale_however_old_its_messages_are(
    store_server: EmbeddedServer,
) -> None:
    async with open_pool_slot(store_server) as slot:
        await slot.register("a", "b")
        for _ in range(9):
            await slot.send("k")
        for _ in range(8):
            await slot.later(14)
            await assert_not_stale(slot, "a")
            await slot.ack("a", await slot.take_one("a"))
        assert await slot.owner("k") == "a"


async def test_after_more_than_fifteen_seconds_its_keys_move_all_of_them(
    store_server: EmbeddedServer,
) -> None:
    async with open_pool_slot(store_server) as slot:
        await slot.register("a")
        await slot.send_all("k1", "idle", "k2")
        await slot.register("b", "c")
        await slot.later(14)
        await slot.beat("b", "c")
        await assert_not_stale(slot, "a")
        await slot.later(2)
        moved = await slot.send("k1")
        assert (moved.owner, moved.pending) == ("b", 2)
        slot_now = await slot.check()
        assert slot_now["workers"]["a"].startswith("evicted")
        assert "keys:a" not in slot_now
        assert {await slot.owner("k2"), await slot.owner("idle")} <= {"b", "c"}
        with pytest.raises(WorkerEvictedError):
            await slot.take("a")
        with pytest.raises(WorkerEvictedError):
            await slot.beat("a")
        await slot.register("a")
        assert await slot.take("a") == []


async def test_sweep_evicts_too_without_any_new_message(store_server: EmbeddedServer) -> None:
    async with open_pool_slot(store_server) as slot:
        await slot.register("a")
        await slot.send_all(*(f"k{i}" for i in range(1200)))
        await slot.register("b")
        await slot.later(10)
        await slot.beat("b")
        await slot.later(6)
        swept = await slot.sweep()
        assert (swept.evicted, swept.more, swept.moved) == (["a"], True, 100)
        await slot.check()
        while swept.more:
            swept = await slot.sweep()
        assert len((await slot.check())["keys:b"]) == 1200


async def test_who_gets_old_messages_is_not_stale_because_of_their_age(
    store_server: EmbeddedServer,
) -> None:
    """An idle agent inherits what waited for a dead one: that evicts nobody in a row."""
    async with open_pool_slot(store_server) as slot:
        await slot.register("a", "b", "c", agent=True)
        for uid in ("a", "b", "c"):
            await slot.store.call("ZADD", PLACE.key("seen"), 1, uid)
        assert (await slot.send("k")).owner == "a"
        await slot.later(16)
        assert [(await slot.send("k")).owner for _ in range(3)] == ["b", "b", "b"]
        assert (await slot.sweep()).evicted == []
        await slot.later(16)
        assert (await slot.send("k")).owner == "c"


async def test_an_agent_has_time_to_go_round_its_keys(store_server: EmbeddedServer) -> None:
    async with open_pool_slot(store_server) as slot:
        await slot.register("a", agent=True)
        await slot.store.call("ZADD", PLACE.key("seen"), 1, "a")
        for i in range(50):
            await slot.assignments.assign(PLACE, slot.terms, f"k{i}")
        await slot.send("k49")
        await slot.later(39.5)
        await assert_not_stale(slot, "a")
        await slot.later(1)
        assert (await slot.sweep()).evicted == ["a"]


async def test_the_only_worker_is_not_given_its_own_keys_over_and_over(
    store_server: EmbeddedServer,
) -> None:
    async with open_pool_slot(store_server) as slot:
        await slot.register("a")
        await slot.send("k")
        await slot.later(16)
        assert (await slot.send("k")).owner == "-"
        assert (await slot.send("k")).owner == "-"
        await slot.check()
        await slot.register("a")
        assert await slot.owner("k") == "a"
        assert (await slot.take_one("a")).number == 1


async def test_a_bound_of_its_own_is_obeyed(store_server: EmbeddedServer) -> None:
    async with open_pool_slot(store_server, stale_ms=60_000) as slot:
        await slot.register("a")
        await slot.send("k")
        await slot.later(59)
        await assert_not_stale(slot, "a")
        await slot.later(2)
        assert await slot.assignments.reassign(PLACE, slot.terms, "a") == 1
