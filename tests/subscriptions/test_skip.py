"""Skip: the head of a group is settled, and the rest goes on."""

from __future__ import annotations

import pytest

from tests.subscriptions.shard_slot import PLACE, ShardSlot, ended, main, open_shard_slot
from waystation.errors import ShardFrozenError
from waystation.store.embedded.server import EmbeddedServer
from waystation.subscriptions.log_entry import unpack_operation
from waystation.subscriptions.states import GroupState


async def skip(slot: ShardSlot, head: str, operation: str = "op", group: str = "g") -> str:
    return await slot.operating.skip(PLACE, operation, group, head)


async def state(slot: ShardSlot) -> GroupState:
    return (await slot.looking.group(PLACE, "g")).state


async def test_the_rest_of_a_parked_group_is_due_without_end(store_server: EmbeddedServer) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.parked(3)
        assert await skip(slot, "d1") == "done"
        assert await state(slot) is GroupState.REDRIVING
        assert set(await slot.hash("dead")) == {"2", "3"}
        assert "failed" not in await slot.slot()
        await slot.one(main(3, verdict="behind"))
        (head,) = await slot.heads()
        order, following = [], head
        while following is not None:
            order.append(following.member)
            following = (await slot.one(ended(following.member))).next  # type: ignore[assignment]
        assert order == ["d2.0", "d3.0", "d4.0"]
        assert await state(slot) is GroupState.CLEAN
        (fact,) = [fact for fact in await slot.facts() if fact.kind == "skipped"]
        assert (fact.was, fact.now) == ("d1", "-")
        assert unpack_operation(fact.detail or b"").operation == "op"


async def test_the_last_one_leaves_its_group_clean(store_server: EmbeddedServer) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.parked(1)
        assert await skip(slot, "d1") == "done"
        assert (await slot.slot()).keys() == {"head", "pos", "ops"}
        assert await skip(slot, "d1") == "done", "this operation has done it"
        assert await skip(slot, "d1", "another") == "clean"


async def test_a_head_in_retry_makes_room_for_the_next(store_server: EmbeddedServer) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.retrying(2)
        assert await skip(slot, "r1") == "done"
        assert await slot.hash("retry") != {}
        assert [head.member for head in await slot.heads()] == ["r2.0"]
        assert (await slot.one(ended("r2.0"))).state is GroupState.CLEAN


async def test_a_head_that_is_under_way_is_settled_once(store_server: EmbeddedServer) -> None:
    """Its request may still be answered: that changes nothing any more."""
    async with open_shard_slot(store_server) as slot:
        await slot.retrying(2)
        (head,) = await slot.heads()
        assert await skip(slot, "r1") == "done"
        for verdict in ("done", "again", "dead"):
            late = await slot.one(ended(head.member, verdict=verdict))
            assert (late.outcome, late.state) == ("known", GroupState.RETRYING)
        assert [head.member for head in await slot.heads()] == ["r2.0"]


async def test_only_the_head_that_was_seen_is_skipped(store_server: EmbeddedServer) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.parked(2)
        for head in ("d2", "r1", "d9"):
            assert await skip(slot, head) == "known"
        assert set(await slot.hash("dead")) == {"1", "2"}
        # Two operators who saw the same head skip it once.
        assert await skip(slot, "d1", "one") == "done"
        assert await skip(slot, "d1", "two") == "known"
        assert set(await slot.hash("dead")) == {"2"}


async def test_of_a_group_that_still_follows_the_rest_is_attempted(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.retrying(60)
        (head,) = await slot.heads()
        await slot.one(ended(head.member, verdict="dead"))
        assert await skip(slot, "d1") == "done"
        assert set(await slot.scores("due")) == {"d2.0"}
        look = await slot.looking.group(PLACE, "g")
        assert (look.state, look.dead, look.retry) == (GroupState.REDRIVING, 50, 9)


async def test_a_redrive_goes_on_behind_what_was_skipped(store_server: EmbeddedServer) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.parked(2)
        await slot.redriven(operation="redrive")
        assert await skip(slot, "d1") == "done"
        assert [head.member for head in await slot.heads()] == ["d2.0"]
        await slot.one(ended("d2.0"))
        look = (await slot.looking.operations(PLACE))["redrive"]
        assert (look.settled, look.open) == (1, 0)


async def test_a_frozen_shard_is_refused(store_server: EmbeddedServer) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.parked(2)
        await slot.operating.freeze(PLACE, "a new generation")
        before = await slot.everything()
        with pytest.raises(ShardFrozenError):
            await skip(slot, "d1")
        assert await slot.everything() == before
