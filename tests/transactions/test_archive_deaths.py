"""Archivers and loaders that die, or whose replies are lost: nothing is lost, nothing twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.helpers.store_faults import Fate, proxy_to, store_at
from tests.transactions.archive_helpers import NODE, Shelf, confirms, miss
from tests.transactions.helpers import (
    ARCHIVE_MS,
    CELL,
    GRACE_MS,
    ROLE_GRACE_MS,
    ROLE_MS,
    TERMS,
    VERSION,
    TransactionStore,
    open_transactions,
)
from waystation.logs.streams import StreamLogs
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.testing.crash_points import CrashPoint, crash_points
from waystation.transactions import names
from waystation.transactions.archiving import Archiving, Confirmed
from waystation.transactions.cells import Terms, open_cells
from waystation.transactions.entry import Entry, NewTransaction
from waystation.transactions.head import parse
from waystation.transactions.log_entry import unpack
from waystation.transactions.nodes import Nodes
from waystation.transactions.restoring import Missing, Restoration, Restoring
from waystation.transactions.signals import Signals
from waystation.transactions.states import State


async def with_a_lost_reply(server: EmbeddedServer, call: Callable[[Store], Awaitable[Any]]) -> Any:
    """A call that runs, whose reply is cut off, and which the client sends again."""
    async with (
        proxy_to(server.address) as proxy,
        store_at(proxy.address, test_mode=True) as store,
    ):
        await store.ping()
        await proxy.set_fates(replies=Fate.CUT)
        task = asyncio.ensure_future(call(store))
        await proxy.met.wait()
        await proxy.set_fates()
        return await task


def archiving(store: Store) -> Archiving:
    return Archiving(store, TERMS, role_ms=ROLE_MS, grace_ms=ROLE_GRACE_MS)


async def due_turn(tx: TransactionStore, count: int) -> Any:
    for _ in range(count):
        await tx.start(delay_ms=86_400_000)
    await tx.machine.advance(ARCHIVE_MS / 1000 + 1)
    return await tx.archiving.turn(CELL, node=NODE, most=100)


async def test_a_turn_whose_reply_was_lost_gives_the_same_and_the_role_once(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        for _ in range(3):
            await tx.start(delay_ms=86_400_000)
        await tx.machine.advance(ARCHIVE_MS / 1000 + 1)
        turn = await with_a_lost_reply(
            store_server, lambda store: archiving(store).turn(CELL, node=NODE, most=100)
        )
        assert (turn.role, len(turn.items), turn.waiting) == ("archiver", 3, 3)


async def test_a_confirm_whose_reply_was_lost_counts_once(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        turn = await due_turn(tx, 3)
        first, second, third = confirms(turn)
        words = [
            first,
            Confirmed(second.id, second.version, second.read_ms, 0, "refused"),
            Confirmed(third.id, third.version, third.read_ms, third.version + 5),
        ]
        done = await with_a_lost_reply(
            store_server,
            lambda store: archiving(store).turn(CELL, node=NODE, most=0, confirmed=words),
        )
        assert (done.waiting, done.set_aside) == (2, 1)
        ((aside,), _) = await tx.archiving.set_aside(CELL)
        assert (aside.id, aside.tries) == (second.id, 1)
        assert (await tx.head(third.id)).version == third.version + 6
        assert await tx.kinds(third.id) == ["started", "lifted"]
        assert await tx.store.call("EXISTS", names.state(first.id)) == 0


async def test_a_restore_whose_reply_was_lost_happens_once(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        shelf = Shelf(tx)
        looked, due = await shelf.sleeper(), await shelf.sleeper(delay_ms=300_000)
        (missing,) = await miss(tx, looked)
        done = await with_a_lost_reply(
            store_server,
            lambda store: Restoring(store, TERMS).restore(CELL, shelf.found([missing])),
        )
        assert done == ["cached"]
        await tx.machine.advance(300)
        given = (await tx.signals.wake_due(CELL, loads=1)).missing
        done = await with_a_lost_reply(
            store_server,
            lambda store: Restoring(store, TERMS).restore(CELL, shelf.found(given), mode="wake"),
        )
        assert done == ["cached"]
        assert (await tx.picture()).lists["qInL:main"] == [due]
        assert (await tx.kinds(due)).count("woken") == 1


async def test_what_was_given_out_in_a_lost_reply_comes_again_after_the_load_pause(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        shelf = Shelf(tx)
        one = await shelf.sleeper(delay_ms=300_000, deadline_in_ms=300_000)
        await tx.machine.advance(300)
        due = await with_a_lost_reply(
            store_server, lambda store: Signals(store, TERMS).wake_due(CELL, loads=1)
        )
        assert due.missing == (), "the first run has claimed it"
        over = await with_a_lost_reply(
            store_server,
            lambda store: Signals(store, TERMS).expire(CELL, grace_ms=GRACE_MS, loads=1),
        )
        assert over.missing == ()
        await tx.machine.advance(TERMS.load_ms / 1000)
        assert [each.id for each in (await tx.signals.wake_due(CELL, loads=1)).missing] == [one]
        over = await tx.signals.expire(CELL, grace_ms=GRACE_MS, loads=1)
        assert [each.id for each in over.missing] == [one]


@pytest.mark.parametrize("verb", ["switch", "wake", "cancel"])
async def test_a_verb_that_loads_and_whose_reply_was_lost_happens_once(
    store_server: EmbeddedServer, verb: str
) -> None:
    async with open_transactions(store_server) as tx:
        shelf = Shelf(tx)
        one = await shelf.sleeper(switch="go")

        async def call(store: Store) -> None:
            signals = Signals(store, TERMS, shelf)
            if verb == "switch":
                await signals.set_switch("default", one, "go", True)
            elif verb == "cancel":
                await signals.cancel("default", [one], cause="me", grace_ms=0)
            else:
                await signals.wake("default", one)

        await with_a_lost_reply(store_server, call)
        (kind,) = (await tx.kinds(one))[2:]
        assert kind == {"switch": "switched", "wake": "woken", "cancel": "cancelled"}[verb]
        await tx.check()


async def test_a_process_that_claims_nothing_takes_in_what_its_node_group_was_told(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        nodes = Nodes(tx.store, clock=tx.clock)
        for number in range(12):
            await nodes.tell("main", "workers", number + 1)
        await tx.store.call("RPUSH", names.queue_admin("main"), "nonsense")
        async with tx.hearing(names.NODES.encode()) as heard:
            assert (
                await with_a_lost_reply(
                    store_server, lambda store: Nodes(store, clock=tx.clock).heed("main")
                )
                == 3
            ), "what came first was applied by the run whose reply was lost"
            assert await heard.get() == "main"
        assert await nodes.heed("main") == 0
        assert (await nodes.settings("main")).workers == 12


# -- Deaths ----------------------------------------------------------------------------------

#: Everything may be archived at once, and nothing that is complete stays.
AT_ONCE = Terms(dataset="ds", archive_delay_ms=0, external_id_ms=1000, cache_ms=1, load_ms=0)
IDS = [f"tx-{n:040x}" for n in range(1, 4)]


async def prepare(store: Store) -> None:
    await open_cells(store, StreamLogs(store), 1)
    key = names.pipeline(CELL, "default", "p")
    await store.call("HSET", key, "active", VERSION, "type", "1")
    items = [
        NewTransaction(
            id=each,
            owner="default",
            pipeline="p",
            version=VERSION,
            group="main",
            state=b"packed",
            delay_ms=1,
        )
        for each in IDS
    ]
    await Entry(store, AT_ONCE).start(CELL, items)


async def put_aside(store: Store, transaction_id: str, fields: dict[bytes, bytes]) -> None:
    """An archive that outlives the process, in the same store: only a higher version applies."""
    key = f"archive:{transaction_id}"
    line = await store.call("HGET", key, "head")
    if line is None or parse(line).version < parse(fields[b"head"]).version:
        flat = [word for field in fields.items() for word in field]
        await store.call("HSET", key, *flat, repeatable=True)


async def archive_all(store: Store, node: str) -> None:
    archiving = Archiving(store, AT_ONCE, role_ms=ROLE_MS, grace_ms=ROLE_GRACE_MS)
    turn = await archiving.turn(CELL, node=node, most=100)
    for each in turn.items:
        await put_aside(store, each.id, each.fields)
    await archiving.turn(CELL, node=node, most=0, confirmed=confirms(turn), flight="leave")


async def load_all(store: Store) -> None:
    due = await Signals(store, AT_ONCE).wake_due(CELL, loads=100)
    for each in due.missing:
        await load(store, each)


async def load(store: Store, missing: Missing) -> None:
    flat = await store.call("HGETALL", f"archive:{missing.id}")
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    restoration = Restoration(missing, fields or None)
    await Restoring(store, AT_ONCE).restore(CELL, [restoration], mode="wake")


async def scenario(store: Store) -> None:
    """All are archived, and brought back by those who wake them."""
    await archive_all(store, "first")
    await load_all(store)


async def afterwards(store: Store, point: CrashPoint) -> None:
    """Another archives and loads: each is queued once, as it was, whenever the first has died."""
    # As after the role of the one that died.
    await store.call("DEL", names.archive_lock(CELL, 1), names.archive_lock(CELL, 2))
    for _ in range(2):
        await archive_all(store, "second")
        await load_all(store)
    queued = await store.call("LRANGE", names.queue_in(CELL, "main"), 0, -1)
    assert sorted(queued) == [each.encode() for each in IDS], point
    for each in IDS:
        line, state = await store.call("HMGET", names.state(each), "head", "state")
        assert parse(line).state is State.QUEUED
        assert state == b"packed"
        assert await store.call("PTTL", names.state(each)) == -1
    for name in ("sleepingZ", "toArchiveZ"):
        assert await store.call("ZCARD", names.sorted_set(CELL, name)) == 0
    entries = (await StreamLogs(store).read(names.LOG, CELL, 0, limit=100)).entries()
    kinds = [fact.kind for each in entries for fact in unpack(each.payload).facts]
    assert sorted(kinds) == ["started"] * 3 + ["woken"] * 3


@pytest.mark.slow
def test_a_death_at_any_call_of_archiving_and_loading_loses_nothing(
    store_server: EmbeddedServer,
) -> None:
    """F-04 as far as scripts go: after read, write, before and after the confirm, while loading."""
    points = crash_points(store_server.address, scenario, afterwards, prepare=prepare)
    assert len(points) >= 3 * 10
