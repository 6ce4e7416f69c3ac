"""One transaction through every phase of cache, archive and sleep, with all of its keys in view.

`PHASES` is the contract, row by row: in which list it is, what its hash says, whether that expires,
and in which sorted sets it stands. After each transition the store is compared with the row, and at
the end every row has been seen.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from tests.helpers.waiting import eventually
from tests.models.phase_table import PHASES, SLACK_MS, Walk
from tests.transactions.engine_helpers import waiting_events, word
from tests.transactions.helpers import (
    CACHE_MS,
    CELL,
    GROUP,
    LOAD_MS,
    TAG,
    TERMS,
    after,
    open_transactions,
)
from waystation.archive import SqliteArchive
from waystation.config import WebhookConfig
from waystation.delivery.addresses import AddressGuard
from waystation.delivery.deliverer import Deliverer
from waystation.delivery.outbox import Outbox
from waystation.delivery.sender import Sender
from waystation.store.embedded.server import EmbeddedServer
from waystation.testing.endpoint import FakeEndpoint
from waystation.transactions import names
from waystation.transactions.archive_writing import Batch, write
from waystation.transactions.held import Held
from waystation.transactions.loader import Loader
from waystation.transactions.progress import Commit, FanOpen, FanWait, Finish, Sleep, next_round
from waystation.transactions.record import TransactionState, encode
from waystation.transactions.reply_lanes import ReplyLayout
from waystation.transactions.reply_sender import ReplySender
from waystation.transactions.services import Services
from waystation.transactions.signals import Signals
from waystation.transactions.states import State, Status

HOUR_MS, DAY_MS = 3_600_000, 86_400_000


def packed(webhook: str) -> bytes:
    """What a worker would write."""
    return encode(TransactionState(type="p", metadata=msgspec.json.encode({"webhook": webhook})))


@asynccontextmanager
async def walking(server: EmbeddedServer, folder: Path) -> AsyncIterator[Walk]:
    """An empty store with an empty archive."""
    archive = SqliteArchive(folder / "archive.db")
    await archive.open()
    try:
        async with open_transactions(server) as tx:
            loader = Loader(tx.restoring, archive, load_ms=LOAD_MS, clock=tx.clock)
            try:
                yield Walk(tx, archive, Signals(tx.store, TERMS, loader), loader)
            finally:
                await loader.stop()
    finally:
        await archive.close()


async def test_one_transaction_is_in_every_phase_as_the_contract_says(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with FakeEndpoint() as receiver, walking(store_server, tmp_path) as walk:
        state = packed(receiver.url)
        await begins(walk, state, receiver.url)
        held = await fans_out(walk, state)
        await sleeps(walk, state, held)
        await waits_for_a_switch(walk, state)
        await ends_in_the_queue(walk)
        await is_looked_at_after_its_end(walk)
        await is_delivered_from_the_archive(walk, receiver)
        assert set(walk.visited) == set(PHASES), set(PHASES) - set(walk.visited)


async def begins(walk: Walk, state: bytes, url: str) -> None:
    tx = walk.tx
    reply = word("s", webhook=url)
    walk.id = await tx.start(delay_ms=HOUR_MS, state=state, reply=reply)
    await walk.at("scheduled start", event="")
    await tx.machine.advance(HOUR_MS / 1000)
    assert (await walk.signals.wake_due(CELL)).done == 1
    seen = await walk.at("waiting in queue", event="status")
    assert seen.lists == ["in"]
    await walk.pause(paused=True)
    assert await tx.claim() == []
    await walk.at("held", event="status")
    await walk.pause(paused=False)
    await walk.at("waiting in queue")


async def fans_out(walk: Walk, state: bytes) -> Held:
    tx, held = walk.tx, await walk.claimed()
    seen = await walk.at("running")
    assert seen.mode == "-"
    # A checkpoint is archived while it runs, and stays.
    await tx.progress.commit(CELL, [Commit(held=held, state=state, snapshot=True)])
    held = after(held)
    assert (await walk.at("running")).scores["toArchiveZ"] > 0
    await tx.machine.advance(0.01)
    turn = await tx.archiving.turn(CELL, node="a", most=100)
    done = await write(walk.archive, Batch.of(turn.items, turn.now_ms))
    await tx.archiving.turn(CELL, node="a", most=0, confirmed=done)
    seen = await walk.at("running")
    assert "toArchiveZ" not in seen.scores
    assert await walk.row_version() == seen.version

    round_ = next_round(held)
    await tx.progress.fan_open(CELL, [FanOpen(held=held, state=state, round=round_, total=1)])
    held = after(held)
    child = tx.new(id=names.child_id(held.id, round_, 1), state=state)
    assert (await tx.entry.fan_out(held, round_=round_, first=1, items=[child])).created == 1
    await tx.progress.fan_wait(CELL, [FanWait(held=held, state=state)])
    await walk.at("waiting for children", event="status")
    (claimed,) = await tx.claim()
    ending = Finish(held=claimed.held, state=state, status=Status.SUCCESS, output=b"1")
    await tx.progress.finish(CELL, [ending])
    await walk.at("waiting to be archived", other=child.id)
    assert (await walk.at("waiting in queue")).lists == ["out"]
    return await walk.claimed()


async def sleeps(walk: Walk, state: bytes, held: Held) -> None:
    tx = walk.tx
    await walk.at("running")
    await tx.progress.sleep(CELL, [Sleep(held=held, state=state, delay_ms=DAY_MS)])
    asleep = await walk.at("sleeping 1", event="status")
    wake_ms = (await tx.head(walk.id)).wake
    assert asleep.sleeping == wake_ms
    await walk.archived()
    await walk.at("sleeping 2")
    assert await walk.row_version() == asleep.version
    await tx.machine.advance(DAY_MS / 1000)
    due = await walk.signals.wake_due(CELL, loads=10)
    assert [each.id for each in due.missing] == [walk.id]
    # It is somebody's to load: nobody else does for a while. The row has the true time.
    now_ms, seen = await tx.now_ms(), await walk.at("sleeping 2")
    assert seen.sleeping is not None
    assert now_ms + LOAD_MS - SLACK_MS < seen.sleeping <= now_ms + LOAD_MS
    assert (await walk.archive.get([walk.id]))[walk.id].wake_ms == wake_ms
    await tx.machine.advance(LOAD_MS / 1000)
    due = await walk.signals.wake_due(CELL, loads=10)
    loaded = await walk.loader.bring("", due.missing, mode="wake")
    assert loaded[walk.id].outcome == "woken"
    woken = await walk.at("waiting in queue")
    assert (woken.lists, woken.mode, woken.version) == (["in"], "-", asleep.version + 1)


async def waits_for_a_switch(walk: Walk, state: bytes) -> None:
    tx, held = walk.tx, await walk.claimed()
    await walk.at("running")
    await tx.progress.sleep(CELL, [Sleep(held=held, state=state, switch="go")])
    await walk.at("waiting for switch 1", event="status")
    await walk.archived()
    asleep = await walk.at("waiting for switch 2")
    (found,) = await walk.signals.get("default", [walk.id])
    assert found is not None
    assert found.head.switch == "go"
    await walk.at("restored, not dirty")
    await tx.machine.advance(CACHE_MS / 1000)
    assert (await walk.at("waiting for switch 2")).sleeping == asleep.sleeping

    assert (await walk.signals.set_switch("default", walk.id, "other", 1)).outcome == "updated"
    dirty = await walk.at("after dirtying")
    assert (dirty.state, dirty.mode) == (State.WAITING_SWITCH, "remove")
    await walk.archived()
    assert (await walk.at("waiting for switch 2")).sleeping == asleep.sleeping
    assert await walk.row_version() == dirty.version
    assert (await walk.signals.set_switch("default", walk.id, "go", 1)).outcome == "woken"
    woken = await walk.at("waiting in queue")
    assert (woken.mode, "toArchiveZ" in woken.scores) == ("snapshot", True)
    assert woken.version == dirty.version + 1


async def ends_in_the_queue(walk: Walk) -> None:
    (done,) = await walk.signals.cancel("default", [walk.id], cause="me", grace_ms=0)
    assert done.outcome == "cancelled"
    await walk.at("cancelled while queued", event="complete")
    assert await walk.tx.claim() == [], "it is dropped, and nothing brings it back"
    await walk.at("waiting to be archived", event="complete")


async def is_looked_at_after_its_end(walk: Walk) -> None:
    tx = walk.tx
    await walk.archived()
    seen = await walk.at("archived, still cached", event="complete")
    assert await walk.row_version() == seen.version
    # Who looks at it keeps it here.
    await tx.machine.advance(CACHE_MS / 2000)
    await walk.signals.get("default", [walk.id], renew=True)
    seen = await walk.at("archived, still cached")
    assert (seen.left_ms or 0) > CACHE_MS - SLACK_MS
    await tx.machine.advance(CACHE_MS / 1000)
    await walk.at("archived", event="complete")
    await walk.signals.get("default", [walk.id])
    restored = await walk.at("restored, not dirty", event="complete")
    assert (restored.state, restored.mode) == (State.COMPLETE, "ttl")
    assert (await walk.signals.replied("default", walk.id)).outcome == "done"
    dirty = await walk.at("after dirtying", event="complete")
    assert (dirty.mode, dirty.version) == ("ttl", restored.version + 1)
    await walk.archived()
    await walk.at("archived, still cached")
    await tx.machine.advance(CACHE_MS / 1000)
    await walk.at("archived", event="complete")
    assert await walk.row_version() == dirty.version


async def is_delivered_from_the_archive(walk: Walk, receiver: FakeEndpoint) -> None:
    tx, sender = walk.tx, Sender(AddressGuard(loopback=True))
    outbox = Outbox(tx.store, ReplyLayout(1))
    replies = ReplySender(
        tx.store,
        walk.signals,
        sender,
        _services(sender),
        settings=WebhookConfig(),
        clock=tx.clock,
    )
    deliverer = Deliverer(
        outbox, tx.wakeups, sender, replies.endpoint, clock=tx.clock, rng=random.Random(1)
    )
    await deliverer.start()
    try:
        await eventually(lambda: _is_empty(walk))
    finally:
        await deliverer.stop(grace_seconds=1)
        await sender.close()
    (got,) = receiver.received
    assert got.headers["webhook-id"].startswith(walk.id)
    dirty = await walk.at("after dirtying", event="")
    assert (await tx.fields(walk.id))["webhook_status"] == b"delivered"
    await walk.archived()
    await walk.at("archived, still cached", event="")
    await tx.machine.advance(CACHE_MS / 1000)
    gone = await walk.at("archived", event="")
    assert (gone.lists, gone.scores) == ([], {})
    assert await walk.row_version() == dirty.version
    assert await tx.store.call("LLEN", f"{TAG}qInL:{GROUP}") == 0


def _services(sender: Sender) -> Services:
    """It has a webhook and nothing else."""

    async def unused(*_: object) -> None:
        raise AssertionError("nobody wants that")

    return Services(sender.send, *(unused,) * 3, lambda *_: "", unused, lambda *_: "")


async def _is_empty(walk: Walk) -> bool:
    return not await waiting_events(walk.tx.store)


def test_the_page_has_the_phases_that_are_walked_through() -> None:
    page = (Path(__file__).parents[2] / "docs/internals/archiving.md").read_text()
    table = page.partition("## Phases, in our keys")[2].partition("\n\n⁴")[0]
    told = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")]
    # Two kinds of sleep share a row there, and what is complete has a shorter name.
    told = [name.replace("to be archived", "waiting to be archived") for name in told[1:]]
    walked = [name for name in PHASES if not name.startswith("waiting for switch")]
    assert [name.partition(", for switch")[0] for name in told] == walked
