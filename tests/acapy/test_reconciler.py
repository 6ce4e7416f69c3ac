"""The reconciler: agents and mediators work by our map, and what they do is adopted."""

from __future__ import annotations

import asyncio

import pytest

from tests.acapy.mirror_world import MirrorWorld, mirror_world, written_list
from waystation.errors import KeyInvalidError, MirrorTakenError, PoolMirroredError
from waystation.pools import PoolOptions
from waystation.pools.assignments import Assignments
from waystation.pools.held import Session
from waystation.pools.states import WorkerState
from waystation.store.embedded.server import EmbeddedServer


async def test_an_agent_that_registers_gets_keys_and_finds_their_messages_in_its_lists(
    store_server: EmbeddedServer,
) -> None:
    async with mirror_world(store_server.address) as world:
        await world.agent_starts("a", "b")
        assert (await world.step()).registered == 2
        owners = {key: (await world.send(key)).owner for key in ("k1", "k2", "k3", "k4")}
        await world.send("k1")
        await world.step()
        assert sorted(owners.values()) == ["a", "a", "b", "b"]
        lists = await world.lists()
        assert {key: uid for uid, keys in lists.items() for key in keys} == owners
        assert await world.hash("recip_key_uid_map") == owners
        assert await world.queue("k1") == ["m-1", "m-5"]
        counts = await world.hash("uid_recip_key_pending_msg_count")
        assert counts[f"{owners['k1']}_k1"] == "2"
        assert counts[f"{owners['k2']}_k2"] == "1"


async def test_what_agents_popped_is_pending_no_more_and_the_rest_is_pushed_once(
    store_server: EmbeddedServer,
) -> None:
    async with mirror_world(store_server.address) as world:
        await world.agent_starts("a")
        await world.step()
        for _ in range(3):
            await world.send("k")
        for _ in range(2):
            await world.step()
        assert await world.queue("k") == ["m-1", "m-2", "m-3"]
        assert await world.agent_pops("a", "k", at="t1") == "m-1"
        assert await world.agent_pops("a", "k", at="t1") == "m-2"
        await world.step()
        assert (await world.look()).pending == 1
        assert (await world.hash("uid_recip_key_pending_msg_count"))["a_k"] == "1"
        await world.send("k")
        await world.another().step()
        assert await world.queue("k") == ["m-3", "m-4"]
        for _ in range(2):
            await world.agent_pops("a", "k", at="t2")
        await world.step()
        found = await world.look()
        assert (found.pending, found.bytes) == (0, 0)
        assert found.workers[0].pending == 0


async def test_messages_wait_for_the_first_agent(store_server: EmbeddedServer) -> None:
    async with mirror_world(store_server.address) as world:
        for _ in range(2):
            assert (await world.send("k")).owner == "-"
        await world.step()
        assert await world.queue("k") == []
        assert await world.hash("recip_key_uid_map") == {}
        await world.agent_starts("a")
        await world.step()
        assert await world.lists() == {"a": ["k"]}
        assert await world.queue("k") == ["m-1", "m-2"]


async def test_two_quick_messages_after_an_idle_time_evict_nobody(
    store_server: EmbeddedServer,
) -> None:
    """The plugin's first trap: a healthy agent became a zombie by two quick messages."""
    async with mirror_world(store_server.address) as world:
        await world.agent_starts("a", "b")
        await world.step()
        owner = (await world.send("k")).owner
        assert (await world.send("k")).owner == owner
        await world.step()
        for _ in range(2):
            await world.agent_pops(owner, "k", at="t1")
        await world.step()
        await world.later(60)
        for _ in range(3):
            assert (await world.send("k")).owner == owner
            await world.step()
        assert (await world.lists())[owner] == ["k"]
        assert len(await world.lists()) == 2


async def test_who_was_idle_is_not_stale_because_of_what_comes_from_a_dead_agent(
    store_server: EmbeddedServer,
) -> None:
    """Else one death would evict everybody, and evicted agents of the plugin never come back."""
    async with mirror_world(store_server.address) as world:
        await world.agent_starts("a", "b")
        await world.step()
        dead, idle = (await world.send("k")).owner, (await world.send("l")).owner
        assert {dead, idle} == {"a", "b"}
        await world.step()
        await world.agent_pops(dead, "k", at="t1")
        await world.agent_pops(idle, "l", at="t1")
        await world.step()
        await world.later(60)
        await world.send("k")
        await world.step()
        await world.later(20)
        # When it is found out a moment after the last look at the agents
        seen = {dead: "t1", idle: "t1"}
        await world.mirrored.observe(world.pool.place, world.terms, seen, [], grace_ms=60_000)
        await world.later(0.1)
        swept = await Assignments(world.store).sweep(
            world.pool.place, world.terms, forget_ms=600_000, retention_ms=None
        )
        assert swept.evicted == [dead]
        for _ in range(2):
            await world.step()
            assert list(await world.lists()) == [idle]


async def test_keys_of_a_dead_agent_go_to_another_with_all_that_waits_in_order(
    store_server: EmbeddedServer,
) -> None:
    async with mirror_world(store_server.address) as world:
        await world.agent_starts("a", "b")
        await world.step()
        keys = [f"k{i}" for i in range(6)]
        for key in keys:
            for _ in range(2):
                await world.send(key)
        await world.step()
        lists = await world.lists()
        for key in lists["b"]:
            await world.agent_pops("b", key, at="t1")
        # It has popped one, and dies with it.
        lost = await world.agent_pops("a", lists["a"][0], at="t1")
        await world.step()
        await world.later(15 + 0.5 * 3 + 1)
        for key in lists["b"]:
            await world.agent_pops("b", key, at="t2")
        await world.step()
        assert await world.lists() == {"b": keys}
        assert await world.queue(lists["a"][0]) == [f"m-{int(str(lost)[2:]) + 1}"]
        for key in lists["a"][1:]:
            assert len(await world.queue(key)) == 2
        await world.step()
        found = await world.look()
        assert [each.uid for each in found.workers] == ["b"]
        assert "a" not in await world.hash("uid_last_access_map")
        counts = await world.hash("uid_recip_key_pending_msg_count")
        assert not [field for field in counts if field.startswith("a_")]


async def test_an_agent_that_never_got_a_message_is_not_stale_but_not_for_ever(
    store_server: EmbeddedServer,
) -> None:
    """The plugin never calls it stale, so a dead agent would keep its keys for ever."""
    async with mirror_world(store_server.address) as world:
        await world.agent_starts("a")
        await world.step()
        await world.send("k")
        for _ in range(2):
            await world.later(20)
            await world.step()
        assert await world.owner("k") == "a"
        await world.agent_starts("b")
        await world.step()
        await world.later(30)
        await world.step()
        await world.later(17)
        await world.step()
        assert await world.owner("k") == "b"


async def test_nobody_is_stale_while_nobody_looks(store_server: EmbeddedServer) -> None:
    """Agents work while relays are away; what they did in that time is not held against them."""
    async with mirror_world(store_server.address) as world:
        await world.agent_starts("a", "b")
        await world.step()
        owner = (await world.send("k")).owner
        for _ in range(3):
            await world.send("k")
        await world.step()
        await world.agent_pops(owner, "k", at="t1")
        await world.step()
        await world.later(300)
        await world.agent_pops(owner, "k", at="t2")
        assert (await world.send("k")).owner == owner
        await world.another().step()
        assert (await world.send("k")).owner == owner
        assert (await world.lists())[owner] == ["k"]


async def test_an_agent_that_was_taken_for_dead_is_back_when_it_gets_a_message(
    store_server: EmbeddedServer,
) -> None:
    async with mirror_world(store_server.address) as world:
        await world.agent_starts("a", "b")
        await world.step()
        for key in ("k1", "k2"):
            await world.send(key)
            await world.send(key)
        await world.step()
        for uid, keys in (await world.lists()).items():
            await world.agent_pops(uid, keys[0], at="t1")
        await world.step()
        await world.later(17)
        (stood_still,) = (await world.lists())["a"]
        (other,) = (await world.lists())["b"]
        await world.agent_pops("b", other, at="t2")
        for _ in range(3):
            await world.step()
        assert set(await world.lists()) == {"b"}
        await world.agent_pops("a", stood_still, at="t3")
        await world.step()
        assert set(await world.lists()) == {"a", "b"}
        assert [each.state for each in (await world.look()).workers] == [WorkerState.LIVE] * 2


async def test_a_uid_that_vanished_is_written_again_while_it_lives(
    store_server: EmbeddedServer,
) -> None:
    async with mirror_world(store_server.address) as world:
        await world.agent_starts("a", "b")
        await world.step()
        for key in ("k1", "k2"):
            await world.send(key)
        await world.step()
        before = await world.lists()
        await world.store.call("HDEL", "uid_recip_keys_map", "a")
        await world.store.call("HSET", "uid_recip_keys_map", "b", b"no base64 at all")
        await world.step()
        assert await world.lists() == before


async def test_what_a_mediator_assigns_is_adopted(store_server: EmbeddedServer) -> None:
    async with mirror_world(store_server.address) as world:
        await world.agent_starts("a", "b")
        await world.step()
        # A new key, in the map and in the list; one in nobody's list, by the plugin's lost updates;
        # one that was given to an agent that nobody knows.
        pairs = ("new", "a", "unlisted", "b", "strange", "nobody-knows")
        await world.store.call("HSET", "recip_key_uid_map", *pairs)
        await world.store.call("HSET", "uid_recip_keys_map", "a", written_list("new"))
        steps = [await world.step() for _ in range(3)]
        assert sum(each.adopted for each in steps) == 3
        assert await world.owner("new") == "a"
        assert await world.owner("unlisted") == "b"
        assert await world.owner("strange") in ("a", "b")
        listed = {key: uid for uid, keys in (await world.lists()).items() for key in keys}
        assert listed == await world.hash("recip_key_uid_map")
        assert set(listed) == {"new", "unlisted", "strange"}


async def test_a_key_that_a_mediator_moves_moves_in_the_pool_under_a_new_epoch(
    store_server: EmbeddedServer,
) -> None:
    async with mirror_world(store_server.address) as world:
        await world.agent_starts("a", "b")
        await world.step()
        first = await world.send("k")
        await world.step()
        to = "b" if first.owner == "a" else "a"
        # As the plugin reassigns: the old list, the map, the new list.
        await world.store.call("HSET", "uid_recip_keys_map", first.owner, written_list())
        await world.store.call("HSET", "recip_key_uid_map", "k", to)
        await world.store.call("HSET", "uid_recip_keys_map", to, written_list("k"))
        assert (await world.step()).adopted == 1
        again = await world.send("k")
        assert (again.owner, again.epoch > first.epoch) == (to, True)
        assert (await world.lists())[to] == ["k"]
        assert await world.queue("k") == ["m-1"]


async def test_a_change_of_ours_is_not_undone_by_what_an_older_map_says(
    store_server: EmbeddedServer,
) -> None:
    """A process that knows nothing finds an older version there: then ours stays."""
    async with mirror_world(store_server.address) as world:
        await world.agent_starts("a", "b")
        await world.step()
        first = await world.send("k")
        await world.step()
        to = "b" if first.owner == "a" else "a"
        await world.pools.assignments.assign(world.pool.place, world.terms, "k", uid=to)
        await world.another().step()
        assert await world.owner("k") == to
        assert await world.hash("recip_key_uid_map") == {"k": to}


async def test_what_a_mediator_pushes_is_pending_and_moves_when_its_agent_is_dead(
    store_server: EmbeddedServer,
) -> None:
    async with mirror_world(store_server.address) as world:
        await world.agent_starts("a", "b")
        await world.step()
        owner = (await world.send("k")).owner
        await world.step()
        await world.agent_pops(owner, "k", at="t1")
        await world.step()
        assert (await world.look()).pending == 0
        await world.mediator_pushes("k", "from a mediator")
        await world.send("k")
        await world.mediator_pushes("k", "another")
        await world.step()
        await world.step()
        found = await world.look()
        assert (found.pending, found.bytes > 0) == (3, True)
        assert (await world.queue("k")).count("m-2") == 1
        await world.later(17)
        await world.step()
        other = "b" if owner == "a" else "a"
        assert await world.owner("k") == other
        popped = [await world.agent_pops(other, "k", at=f"t{i}") for i in range(2, 5)]
        assert sorted(map(str, popped)) == ["another", "from a mediator", "m-2"]
        await world.step()
        found = await world.look()
        assert (found.pending, found.bytes) == (0, 0)
        assert all(each.pending == 0 for each in found.workers)


async def test_a_key_goes_from_a_live_agent_to_another_with_a_round_in_between(
    store_server: EmbeddedServer,
) -> None:
    async with mirror_world(store_server.address, agent_key_ms=50) as world:
        await world.agent_starts("a", "b")
        await world.step()
        first = (await world.send("k")).owner
        await world.step()
        to = "b" if first == "a" else "a"
        await world.pools.assignments.assign(world.pool.place, world.terms, "k", uid=to)
        step = await world.step()
        assert await world.lists() == {"a": [], "b": []}
        assert step.again_seconds is not None
        await asyncio.sleep(step.again_seconds)
        await world.step()
        assert (await world.lists())[to] == ["k"]


async def test_an_agent_that_is_drained_gets_nothing_more_and_is_let_go_of(
    store_server: EmbeddedServer,
) -> None:
    async with mirror_world(store_server.address, agent_key_ms=0) as world:
        await world.agent_starts("a", "b")
        await world.step()
        for key in ("k1", "k2"):
            await world.send(key)
        await world.step()
        await world.pools.members.drain(world.pool.place, world.terms, Session("a"))
        for _ in range(2):
            await world.step()
        assert await world.lists() == {"b": ["k1", "k2"]}
        await world.later(61)
        await world.step()
        assert [each.uid for each in (await world.look()).workers] == ["b"]
        assert await world.lists() == {"b": ["k1", "k2"]}


async def test_a_key_that_the_pool_forgets_is_forgotten_by_the_mirror(
    store_server: EmbeddedServer,
) -> None:
    async with mirror_world(store_server.address, key_retention_seconds=100) as world:
        await world.agent_starts("a")
        await world.step()
        await world.send("k")
        await world.step()
        await world.agent_pops("a", "k", at="t1")
        await world.step()
        await world.later(101)
        for _ in range(2):
            await world.step()
        assert await world.lists() == {"a": []}
        assert await world.hash("recip_key_uid_map") == {}
        assert await world.hash("uid_recip_key_pending_msg_count") == {}
        assert await world.store.call("KEYS", "*pushed") == []
        await world.send("k")
        await world.step()
        assert await world.queue("k") == ["m-2"]


async def test_agents_of_the_time_before_us_are_adopted_and_who_had_gone_is_not(
    store_server: EmbeddedServer,
) -> None:
    async with mirror_world(store_server.address) as world:
        old = ("a", "2020-01-01T00:00:00Z", "long-gone", "2020-01-01T00:00:00Z")
        await world.store.call("HSET", "uid_last_access_map", *old)
        await world.store.call("HSET", "uid_recip_keys_map", "a", written_list("k1", "k2"))
        await world.store.call("HSET", "recip_key_uid_map", "k1", "a", "k2", "a")
        await world.mediator_pushes("k1", "left there")
        for _ in range(2):
            await world.step()
        found = await world.look()
        assert [(each.uid, each.keys, each.pending) for each in found.workers] == [("a", 2, 1)]


async def test_of_two_reconcilers_at_once_nothing_is_pushed_twice_or_given_to_two(
    store_server: EmbeddedServer,
) -> None:
    async with mirror_world(store_server.address) as world:
        await world.agent_starts("a", "b", "c")
        await world.step()
        others = [world.another() for _ in range(3)]
        for turn in range(10):
            for key in range(10):
                await world.send(f"k{key}", f"{turn}")
            await asyncio.gather(*(each.step() for each in others))
        await world.another().step()
        for key in range(10):
            assert await world.queue(f"k{key}") == [str(turn) for turn in range(10)]
        listed = [key for keys in (await world.lists()).values() for key in keys]
        assert sorted(listed) == [f"k{key}" for key in range(10)]


async def test_another_kind_of_worker_is_refused_and_another_mirrored_pool_too(
    store_server: EmbeddedServer,
) -> None:
    async with mirror_world(store_server.address) as world:
        with pytest.raises(PoolMirroredError):
            await world.pools.members.register(world.pool.place, world.terms, "w", nonce="n")
        with pytest.raises(MirrorTakenError, match="pool agents of project default"):
            await world.pools.create("default", "others", PoolOptions(mirror=True))
        await world.pools.delete("default", "agents")
        await world.pools.create("default", "others", PoolOptions(mirror=True))


async def test_whoever_died_between_claim_and_pool_has_lost_the_claim_a_minute_later(
    store_server: EmbeddedServer,
) -> None:
    async with mirror_world(store_server.address) as world:
        await world.pools.delete("default", "agents")
        await world.store.call("SET", "{waystation.mirror}:pool", "default.ghost 0")
        await world.pools.create("default", "agents", PoolOptions(mirror=True))
        claim = await world.store.call("GET", "{waystation.mirror}:pool")
        assert claim.startswith(b"default.agents ")


async def crowd(world: MirrorWorld) -> None:
    """Three agents with keys and messages."""
    await world.agent_starts("a", "b", "c")
    await world.step()
    for key in range(9):
        await world.send(f"k{key}")
    await world.step()


async def test_a_second_look_at_what_has_not_changed_writes_nothing(
    store_server: EmbeddedServer,
) -> None:
    async with mirror_world(store_server.address) as world:
        await crowd(world)
        await world.step()
        info = await world.store.call("INFO", "commandstats")
        await world.step()
        after = await world.store.call("INFO", "commandstats")

        def count(text: bytes, command: str) -> int:
            line = next(
                each
                for each in text.decode().splitlines()
                if each.startswith(f"cmdstat_{command}:")
            )
            return int(line.split("calls=")[1].split(",")[0])

        # One of its own: when agents were looked at.
        assert count(after, "hset") - count(info, "hset") <= 1
        assert count(after, "rpush") == count(info, "rpush")


async def test_many_keys_and_many_messages_of_one_key_are_seen_to_be_gone(
    store_server: EmbeddedServer,
) -> None:
    """More than one look, and more than one call, can take."""
    async with mirror_world(store_server.address) as world:
        await world.agent_starts("a")
        await world.step()
        await asyncio.gather(*(world.send(f"k{number}") for number in range(700)))
        await asyncio.gather(*(world.send("hot", str(number)) for number in range(1200)))
        await world.pusher.push("hot")
        await asyncio.gather(*(world.pusher.push(f"k{number}") for number in range(700)))
        assert len(await world.queue("hot")) == 1200
        await world.store.call("LPOP", "acapy_inbound_hot", 1199)
        for number in range(700):
            await world.store.call("DEL", f"acapy_inbound_k{number}")
        steps = [await world.step()]
        while steps[-1].again_seconds is not None:
            steps.append(await world.step())
        assert len(steps) <= 3
        assert (await world.look()).pending == 1


async def test_a_key_that_no_agent_could_have_is_refused(store_server: EmbeddedServer) -> None:
    async with mirror_world(store_server.address) as world:
        await world.agent_starts("a")
        with pytest.raises(KeyInvalidError):
            await world.send("a}b")
        await world.store.call("HSET", "recip_key_uid_map", "{x}y", "a")
        await world.step()
        assert await world.lists() == {"a": []}
        assert (await world.look()).keys == 0
