"""What a transaction costs the store in commands: as the page says, however long a queue is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.helpers.store_faults import store_at
from tests.transactions.cell_store import LEASE_MS, STATE, TERMS, CellStore, open_cell_store
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.transactions import names
from waystation.transactions.archiving import Archiving, Confirmed
from waystation.transactions.cells import BATCH_MAX
from waystation.transactions.entry import Entry
from waystation.transactions.holding import Holding
from waystation.transactions.progress import Finish, Progress
from waystation.transactions.restoring import Restoration, Restoring
from waystation.transactions.signals import Signals
from waystation.transactions.states import Status

#: Beside the ids: time, pipeline, lists, sets, record, counts, hint.
CALL_MAX = 18


@asynccontextmanager
async def plain_store(server: EmbeddedServer) -> AsyncIterator[tuple[CellStore, Store]]:
    """A store without a time machine, which costs a command of its own."""
    async with open_cell_store(server) as cells, store_at(server.address) as store:
        yield cells, store


async def commands(store: Store, call: Callable[[], Awaitable[Any]]) -> int:
    """How many commands the scripts of a call have run."""
    await store.call("CONFIG", "RESETSTAT")
    await call()
    told = (await store.call("INFO", "commandstats")).decode()
    lines = [line for line in told.splitlines() if line.startswith("cmdstat_")]
    ours = [line for line in lines if not line.startswith(("cmdstat_evalsha", "cmdstat_config"))]
    return sum(int(line.partition("calls=")[2].partition(",")[0]) for line in ours)


async def test_a_start_and_a_claim_cost_two_commands_an_id(store_server: EmbeddedServer) -> None:
    async with plain_store(store_server) as (cells, store):
        items = [cells.new(detail=b"\x90") for _ in range(BATCH_MAX)]
        started = await commands(store, lambda: Entry(store, TERMS).start(0, items))
        assert 2 * BATCH_MAX < started <= 2 * BATCH_MAX + CALL_MAX
        claimed = await commands(
            store,
            lambda: Holding(store, TERMS).claim(
                0, "workers", node="n1", number=1, most=BATCH_MAX, lease_ms=LEASE_MS
            ),
        )
        assert 2 * BATCH_MAX < claimed <= 2 * BATCH_MAX + CALL_MAX


async def test_an_end_costs_two_commands_an_id_and_more_only_where_it_is_told(
    store_server: EmbeddedServer,
) -> None:
    async with plain_store(store_server) as (cells, store):
        progress, holding = Progress(store, TERMS), Holding(store, TERMS)

        async def ending(number: int, **more: Any) -> int:
            items = [cells.new(detail=b"\x90", **more) for _ in range(BATCH_MAX)]
            await Entry(store, TERMS).start(0, items)
            claim = await holding.claim(
                0, "workers", node="n1", number=number, most=BATCH_MAX, lease_ms=LEASE_MS
            )
            ends = [
                Finish(held=each.held, state=STATE, status=Status.SUCCESS, output=b"1")
                for each in claim.items
            ]
            return await commands(store, lambda: progress.finish(0, ends))

        plain = await ending(1)
        assert 2 * BATCH_MAX < plain <= 2 * BATCH_MAX + CALL_MAX
        told = await ending(2, reply="- w.default.0123456789abcdef")
        assert plain < told <= plain + 9 * BATCH_MAX
        assert await ending(3) <= plain + 1, "what others want costs nobody anything"


async def test_one_alone_costs_little_beside_itself(store_server: EmbeddedServer) -> None:
    async with plain_store(store_server) as (cells, store):
        item = cells.new(detail=b"\x90")
        assert await commands(store, lambda: Entry(store, TERMS).start(0, [item])) <= 2 + CALL_MAX


async def test_a_claim_costs_the_same_however_much_waits(store_server: EmbeddedServer) -> None:
    """F-22: nothing in it grows with the queue."""
    async with plain_store(store_server) as (cells, store):
        holding = Holding(store, TERMS)

        async def claim() -> None:
            found = await holding.claim(
                0, "workers", node="n1", number=1, most=10, lease_ms=LEASE_MS
            )
            assert len(found.items) == 10

        await cells.entry.start(0, [cells.new() for _ in range(BATCH_MAX)])
        short = await commands(store, claim)
        waiting = [f"tx-{n:040x}" for n in range(10**6, 10**6 + 50_000)]
        for first in range(0, len(waiting), 5000):
            part = waiting[first : first + 5000]
            await store.call("RPUSH", names.queue_in(0, "workers"), *part)
        assert await commands(store, claim) == short


async def test_archiving_costs_two_commands_an_id_and_so_does_bringing_it_back(
    store_server: EmbeddedServer,
) -> None:
    async with plain_store(store_server) as (cells, store):
        archiving = Archiving(store, TERMS, role_ms=60_000, grace_ms=5_000)
        restoring, signals = Restoring(store, TERMS), Signals(store, TERMS)
        await cells.entry.start(0, [cells.new(delay_ms=1) for _ in range(BATCH_MAX)])
        ids = await store.call("ZRANGE", names.sorted_set(0, "toArchiveZ"), 0, -1)
        for each in ids:
            await store.call("ZADD", names.sorted_set(0, "toArchiveZ"), 1, each)
        turns = []

        async def read() -> None:
            turns.append(await archiving.turn(0, node="n1", most=BATCH_MAX))

        assert BATCH_MAX < await commands(store, read) <= BATCH_MAX + CALL_MAX
        turn = turns[0]
        done = [Confirmed(each.id, 1, turn.now_ms) for each in turn.items]
        confirm = archiving.turn(0, node="n1", most=0, confirmed=done)
        assert BATCH_MAX < await commands(store, lambda: confirm) <= BATCH_MAX + CALL_MAX
        missing = []

        async def miss() -> None:
            missing.extend((await signals.wake_due(0, loads=BATCH_MAX)).missing)

        assert BATCH_MAX < await commands(store, miss) <= BATCH_MAX + CALL_MAX
        rows = {each.id: each.fields for each in turn.items}
        found = [Restoration(each, rows[each.id]) for each in missing]
        assert len(found) == BATCH_MAX
        restore = restoring.restore(0, found, mode="wake")
        assert BATCH_MAX < await commands(store, lambda: restore) <= BATCH_MAX + CALL_MAX
