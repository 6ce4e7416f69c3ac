"""Every script from every state: what happens is in the table, and all of the table happens."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.transactions.helpers import (
    CELL,
    GROUP,
    LEASE_MS,
    TAG,
    TERMS,
    VERSION,
    TransactionStore,
    after,
    open_transactions,
)
from waystation.errors import NotSleepingError, TransactionFinalError
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.scripts import script
from waystation.transactions import names
from waystation.transactions.entry import NewTransaction
from waystation.transactions.held import Held
from waystation.transactions.progress import (
    Commit,
    FanOpen,
    FanWait,
    Finish,
    PassOn,
    Sleep,
)
from waystation.transactions.states import TRANSITIONS, State, Status

Row = tuple[State | None, str, State]
Maker = Callable[[TransactionStore], Awaitable[Held]]
Verb = Callable[[TransactionStore, Held], Awaitable[object]]

TABLE: set[Row] = {(each.from_, each.verb, each.to) for each in TRANSITIONS}
#: A deadline far ahead, so that every one of them can expire.
FAR = {"deadline_in_ms": 86_400_000}


# -- Transactions in every state, and in every way that makes a difference -------------------


async def running(tx: TransactionStore) -> Held:
    return await tx.running(**FAR)


async def asked_to_end(tx: TransactionStore) -> Held:
    held = await running(tx)
    await tx.signals.cancel("default", [held.id], cause="me", grace_ms=60_000)
    return held


async def switched(tx: TransactionStore) -> Held:
    held = await running(tx)
    await tx.signals.set_switch("default", held.id, "go", True)
    return held


async def begun_too_often(tx: TransactionStore) -> Held:
    held = await running(tx)
    for _ in range(2):
        await expire_lease(tx, held)
        await tx.holding.rescue(CELL, most=10, rescues_max=9)
        (claimed,) = await tx.claim()
        held = claimed.held
        await tx.holding.begin(held)
    return held


async def open_fan(tx: TransactionStore) -> Held:
    held = await running(tx)
    await tx.progress.fan_open(CELL, [FanOpen(held=held, state=b"s", round=1, total=1)])
    return after(held)


async def with_children(tx: TransactionStore) -> Held:
    held = await open_fan(tx)
    await tx.entry.fan_out(held, round_=1, first=1, items=[child(held.id)])
    return held


async def all_children_done(tx: TransactionStore) -> Held:
    held = await with_children(tx)
    await end_child(tx, held)
    return held


async def waiting_children(tx: TransactionStore) -> Held:
    held = await with_children(tx)
    await tx.progress.fan_wait(CELL, [FanWait(held=held, state=b"s")])
    return after(held)


async def waiting_children_asked(tx: TransactionStore) -> Held:
    held = await waiting_children(tx)
    await tx.signals.cancel("default", [held.id], cause="me", grace_ms=60_000)
    return held


async def queued(tx: TransactionStore) -> Held:
    return Held(await tx.start(**FAR), 0, 0)


async def queued_and_paused(tx: TransactionStore) -> Held:
    await tx.define("slow", paused=True)
    return Held(await tx.start(pipeline="slow", **FAR), 0, 0)


async def held_back(tx: TransactionStore) -> Held:
    held = await queued_and_paused(tx)
    await tx.claim()
    return held


async def scheduled(tx: TransactionStore) -> Held:
    return Held(await tx.start(delay_ms=86_400_000, **FAR), 0, 0)


async def sleeping(tx: TransactionStore) -> Held:
    held = await running(tx)
    await tx.progress.sleep(CELL, [Sleep(held=held, state=b"s")])
    return after(held)


async def waiting_switch(tx: TransactionStore) -> Held:
    held = await running(tx)
    await tx.progress.sleep(CELL, [Sleep(held=held, state=b"s", switch="go")])
    return after(held)


async def complete(tx: TransactionStore) -> Held:
    held = await running(tx)
    await finish(tx, held)
    return after(held)


MAKERS: dict[Maker, State] = {
    queued: State.QUEUED,
    queued_and_paused: State.QUEUED,
    held_back: State.HELD,
    scheduled: State.SCHEDULED,
    running: State.RUNNING,
    asked_to_end: State.RUNNING,
    switched: State.RUNNING,
    begun_too_often: State.RUNNING,
    open_fan: State.RUNNING,
    with_children: State.RUNNING,
    all_children_done: State.RUNNING,
    sleeping: State.SLEEPING,
    waiting_switch: State.WAITING_SWITCH,
    waiting_children: State.WAITING_CHILDREN,
    waiting_children_asked: State.WAITING_CHILDREN,
    complete: State.COMPLETE,
}


# -- Every verb ------------------------------------------------------------------------------


def child(parent: str) -> NewTransaction:
    return NewTransaction(
        id=names.child_id(parent, 1, 1),
        owner="default",
        pipeline="p",
        version=VERSION,
        group="kids",
        state=b"",
        inside=True,
    )


async def finish(tx: TransactionStore, held: Held) -> None:
    end = Finish(held=held, state=b"s", status=Status.SUCCESS, output=b"")
    await tx.progress.finish(CELL, [end])


async def end_child(tx: TransactionStore, held: Held) -> None:
    for claimed in await tx.claim(group="kids"):
        await finish(tx, claimed.held)


async def expire_lease(tx: TransactionStore, held: Held) -> None:
    await tx.store.call("ZADD", names.sorted_set(CELL, "leaseZ"), "XX", 1, held.id)


async def rescue(tx: TransactionStore, held: Held) -> None:
    await expire_lease(tx, held)
    await tx.holding.rescue(CELL, most=10, rescues_max=1)


async def wake(tx: TransactionStore, held: Held) -> None:
    try:
        await tx.signals.wake("default", held.id)
    except (NotSleepingError, TransactionFinalError):
        return


async def wake_due(tx: TransactionStore, held: Held) -> None:
    await tx.store.call("ZADD", names.sorted_set(CELL, "sleepingZ"), "XX", 1, held.id)
    await tx.signals.wake_due(CELL)


async def switch(tx: TransactionStore, held: Held) -> None:
    try:
        await tx.signals.set_switch("default", held.id, "go", False)
    except TransactionFinalError:
        return


async def callback(tx: TransactionStore, held: Held) -> None:
    if (await tx.head(held.id)).state is State.SCHEDULED:
        return  # No step has run, so none can have asked.
    await tx.store.call("HSET", names.state(held.id), "callback:1", "-")
    words = (TERMS.argument, "", held.id, "1", "0badcafe", b"{}")
    await tx.signals.reach(script("waystation.transactions", "callback"), CELL, words)


async def expire(tx: TransactionStore, held: Held) -> None:
    await tx.store.call("ZADD", names.sorted_set(CELL, "deadlineZ"), "XX", 1, held.id)
    await tx.signals.expire(CELL, grace_ms=60_000)


async def resume(tx: TransactionStore, held: Held) -> None:
    await tx.define("slow", paused=False)
    words = [TERMS.argument, "slow", 10]
    await tx.store.run(script("waystation.transactions", "resume"), [names.log(CELL)], words)


def pass_on_of(held: Held) -> PassOn:
    return PassOn(held=held, state=b"s", group=GROUP, queue="out", pipeline="p")


VERBS: dict[str, Verb] = {
    "claim": lambda tx, held: tx.claim(10),
    "resume": resume,
    "wake": wake,
    "wake_due": wake_due,
    "commit": lambda tx, held: tx.progress.commit(CELL, [Commit(held=held, state=b"s")]),
    "begin": lambda tx, held: tx.holding.begin(held),
    "once": lambda tx, held: tx.progress.once(held, "1", "charge", b"1"),
    "report": lambda tx, held: tx.progress.report(held, b"1"),
    "pass_on": lambda tx, held: tx.progress.pass_on(CELL, [pass_on_of(held)]),
    "sleep": lambda tx, held: tx.progress.sleep(CELL, [Sleep(held=held, state=b"s")]),
    "sleep on a switch": lambda tx, held: tx.progress.sleep(
        CELL, [Sleep(held=held, state=b"s", switch="go")]
    ),
    "fan_open": lambda tx, held: tx.progress.fan_open(
        CELL, [FanOpen(held=held, state=b"s", round=2, total=1)]
    ),
    "fan_out": lambda tx, held: tx.entry.fan_out(held, round_=1, first=1, items=[child(held.id)]),
    "fan_wait": lambda tx, held: tx.progress.fan_wait(CELL, [FanWait(held=held, state=b"s")]),
    "finish": finish,
    "release": lambda tx, held: tx.holding.release(CELL, [held]),
    "rescue": rescue,
    "cancel": lambda tx, held: tx.signals.cancel("default", [held.id], cause="", grace_ms=60_000),
    "expire": expire,
    "switch": switch,
    "callback": callback,
    "child_end": end_child,
}


async def empty(tx: TransactionStore) -> None:
    gone = [
        key
        for key in await tx.store.call("KEYS", f"{TAG}*")
        if not key.startswith((f"{TAG}log".encode(), f"{TAG}pipelineH".encode()))
    ]
    if gone:
        await tx.store.call("DEL", *gone)


async def observe(tx: TransactionStore, maker: Maker, verb: str) -> Row | None:
    """Runs a verb; returns what it did, or None if it changed nothing."""
    await empty(tx)
    held = await maker(tx)
    before = (await tx.check()).heads[held.id]
    assert before.state is MAKERS[maker]
    await VERBS[verb](tx, held)
    verb = verb.partition(" ")[0]
    later = (await tx.check()).heads[held.id]
    if later.version == before.version:
        assert later == before, "no change without a version"
        return None
    assert later.version > before.version
    if later.state is before.state and (before.state, verb, later.state) not in TABLE:
        # A note on it, and no transition: a switch, the result of a child.
        assert verb in ("switch", "callback", "child_end")
        return None
    return before.state, verb, later.state


async def seen_in_all_ways(tx: TransactionStore) -> set[Row]:
    seen: set[Row] = set()
    for maker in MAKERS:
        for verb in VERBS:
            if row := await observe(tx, maker, verb):
                assert row in TABLE, f"{verb} of {maker.__name__} leads to {row[2]}"
                seen.add(row)
    return seen


async def test_every_script_from_every_state_does_what_the_table_says_and_no_more(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        seen = await seen_in_all_ways(tx)
        brought_in = {row for row in TABLE if row[0] is None}
        assert seen == TABLE - brought_in


@pytest.mark.parametrize("maker", MAKERS, ids=lambda maker: maker.__name__)
async def test_what_is_in_a_state_is_where_the_phase_table_says(
    store_server: EmbeddedServer, maker: Maker
) -> None:
    """Rows of the contract of cache, queues and sleep that need no archive."""
    where = {
        State.QUEUED: {f"qInL:{GROUP}"},
        State.HELD: {"holdL:slow"},
        State.SCHEDULED: {"sleepingZ", "toArchiveZ"},
        State.RUNNING: {"processingZ", "leaseZ"},
        State.SLEEPING: {"sleepingZ", "toArchiveZ"},
        State.WAITING_SWITCH: {"sleepingZ", "toArchiveZ"},
        State.WAITING_CHILDREN: set(),
        State.COMPLETE: {"toArchiveZ"},
    }
    async with open_transactions(store_server) as tx:
        held = await maker(tx)
        picture = await tx.check()
        head = picture.heads[held.id]
        assert picture.where(held.id) - {"deadlineZ", "sweepZ"} == where[head.state]
        if head.state is State.RUNNING:
            lease = picture.sets["leaseZ"][held.id] - picture.sets["processingZ"][held.id]
            assert lease == LEASE_MS
