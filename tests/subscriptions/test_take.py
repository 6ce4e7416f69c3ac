"""Work for others than the owner: offered, taken under a lease, settled by the same commit."""

from __future__ import annotations

import msgspec
import pytest

from tests.subscriptions.shard_slot import PLACE, ShardSlot, ended, main, open_shard_slot
from waystation.errors import ShardLostError, StoreError
from waystation.store.embedded.server import EmbeddedServer
from waystation.subscriptions.held import Committed, Offered, Settlement
from waystation.subscriptions.states import GroupState
from waystation.subscriptions.terms import NO_EPOCH

LEASE_MS = 10_000


async def offer(slot: ShardSlot, *members: str, most: int = 100, seen: int = 0) -> Offered:
    return await slot.shard.offer(PLACE, slot.terms, members, most=most, seen=seen)


async def take(slot: ShardSlot, token: str, most: int = 10) -> list[str]:
    heads = await slot.shard.take(PLACE, most=most, lease_ms=LEASE_MS, token=token)
    return [head.member for head in heads]


async def settle(slot: ShardSlot, *items: Settlement, incarnation: int = 1) -> Committed:
    """As a worker that owns nothing."""
    terms = msgspec.structs.replace(slot.terms, epoch=NO_EPOCH, incarnation=incarnation)
    return await slot.commits.commit(PLACE, terms, items, call=0)


async def test_two_workers_take_apart_and_settle_by_the_same_commit(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        await offer(slot, "m0.0.0", "m0.0.1", "m0.0.2")
        assert await take(slot, "a", most=2) == ["m0.0.0", "m0.0.1"]
        assert await take(slot, "b") == ["m0.0.2"]
        done = await settle(slot, main(0, "x", token="a"), main(1, "g", "again", token="a"))
        assert [each.outcome for each in done.items] == ["done", "done"]
        (lost,) = (await settle(slot, main(2, "y", token="a"))).items
        assert lost.outcome == "lease_lost"
        assert await slot.low() == 2
        told = await offer(slot)
        clean, retrying = GroupState.CLEAN, GroupState.RETRYING
        assert told.ended == [("m0.0.0", clean), ("m0.0.1", retrying)]
        assert await slot.hash("tokens") == {"m0.0.2": "b"}


async def test_endings_are_told_until_they_were_seen(store_server: EmbeddedServer) -> None:
    async with open_shard_slot(store_server) as slot:
        await offer(slot, "m0.0.0", "m0.0.1")
        await take(slot, "a")
        await settle(slot, main(0, "", token="a"))
        told = await offer(slot)
        assert (told.seen, len(told.ended)) == (0, 1)
        await settle(slot, main(1, "", token="a"))
        for _ in range(2):
            # Asked twice with the same number, as after a lost reply: nothing is lost.
            told = await offer(slot, seen=1)
            assert (told.seen, [member for member, _ in told.ended]) == (1, ["m0.0.1"])
        assert (await offer(slot, seen=2)).ended == []
        assert "ended" not in await slot.slot()


async def test_a_lease_that_is_over_is_taken_by_another_and_the_old_token_is_lost(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        await offer(slot, "m0.0.0")
        assert await take(slot, "a") == ["m0.0.0"]
        assert await take(slot, "b") == []
        await slot.machine.advance(9)
        assert await slot.shard.renew(PLACE, {"m0.0.0": "a"}, lease_ms=LEASE_MS) == []
        await slot.machine.advance(9)
        assert await take(slot, "b") == []
        await slot.machine.advance(2)
        assert await take(slot, "b") == ["m0.0.0"]
        assert await slot.shard.renew(PLACE, {"m0.0.0": "a"}, lease_ms=1) == ["m0.0.0"]
        (late,) = (await settle(slot, main(0, token="a"))).items
        assert late.outcome == "lease_lost"
        (done,) = (await settle(slot, main(0, token="b"))).items
        assert done.outcome == "done"
        (again,) = (await settle(slot, main(0, token="b"))).items
        assert again.outcome == "known"


async def test_nothing_is_offered_twice_nor_more_than_may_wait(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        assert (await offer(slot, "m0.0.0", "m0.0.1", "m0.0.2", most=2)).ready == 2
        assert (await offer(slot, "m0.0.0", "m0.0.1", most=9)).ready == 2
        await take(slot, "a", most=1)
        assert (await offer(slot, "m0.0.0", most=9)).ready == 1
        await settle(slot, main(0, "", token="a"))
        assert (await offer(slot, "m0.0.0", most=9)).ready == 1, "it is acknowledged"


async def test_heads_are_offered_by_the_owner_that_has_taken_them(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.retrying(1)
        assert (await offer(slot, "r1.1")).ready == 0
        (head,) = await slot.heads()
        for _ in range(2):
            assert (await offer(slot, head.member)).ready == 1
        (taken,) = await slot.shard.take(PLACE, most=1, lease_ms=LEASE_MS, token="a")
        assert taken == head
        (own,) = await slot.commit(ended(head.member))
        assert own.outcome == "lease_lost", "the owner has given it away"
        (done,) = (await settle(slot, ended(head.member, token="a"))).items
        assert (done.outcome, done.state) == ("done", GroupState.CLEAN)
        assert (await offer(slot, head.member)).ready == 0


async def test_a_take_over_of_the_shard_leaves_workers_their_leases(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        await offer(slot, "m0.0.0")
        await take(slot, "a")
        await slot.acquire("other")
        await slot.shard.open(PLACE, slot.terms)
        (done,) = (await settle(slot, main(0, token="a"))).items
        assert done.outcome == "done"


async def test_a_worker_of_an_older_incarnation_or_without_tokens_is_refused(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        await offer(slot, "m0.0.0")
        await take(slot, "a")
        await slot.store.call("HSET", slot.key("head"), "incarnation", 2)
        before = await slot.everything()
        with pytest.raises(ShardLostError):
            await settle(slot, main(0, token="a"))
        with pytest.raises(StoreError):
            await settle(slot, main(0), incarnation=2)
        assert await slot.everything() == before


async def test_what_was_settled_before_it_was_taken_is_passed_over(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.retrying(1)
        (head,) = await slot.heads()
        await offer(slot, head.member, "m0.0.7")
        # As an operation does that settles it.
        await slot.store.call("UNLINK", slot.key("retry"), slot.key("groups"))
        assert await take(slot, "a") == ["m0.0.7"]
