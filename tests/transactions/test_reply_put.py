"""Events of transactions: put by the script that makes them, where they are wanted, the newest."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.helpers.store_faults import Fate, proxy_to, store_at
from tests.transactions.archive_helpers import Shelf
from tests.transactions.engine_helpers import waiting_events, word
from tests.transactions.helpers import (
    CELL,
    GRACE_MS,
    GROUP,
    LEASE_MS,
    TERMS,
    VERSION,
    TransactionStore,
    after,
    open_transactions,
)
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
from waystation.transactions.progress import (
    Commit,
    FanOpen,
    FanWait,
    Finish,
    PassOn,
    Progress,
    Sleep,
    next_round,
)
from waystation.transactions.reply_lanes import item_hash
from waystation.transactions.signals import Signals
from waystation.transactions.states import State, Status

ONE = f"tx-{'0' * 39}1"


# -- Ends ------------------------------------------------------------------------------------


class Scripts:
    """The callers of scripts over one store, and what these scenarios share."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.entry = Entry(store, TERMS)
        self.holding = Holding(store, TERMS)
        self.progress = Progress(store, TERMS)
        self.signals = Signals(store, TERMS)

    async def start(self, **more: object) -> None:
        """The one whose end is waited for."""
        await self.entry.start(CELL, [new(reply=word(), **more)])

    async def claim(self) -> Held:
        """What is next."""
        claim = await self.holding.claim(CELL, GROUP, node="n", number=1, most=1, lease_ms=LEASE_MS)
        (claimed,) = claim.items
        return claimed.held

    async def cancel(self) -> None:
        """Without a grace time."""
        await self.signals.cancel("default", [ONE], cause="me", grace_ms=0)

    async def pass_time(self, ms: int) -> None:
        """By the time machine."""
        await self.store.run(script("waystation.store", "advance_time"), [keys.TIME], [ms])


def new(**more: object) -> NewTransaction:
    known: dict[str, object] = {"id": ONE, "owner": "default", "pipeline": "p", "version": VERSION}
    known |= {"group": GROUP, "state": b"0"}
    return NewTransaction(**{**known, **more})  # type: ignore[arg-type]


async def by_finish(scripts: Scripts) -> None:
    await scripts.start()
    end = Finish(held=await scripts.claim(), state=b"e", status=Status.SUCCESS, output=b"1")
    await scripts.progress.finish(CELL, [end])


async def by_cancel_in_the_queue(scripts: Scripts) -> None:
    await scripts.start()
    await scripts.cancel()


async def by_cancel_in_its_sleep(scripts: Scripts) -> None:
    await scripts.start(delay_ms=60_000)
    await scripts.cancel()


async def by_the_commit_after_a_cancel(scripts: Scripts) -> None:
    await scripts.start()
    held = await scripts.claim()
    await scripts.cancel()
    await scripts.progress.commit(CELL, [Commit(held=held, state=b"1")])


async def by_the_release_after_a_cancel(scripts: Scripts) -> None:
    await scripts.start()
    held = await scripts.claim()
    await scripts.cancel()
    await scripts.holding.release(CELL, [held])


async def by_its_deadline(scripts: Scripts) -> None:
    await scripts.start(deadline_in_ms=1)
    await scripts.pass_time(2)
    await scripts.signals.expire(CELL, grace_ms=GRACE_MS)


async def by_force(scripts: Scripts) -> None:
    await scripts.start()
    await scripts.claim()
    await scripts.cancel()
    await scripts.pass_time(1)
    await scripts.signals.expire(CELL, grace_ms=GRACE_MS)


async def by_a_rescue_too_many(scripts: Scripts) -> None:
    await scripts.start()
    for _ in range(2):
        held = await scripts.claim()
        await scripts.holding.begin(held)
        await scripts.pass_time(LEASE_MS + 1)
        await scripts.holding.rescue(CELL, most=1, rescues_max=1)


async def by_its_last_child(scripts: Scripts) -> None:
    await scripts.start()
    held = await scripts.claim()
    round_ = next_round(held)
    opened = FanOpen(held=held, state=b"f", round=round_, total=1)
    await scripts.progress.fan_open(CELL, [opened])
    held, child = after(held), new(id=names.child_id(ONE, round_, 1))
    await scripts.entry.fan_out(held, round_=round_, first=1, items=[child])
    await scripts.progress.fan_wait(CELL, [FanWait(held=held, state=b"w")])
    await scripts.signals.cancel("default", [ONE], cause="me", grace_ms=GRACE_MS)
    end = Finish(held=await scripts.claim(), state=b"e", status=Status.SUCCESS, output=b"1")
    await scripts.progress.finish(CELL, [end])


Way = Callable[[Scripts], Awaitable[None]]
WAYS: list[Way] = [
    by_finish,
    by_cancel_in_the_queue,
    by_cancel_in_its_sleep,
    by_the_commit_after_a_cancel,
    by_the_release_after_a_cancel,
    by_its_deadline,
    by_force,
    by_a_rescue_too_many,
    by_its_last_child,
]


async def prepare(store: Store) -> None:
    await open_cells(store, StreamLogs(store), 1)
    pipeline = names.pipeline(CELL, "default", "p")
    await store.call("HSET", pipeline, "revision", 1, "active", VERSION, "type", 1)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_death_at_any_call_leaves_the_event_exactly_if_there_is_the_end(
    store_server: EmbeddedServer, way: Way
) -> None:
    """F-01: nobody has to remember that a webhook is due."""
    ended = 0

    async def scenario(store: Store) -> None:
        await way(Scripts(store))

    async def look(store: Store, point: CrashPoint) -> None:
        nonlocal ended
        line = await store.call("HGET", names.state(ONE), "head")
        head = parse(line) if line is not None else None
        is_over = head is not None and head.state is State.COMPLETE
        expected = {ONE: f"complete {head.version}"} if head is not None and is_over else {}
        assert await waiting_events(store) == expected
        ended += is_over

    points = crash_points(store_server.address, scenario, look, prepare=prepare, test_mode=True)
    assert len(points) >= 2 * len(Moment)
    assert ended, "it never ended"


async def test_who_asked_for_nothing_is_put_nowhere(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        held = await tx.running()
        await tx.progress.report(held, b"1")
        await finish(tx, held)
        assert await tx.store.call("KEYS", "*webhook*") == []
        assert "r" not in (await tx.head(held.id)).flags


async def test_each_receiver_has_the_event_in_its_own_lane(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        wanted = word(channel="orders", topic="refunds")
        helds = [await tx.running(reply=wanted) for _ in range(2)]
        await tx.progress.finish(CELL, [ending(held) for held in helds])
        events = await waiting_events(tx.store)
        assert sorted(events) == sorted(
            f"{held.id}{end}" for held in helds for end in ("", ".c", ".t")
        )
        version = (await tx.head(helds[0].id)).version
        assert set(events.values()) == {f"complete {version}"}
        lanes = await tx.store.call("KEYS", "*webhooksZ:*")
        assert [await tx.store.call("ZCARD", each) for each in lanes] == [2, 2, 2]
        await tx.check()


async def test_what_is_put_is_due_at_once_and_its_register_is_called(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        held = await tx.running(reply=word())
        async with tx.hearing(b"{tx.0}:webhookLanesZ") as heard:
            before = await tx.now_ms()
            await finish(tx, held)
            assert await heard.get() == "lane"
        (lane,) = await tx.store.call("KEYS", "*webhooksZ:*")
        score = float(await tx.store.call("ZSCORE", lane, held.id))
        assert before <= score <= await tx.now_ms()


async def test_children_of_a_parallel_tell_nobody(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        held, children = await fan(tx, reply=word("s"), total=2)
        for each in children:
            await finish(tx, each)
        assert list(await waiting_events(tx.store)) == [held.id]
        for each in children:
            assert "reply" not in await tx.fields(each.id)


async def test_an_end_whose_reply_was_lost_is_told_once(store_server: EmbeddedServer) -> None:
    """F-02 with a webhook: one transaction, one event, however often its end is sent."""
    async with open_transactions(store_server) as tx, proxy_to(store_server.address) as proxy:
        held = await tx.running(reply=word(), external_id="r-17")
        async with store_at(proxy.address, test_mode=True) as store:
            await store.ping()
            await proxy.set_fates(replies=Fate.CUT)
            asked = Progress(store, TERMS).finish(CELL, [ending(held)])
            finishing = asyncio.ensure_future(asked)
            await proxy.met.wait()
            await proxy.set_fates()
            (verdict,) = await finishing
        assert verdict.outcome == "known"
        again = tx.new(reply=word(), external_id="r-17")
        (started,) = await tx.entry.start(CELL, [again])
        assert (started.outcome, started.detail) == ("duplicate", held.id)
        version = (await tx.head(held.id)).version
        assert await waiting_events(tx.store) == {held.id: f"complete {version}"}


# -- Progress and status ---------------------------------------------------------------------


async def test_progress_is_told_to_those_who_ask_and_the_newest_wins(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        held = await tx.running(reply=word("p"))
        other = await tx.running(reply=word("s"))
        first = await tx.progress.report(held, b"1")
        await tx.progress.report(other, b"1")
        assert await waiting_events(tx.store) == {held.id: f"progress {first.version}"}
        # As after a failed attempt.
        await tx.store.call("HSET", item_hash(CELL), f"{held.id}.attempts", 3)
        second = await tx.progress.report(held, b"2")
        assert second.version > first.version
        assert await waiting_events(tx.store) == {held.id: f"progress {second.version}"}
        assert await tx.store.call("HKEYS", item_hash(CELL)) == [held.id.encode()]
        assert (await tx.progress.report(held, b"2")).outcome == "known"
        assert await waiting_events(tx.store) == {held.id: f"progress {second.version}"}
        assert (await tx.fields(held.id))["progressAt"] == str(second.version).encode()
        await finish(tx, held)
        events = await waiting_events(tx.store)
        assert events == {held.id: f"complete {(await tx.head(held.id)).version}"}
        assert sorted(await tx.fields(held.id)) == ["reply", "state"]


async def test_a_late_holder_reports_to_nobody(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        held = await tx.running(reply=word("p"))
        late = Held(held.id, held.epoch - 1, held.commits)
        assert (await tx.progress.report(late, b"1")).outcome == "refused"
        assert await waiting_events(tx.store) == {}


async def test_changes_of_state_are_told_as_clients_see_them(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        held = await tx.running(reply=word("s"))
        silent = await tx.running(reply=word("p"))

        async def told() -> bool:
            """Whether the newest event is the newest version."""
            events = await waiting_events(tx.store)
            return events == {held.id: f"status {(await tx.head(held.id)).version}"}

        await tx.progress.commit(CELL, [Commit(held=held, state=b"1")])
        assert await waiting_events(tx.store) == {}, "it runs as before"
        held = after(held)
        for each in (held, after(silent, 0)):
            await tx.progress.sleep(CELL, [Sleep(held=each, state=b"2", switch="go")])
        assert await told()
        for each in (held, silent):
            await tx.signals.set_switch("default", each.id, "go", True)
        assert await told()
        before = await waiting_events(tx.store)
        claimed = [each for each in await tx.claim(2) if each.id == held.id]
        on = PassOn(held=claimed[0].held, state=b"3", group=GROUP, queue="in", pipeline="p")
        await tx.progress.pass_on(CELL, [on])
        assert await waiting_events(tx.store) == before, "queued is running, to clients"
        (claimed,) = [await tx.claim()]
        await tx.progress.sleep(CELL, [Sleep(held=claimed[0].held, state=b"4", delay_ms=5)])
        assert await told()
        await tx.machine.advance(1)
        await tx.signals.wake_due(CELL)
        assert await told()


async def test_a_wait_for_children_and_its_end_are_changes(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        held, (child,) = await fan(tx, reply=word("s"), total=1)
        version = (await tx.head(held.id)).version
        assert await waiting_events(tx.store) == {held.id: f"status {version}"}
        await finish(tx, child)
        head = await tx.head(held.id)
        assert head.state is State.QUEUED
        assert head.version > version
        assert await waiting_events(tx.store) == {held.id: f"status {head.version}"}


async def test_to_be_held_and_let_go_are_changes(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        await tx.define(paused=True)
        one = await tx.start(reply=word("s"))
        assert await tx.claim() == []
        assert await waiting_events(tx.store) == {one: f"status {(await tx.head(one)).version}"}
        await tx.define()
        resume = script("waystation.transactions", "resume")
        await tx.store.run(resume, [names.log(CELL)], [TERMS.argument, "p", 10])
        assert (await tx.head(one)).state is State.QUEUED
        assert await waiting_events(tx.store) == {one: f"status {(await tx.head(one)).version}"}


async def test_what_wakes_out_of_the_archive_tells_that_it_runs_again(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        shelf = Shelf(tx)
        held, quiet = await tx.running(reply=word("s")), await tx.running(reply=word())
        for each in (held, quiet):
            await tx.progress.sleep(CELL, [Sleep(held=each, state=b"2", delay_ms=3_600_000)])
        await tx.machine.advance(TERMS.archive_delay_ms / 1000 + 1)
        await shelf.archive()
        assert await tx.store.call("EXISTS", names.state(held.id)) == 0
        await tx.machine.advance(3_600)
        due = await tx.signals.wake_due(CELL, loads=10)
        outcomes = await tx.restoring.restore(CELL, shelf.found(due.missing), mode="wake")
        assert outcomes == ["woken", "woken"]
        version = (await tx.head(held.id)).version
        assert await waiting_events(tx.store) == {held.id: f"status {version}"}


# -- What the tests above share --------------------------------------------------------------


def ending(held: Held) -> Finish:
    return Finish(held=held, state=b"e", status=Status.SUCCESS, output=b"1")


async def finish(tx: TransactionStore, held: Held) -> None:
    (verdict,) = await tx.progress.finish(CELL, [ending(held)])
    assert verdict.outcome == "done"


async def fan(tx: TransactionStore, *, reply: str, total: int) -> tuple[Held, list[Held]]:
    """A parent that waits for children, all of which run."""
    held = await tx.running(reply=reply)
    round_ = next_round(held)
    opened = FanOpen(held=held, state=b"f", round=round_, total=total)
    await tx.progress.fan_open(CELL, [opened])
    held = after(held)
    ids = [names.child_id(held.id, round_, n + 1) for n in range(total)]
    items = [tx.new(id=each) for each in ids]
    await tx.entry.fan_out(held, round_=round_, first=1, items=items)
    await tx.progress.fan_wait(CELL, [FanWait(held=held, state=b"w")])
    return held, [each.held for each in await tx.claim(total)]
