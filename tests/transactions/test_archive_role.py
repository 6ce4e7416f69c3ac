"""Who archives: one node at a time, for its time, and nobody while it may yet write."""

from __future__ import annotations

import pytest

from tests.transactions.helpers import (
    CELL,
    ROLE_GRACE_MS,
    ROLE_MS,
    TransactionStore,
    open_transactions,
)
from waystation.store.embedded.server import EmbeddedServer
from waystation.transactions import names
from waystation.transactions.archiving import ArchiveTurn, Flight


async def ask(tx: TransactionStore, node: str, flight: Flight = "") -> ArchiveTurn:
    return await tx.archiving.turn(CELL, node=node, most=100, flight=flight)


async def role(tx: TransactionStore, node: str, flight: Flight = "") -> str:
    return (await ask(tx, node, flight)).role


async def test_the_first_who_asks_archives_and_the_others_wait_until_he_may_not_write_any_more(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        first = await ask(tx, "a")
        assert (first.role, first.wait_ms) == ("archiver", ROLE_MS)
        other = await ask(tx, "b")
        assert other.role == "other"
        assert other.wait_ms == pytest.approx(ROLE_MS + ROLE_GRACE_MS, abs=1000)
        again = await ask(tx, "a")
        assert again.role == "archiver"
        assert again.wait_ms <= ROLE_MS, "to ask again makes it no longer"


async def test_after_its_time_there_is_a_grace_for_all_and_then_whoever_asks_has_it(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        await ask(tx, "a")
        await tx.machine.advance(ROLE_MS / 1000)
        grace = await ask(tx, "b")
        assert grace.role == "grace"
        assert 0 < grace.wait_ms <= ROLE_GRACE_MS
        assert await role(tx, "a") == "grace", "for who had it, too: it has something under way"
        await tx.machine.advance(ROLE_GRACE_MS / 1000)
        assert await role(tx, "b") == "archiver"
        assert await role(tx, "a") == "other"


async def test_who_has_nothing_under_way_ends_the_grace_at_once_and_leaves_it_to_others(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        await ask(tx, "a", "idle")
        assert await role(tx, "a", "idle") == "archiver", "only when its time is over"
        await tx.machine.advance(ROLE_MS / 1000)
        assert await role(tx, "b", "idle") == "grace", "it is not his to end"
        free = await ask(tx, "a", "idle")
        assert (free.role, free.wait_ms) == ("other", 1000)
        assert await role(tx, "b") == "archiver"


async def test_who_is_alone_has_it_again_after_the_grace_or_after_a_second(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        await ask(tx, "a")
        await tx.machine.advance(ROLE_MS / 1000)
        assert [await role(tx, "a", "idle"), await role(tx, "a", "idle")] == ["other", "archiver"]
        await tx.machine.advance((ROLE_MS + ROLE_GRACE_MS) / 1000)
        assert await role(tx, "a") == "archiver"


@pytest.mark.parametrize("seconds", [1, ROLE_MS / 1000 + 1])
async def test_who_leaves_gives_it_up_at_any_time_and_takes_it_no_more(
    store_server: EmbeddedServer, seconds: float
) -> None:
    async with open_transactions(store_server) as tx:
        await ask(tx, "a")
        await tx.machine.advance(seconds)
        assert await role(tx, "b", "leave") == ("grace" if seconds > 1 else "other")
        for _ in range(2):
            left = await ask(tx, "a", "leave")
            assert (left.role, left.items) == ("other", [])
        assert await role(tx, "b") == "archiver"


async def test_cells_have_their_own_archivers_and_only_the_archiver_is_given_work(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        await tx.start(delay_ms=86_400_000)
        await tx.machine.advance(3600)
        assert len((await ask(tx, "a")).items) == 1
        other = await ask(tx, "b")
        assert (other.items, other.waiting) == ([], 1), "he is told what waits all the same"
        assert await tx.store.call("EXISTS", names.archive_lock(1, 1)) == 0


async def test_deadlines_decide_and_expiry_only_cleans_up(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        now = await ask(tx, "a")
        for number, ms in ((1, ROLE_MS), (2, ROLE_MS + ROLE_GRACE_MS)):
            key = names.archive_lock(CELL, number)
            assert await tx.store.call("GET", key) == b"a %d" % (now.now_ms + ms)
            assert ms < await tx.store.call("PTTL", key) <= ms + 60_000
        await tx.store.call("SET", names.archive_lock(CELL, 1), "nonsense")
        assert await role(tx, "b") == "grace", "what cannot be read is over"
        await tx.store.call("SET", names.archive_lock(CELL, 2), "more nonsense")
        assert await role(tx, "b") == "archiver"
