"""Lanes without gates: the same promises, and the newest event of an item in the place of older."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.delivery.ungated import LANE, LAYOUT, RECEIVER, put
from tests.helpers.interleavings import all_orders
from tests.helpers.store_faults import store_at
from waystation.delivery.items import Claimed, Settled
from waystation.delivery.outbox import Outbox
from waystation.delivery.request import Outcome
from waystation.delivery.schedule import Decision, Verdict
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.testing import CrashPoint, crash_points
from waystation.transactions.reply_lanes import lane_of

KEYS = LAYOUT.keys(LANE)
REGISTER = LAYOUT.register_of(LANE)
DONE = Decision(Verdict.DONE)
RETRY = Decision(Verdict.RETRY, 3600.0, "later")
FAILED = Decision(Verdict.FAILED, 0.0, "no")
REPLY = Outcome(status=200)


@asynccontextmanager
async def empty_outbox(server: EmbeddedServer) -> AsyncIterator[Outbox]:
    async with store_at(server.address) as store:
        await store.call("FLUSHALL")
        yield Outbox(store, LAYOUT)


async def claim(outbox: Outbox, token: str = "t", *, claim_ms: int = 60_000) -> list[Claimed]:
    return (await outbox.claim(LANE, most=100, claim_ms=claim_ms, token=token)).items


async def fields(outbox: Outbox) -> dict[str, str]:
    pairs = await outbox.store.call("HGETALL", KEYS.items)
    return {pairs[i].decode(): pairs[i + 1].decode() for i in range(0, len(pairs), 2)}


async def test_what_is_put_is_registered_claimed_and_settled_and_leaves_nothing(
    store_server: EmbeddedServer,
) -> None:
    async with empty_outbox(store_server) as outbox:
        await put(outbox.store, "tx-1")
        assert set(await outbox.lanes()) == {LANE}

        (claimed,) = await claim(outbox)
        assert (claimed.id, claimed.packed, claimed.attempt) == ("tx-1", b"complete 1", 1)
        assert await outbox.settle(LANE, claimed, DONE, REPLY, at_ms=0) is Settled.SETTLED

        assert await outbox.waiting(LANE) == 0
        assert await outbox.retire(LANE, await outbox.registration(LANE))
        left = [each.decode() for each in await outbox.store.call("KEYS", "*")]
        assert left == [KEYS.attempts], "but the record of the attempt"


async def test_lanes_of_all_cells_are_found(store_server: EmbeddedServer) -> None:
    other = lane_of(1, RECEIVER)
    async with empty_outbox(store_server) as outbox:
        await put(outbox.store, "tx-1")
        await put(outbox.store, "tx-2", lane=other)

        assert set(await outbox.lanes()) == {LANE, other}


async def test_a_newer_event_takes_the_place_of_one_that_waits(
    store_server: EmbeddedServer,
) -> None:
    async with empty_outbox(store_server) as outbox:
        await put(outbox.store, "tx-1", "progress 1")
        (first,) = await claim(outbox)
        await outbox.settle(LANE, first, RETRY, Outcome(status=500), at_ms=0)

        await put(outbox.store, "tx-1", "complete 2")

        (claimed,) = await claim(outbox, "u")
        assert (claimed.packed, claimed.attempt) == (b"complete 2", 1), "due now, counted anew"


@pytest.mark.parametrize("decision", [DONE, RETRY, FAILED, None], ids=str)
async def test_a_newer_event_during_an_attempt_is_due_when_that_is_settled_whatever_it_came_to(
    store_server: EmbeddedServer, decision: Decision | None
) -> None:
    async with empty_outbox(store_server) as outbox:
        await put(outbox.store, "tx-1", "progress 1")
        (claimed,) = await claim(outbox)
        await put(outbox.store, "tx-1", "complete 2")
        assert not await claim(outbox, "u"), "one attempt at a time, so that the end comes last"

        if decision is None:
            settled = await outbox.release(LANE, claimed, wait_seconds=3600)
        else:
            settled = await outbox.settle(LANE, claimed, decision, REPLY, at_ms=0)

        assert settled is Settled.NEWER
        assert await outbox.store.call("EXISTS", KEYS.failed, KEYS.untold) == 0
        (newer,) = await claim(outbox, "v")
        assert (newer.packed, newer.attempt) == (b"complete 2", 1)
        assert await outbox.settle(LANE, newer, DONE, REPLY, at_ms=0) is Settled.SETTLED
        assert await fields(outbox) == {}


async def test_a_newer_event_during_the_attempt_of_one_who_died_is_taken_with_the_next_claim(
    store_server: EmbeddedServer,
) -> None:
    async with empty_outbox(store_server) as outbox:
        await put(outbox.store, "tx-1", "progress 1")
        for token in ("t", "u"):
            (dying,) = await claim(outbox, token, claim_ms=1)
            await asyncio.sleep(0.01)
        await put(outbox.store, "tx-1", "complete 2")
        (next_,) = await claim(outbox, "v")

        assert (next_.packed, next_.attempt) == (b"complete 2", 1)
        assert not await outbox.settle(LANE, dying, DONE, REPLY, at_ms=0), "too late"
        assert await outbox.settle(LANE, next_, DONE, REPLY, at_ms=0) is Settled.SETTLED
        assert await fields(outbox) == {}


async def test_every_order_of_a_settlement_and_a_newer_event_ends_with_the_newer_one_sent_last(
    store_server: EmbeddedServer,
) -> None:
    sent: list[bytes] = []

    async def deliver(store: Any) -> None:
        outbox = Outbox(store, LAYOUT)
        for token in ("t", "u", "v"):
            for claimed in await claim(outbox, token):
                sent.append(claimed.packed)
                await outbox.settle(LANE, claimed, DONE, REPLY, at_ms=0)

    async def complete(store: Any) -> None:
        await put(store, "tx-1", "complete 2")

    async with store_at(store_server.address) as store:

        async def prepare() -> None:
            sent.clear()
            await store.call("FLUSHALL")
            await put(store, "tx-1", "progress 1")

        async def check(order: str) -> None:
            await deliver(store)
            assert sent[-1] == b"complete 2", order
            assert sent in ([b"progress 1", b"complete 2"], [b"complete 2"]), order

        assert await all_orders(store, prepare, [deliver, complete], check) >= 4


async def test_every_order_of_putting_and_retiring_leaves_a_lane_with_items_on_its_register(
    store_server: EmbeddedServer,
) -> None:
    async def add(store: Any) -> None:
        await put(store, "tx-1")

    async def deliver(store: Any) -> None:
        outbox = Outbox(store, LAYOUT)
        for claimed in await claim(outbox):
            await outbox.settle(LANE, claimed, DONE, REPLY, at_ms=0)

    async def retire(store: Any) -> None:
        outbox = Outbox(store, LAYOUT)
        await outbox.retire(LANE, await outbox.registration(LANE))

    async with store_at(store_server.address) as store:
        outbox = Outbox(store, LAYOUT)

        async def check(order: str) -> None:
            assert not await outbox.waiting(LANE) or LANE in await outbox.lanes(), order

        orders = await all_orders(
            store, lambda: store.call("FLUSHALL"), [add, deliver, retire, retire], check
        )
    assert orders >= 30


async def test_what_is_released_is_due_again_when_it_says_and_was_no_attempt(
    store_server: EmbeddedServer,
) -> None:
    async with empty_outbox(store_server) as outbox:
        await put(outbox.store, "tx-1")
        (claimed,) = await claim(outbox)

        await outbox.release(LANE, claimed, wait_seconds=0.2)

        look = await outbox.claim(LANE, most=1, claim_ms=1000, token="u")
        assert not look.items
        assert 0 < look.next_ms <= 200
        await asyncio.sleep(0.25)
        (again,) = await claim(outbox, "v")
        assert again.attempt == 1


async def test_the_failed_list_is_the_project_s_and_knows_the_lane_of_each(
    store_server: EmbeddedServer,
) -> None:
    other = lane_of(0, "c.default.orders")
    async with empty_outbox(store_server) as outbox:
        await put(outbox.store, "tx-1")
        await put(outbox.store, "tx-2.c", lane=other)
        for lane in (LANE, other):
            for each in (await outbox.claim(lane, most=9, claim_ms=1000, token="t")).items:
                await outbox.settle(lane, each, FAILED, Outcome(status=500), at_ms=0)

        assert [each.id for each in await outbox.failed(LANE)] == ["tx-1", "tx-2.c"]
        noted = await fields(outbox)
        assert (noted["tx-1.lane"], noted["tx-2.c.lane"]) == (LANE, other)
        look = await outbox.claim(LANE, most=0, claim_ms=1, token="u")
        assert look.failed == 0, "it is not for a claim to count what others share"
        for lane, item in ((LANE, "tx-1"), (other, "tx-2.c")):
            await outbox.told(lane, item)
            assert await outbox.retire(lane, ""), "a failure does not keep a lane"

        # When one is redriven and the other put again
        assert await outbox.redrive(LANE, item_id="tx-1") == 1
        await put(outbox.store, "tx-2.c", "complete 9", lane=other)

        assert set(await outbox.lanes()) == {LANE, other}
        assert await outbox.failed(LANE) == []
        (again,) = await claim(outbox, "v")
        assert again.attempt == 1
        assert not [name for name in await fields(outbox) if name.endswith(".lane")]


async def test_what_was_discarded_during_an_attempt_is_not_settled_and_leaves_nothing(
    store_server: EmbeddedServer,
) -> None:
    async with empty_outbox(store_server) as outbox:
        await put(outbox.store, "tx-1", "progress 1")
        (claimed,) = await claim(outbox)
        await put(outbox.store, "tx-1", "complete 2")

        assert await outbox.discard(LANE, waiting=True, item_id="tx-1") == 1

        assert await outbox.settle(LANE, claimed, DONE, REPLY, at_ms=0) is Settled.NOT_OURS
        assert await fields(outbox) == {}


async def test_a_claim_that_one_call_settles_twice_is_settled_once(
    store_server: EmbeddedServer,
) -> None:
    async with empty_outbox(store_server) as outbox:
        await put(outbox.store, "tx-1")
        (claimed,) = await claim(outbox)
        settlements = [outbox.settle(LANE, claimed, each, REPLY, at_ms=0) for each in (RETRY, DONE)]
        assert await asyncio.gather(*settlements) == [Settled.SETTLED, Settled.NOT_OURS]
        assert len(await outbox.records(LANE)) == 1
        assert await fields(outbox) == {
            "tx-1": "complete 1",
            "tx-1.attempts": "1",
            "tx-1.cause": "later",
        }


async def test_settlements_of_one_turn_share_calls_and_each_has_its_own_answer(
    store_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with empty_outbox(store_server) as outbox:
        for number in range(250):
            await put(outbox.store, f"tx-{number}")
        claimed = []
        for token in "abc":
            claimed += await claim(outbox, token)
        await outbox.discard(LANE, waiting=True, item_id="tx-7")
        real, calls = outbox.store.run, []

        def counted(script: Any, *arguments: Any) -> Any:
            calls.append(script.name)
            return real(script, *arguments)

        monkeypatch.setattr(outbox.store, "run", counted)
        settled = await asyncio.gather(
            *(outbox.settle(LANE, each, DONE, REPLY, at_ms=0) for each in claimed)
        )

        assert calls == ["settle"] * 3, "a hundred in each, no loop in a script is longer"
        unsettled = [each.id for each, done in zip(claimed, settled, strict=True) if not done]
        assert unsettled == ["tx-7"]
        assert await outbox.waiting(LANE) == 0


def test_a_death_at_any_call_loses_no_event_and_settles_none_twice(
    store_server: EmbeddedServer,
) -> None:
    """F-03"""

    async def scenario(store: Store) -> None:
        outbox = Outbox(store, LAYOUT)
        await put(store, "tx-1", "progress 1")
        await put(store, "tx-2")
        claimed = {each.id: each for each in await claim(outbox, "dying", claim_ms=1)}
        await put(store, "tx-1", "complete 2")
        await outbox.renew(LANE, claimed.values(), claim_ms=1)
        await outbox.settle(LANE, claimed["tx-1"], DONE, REPLY, at_ms=0)
        await outbox.settle(LANE, claimed["tx-2"], DONE, REPLY, at_ms=0)

    async def after(store: Store, point: CrashPoint) -> None:
        outbox = Outbox(store, LAYOUT)
        # Given transactions whose events did not reach the store: their scripts run again
        settled = {each.id for each in await outbox.records(LANE) if each.verdict == "done"}
        await put(store, "tx-1", "complete 2")
        if "tx-2" not in settled:
            await put(store, "tx-2")
        assert LANE in await outbox.lanes()
        last: dict[str, bytes] = {}
        for attempt in range(50):
            for each in await claim(outbox, f"next-{attempt}"):
                last[each.id] = each.packed
                assert await outbox.settle(LANE, each, DONE, REPLY, at_ms=0)
            if not await outbox.waiting(LANE):
                break
            await asyncio.sleep(0.005)
        assert last["tx-1"] == b"complete 2", "the newest comes last, whatever died"
        assert await fields(outbox) == {}
        done = [each.id for each in await outbox.records(LANE)]
        assert done.count("tx-2") == 1

    assert len(crash_points(store_server.address, scenario, after)) >= 3 * 7
