"""Looks into a shard, its groups and its messages."""

from __future__ import annotations

import pytest

from tests.subscriptions.shard_slot import PLACE, ShardSlot, ended, main, open_shard_slot
from waystation.errors import InvalidInputError, ShardFrozenError, ShardLostError
from waystation.store.embedded.server import EmbeddedServer
from waystation.subscriptions.group_entry import parse_entry
from waystation.subscriptions.looks import DeadQuery, GroupLook, OperationLook, PositionLook
from waystation.subscriptions.names import Place
from waystation.subscriptions.operating import RedriveStep
from waystation.subscriptions.positions import Position
from waystation.subscriptions.record import RetryRecord, pack
from waystation.subscriptions.states import GroupState, MessageState

CLEAN, RETRYING, PARKED, REDRIVING = GroupState


async def test_a_shard_tells_who_owns_it_where_it_is_and_what_waits(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        look = await slot.looking.shard(PLACE)
        assert (look.owner, look.epoch, look.incarnation, look.low) == ("me", 1, 1, {"0.0": 0})
        assert look.until_ms > look.now_ms
        waits = (look.groups, look.parked, look.alone, look.due, look.taken, look.retry_count)
        assert (waits, look.next_due_ms, look.oldest_failed_ms) == ((0,) * 6, 0, 0)
        await slot.commit(main(0, "r", "again", wait_ms=60_000), main(1, "r", "behind"))
        await slot.parked(3, "p", first=2)
        slot.use(policy="skip")
        await slot.commit(main(5, "s", "dead"), main(6, "", "dead"), main(7, "t", "again"))
        step = RedriveStep(operation="op", upto=4, failed_before_ms=0)
        await slot.operating.redrive(PLACE, step)
        await slot.due(most=1)
        look = await slot.looking.shard(PLACE)
        assert (look.groups, look.parked, look.alone) == (3, 1, 2)
        assert (look.retry_count, look.dead_count, look.due, look.taken) == (3, 5, 2, 1)
        assert look.low == {"0.0": 8}
        scores = await slot.scores("due")
        assert (look.next_due_ms, look.oldest_failed_ms) == (
            min(scores.values()),
            min((await slot.scores("failed")).values()),
        )
        assert (look.retry_bytes > 0, look.dead_bytes > 0, look.frozen) == (True, True, "")
        assert look.log_end == (await slot.everything())[1]


async def test_a_group_is_told_in_each_of_its_states(store_server: EmbeddedServer) -> None:
    async with open_shard_slot(store_server) as slot:

        async def look() -> GroupLook:
            return await slot.looking.group(PLACE, "g")

        assert await look() == GroupLook(state=CLEAN)
        await slot.commit(main(0, verdict="again", wait_ms=5000), main(1, verdict="behind"))
        told = await look()
        assert (told.state, told.retry, told.head_name, told.tries) == (RETRYING, 2, "r1", 1)
        assert told.due_ms > (await slot.looking.shard(PLACE)).now_ms
        assert told.head is not None
        assert told.head.position.offset == 0
        await slot.machine.advance(5)
        (head,) = await slot.heads()
        told = await look()
        assert (told.taken, told.due_ms) == (True, 0)
        await slot.one(ended(head.member, verdict="dead"))
        told = await look()
        assert (told.state, told.dead, told.retry, told.head_name) == (PARKED, 2, 0, "d1")
        assert (told.failed_ms > 0, told.taken, told.operation) == (True, False, "")
        await slot.redriven(operation="op")
        told = await look()
        assert (told.state, told.operation, told.failed_ms) == (REDRIVING, "op", 0)


async def test_groups_are_listed_by_state_and_by_pages(store_server: EmbeddedServer) -> None:
    async with open_shard_slot(store_server) as slot:
        for first in range(0, 600, 100):
            await slot.commit(*(main(i, f"r{i}", "again") for i in range(first, first + 100)))
        for i in range(30):
            await slot.parked(1, f"p{i:02}", first=600 + i)
            await slot.machine.advance(1)
        slot.use(policy="skip")
        await slot.one(main(700, "", "dead"))
        await slot.redriven("p07")

        async def listed(state: GroupState | None, limit: int) -> list[str]:
            found, cursor = [], ""
            while True:
                page = await slot.looking.groups(PLACE, state=state, cursor=cursor, limit=limit)
                assert {row.state for row in page.groups} <= ({state} if state else set(GroupState))
                found += [row.group for row in page.groups]
                if not (cursor := page.cursor):
                    return found

        assert set(await listed(None, 50)) == {
            *(f"r{i}" for i in range(600)),
            *(f"p{i:02}" for i in range(30)),
        }
        parked = [f"p{i:02}" for i in range(30) if i != 7]
        assert await listed(PARKED, 10) == parked, "the oldest first"
        assert await listed(REDRIVING, 100) == ["p07"]
        assert len(set(await listed(RETRYING, 100))) == 600
        assert await listed(CLEAN, 100) == []
        for state, cursor in ((PARKED, "s5"), (None, "f1.1"), (None, "c1")):
            with pytest.raises(InvalidInputError):
                await slot.looking.groups(PLACE, state=state, cursor=cursor)


async def test_a_message_is_found_by_its_id_wherever_it_waits(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.retrying(300)
        await slot.parked(3, "p", first=400)
        slot.use(policy="skip")
        await slot.commit(main(500, "s", "dead"), main(501, "", "dead"), main(502, "", "again"))

        async def find(message: str, group: str = "") -> tuple[str, int, MessageState, int] | None:
            found = await slot.looking.find(PLACE, message, group=group)
            return found and (found.queue, found.number, found.state, found.ahead)

        behind, alone = MessageState.BEHIND, MessageState.ALONE
        for group in ("g", ""):
            assert await find("m-0", group) == ("retry", 1, MessageState.RETRYING, 0)
            assert await find("m-250", group) == ("retry", 251, behind, 250)
        assert await find("m-400", "p") == ("dead", 1, MessageState.PARKED, 0)
        assert await find("m-402") == ("dead", 3, behind, 2)
        assert await find("m-500", "s") == ("dead", 4, alone, 0)
        assert await find("m-501") == ("dead", 5, alone, 0)
        assert await find("m-502") == ("retry", 301, MessageState.RETRYING, 0)
        for message, group in (("m-999", ""), ("m-999", "g"), ("m-500", "g"), ("m-0", "p")):
            assert await find(message, group) is None


async def test_a_position_is_waiting_taken_or_acknowledged(store_server: EmbeddedServer) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.commit(main(0), main(5, verdict="again"))
        await slot.shard.offer(PLACE, slot.terms, ["m0.0.2", "m0.0.3"], most=9, seen=0)
        await slot.shard.take(PLACE, most=1, lease_ms=60_000, token="mine")
        looks = [await slot.looking.message(PLACE, 0, 0, offset) for offset in range(7)]
        assert [(each.acknowledged, each.taken) for each in looks] == [
            (True, False),
            (False, False),
            (False, True),
            (False, True),
            (False, False),
            (True, False),
            (False, False),
        ]
        assert {each.low for each in looks} == {1}
        assert await slot.looking.message(PLACE, 7, 0, 0) == PositionLook(False, False, 0)


async def test_an_operation_is_noted_by_its_driver_and_forgotten(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        operating = slot.operating
        assert await operating.enlist(PLACE, "op", b"what is asked")
        assert not await operating.enlist(PLACE, "op", b"something else")
        assert await slot.looking.operations(PLACE) == {"op": OperationLook(asked=b"what is asked")}
        assert not await operating.progress(PLACE, slot.terms, "other", {"state": "done"})
        assert await operating.progress(PLACE, slot.terms, "op", {"state": "begun"}, cursor="")
        await slot.parked(2)
        step = RedriveStep(operation="op", failed_before_ms=0)
        await operating.redrive(PLACE, step)
        assert not await operating.progress(PLACE, slot.terms, "op", {"state": "x"}, cursor="")
        look = (await slot.looking.operations(PLACE))["op"]
        assert (look.ended, look.cursor, look.groups, look.marked) == (True, "", 1, 2)
        assert look.notes == {"state": "begun"}
        stale = slot.terms
        await slot.acquire("other")
        with pytest.raises(ShardLostError):
            await operating.progress(PLACE, stale, "op", {"state": "x"})
        await operating.forget(PLACE, "op", ("state",))
        assert await slot.looking.operations(PLACE) == {}
        await operating.freeze(PLACE, "a new generation")
        with pytest.raises(ShardFrozenError):
            await operating.enlist(PLACE, "op-2", b"")
        with pytest.raises(ShardFrozenError):
            await operating.progress(PLACE, slot.terms, "op", {"state": "x"})


async def test_looking_changes_nothing_also_where_all_is_frozen(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.parked(2)
        await slot.operating.freeze(PLACE, "a new generation")
        before = await slot.everything()
        await look_everywhere(slot, PLACE)
        assert await slot.everything() == before
        with pytest.raises(ShardLostError):
            await slot.looking.shard(Place("default", "other", 0, 0))
        with pytest.raises(ShardLostError):
            await slot.looking.group(Place("default", "other", 0, 0), "g")


async def look_everywhere(slot: ShardSlot, place: Place) -> None:
    await slot.looking.shard(place)
    await slot.looking.group(place, "g")
    await slot.looking.groups(place)
    await slot.looking.groups(place, state=PARKED)
    await slot.looking.dead_letters(place, DeadQuery())
    await slot.looking.dead_letters(place, DeadQuery(group="g"))
    assert await slot.looking.find(place, "m-1", group="g") is not None
    await slot.looking.message(place, 0, 0, 0)
    await slot.looking.operations(place)


def test_what_is_no_entry_is_refused() -> None:
    with pytest.raises(ValueError, match="not an entry"):
        parse_entry(b"1 2 3")


async def test_a_message_that_cannot_be_read_does_not_hide_those_that_can(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        slot.use(policy="skip")
        broken = pack(RetryRecord(group="", position=Position(1, 0, 0, 0), envelope=b"\xc1"))
        await slot.commit(main(0, "", "dead", record=broken), main(1, "", "dead"))
        found = await slot.looking.find(PLACE, "m-1")
        assert found is not None
        assert found.number == 2
        assert await slot.looking.find(PLACE, "nobody") is None


async def test_one_that_waits_for_no_other_tells_its_tries_and_its_time(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.commit(main(0, "", "again", wait_ms=5000))
        look = await slot.looking.single(PLACE, "retry", 1)
        assert (look.tries, look.taken, look.operation) == (1, False, "")
        assert look.due_ms == (await slot.scores("due"))["r1.1"]
        await slot.machine.advance(6)
        await slot.heads()
        taken = await slot.looking.single(PLACE, "retry", 1)
        assert (taken.tries, taken.due_ms, taken.taken) == (1, 0, True)
        slot.use(policy="skip")
        await slot.commit(main(1, "", "dead"))
        step = RedriveStep(operation="op", upto=1, failed_before_ms=0)
        await slot.operating.redrive(PLACE, step)
        assert (await slot.looking.single(PLACE, "dead", 1)).operation == "op"
