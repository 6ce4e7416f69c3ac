"""What is told of transactions without changing them: get, look and mark."""

from __future__ import annotations

import pytest

from tests.transactions.helpers import CELL, LEASE_MS, open_transactions
from waystation.store.embedded.server import EmbeddedServer
from waystation.transactions import names
from waystation.transactions.progress import Sleep
from waystation.transactions.signals import Look
from waystation.transactions.states import State

NOBODY = "tx-0000" + "f" * 36


async def test_a_transaction_is_told_whole_with_where_it_is(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        first, second = await tx.start(external_id="r-1", deadline_in_ms=60_000), await tx.start()
        now = await tx.now_ms()
        (found,) = await tx.signals.get("default", [first], places=True)
        assert found is not None
        assert (found.id, found.state, found.extras) == (first, b"state-0", {b"externalId": b"r-1"})
        assert (found.head.state, found.place) == (State.QUEUED, 0)
        assert found.deadline_ms == pytest.approx(now + 60_000, abs=1000)
        (found,) = await tx.signals.get("default", [second], places=True)
        assert found is not None
        assert found.place == 1
        (found,) = await tx.signals.get("default", [second])
        assert found is not None
        assert found.place is None, "only who asks pays for it"

        (claimed,) = await tx.claim()
        (found,) = await tx.signals.get("default", [first], places=True)
        assert found is not None
        assert found.head == claimed.head
        assert found.processing_ms == pytest.approx(now, abs=1000)
        assert found.lease_ms == found.processing_ms + LEASE_MS
        assert (found.sleeping_ms, found.archive_ms, found.place) == (None, None, None)
        await tx.progress.sleep(CELL, [Sleep(held=claimed.held, state=b"s", delay_ms=5000)])
        (found,) = await tx.signals.get("default", [first])
        assert found is not None
        assert found.sleeping_ms == found.head.wake
        assert (found.processing_ms, found.lease_ms) == (None, None)


async def test_a_look_changes_nothing_and_leaves_nothing_behind(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        transaction_id = await tx.start()
        before = await tx.picture()
        assert await tx.signals.get("shop", [transaction_id]) == [None]
        mine, nobody = await tx.signals.get("", [transaction_id, NOBODY])
        assert mine is not None
        assert nobody is None
        assert await tx.picture() == before


async def test_what_is_held_has_a_place_in_its_list(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        await tx.define("slow", paused=True)
        ids = [await tx.start(pipeline="slow") for _ in range(2)]
        await tx.claim(2)
        found = await tx.signals.get("default", ids, places=True)
        assert [(each and each.head.state, each and each.place) for each in found] == [
            ("held", 0),
            ("held", 1),
        ]


async def test_a_look_tells_when_the_first_of_each_kind_is_due(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        empty = await tx.signals.look(CELL)
        assert empty == Look(
            now_ms=empty.now_ms,
            sleeping_ms=None,
            lease_ms=None,
            deadline_ms=None,
            sweep_ms=None,
            archive_ms=None,
        )
        await tx.start(delay_ms=70_000)
        await tx.start(delay_ms=50_000)
        await tx.start(deadline_in_ms=90_000)
        await tx.claim()
        await tx.store.call("ZADD", names.sorted_set(CELL, "sweepZ"), 5, NOBODY)
        look = await tx.signals.look(CELL)
        times = (look.sleeping_ms, look.lease_ms, look.deadline_ms)
        expected = (50_000, LEASE_MS, 90_000)
        for at_ms, after_ms in zip(times, expected, strict=True):
            assert at_ms == pytest.approx(look.now_ms + after_ms, abs=1000)
        assert look.sweep_ms == 5


async def test_the_longest_wait_counts_and_those_that_are_over_go(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        first, second = await tx.start(), await tx.start()
        waiters = names.sorted_set(CELL, "waitersZ")
        await tx.signals.mark([first], wait_ms=30_000)
        await tx.signals.mark([first, second], wait_ms=10_000)
        now = await tx.now_ms()
        assert float(await tx.store.call("ZSCORE", waiters, first)) == pytest.approx(
            now + 30_000, abs=1000
        )
        await tx.machine.advance(15)
        await tx.signals.mark([first], wait_ms=1000)
        assert await tx.store.call("ZRANGE", waiters, 0, -1) == [first.encode()]
        await tx.signals.mark([], wait_ms=1000)
