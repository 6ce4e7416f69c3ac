"""A list of agents, read so that no death loses a message; and the retry set beside it."""

from __future__ import annotations

import asyncio

import pytest

from tests.acapy.outbox_world import LIST, RETRY, message, open_outbox
from waystation.acapy.holding import Holding, Settlements
from waystation.acapy.outbound import OutboundQueue
from waystation.acapy.outbound_message import read_message
from waystation.acapy.retry_set import RetrySet
from waystation.errors import InvalidInputError
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.testing import CrashPoint, crash_points

LEASE_MS = 60_000
URL = "http://agent.example/"


async def test_what_is_taken_stays_until_it_is_settled(store_server: EmbeddedServer) -> None:
    async with open_outbox(store_server) as outbox:
        queue = OutboundQueue(outbox.store, LIST)
        await outbox.push(b"one", b"two", b"three")
        taken = await queue.take(2, LEASE_MS)
        assert [(each.number, each.raw) for each in taken] == [(1, b"one"), (2, b"two")]
        assert await outbox.left() == (1, 2, 0)
        await queue.done(1)
        await queue.done(1)
        assert await outbox.left() == (1, 1, 0)
        await queue.back(2)
        await queue.back(2)
        assert await outbox.left() == (2, 0, 0)
        assert [each.raw for each in await queue.take(9, LEASE_MS)] == [b"two", b"three"]


async def test_what_nobody_settled_comes_again_when_its_lease_is_over_and_first(
    store_server: EmbeddedServer,
) -> None:
    async with open_outbox(store_server) as outbox:
        queue = OutboundQueue(outbox.store, LIST)
        await outbox.push(b"one", b"two")
        (first,) = await queue.take(1, 1)
        await asyncio.sleep(0.01)
        again = await queue.take(2, LEASE_MS)
        assert [(each.number, each.raw) for each in again] == [(first.number, b"one"), (2, b"two")]


async def test_two_deliverers_never_have_the_same_message_at_once(
    store_server: EmbeddedServer,
) -> None:
    async with open_outbox(store_server) as outbox:
        await outbox.push(*(b"%d" % i for i in range(100)))
        await outbox.retries.put(b"due", wait_ms=0)
        queues = [OutboundQueue(outbox.store, LIST) for _ in range(10)]
        taken = await asyncio.gather(*(each.take(10, LEASE_MS) for each in queues))
        assert sorted(int(each.raw) for some in taken for each in some) == list(range(100))
        due = await asyncio.gather(*(outbox.retries.take(9, LEASE_MS) for _ in range(5)))
        assert sorted(due) == [[], [], [], [], [b"due"]]


async def test_a_reply_never_has_more_than_a_few_megabytes(store_server: EmbeddedServer) -> None:
    async with open_outbox(store_server) as outbox:
        large = b"x" * 1_500_000
        await outbox.push(*(large + b"%d" % i for i in range(6)))
        queue = OutboundQueue(outbox.store, LIST)
        assert len(await queue.take(64, LEASE_MS)) == 3
        assert len(await queue.take(64, LEASE_MS)) == 3
        for i in range(6):
            await outbox.retries.put(large + b"%d" % i, wait_ms=0)
        assert len(await outbox.retries.take(64, LEASE_MS)) == 3


async def test_two_who_claimed_one_member_settle_it_once(store_server: EmbeddedServer) -> None:
    async with open_outbox(store_server) as outbox:
        await outbox.retries.put(b"m", wait_ms=0)
        await outbox.retries.put(b"m 1", wait_ms=60_000, was=b"m")
        await outbox.retries.put(b"m 1 late", wait_ms=60_000, was=b"m")
        letter = {"cause": "late", "attempts": 6, "readable": True}
        await outbox.retries.bury("m", b"m", was=b"m", **letter)
        assert await outbox.store.call("ZRANGE", RETRY, 0, -1) == [b"m 1"]
        assert await outbox.retries.dead() == []


async def test_dead_letters_are_listed_redriven_and_forgotten(store_server: EmbeddedServer) -> None:
    async with open_outbox(store_server) as outbox:
        retries = outbox.retries
        for name in ("a", "b", "c"):
            letter = {"cause": f"gone: ü {name}", "attempts": 6, "readable": name != "b"}
            await retries.bury(name, f"m 1 {name}".encode(), was=b"", **letter)
        found = await retries.dead()
        assert [each.id for each in found] == ["a", "b", "c"]
        assert (found[0].cause, found[0].attempts) == ("gone: ü a", 6)
        assert found[0].message == b"m 1 a"
        assert [each.id for each in await retries.dead(after=found[0], most=1)] == ["b"]
        assert await retries.redrive(["a", "unknown"]) == 1
        assert await retries.take(9, LEASE_MS) == [b"m 1 a"]
        assert await retries.redrive() == 1, "what cannot be read stays"
        assert [each.id for each in await retries.dead()] == ["b"]
        assert await retries.purge(["b"]) == 1
        assert await retries.dead() == []


async def test_page_of_dead_letters_after_others_are_gone_skips_none(
    store_server: EmbeddedServer,
) -> None:
    async with open_outbox(store_server) as outbox:
        retries, names = outbox.retries, [f"{number:03}" for number in range(250)]
        letter = {"cause": "", "attempts": 1, "readable": True}
        # Many of them in one millisecond.
        await asyncio.gather(*(retries.bury(name, b"m", was=b"", **letter) for name in names))
        ordered = await outbox.store.call("ZRANGE", retries._failed, 0, -1)
        first = await retries.dead(most=40)
        # The letters of the first page, with the last one, are purged before the second is read.
        assert await retries.purge([each.id for each in first]) == 40
        second = await retries.dead(after=first[-1], most=100)
        assert await retries.redrive([second[3].id, second[-1].id]) == 2
        third = await retries.dead(after=second[-1], most=100)
        last = await retries.dead(after=third[-1], most=100)
        found = [each.id.encode() for each in (*first, *second, *third, *last)]
        assert found == ordered
        assert await retries.dead(after=last[-1]) == []


async def test_the_oldest_dead_letter_makes_room_for_a_newer_one(
    store_server: EmbeddedServer,
) -> None:
    async with open_outbox(store_server) as outbox:
        retries, dropped = RetrySet(outbox.store, RETRY, dead_max=2), []
        for name in ("a", "b", "c"):
            letter = {"cause": "", "attempts": 1, "readable": True}
            dropped.append(await retries.bury(name, b"", was=b"", **letter))
            await asyncio.sleep(0.002)
        assert dropped == [0, 0, 1]
        assert [each.id for each in await retries.dead()] == ["b", "c"]


@pytest.mark.parametrize("name", ["", "a}b", "{}a", "a\nb", "x" * 513])
def test_outbound_queue_name_without_room_beside_it_is_refused(name: str) -> None:
    with pytest.raises(InvalidInputError, match="name"):
        OutboundQueue(None, name)  # type: ignore[arg-type]


async def test_the_settlement_of_a_message_can_be_repeated(store_server: EmbeddedServer) -> None:
    async with open_outbox(store_server) as outbox:
        queue = OutboundQueue(outbox.store, LIST)
        settle = Settlements(queue, outbox.retries)
        await outbox.push(message(URL), b"bad")
        good, bad = [Holding(e.raw, e.number, 0.0) for e in await queue.take(2, LEASE_MS)]
        sent = read_message(good.raw, new_id=good.new_id, now_ms=1)
        for _ in range(2):
            await settle.again(good, sent, retries=1, wait_ms=60_000)
            await settle.bury(bad, None, cause="bad", attempts=0)
        assert await outbox.left() == (0, 0, 1)
        assert [each.id for each in await outbox.retries.dead()] == ["o-2"]


# -- Deaths ----------------------------------------------------------------------------------


async def _two(store: Store) -> None:
    await store.call("RPUSH", LIST, message(URL, b"1"), message(URL, b"1"))


async def _fail_and_bury(store: Store) -> None:
    """One that fails, is tried again and is given up; and one that cannot be read."""
    queue, retries = OutboundQueue(store, LIST), RetrySet(store, RETRY)
    settle = Settlements(queue, retries)
    for each in await queue.take(2, 1):
        held = Holding(each.raw, each.number, 0.0)
        sent = read_message(held.raw, new_id=held.new_id, now_ms=1)
        await settle.again(held, sent, retries=1, wait_ms=0)
    await asyncio.sleep(0.01)
    for member in await retries.take(9, 1):
        held = Holding(member, None, 0.0)
        sent = read_message(member, now_ms=1)
        await settle.bury(held, sent, cause="gone", attempts=6)


async def _all_there(store: Store, point: CrashPoint) -> None:
    """Two messages that are alike are two, wherever they are."""
    await asyncio.sleep(0.01)
    queue, retries = OutboundQueue(store, LIST), RetrySet(store, RETRY)
    ids = {read_message(e.raw, new_id=f"o-{e.number}", now_ms=1).id for e in await queue.take(9, 1)}
    ids |= {read_message(each, now_ms=1).id for each in await retries.take(9, 1)}
    ids |= {each.id for each in await retries.dead()}
    assert ids == {"o-1", "o-2"}, f"{ids} are left"


def test_no_death_of_a_deliverer_loses_a_message(store_server: EmbeddedServer) -> None:
    points = crash_points(store_server.address, _fail_and_bury, _all_there, prepare=_two)
    assert len(points) >= 3 * 8
