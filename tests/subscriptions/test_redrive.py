"""Redrive: dead letters are due again, in order, once for each operation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.subscriptions.shard_slot import PLACE, ShardSlot, ended, main, open_shard_slot
from waystation.errors import ShardFrozenError, ShardLostError, StoreReplyError
from waystation.store.embedded.server import EmbeddedServer
from waystation.subscriptions.log_entry import unpack_operation
from waystation.subscriptions.names import Place
from waystation.subscriptions.operating import RedriveStep, Stepped
from waystation.subscriptions.states import GroupState, MessageState


async def redrive(slot: ShardSlot, operation: str = "op", **more: Any) -> Stepped:
    """One step; without another bound all that has failed so far."""
    step = RedriveStep(operation=operation, **{"failed_before_ms": 0, **more})
    return await slot.operating.redrive(PLACE, step)


async def counts(slot: ShardSlot, operation: str = "op") -> tuple[int, int, int, int, int]:
    look = (await slot.looking.operations(PLACE))[operation]
    return look.groups, look.marked, look.settled, look.parked_again, look.open


async def deliver_all(slot: ShardSlot) -> list[str]:
    """Settles what is due until nothing is; the members, in order."""
    order = []
    while heads := await slot.heads():
        for head in heads:
            following = head
            while following is not None:
                order.append(following.member)
                item = ended(following.member, following.group)
                following = (await slot.one(item)).next  # type: ignore[assignment]
    return order


async def test_a_group_is_redriven_in_order_and_then_clean(store_server: EmbeddedServer) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.parked(3)
        assert await redrive(slot, group="g") == Stepped(1, 3, "", [])
        assert (await slot.looking.group(PLACE, "g")).state is GroupState.REDRIVING
        assert "failed" not in await slot.slot()
        assert await counts(slot) == (1, 3, 0, 0, 1)
        assert await deliver_all(slot) == ["d1.0", "d2.0", "d3.0"]
        assert await counts(slot) == (1, 3, 3, 0, 0)
        assert (await slot.slot()).keys() == {"head", "pos", "ops"}
        (fact,) = [fact for fact in await slot.facts() if fact.kind == "redriven"]
        assert (fact.was, fact.now, fact.verdict) == ("d1", "d1", "redriven")
        assert unpack_operation(fact.detail or b"").operation == "op"


async def test_a_prefix_ends_with_the_message_that_was_named(store_server: EmbeddedServer) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.parked(5)
        found = await slot.looking.find(PLACE, "m-2", group="g")
        assert found is not None
        assert (found.ahead, found.number) == (2, 3)
        assert (await redrive(slot, group="g", upto=found.number)).messages == 3
        assert await deliver_all(slot) == ["d1.0", "d2.0", "d3.0"]
        look = await slot.looking.group(PLACE, "g")
        assert (look.state, look.dead, look.head_name) == (GroupState.PARKED, 2, "d4")
        assert await counts(slot) == (1, 3, 3, 0, 0)
        # What is behind the head now was settled before: there is no such prefix any more.
        assert await redrive(slot, "op-2", group="g", upto=3) == Stepped(0, 0, "", [])


async def test_by_time_those_are_redriven_whose_head_failed_then(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        times = []
        for i, group in enumerate(("a", "b", "c")):
            await slot.parked(1, group, first=10 * i)
            await slot.machine.advance(1)
            times.append((await slot.looking.group(PLACE, group)).failed_ms)
        stepped = await redrive(slot, failed_after_ms=times[1], failed_before_ms=times[2])
        assert stepped == Stepped(1, 1, "", [])
        assert [head.group for head in await slot.heads()] == ["b"]
        # The bound holds for a named group as well.
        assert (await redrive(slot, "op-2", group="c", failed_before_ms=times[2])).groups == 0


async def test_all_are_redriven_by_steps_and_nothing_twice(store_server: EmbeddedServer) -> None:
    async with open_shard_slot(store_server) as slot:
        for first in range(0, 500, 100):
            await slot.commit(*(main(i, f"g{i}", "dead") for i in range(first, first + 100)))
        slot.use(policy="skip")
        await slot.commit(main(500, "s", "dead"), main(501, "", "dead"))
        steps, cursor = [], ""
        while True:
            stepped = await redrive(slot, cursor=cursor)
            steps.append(stepped.groups)
            if not (cursor := stepped.cursor):
                break
        assert sum(steps) == 502
        assert max(steps) <= 200
        assert await counts(slot) == (502, 502, 0, 0, 502)
        assert len(await slot.hash("alone")) == 2
        assert len(await deliver_all(slot)) == 502
        assert await counts(slot) == (502, 502, 502, 0, 0)
        assert (await slot.looking.operations(PLACE))["op"].ended
        assert (await slot.looking.shard(PLACE)).alone == 0
        assert (await slot.slot()).keys() == {"head", "pos", "ops"}


async def test_a_step_stops_when_its_credit_is_used_up(store_server: EmbeddedServer) -> None:
    async with open_shard_slot(store_server) as slot:
        for i, group in enumerate("abc"):
            await slot.parked(4, group, first=10 * i)
        stepped = await redrive(slot, most=5)
        assert (stepped.groups, stepped.messages) == (2, 8)
        stepped = await redrive(slot, most=5, cursor=stepped.cursor)
        assert (stepped.groups, stepped.messages, stepped.cursor) == (1, 4, "")


async def test_a_dry_run_counts_the_same_and_writes_nothing(store_server: EmbeddedServer) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.parked(3)
        slot.use(policy="skip")
        await slot.one(main(9, "", "dead"))
        before = await slot.everything()
        group = await redrive(slot, group="g", dry_run=True)
        assert (group.groups, group.messages) == (1, 3)
        prefix = await redrive(slot, group="g", upto=2, dry_run=True)
        assert (prefix.groups, prefix.messages) == (1, 2)
        everything = await redrive(slot, dry_run=True)
        assert (everything.groups, everything.messages, everything.cursor) == (2, 4, "")
        told = [(each.number, each.state, each.behind) for each in everything.sample]
        assert told == [(1, MessageState.PARKED, 2), (4, MessageState.ALONE, 0)]
        assert everything.sample[1].record.position.offset == 9
        assert await slot.everything() == before
        assert (await redrive(slot)).messages == 4


async def test_two_at_once_mark_each_group_once(store_server: EmbeddedServer) -> None:
    """F-27: a group that is redriven already is passed over; nothing is attempted twice for it."""
    async with open_shard_slot(store_server) as slot:
        for i in range(50):
            await slot.parked(2, f"g{i}", first=10 * i)

        async def drive(operation: str) -> int:
            messages, cursor = 0, ""
            while True:
                stepped = await redrive(slot, operation, cursor=cursor, most=6)
                messages += stepped.messages
                if not (cursor := stepped.cursor):
                    return messages

        first, second = await asyncio.gather(drive("one"), drive("two"))
        assert (first + second, first > 0, second > 0) == (100, True, True)
        order = await deliver_all(slot)
        assert len(order) == len(set(order)) == 100
        one, two = await counts(slot, "one"), await counts(slot, "two")
        assert (one[1], one[2], one[4]) == (first, first, 0)
        assert (two[1], two[2], two[4]) == (second, second, 0)


async def test_while_new_ones_come_they_go_behind_and_are_redriven_with_the_rest(
    store_server: EmbeddedServer,
) -> None:
    """F-27: live traffic keeps its order behind a redrive without end."""
    async with open_shard_slot(store_server) as slot:
        await slot.parked(2)
        await redrive(slot, group="g")
        await slot.one(main(2, verdict="behind"))
        assert await redrive(slot, "other", group="g") == Stepped(0, 0, "", [])
        await slot.one(main(3, verdict="behind"))
        assert await deliver_all(slot) == ["d1.0", "d2.0", "d3.0", "d4.0"]
        assert "groups" not in await slot.slot()


async def test_what_fails_again_is_not_met_again_by_the_same_operation(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.parked(2)
        await slot.machine.advance(1)
        start = (await slot.looking.shard(PLACE)).now_ms
        assert (await redrive(slot, group="g", failed_before_ms=start)).groups == 1
        (head,) = await slot.heads()
        await slot.one(ended(head.member, verdict="dead"))
        assert await counts(slot) == (1, 2, 0, 1, 0)
        for group in ("g", ""):
            again = await redrive(slot, group=group, failed_before_ms=start)
            assert again == Stepped(0, 0, "", [])
        assert (await slot.looking.group(PLACE, "g")).state is GroupState.PARKED
        assert (await redrive(slot, "op-2", group="g")).groups == 1


async def test_a_group_that_still_follows_is_redriven_before_its_retries(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.retrying(60)
        (head,) = await slot.heads()
        assert (await slot.one(ended(head.member, verdict="dead"))).state is GroupState.RETRYING
        assert (await redrive(slot, group="g")).messages == 51
        assert set(await slot.scores("due")) == {"d1.0"}
        assert await slot.shard.follow(PLACE, slot.terms, "g") == 0
        order = await deliver_all(slot)
        assert order == [*(f"d{i}.0" for i in range(1, 52)), *(f"r{i}.0" for i in range(52, 61))]
        assert "groups" not in await slot.slot()


async def test_only_what_is_parked_is_redriven(store_server: EmbeddedServer) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.retrying(2)
        await slot.parked(2, "p", first=10)
        before = await slot.everything()
        for more in ({"group": "g"}, {"group": "clean"}, {"upto": 1}, {"upto": 77}):
            assert await redrive(slot, **more) == Stepped(0, 0, "", []), more
        assert await slot.everything() == before


async def test_an_owner_that_waits_is_woken(store_server: EmbeddedServer) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.parked(1)
        due = await slot.due()
        assert (due.heads, due.next_ms) == ([], -1)
        await redrive(slot)
        assert [head.member for head in await slot.heads()] == ["d1.0"]


async def test_a_frozen_shard_or_none_is_refused_and_a_bad_cursor_is_an_error(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.parked(1)
        with pytest.raises(StoreReplyError):
            await redrive(slot, cursor="what?")
        assert await slot.operating.freeze(PLACE, "a new generation")
        before = await slot.everything()
        for more in ({"group": "g"}, {}, {"dry_run": True}):
            with pytest.raises(ShardFrozenError):
                await redrive(slot, **more)
        assert await slot.everything() == before
        step = RedriveStep(operation="op", failed_before_ms=0)
        with pytest.raises(ShardLostError):
            await slot.operating.redrive(Place("default", "other", 0, 0), step)


async def test_two_who_drive_the_same_operation_do_each_step_once(
    store_server: EmbeddedServer,
) -> None:
    """A former owner that was taken for dead may still take a step."""
    async with open_shard_slot(store_server) as slot:
        for i in range(20):
            await slot.parked(2, f"g{i}", first=2 * i)

        async def drive() -> int:
            messages, cursor = 0, ""
            while True:
                stepped = await redrive(slot, cursor=cursor, most=6)
                messages += stepped.messages
                if not (cursor := stepped.cursor):
                    return messages

        assert sum(await asyncio.gather(drive(), drive())) == 40
        assert await counts(slot) == (20, 40, 0, 0, 20)
        assert len(await deliver_all(slot)) == 40
