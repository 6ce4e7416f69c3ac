"""Shards on nodes: spread over those that are alive, one owner each, through joins and deaths."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from tests.helpers.store_faults import Fate, proxy_to, store_at
from tests.helpers.waiting import eventually
from tests.subscriptions.hosting import (
    QUICK,
    HostProcess,
    ToldShard,
    epoch_of,
    hosting,
    subscription,
)
from waystation.errors import ShardLostError
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.subscriptions.names import DELIVERY, Place
from waystation.subscriptions.placement import Patience, Placement

PLACES = {Place("default", "billing", 0, shard) for shard in range(4)}


@asynccontextmanager
async def empty_store(server: EmbeddedServer) -> AsyncIterator[Store]:
    async with store_at(server.address) as store:
        await store.call("FLUSHALL")
        yield store


async def members(store: Store) -> set[str]:
    return {each.decode() for each in await store.call("ZRANGE", DELIVERY, 0, -1)}


async def owner(store: Store, place: Place) -> str:
    found, until_ms = await store.call("HMGET", place.lease, "owner", "until_ms")
    return "" if not found or until_ms == b"0" else str(found.decode())


def refuse(shard: ToldShard) -> None:
    shard.problem = ShardLostError("not yours")


# -- Who is alive --------------------------------------------------------------------------------


async def test_a_node_is_alive_until_it_leaves_or_falls_silent(
    store_server: EmbeddedServer,
) -> None:
    async with empty_store(store_server) as store:
        one, two = (Placement(store, node=name, patience=QUICK) for name in ("one", "two"))
        await one.attend()
        assert one.nodes == ("one",)
        await two.attend()
        assert two.nodes == ("one", "two")
        # One that was killed: the last that it said is long ago.
        await store.call("ZADD", DELIVERY, "1", "killed")
        await one.attend()
        assert one.nodes == ("one", "two")
        await two.leave()
        await one.attend()
        assert one.nodes == ("one",)
        assert one.owners(list(PLACES)) == dict.fromkeys(PLACES, "one")


async def test_a_node_that_says_again_that_it_is_there_wakes_nobody(
    store_server: EmbeddedServer,
) -> None:
    """A hint makes every node look: one with each beat would never end."""
    async with (
        empty_store(store_server) as store,
        hosting(store_server.address, "one", [subscription()]) as one,
    ):
        await eventually(lambda: one.places == PLACES)
        two = Placement(store, node="two", patience=QUICK)
        await two.attend()
        await eventually(lambda: len(one.places) == 2)
        await eventually(lambda: len(one.host.shards) == 2)
        loop = asyncio.get_running_loop()
        before, begun = one.looks, loop.time()
        for _ in range(50):
            await two.attend()
        by_itself = (loop.time() - begun) / QUICK.beat_seconds
        assert one.looks - before <= 3 + by_itself


# -- Joining and leaving -------------------------------------------------------------------------


async def test_one_node_takes_all_shards_and_hears_of_new_definitions(
    store_server: EmbeddedServer,
) -> None:
    async with empty_store(store_server) as store:
        slow = msgspec.structs.replace(QUICK, beat_seconds=60.0)
        async with hosting(store_server.address, "one", [subscription()], patience=slow) as one:
            await eventually(lambda: one.places == PLACES)
            one.definitions.append(subscription("crm", shards=2))
            await store.call("PUBLISH", DELIVERY, "")
            await eventually(lambda: len(one.places) == 6)

            one.definitions[0] = subscription(version=2)
            await store.call("PUBLISH", DELIVERY, "")
            await eventually(
                lambda: all(one.shard(each).subscription.version == 2 for each in PLACES)
            )
            assert len(one.shards) == 6, "none of them was opened anew"

            del one.definitions[0]
            await store.call("PUBLISH", DELIVERY, "")
            await eventually(lambda: len(one.host.shards) == 2)
            for place in PLACES:
                assert await owner(store, place) == ""


async def test_a_node_that_joins_gets_its_part_and_nobody_has_a_shard_twice(
    store_server: EmbeddedServer,
) -> None:
    async with (
        empty_store(store_server) as store,
        hosting(store_server.address, "one", [subscription(), subscription("crm")]) as one,
    ):
        await eventually(lambda: len(one.places) == 8)
        async with hosting(
            store_server.address, "two", [subscription(), subscription("crm")]
        ) as two:
            await eventually(lambda: len(two.places) == 4)
            await eventually(lambda: len(one.host.shards) == 4)
            assert not one.places & two.places
            assert {shard.stopped for shard in one.shards} == {None, 0.5}, "drained, not cut off"
            for place in one.places:
                assert one.shard(place).lease.epoch == 1, "what stays was not touched"
            for place in two.places:
                assert two.shard(place).lease.epoch == await epoch_of(store, place) == 2
            assert {each.subscription for each in two.places} == {"billing", "crm"}
        await eventually(lambda: len(one.places) == 8)


async def test_what_is_given_is_free_only_when_it_has_drained(
    store_server: EmbeddedServer,
) -> None:
    """F-34: the next owner must not read what the former one still sends."""
    async with (
        empty_store(store_server),
        hosting(store_server.address, "one", [subscription()]) as one,
    ):
        await eventually(lambda: one.places == PLACES)
        for shard in one.shards:
            shard.drained.clear()
        async with hosting(store_server.address, "two", [subscription()]) as two:
            await eventually(lambda: sum(each.stopped is not None for each in one.shards) == 2)
            for _ in range(3):
                await two.host._look()
            assert not two.places
            for shard in one.shards:
                shard.drained.set()
            await eventually(lambda: len(two.places) == 2)


async def test_a_node_that_stops_drains_all_at_once_and_the_others_have_it_in_moments(
    store_server: EmbeddedServer,
) -> None:
    """F-34"""
    async with empty_store(store_server) as store:
        slow = msgspec.structs.replace(QUICK, beat_seconds=60.0, lease_seconds=60.0)
        async with hosting(store_server.address, "two", [subscription()], patience=slow) as two:
            async with hosting(store_server.address, "one", [subscription()], patience=slow) as one:
                await eventually(lambda: (len(one.places), len(two.places)) == (2, 2))
                held = [one.shard(place) for place in one.places]
                stopping = asyncio.ensure_future(one.host.stop(grace_seconds=3.0))
                await eventually(lambda: two.places == PLACES, timeout=5)
                await stopping
                assert [each.stopped for each in held] == [3.0, 3.0]
            assert await members(store) == {"two"}


async def test_a_process_that_is_told_to_end_gives_its_shards_back(
    store_server: EmbeddedServer,
) -> None:
    """F-34: SIGTERM; nobody waits for a lease to run out."""
    async with empty_store(store_server) as store:
        patient = msgspec.structs.replace(QUICK, lease_seconds=60.0)
        async with hosting(store_server.address, "one", [subscription()], patience=patient) as one:
            with HostProcess(store_server.address, "other") as other:
                await eventually(lambda: len(one.places) == 2)
                other.signal(signal.SIGTERM)
                assert await asyncio.to_thread(other.process.wait, 15) == 0
                await eventually(lambda: one.places == PLACES, timeout=5)
                assert await members(store) == {"one"}


# -- Deaths --------------------------------------------------------------------------------------


async def test_the_shards_of_a_killed_process_are_taken_over(
    store_server: EmbeddedServer,
) -> None:
    """F-03, the part of placement: kill -9."""
    async with (
        empty_store(store_server) as store,
        hosting(store_server.address, "one", [subscription()]) as one,
    ):
        with HostProcess(store_server.address, "other") as other:
            await eventually(lambda: len(one.places) == 2)
            theirs = PLACES - one.places
            await _until_owned(store, theirs, "other")
            epochs = {place: await epoch_of(store, place) for place in PLACES}
            other.signal(signal.SIGKILL)
            await eventually(lambda: one.places == PLACES)
            for place in theirs:
                assert one.shard(place).lease.epoch == epochs[place] + 1


async def test_an_owner_that_stands_still_is_replaced_and_lets_go_when_it_wakes(
    store_server: EmbeddedServer,
) -> None:
    """F-13"""
    async with (
        empty_store(store_server) as store,
        hosting(store_server.address, "one", [subscription()]) as one,
    ):
        with HostProcess(store_server.address, "other") as other:
            await eventually(lambda: len(one.places) == 2)
            theirs = PLACES - one.places
            await _until_owned(store, theirs, "other")
            other.signal(signal.SIGSTOP)
            await eventually(lambda: one.places == PLACES)
            taken = {place: one.shard(place).lease.epoch for place in theirs}
            other.signal(signal.SIGCONT)
            # It is there again, so it gets its part again: under another epoch, not its old one.
            await eventually(lambda: len(one.places) == 2)
            await _until_owned(store, theirs, "other")
            for place in theirs:
                assert await epoch_of(store, place) == taken[place] + 1


async def test_a_shard_that_lost_its_lease_is_let_go_and_taken_anew(
    store_server: EmbeddedServer,
) -> None:
    async with (
        empty_store(store_server) as store,
        hosting(store_server.address, "one", [subscription(shards=1)]) as one,
    ):
        place = Place("default", "billing", 0, 0)
        await eventually(lambda: one.places == {place})
        # As a reset does it: whoever owns the shard is fenced.
        await store.call("HSET", place.lease, "epoch", 2, "until_ms", 0)
        await eventually(lambda: len(one.shards) == 2 and one.places == {place})
        assert (one.shards[0].stopped, one.shards[1].lease.epoch) == (0, 3)


async def test_a_shard_that_ends_by_itself_is_opened_under_another_epoch(
    store_server: EmbeddedServer,
) -> None:
    """An epoch has one shard that works under it, whatever its lease says."""
    async with (
        empty_store(store_server),
        hosting(store_server.address, "one", [subscription(shards=1)]) as one,
    ):
        await eventually(lambda: len(one.places) == 1)
        one.shards[0].ended.set()
        await eventually(lambda: len(one.shards) == 2 and len(one.places) == 1)
        assert [each.lease.epoch for each in one.shards] == [1, 2]


async def test_a_shard_that_cannot_be_opened_is_tried_again_and_keeps_nobody_off(
    store_server: EmbeddedServer,
) -> None:
    async with (
        empty_store(store_server),
        hosting(
            store_server.address, "one", [subscription(), subscription("crm")], start=False
        ) as one,
    ):
        one.prepare = lambda shard: refuse(shard) if shard.place.subscription == "crm" else None
        await one.host.start()
        await eventually(lambda: one.places == PLACES)
        await eventually(lambda: sum(each.place.subscription == "crm" for each in one.shards) > 8)
        epochs = [each.lease.epoch for each in one.shards if each.place == _crm(0)]
        assert epochs == sorted(set(epochs)), "another epoch each time"
        one.prepare = lambda _: None
        await eventually(lambda: len(one.places) == 8)


async def test_a_shard_whose_node_does_not_come_is_anyones_and_does_not_go_to_and_fro(
    store_server: EmbeddedServer,
) -> None:
    async with (
        empty_store(store_server) as store,
        hosting(store_server.address, "one", [subscription()]) as one,
    ):
        await eventually(lambda: one.places == PLACES)
        # It is alive, and takes nothing.
        idle = Placement(store, node="idle", patience=QUICK)
        attending = asyncio.ensure_future(_attend(idle))
        await eventually(lambda: len(one.places) == 2)
        await eventually(lambda: one.places == PLACES)
        opened = len(one.shards)
        await asyncio.sleep(3 * QUICK.beat_seconds)
        assert (one.places, len(one.shards)) == (PLACES, opened)
        attending.cancel()


async def test_a_node_has_no_more_shards_than_it_may(store_server: EmbeddedServer) -> None:
    async with (
        empty_store(store_server),
        hosting(store_server.address, "one", [subscription()], shards_max=1) as one,
    ):
        await eventually(lambda: len(one.places) == 1)
        async with hosting(store_server.address, "two", [subscription()]) as two:
            await eventually(lambda: len(two.places) == 3)
            assert not one.places & two.places


# -- A store that is away ------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_deaf_node_is_not_ready_and_ends_its_process_if_it_held_shards(
    store_server: EmbeddedServer,
) -> None:
    async with (
        empty_store(store_server),
        proxy_to(store_server.address) as proxy,
        hosting(proxy.address, "one", [subscription()], call_seconds_max=1.0) as one,
        hosting(proxy.address, "two", [], call_seconds_max=1.0) as two,
    ):
        # Of the two this one is to hold nothing: it knows no subscription.
        await eventually(lambda: len(one.places) >= 2)
        assert one.host.healthy
        await proxy.set_fates(requests=Fate.CUT)
        proxy.cut()
        await eventually(lambda: not one.host.healthy)
        assert not one.deaf, "it says so before"
        await eventually(lambda: one.deaf)
        assert not two.deaf, "who holds nothing has lost nothing"
        await proxy.set_fates()
        await eventually(lambda: one.host.healthy)


async def test_what_could_not_be_released_is_released_before_it_is_taken_again(
    store_server: EmbeddedServer,
) -> None:
    """Else a late call of the former shard would still be let in under the epoch of the new one."""
    patient = msgspec.structs.replace(QUICK, lease_seconds=60.0)
    async with (
        empty_store(store_server),
        proxy_to(store_server.address) as proxy,
        hosting(
            proxy.address, "one", [subscription(shards=1)], patience=patient, call_seconds_max=1.0
        ) as one,
    ):
        await eventually(lambda: len(one.places) == 1)
        one.shards[0].drained.clear()
        one.shards[0].ended.set()
        await eventually(lambda: one.shards[0].stopped is not None)
        await proxy.set_fates(requests=Fate.CUT)
        proxy.cut()
        one.shards[0].drained.set()
        await eventually(lambda: not one.host.shards)
        await proxy.set_fates()
        await eventually(lambda: len(one.places) == 1)
        assert [each.lease.epoch for each in one.shards] == [1, 2]


async def _attend(placement: Placement) -> None:
    while True:
        await placement.attend()
        await asyncio.sleep(QUICK.beat_seconds)


async def _until_owned(store: Store, places: set[Place], node: str) -> None:
    async with asyncio.timeout(15):
        while {await owner(store, place) for place in places} != {node}:
            await asyncio.sleep(0.01)


def _crm(shard: int) -> Place:
    return Place("default", "crm", 0, shard)


def test_with_a_short_lease_nobody_waits_long_for_the_dead() -> None:
    assert Patience.of_lease(10.0) == Patience()
    assert Patience.of_lease(60.0) == Patience(lease_seconds=60.0), "who is alive is heard as soon"
    quick = Patience.of_lease(1.0)
    assert (quick.beat_seconds, quick.silent_seconds, quick.stray_seconds) == (0.2, 1.0, 0.5)
    assert quick.keep_seconds == Patience().keep_seconds
