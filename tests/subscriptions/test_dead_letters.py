"""The list of dead letters: filters, and pages that hold while it changes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.subscriptions.shard_slot import PLACE, ShardSlot, ended, main, open_shard_slot
from waystation.errors import InvalidInputError
from waystation.store.embedded.server import EmbeddedServer
from waystation.subscriptions.letters import shown_letter
from waystation.subscriptions.looks import DeadLetter, DeadQuery
from waystation.subscriptions.positions import Position
from waystation.subscriptions.record import RetryRecord, pack
from waystation.subscriptions.states import MessageState

PARKED, BEHIND, ALONE = MessageState.PARKED, MessageState.BEHIND, MessageState.ALONE


async def pages(slot: ShardSlot, **more: Any) -> list[list[DeadLetter]]:
    found, cursor = [], ""
    while True:
        page = await slot.looking.dead_letters(PLACE, DeadQuery(cursor=cursor, **more))
        found.append(page.letters)
        if not (cursor := page.cursor):
            return found


async def letters(slot: ShardSlot, **more: Any) -> list[DeadLetter]:
    return [letter for page in await pages(slot, **more) for letter in page]


def died(offset: int, group: str, failure: str, cause: str) -> Any:
    position = Position(1, 0, 0, offset)
    record = pack(
        RetryRecord(group=group, position=position, envelope=b"", failure=failure, cause=cause)
    )
    return main(offset, group, "dead", record=record)


async def test_heads_with_how_many_are_behind_and_those_that_stand_alone(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.parked(3, "a")
        await slot.machine.advance(1)
        slot.use(policy="skip")
        await slot.commit(main(10, "b", "dead"), main(11, "", "dead"))
        found = await letters(slot)
        told = [(each.number, each.state, each.behind, each.record.group) for each in found]
        assert told == [(1, PARKED, 2, "a"), (4, ALONE, 0, "b"), (5, ALONE, 0, "")]
        assert found[0].failed_ms < found[1].failed_ms
        assert found[2].record.position == Position(1, 0, 0, 11)


async def test_one_of_a_newer_release_is_shown_as_such_and_hides_no_other(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        newer = msgspec.msgpack.encode([2, {"all": "else"}])
        await slot.commit(
            main(0, "a", "dead", record=newer), main(1, "a", "behind"), main(2, "b", "dead")
        )
        for found in (await letters(slot), await letters(slot, group="a")):
            first = found[0].record
            assert (first.group, first.position.incarnation, first.envelope) == ("a", 0, b"")
            assert "unreadable" in first.cause
            assert found[1].record.position.offset in {1, 2}
        told = shown_letter((await letters(slot))[0], "default", 0, payload=True)
        assert (told.id, told.position, told.group, told.message) == ("", "", "a", None)
        look = await slot.looking.group(PLACE, "a")
        assert look.head is not None
        assert "unreadable" in look.head.cause
        found_ = await slot.looking.find(PLACE, "m-1", group="a")
        assert found_ is not None
        assert (found_.state, found_.ahead) == (BEHIND, 1)
        assert (await slot.looking.find(PLACE, "m-2")) is not None


async def test_of_a_group_its_whole_chain_and_what_of_it_stands_alone(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        slot.use(policy="skip")
        await slot.commit(main(0, "g", "dead"), main(1, "x", "dead"))
        slot.use(policy="park")
        await slot.parked(250, first=10)
        for limit in (1, 100, 10_000):
            found = await letters(slot, group="g", limit=limit)
            assert [each.record.position.offset for each in found] == [*range(10, 260), 0]
            assert [each.state for each in found] == [PARKED, *[BEHIND] * 249, ALONE]
            assert (found[0].behind, found[1].behind) == (249, 0)
        assert await letters(slot, group="clean") == []
        # Redriven, too: they are not delivered yet.
        await slot.redriven()
        assert len(await letters(slot, group="g")) == 251


@pytest.mark.parametrize("limit", [1, 7, 200])
async def test_pages_are_as_long_as_asked_and_tell_everything_once(
    store_server: EmbeddedServer, limit: int
) -> None:
    async with open_shard_slot(store_server) as slot:
        # Of one time, so that names alone decide their order.
        await slot.commit(*(main(i, f"g{i}", "dead") for i in range(100)))
        slot.use(policy="skip")
        await slot.commit(*(main(i, "", "dead") for i in range(100, 150)))
        found = await pages(slot, limit=limit)
        assert {len(page) for page in found[:-1]} <= {limit}
        numbers = [each.number for page in found for each in page]
        assert len(numbers) == 150
        assert set(numbers) == set(range(1, 151))


async def test_what_stays_is_told_once_while_others_come_and_go(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.commit(*(main(i, f"g{i}", "dead") for i in range(60)))
        seen, cursor = [], ""
        for turn in range(100):
            query = DeadQuery(cursor=cursor, limit=7)
            page = await slot.looking.dead_letters(PLACE, query)
            seen += [each.record.group for each in page.letters]
            if not (cursor := page.cursor):
                break
            # The very one that the cursor stands behind goes, and one that is still to come.
            await slot.redriven(seen[-1], operation=f"op-{turn}")
            left = sorted(name for name in await slot.scores("failed"))
            gone = left[-1].partition(" ")[2]
            if gone not in seen:
                await slot.redriven(gone, operation=f"op2-{turn}")
            await slot.one(main(100 + turn, f"new{turn}", "dead"))
        stayed = {name.partition(" ")[2] for name in await slot.scores("failed")}
        told = [group for group in seen if group in stayed]
        assert len(told) == len(set(told))
        assert {group for group in stayed if group.startswith("g")} <= set(told)


async def test_a_chain_goes_on_where_it_was_when_its_beginning_is_settled(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.parked(6)
        page = await slot.looking.dead_letters(PLACE, DeadQuery(group="g", limit=2))
        assert [each.number for each in page.letters] == [1, 2]
        member: str | None = await slot.redriven()
        await slot.heads()
        for _ in range(3):
            assert member is not None
            following = (await slot.one(ended(member))).next
            member = following.member if following else None
        rest = await slot.looking.dead_letters(PLACE, DeadQuery(group="g", cursor=page.cursor))
        assert [each.number for each in rest.letters] == [4, 5, 6]


async def test_filters_by_time_and_cause(store_server: EmbeddedServer) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.one(died(0, "a", "500", "The endpoint answered 500."))
        await slot.machine.advance(10)
        await slot.one(died(1, "b", "timeout", "No reply within 30 s."))
        await slot.machine.advance(10)
        await slot.one(died(2, "c", "500", "The endpoint answered 500."))
        times = [each.failed_ms for each in await letters(slot)]

        async def groups(**more: Any) -> list[str]:
            return [each.record.group for each in await letters(slot, **more)]

        assert await groups(failed_after_ms=times[1]) == ["b", "c"]
        assert await groups(failed_before_ms=times[1]) == ["a"]
        assert await groups(failed_after_ms=times[1], failed_before_ms=times[2]) == ["b"]
        assert await groups(cause="500") == ["a", "c"]
        assert await groups(cause="Timeout") == ["b"]
        assert await groups(cause="no reply") == ["b"]
        assert await groups(cause="500", limit=1) == ["a", "c"]
        assert await groups(group="b", cause="500") == []


async def test_a_page_of_large_records_ends_early_and_goes_on(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        record = pack(RetryRecord(group="", position=Position(1, 0, 0, 0), envelope=b"e" * 600_000))
        slot.use(policy="skip")
        for offset in range(5):
            await slot.one(main(offset, "", "dead", record=record))
        found = await pages(slot)
        assert [each.number for page in found for each in page] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("cursor", ["x", "f1", "f1.", "c", "s5", "c-1", "f٣.1", "f1.1 ", "c1.1"])
async def test_a_cursor_that_is_none_is_refused(store_server: EmbeddedServer, cursor: str) -> None:
    async with open_shard_slot(store_server) as slot:
        with pytest.raises(InvalidInputError) as refused:
            await slot.looking.dead_letters(PLACE, DeadQuery(group="g", cursor=cursor))
        assert refused.value.field == "cursor"
