"""Purge: dead letters, and what is behind them, are settled without a delivery."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import pytest

from tests.subscriptions.shard_slot import PLACE, ShardSlot, ended, main, open_shard_slot
from tests.subscriptions.test_cost import commands
from waystation.errors import ShardFrozenError
from waystation.store.embedded.server import EmbeddedServer
from waystation.subscriptions.looks import DeadQuery
from waystation.subscriptions.operating import PurgeStep, RedriveStep, Stepped
from waystation.subscriptions.states import GroupState


async def purge(slot: ShardSlot, operation: str = "op", **more: Any) -> Stepped:
    step = PurgeStep(operation=operation, **{"failed_before_ms": 0, **more})
    return await slot.operating.purge(PLACE, step)


async def purge_all(slot: ShardSlot, **more: Any) -> list[int]:
    """All steps; how many each has settled."""
    counts, cursor = [], ""
    while True:
        stepped = await purge(slot, cursor=cursor, **more)
        counts.append(stepped.messages)
        if not (cursor := stepped.cursor):
            return counts


async def nothing_is_left(slot: ShardSlot) -> None:
    assert (await slot.slot()).keys() == {"head", "pos", "ops"}
    head = await slot.hash("head")
    for name in ("retry_bytes", "dead_bytes", "retry_count", "dead_count", "alone"):
        assert head[name] == "0", name


@pytest.mark.parametrize("state", ["retrying", "taken", "parked", "following", "redriving"])
async def test_a_group_in_any_state_is_clean_after_it(
    store_server: EmbeddedServer, state: str
) -> None:
    async with open_shard_slot(store_server) as slot:
        if state in ("retrying", "taken", "following"):
            await slot.retrying(60)
        else:
            await slot.parked(60)
        heads = await slot.heads() if state in ("taken", "following") else []
        if state == "following":
            await slot.one(ended(heads[0].member, verdict="dead"))
        if state == "redriving":
            await slot.redriven(operation="other")
            heads = await slot.heads()
        assert await purge(slot, group="g") == Stepped(1, 60, "", [])
        await nothing_is_left(slot)
        assert (await slot.looking.operations(PLACE))["op"].settled == 60
        purged = [fact for fact in await slot.facts() if fact.kind == "purged"]
        assert len({fact.was for fact in purged}) == 60
        assert {fact.now for fact in purged} == {"-"}
        if state == "redriving":
            assert (await slot.looking.operations(PLACE))["other"].open == 0
        if heads:
            late = await slot.one(ended(heads[0].member))
            assert (late.outcome, late.state) == ("known", GroupState.CLEAN)
        # The owner does not know it yet, and errs on the safe side.
        assert (await slot.one(main(100, verdict="behind"))).state is GroupState.RETRYING
        assert len(await slot.heads()) == 1


@pytest.mark.parametrize("taken", [False, True])
async def test_a_long_group_goes_by_steps_and_is_parked_or_retrying_between_them(
    store_server: EmbeddedServer, taken: bool
) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.parked(450)
        if taken:
            await slot.redriven(operation="other")
            await slot.heads()
        first = await purge(slot, group="g")
        assert (first.groups, first.messages) == (0, 200)
        look = await slot.looking.group(PLACE, "g")
        assert look.dead == 250
        assert look.state is (GroupState.REDRIVING if taken else GroupState.PARKED)
        assert await purge_all(slot, operation="next", group="g") == [200, 50]
        await nothing_is_left(slot)


async def test_what_waits_behind_dead_letters_goes_first_so_that_nothing_is_attempted(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.retrying(300)
        (head,) = await slot.heads()
        await slot.one(ended(head.member, verdict="dead"))
        failed = await slot.scores("failed")
        assert (await purge(slot)).messages == 200
        assert await slot.scores("failed") == failed, "as old as it was"
        assert [each.follow for each in await slot.heads()] == [True]
        assert await purge_all(slot, operation="next") == [100]
        await nothing_is_left(slot)


async def test_by_time_and_all_with_those_that_stand_alone(store_server: EmbeddedServer) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.parked(3, "old")
        slot.use(policy="skip")
        await slot.commit(main(20, "s", "dead"), main(21, "", "dead"))
        slot.use(policy="park")
        await slot.machine.advance(10)
        await slot.parked(2, "new", first=10)
        bound = (await slot.looking.group(PLACE, "new")).failed_ms
        dry = await purge(slot, dry_run=True, failed_before_ms=bound)
        assert (dry.groups, dry.messages, len(dry.sample)) == (3, 5, 3)
        assert await purge(slot, failed_before_ms=bound) == Stepped(3, 5, "", [])
        assert set(await slot.hash("groups")) == {"new"}
        await slot.retrying(1, "retries", first=30)
        assert await purge_all(slot, operation="rest") == [2]
        assert set(await slot.hash("groups")) == {"retries"}, "it has no dead letter"


async def test_many_groups_go_by_steps(store_server: EmbeddedServer) -> None:
    async with open_shard_slot(store_server) as slot:
        for i in range(30):
            await slot.parked(15, f"g{i}", first=15 * i)
        assert await purge_all(slot) == [200, 200, 50]
        await nothing_is_left(slot)
        look = (await slot.looking.operations(PLACE))["op"]
        assert (look.groups, look.settled, look.ended) == (30, 450, True)


async def test_one_that_stands_alone_is_purged_by_its_number_unless_it_is_redriven(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        slot.use(policy="skip")
        await slot.commit(main(0, "", "dead"), main(1, "", "dead"))
        step = RedriveStep(operation="redrive", upto=2, failed_before_ms=0)
        await slot.operating.redrive(PLACE, step)
        assert (await purge(slot, upto=1)).messages == 1
        assert (await purge(slot, "op-2", upto=2)).messages == 0
        assert set(await slot.hash("dead")) == {"2"}


async def test_a_dry_run_writes_nothing(store_server: EmbeddedServer) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.parked(3)
        await slot.retrying(2, "r", first=10)
        before = await slot.everything()
        assert (await purge(slot, group="g", dry_run=True)).messages == 3
        assert (await purge(slot, group="r", dry_run=True)).messages == 2
        assert (await purge(slot, group="clean", dry_run=True)).messages == 0
        assert (await purge(slot, dry_run=True)).messages == 3
        assert await slot.everything() == before


async def test_a_taker_that_had_it_finds_it_settled_and_the_owner_is_told(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.retrying(1, "taken")
        await slot.retrying(1, "offered", first=5)
        members = [head.member for head in await slot.heads()]
        await slot.shard.offer(PLACE, slot.terms, members, most=9, seen=0)
        (head,) = await slot.shard.take(PLACE, most=1, lease_ms=60_000, token="mine")
        for group in ("taken", "offered"):
            await purge(slot, f"op-{group}", group=group)
        told = await slot.shard.offer(PLACE, slot.terms, [], most=9, seen=0)
        assert sorted(told.ended) == [(each, GroupState.CLEAN) for each in members]
        assert {"tokens", "ready", "taken", "due"}.isdisjoint(await slot.slot())
        slot.use(epoch=0)
        late = await slot.one(ended(head.member, "taken", token="mine"), call=0)
        assert late.outcome == "known"


async def test_a_frozen_shard_is_refused(store_server: EmbeddedServer) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.parked(2)
        await slot.operating.freeze(PLACE, "a new generation")
        before = await slot.everything()
        with pytest.raises(ShardFrozenError):
            await purge(slot, group="g")
        assert await slot.everything() == before


async def test_a_step_costs_the_same_however_much_waits(store_server: EmbeddedServer) -> None:
    """F-22: no call goes over all that waits; counted by commands, which no load changes."""
    costs = []
    for count in (600, 6_000):
        async with open_shard_slot(store_server, test_mode=False) as slot:
            await slot.parked(count)
            for first in range(10_000, 10_000 + count, 100):
                await slot.commit(*(main(i, f"g{i}", "dead") for i in range(first, first + 100)))

            async def cost(call: Awaitable[Any], slot: ShardSlot = slot) -> int:
                await slot.store.call("CONFIG", "RESETSTAT")
                await call
                return await commands(slot)

            chain = DeadQuery(group="g", limit=50, cursor="c300")
            marked = RedriveStep(operation="all", failed_before_ms=0)
            costs.append(
                [
                    await cost(slot.looking.shard(PLACE)),
                    await cost(slot.looking.dead_letters(PLACE, DeadQuery(limit=50))),
                    await cost(slot.looking.dead_letters(PLACE, chain)),
                    await cost(purge(slot, "one", group="g")),
                    await cost(purge(slot, "some")),
                    await cost(slot.operating.redrive(PLACE, marked)),
                ]
            )
    # But for what the store is told now and then, however long it takes.
    assert all(abs(few - many) <= 10 for few, many in zip(*costs, strict=True)), costs
    assert max(costs[0]) < 1200
