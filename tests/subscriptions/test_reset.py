"""Reset: a new incarnation at other positions; whatever is of the old one comes too late."""

from __future__ import annotations

import msgspec
import pytest

from tests.subscriptions.shard_slot import PLACE, ended, main, open_shard_slot
from waystation.errors import ShardFrozenError, ShardLostError, StoreReplyError
from waystation.store.embedded.server import EmbeddedServer
from waystation.subscriptions.terms import NO_EPOCH


async def test_positions_are_anew_and_retry_and_dead_letters_stay(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.commit(*(main(i, f"g{i}") for i in (0, 1, 2, 7, 8)))
        await slot.retrying(2, first=20)
        await slot.parked(2, "p", first=30)
        kept = {name: await slot.hash(name) for name in ("groups", "retry", "dead", "rnext")}
        assert await slot.operating.reset(PLACE, 2, {"0.0": 1})
        assert (await slot.low(), await slot.acks()) == (1, [])
        assert {name: await slot.hash(name) for name in kept} == kept
        assert (await slot.hash("head"))["incarnation"] == "2"
        (fact,) = [fact for fact in await slot.facts() if fact.kind == "reset"]
        assert (fact.was, fact.now, fact.incarnation) == ("m0.0.3", "m0.0.1", 2)


async def test_a_late_commit_of_the_old_incarnation_is_refused(
    store_server: EmbeddedServer,
) -> None:
    """Else a message that is to be delivered anew would count as delivered."""
    async with open_shard_slot(store_server) as slot:
        await slot.commit(main(0), main(1))
        await slot.retrying(1, first=10)
        (head,) = await slot.heads()
        assert await slot.operating.reset(PLACE, 2, {"0.0": 0})
        before = await slot.everything()
        for item in (main(2), main(0), ended(head.member)):
            with pytest.raises(ShardLostError):
                await slot.one(item)
        assert await slot.everything() == before
        # The same process goes on under a new epoch, with what it had taken given back.
        assert await slot.acquire("me") == 3
        opened = await slot.shard.open(PLACE, slot.terms)
        assert (opened.incarnation, opened.low) == (2, {"0.0": 0})
        slot.use(incarnation=2)
        assert (await slot.one(main(0))).outcome == "done"
        assert [each.member for each in await slot.heads()] == [head.member]


async def test_what_others_had_taken_is_theirs_no_more(store_server: EmbeddedServer) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.retrying(1, "a", first=10)
        await slot.retrying(1, "b", first=11)
        heads = [head.member for head in await slot.heads()]
        members = [heads[0], "m0.0.0", heads[1], "m0.0.1"]
        await slot.shard.offer(PLACE, slot.terms, members, most=9, seen=0)
        await slot.shard.take(PLACE, most=2, lease_ms=60_000, token="mine")
        await slot.operating.reset(PLACE, 2, {"0.0": 0})
        assert {"ready", "taken", "tokens"}.isdisjoint(await slot.slot())
        assert sorted(await slot.scores("due")) == sorted(heads)
        for incarnation, outcome in ((1, "refused"), (2, "lease_lost")):
            terms = msgspec.structs.replace(slot.terms, epoch=NO_EPOCH, incarnation=incarnation)
            items = [main(0, token="mine")]
            if outcome == "refused":
                with pytest.raises(ShardLostError):
                    await slot.commits.commit(PLACE, terms, items, call=0)
            else:
                late = await slot.commits.commit(PLACE, terms, items, call=0)
                assert late.items[0].outcome == outcome


async def test_it_goes_upwards_alone_and_partitions_not_given_stay(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.shard.establish(PLACE, slot.terms, {"0.1": 5}, topic="orders")
        assert await slot.operating.reset(PLACE, 3, {"0.0": 7})
        before = await slot.everything()
        for incarnation in (1, 2, 3):
            assert not await slot.operating.reset(PLACE, incarnation, {"0.0": 0})
        assert await slot.everything() == before
        assert await slot.hash("pos") == {"0.0": "7", "0.1": "5"}
        look = await slot.looking.shard(PLACE)
        assert (look.epoch, look.until_ms) == (2, 0)


async def test_a_bad_position_and_a_frozen_shard_change_nothing(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        before = await slot.everything()
        for at in ("0", "0.0.0", "x"):
            with pytest.raises(StoreReplyError):
                await slot.operating.reset(PLACE, 2, {"0.0": 1, at: 1})
        assert await slot.everything() == before
        assert await slot.operating.freeze(PLACE, "a new generation")
        with pytest.raises(ShardFrozenError):
            await slot.operating.reset(PLACE, 2, {"0.0": 1})
        assert not await slot.operating.freeze(PLACE, "again")
        assert (await slot.looking.shard(PLACE)).frozen == "a new generation"
        assert await slot.operating.thaw(PLACE)
        assert not await slot.operating.thaw(PLACE)
        assert await slot.everything() == before
        assert await slot.operating.reset(PLACE, 2, {"0.0": 1})
