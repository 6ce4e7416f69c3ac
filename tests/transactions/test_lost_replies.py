"""Replies that are lost and processes that die around a call: nothing twice, nothing lost."""

from __future__ import annotations

import asyncio

import pytest

from tests.helpers.store_faults import Fate, proxy_to, store_at
from tests.transactions.cell_store import LEASE_MS, TERMS, open_cell_store
from waystation.errors import OutcomeUnknownError
from waystation.logs.streams import StreamLogs
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.testing.crash_points import CrashPoint, Moment, crash_points
from waystation.transactions import names
from waystation.transactions.cells import open_cells
from waystation.transactions.entry import Entry, NewTransaction
from waystation.transactions.head import parse
from waystation.transactions.holding import Holding
from waystation.transactions.log_entry import unpack
from waystation.transactions.states import State

NAMED = NewTransaction(
    id=f"tx-{'0' * 39}a",
    owner="default",
    pipeline="refund",
    version="v1",
    group="workers",
    state=b"packed",
    external_id="r-1",
)
#: What a client starts who tries again: it cannot know the first id.
AGAIN = NewTransaction(
    id=f"tx-{'0' * 39}b",
    owner="default",
    pipeline="refund",
    version="v1",
    group="workers",
    state=b"packed",
    external_id="r-1",
)


async def test_a_start_whose_reply_was_lost_is_sent_again_and_happens_once(
    store_server: EmbeddedServer,
) -> None:
    async with open_cell_store(store_server) as cells, proxy_to(store_server.address) as proxy:
        async with store_at(proxy.address, test_mode=True) as store:
            await store.ping()
            await proxy.set_fates(replies=Fate.CUT)
            start = asyncio.ensure_future(Entry(store, TERMS).start(0, [NAMED]))
            await proxy.met.wait()
            await proxy.set_fates()
            (started,) = await start
        assert (started.outcome, started.detail) == ("known", "queued")
        assert await cells.listed("qInL:workers") == [NAMED.id]
        assert len(await cells.entries()) == 1


async def test_a_claim_whose_reply_was_lost_is_not_sent_again_but_found(
    store_server: EmbeddedServer,
) -> None:
    async with open_cell_store(store_server) as cells, proxy_to(store_server.address) as proxy:
        await cells.entry.start(0, [cells.new() for _ in range(50)])
        async with store_at(proxy.address, test_mode=True) as store:
            holding = Holding(store, TERMS)
            terms = {"node": "n1", "lease_ms": LEASE_MS}
            first = await holding.claim(0, "workers", number=1, most=5, **terms)  # type: ignore[arg-type]
            await proxy.set_fates(replies=Fate.CUT)
            claim = asyncio.ensure_future(
                holding.claim(0, "workers", number=2, most=30, **terms)  # type: ignore[arg-type]
            )
            await proxy.met.wait()
            await proxy.set_fates()
            with pytest.raises(OutcomeUnknownError):
                await claim
            found = await holding.reclaim(0, node="n1", number=2, since_ms=first.now_ms)
        assert len(found.items) == 30
        assert all(each.head.epoch == 1 for each in found.items)
        assert len(await cells.listed("qInL:workers")) == 15
        verdicts = await cells.holding.release(0, [each.held for each in found.items])
        assert {each.outcome for each in verdicts} == {"done"}


async def prepare(store: Store) -> None:
    await open_cells(store, StreamLogs(store), 1)
    key = names.pipeline(0, "default", "refund")
    await store.call("HSET", key, "active", "v1", "type", "1")


async def scenario(store: Store) -> None:
    """A start, a claim, a begin, a release, and another claim."""
    entry, holding = Entry(store, TERMS), Holding(store, TERMS)
    await entry.start(0, [NAMED])
    claim = await holding.claim(0, "workers", node="n1", number=1, most=10, lease_ms=LEASE_MS)
    await holding.begin(claim.items[0].held)
    await holding.release(0, [claim.items[0].held])
    await holding.claim(0, "workers", node="n1", number=2, most=10, lease_ms=LEASE_MS)


async def check_places(store: Store, transaction_id: str) -> None:
    """What always holds: queued is in one queue, running in both sets, nothing in between."""
    head = parse(await store.call("HGET", names.state(transaction_id), "head"))
    queued = await store.call("LRANGE", names.queue_in(0, "workers"), 0, -1)
    running = [
        await store.call("ZSCORE", names.sorted_set(0, each), transaction_id)
        for each in ("processingZ", "leaseZ")
    ]
    if head.state is State.QUEUED:
        assert queued == [transaction_id.encode()]
        assert running == [None, None]
    else:
        assert head.state is State.RUNNING
        assert queued == []
        assert None not in running


async def after(store: Store, point: CrashPoint) -> None:
    """A client tries again, a timekeeper rescues, another worker claims."""
    (started,) = await Entry(store, TERMS).start(0, [AGAIN])
    if point.call == 1 and point.moment is Moment.BEFORE_SEND:
        assert started.outcome == "started"
    elif started.outcome == "started":
        # Sent, but the process died before the kernel had it; never seen beyond the first call.
        assert point.call == 1
    else:
        assert (started.outcome, started.detail) == ("duplicate", NAMED.id)
    alive = AGAIN.id if started.outcome == "started" else NAMED.id
    assert len(await store.call("KEYS", "{tx.0}:stateH:*")) == 1
    await check_places(store, alive)

    # As after the lease.
    for each in await store.call("ZRANGE", names.sorted_set(0, "leaseZ"), 0, -1):
        await store.call("ZADD", names.sorted_set(0, "leaseZ"), 1, each)
    holding = Holding(store, TERMS)
    await holding.rescue(0, most=100, rescues_max=3)
    await check_places(store, alive)
    claim = await holding.claim(0, "workers", node="n2", number=1, most=10, lease_ms=LEASE_MS)
    assert [each.id for each in claim.items] == [alive]
    await check_places(store, alive)
    entries = (await StreamLogs(store).read(names.LOG, 0, 0, limit=100)).entries()
    kinds = [fact.kind for each in entries for fact in unpack(each.payload).facts]
    assert kinds.count("started") == 1


def test_a_death_at_any_call_leaves_one_transaction_that_the_next_worker_gets(
    store_server: EmbeddedServer,
) -> None:
    """F-01 for what brings in and holds; F-02: one transaction for one external id."""
    points = crash_points(store_server.address, scenario, after, prepare=prepare)
    assert len(points) == 5 * 3
