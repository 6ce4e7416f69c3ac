"""Moves under faults: lost replies, dead holders, a full store and a full record log."""

from __future__ import annotations

import asyncio

import pytest

from tests.helpers.store_faults import Fate, proxy_to, store_at
from tests.transactions.helpers import (
    CELL,
    GRACE_MS,
    GROUP,
    LEASE_MS,
    TERMS,
    VERSION,
    after,
    open_transactions,
)
from waystation.errors import StoreFullError
from waystation.logs.protocol import Retention
from waystation.logs.streams import StreamLogs
from waystation.store import keys
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.scripts import script
from waystation.testing.crash_points import CrashPoint, Moment, crash_points
from waystation.transactions import names
from waystation.transactions.cells import open_cells
from waystation.transactions.entry import Entry, NewTransaction
from waystation.transactions.head import parse
from waystation.transactions.held import Held
from waystation.transactions.holding import Holding
from waystation.transactions.log_entry import unpack
from waystation.transactions.progress import Commit, FanOpen, Finish, Progress, Sleep
from waystation.transactions.signals import Signals
from waystation.transactions.states import State, Status

ONE = f"tx-{'0' * 39}1"


async def test_a_move_whose_reply_was_cut_off_is_sent_again_and_happens_once(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx, proxy_to(store_server.address) as proxy:
        held = await tx.running()
        async with store_at(proxy.address, test_mode=True) as store:
            await store.ping()
            await proxy.set_fates(replies=Fate.CUT)
            move = Commit(held=held, state=b"new")
            commit = asyncio.ensure_future(Progress(store, TERMS).commit(CELL, [move]))
            await proxy.met.wait()
            await proxy.set_fates()
            (verdict,) = await commit
        assert verdict.outcome == "known"
        assert await tx.kinds(held.id) == ["started", "step"]
        (verdict,) = await tx.progress.commit(CELL, [Commit(held=after(held), state=b"s")])
        assert verdict.outcome == "done", "its holder goes on from there"


async def test_in_a_full_store_what_is_under_way_goes_on(store_server: EmbeddedServer) -> None:
    """F-20: only what makes a transaction larger for good is refused, and whole."""
    async with open_transactions(store_server) as tx:
        helds = [await tx.running() for _ in range(4)]
        asleep, waiting = await tx.running(), await tx.running()
        for each in (asleep, waiting):
            await tx.progress.sleep(CELL, [Sleep(held=each, state=b"s", switch="go")])
        await tx.store.call("CONFIG", "SET", "maxmemory", 1)
        try:
            before = await tx.picture()
            fan = FanOpen(held=helds[0], state=b"f", round=1, total=1)
            with pytest.raises(StoreFullError):
                await tx.progress.fan_open(CELL, [fan])
            assert await tx.picture() == before

            await tx.progress.once(helds[0], "1", "charge", b"paid")
            await tx.progress.report(helds[0], b"1")
            await tx.progress.commit(CELL, [Commit(held=helds[0], state=b"s")])
            await tx.progress.sleep(CELL, [Sleep(held=helds[1], state=b"s", delay_ms=0)])
            end = Finish(held=helds[2], state=b"e", status=Status.SUCCESS, output=b"")
            await tx.progress.finish(CELL, [end])
            await tx.signals.cancel("default", [helds[3].id], cause="me", grace_ms=0)
            await tx.signals.wake("default", asleep.id)
            await tx.signals.set_switch("default", waiting.id, "go", True)
            await tx.signals.wake_due(CELL)
            await tx.signals.expire(CELL, grace_ms=GRACE_MS)
            await tx.signals.sweep(CELL, grace_ms=GRACE_MS)
            assert len(await tx.signals.get("default", [asleep.id])) == 1
        finally:
            await tx.store.call("CONFIG", "SET", "maxmemory", 0)
        heads = (await tx.check()).heads
        assert [heads[each.id].state for each in (*helds, asleep, waiting)] == [
            State.RUNNING,
            State.QUEUED,
            State.COMPLETE,
            State.COMPLETE,
            State.QUEUED,
            State.QUEUED,
        ]


async def test_a_full_record_log_stops_nothing_that_is_under_way(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        helds = [await tx.running() for _ in range(3)]
        await tx.logs.set_retention(names.LOG, CELL, Retention(max_bytes=1, policy="refuse"))
        await tx.logs.hold(names.LOG, CELL, "history", 0)
        await tx.progress.commit(CELL, [Commit(held=helds[0], state=b"s")])
        await tx.progress.sleep(CELL, [Sleep(held=helds[1], state=b"s", switch="go")])
        await tx.signals.set_switch("default", helds[1].id, "go", True)
        await tx.signals.cancel("default", [helds[2].id], cause="me", grace_ms=0)
        kinds = [fact.kind for fact in await tx.facts()]
        assert kinds == [*["started"] * 3, "step", "slept", "switched", "cancelled"]


# -- Deaths ----------------------------------------------------------------------------------


async def prepare(store: Store) -> None:
    await open_cells(store, StreamLogs(store), 1)
    pipeline = names.pipeline(CELL, "default", "p")
    await store.call("HSET", pipeline, "revision", 1, "active", VERSION, "type", 1)
    new = NewTransaction(
        id=ONE, owner="default", pipeline="p", version=VERSION, group=GROUP, state=b"0"
    )
    await Entry(store, TERMS).start(CELL, [new])


async def step(progress: Progress, held: Held, state: bytes, recorded: bytes | None) -> bool:
    """What a worker does from a state on; whether it still holds the transaction then."""
    if state == b"0":
        if recorded is None:
            await progress.once(held, "1", "charge", b"paid")
        move = Commit(held=held, state=b"1", drop=("once:1:charge",))
        (verdict,) = await progress.commit(CELL, [move])
        return verdict.outcome in ("done", "known")
    if state == b"1":
        await progress.sleep(CELL, [Sleep(held=held, state=b"2", switch="go")])
    else:
        end = Finish(held=held, state=b"end", status=Status.SUCCESS, output=b"1")
        await progress.finish(CELL, [end])
    return False


async def work(store: Store) -> None:
    """A worker, and somebody who sets the switch: to the end."""
    holding, progress, signals = (
        Holding(store, TERMS),
        Progress(store, TERMS),
        Signals(store, TERMS),
    )
    while True:
        (found,) = await signals.get("default", [ONE])
        assert found is not None
        match found.head.state:
            case State.COMPLETE:
                return
            case State.WAITING_SWITCH:
                await signals.set_switch("default", ONE, "go", True)
            case State.QUEUED:
                claim = await holding.claim(
                    CELL, GROUP, node="n", number=1, most=1, lease_ms=LEASE_MS
                )
                (claimed,) = claim.items
                recorded = claimed.extras.get(b"once:1:charge")
                if await step(progress, claimed.held, claimed.state, recorded):
                    await step(progress, after(claimed.held), b"1", None)
            case other:
                raise AssertionError(f"nobody is there, and it is {other}")


@pytest.mark.slow
def test_a_death_at_any_call_of_a_pipeline_ends_in_the_same_end(
    store_server: EmbeddedServer,
) -> None:
    """F-01: each step result is recorded once, and nothing is held after its lease."""

    async def look(store: Store, point: CrashPoint) -> None:
        advance = script("waystation.store", "advance_time")
        await store.run(advance, [keys.TIME], [LEASE_MS + 1])
        await Holding(store, TERMS).rescue(CELL, most=10, rescues_max=3)
        await work(store)
        head = parse(await store.call("HGET", names.state(ONE), "head"))
        assert (head.state, head.status) == (State.COMPLETE, Status.SUCCESS)
        fields = await store.call("HKEYS", names.state(ONE))
        assert sorted(fields) == [b"head", b"state", b"switches"]
        for name in ("processingZ", "leaseZ", "sleepingZ", "deadlineZ"):
            assert await store.call("ZCARD", names.sorted_set(CELL, name)) == 0
        assert await store.call("EXISTS", names.queue_in(CELL, GROUP)) == 0
        entries = (await StreamLogs(store).read(names.LOG, CELL, 0, limit=1000)).entries()
        kinds = [fact.kind for entry in entries for fact in unpack(entry.payload).facts]
        kinds = [kind for kind in kinds if kind != "rescued"]
        assert kinds == ["started", "step", "slept", "switched", "finished"], kinds

    points = crash_points(store_server.address, work, look, prepare=prepare, test_mode=True)
    assert len(points) >= 8 * len(Moment)


# -- What no script can read -----------------------------------------------------------------


async def test_more_fields_than_lua_unpacks_are_dropped_and_leave_those_beside_whole(
    store_server: EmbeddedServer,
) -> None:
    """A script has no rollback: an error at one item would leave those before it half-written."""
    drop = tuple(f"once:1:{number}" for number in range(9000))
    async with open_transactions(store_server) as tx:
        beside, full, ends = [await tx.running() for _ in range(3)]
        await tx.store.call("HSET", names.state(full.id), *(w for each in drop for w in (each, 1)))
        moves = [Sleep(held=beside, state=b"s"), Sleep(held=full, state=b"s", drop=drop)]
        verdicts = await tx.progress.sleep(CELL, moves)
        assert [each.outcome for each in verdicts] == ["waiting", "waiting"]
        assert sorted(await tx.fields(full.id)) == ["state"]
        end = Finish(held=ends, state=b"e", status=Status.SUCCESS, output=b"1", drop=drop)
        (verdict,) = await tx.progress.finish(CELL, [end])
        assert verdict.outcome == "done"
        await tx.check()


async def test_a_transaction_of_many_fields_can_be_looked_at(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        held = await tx.running()
        fields = [word for number in range(5000) for word in (f"once:1:{number}", number)]
        await tx.store.call("HSET", names.state(held.id), *fields)
        (found,) = await tx.signals.get("default", [held.id])
        assert found is not None
        assert len(found.extras) == 5000


async def test_what_is_no_state_at_all_costs_nobody_beside_it_anything(
    store_server: EmbeddedServer,
) -> None:
    """F-19: claims, moves, and what is due go on around it; nobody is half-moved."""
    async with open_transactions(store_server) as tx:
        ids = [await tx.start(delay_ms=1 if number == 4 else 0) for number in range(5)]
        await spoil(tx.store, ids[1])
        claimed = await tx.claim(4)
        assert [each.id for each in claimed] == [ids[0], ids[2], ids[3]]
        first, second, third = (each.held for each in claimed)
        await spoil(tx.store, second.id)
        moves = [
            Finish(held=each, state=b"e", status=Status.SUCCESS, output=b"1")
            for each in (first, second)
        ]
        verdicts = await tx.progress.finish(CELL, moves)
        assert [each.outcome for each in verdicts] == ["done", "unknown"]
        sleeps = [Sleep(held=each, state=b"s", delay_ms=0) for each in (third, second)]
        verdicts = await tx.progress.sleep(CELL, sleeps)
        assert [each.outcome for each in verdicts] == ["waiting", "unknown"]
        await spoil(tx.store, third.id)
        await tx.machine.advance(LEASE_MS / 1000 + 1)
        due = await tx.signals.wake_due(CELL, loads=100)
        assert (due.done, due.missing) == (2, ())
        await tx.holding.rescue(CELL, most=100, rescues_max=3)
        await tx.store.call("DEL", *(names.state(each) for each in (ids[1], second.id, third.id)))
        await tx.store.call("ZREM", names.sorted_set(CELL, "toArchiveZ"), third.id)
        heads = (await tx.check()).heads
        assert {each: heads[each].state for each in heads} == {
            ids[0]: State.COMPLETE,
            ids[4]: State.QUEUED,
        }


async def spoil(store: Store, transaction_id: str) -> None:
    """Something else in the place of a transaction."""
    await store.call("SET", names.state(transaction_id), "not a hash")
