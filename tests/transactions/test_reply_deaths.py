"""From the end of a transaction to its settled webhook, with a death at every call to the store."""

from __future__ import annotations

import json
import os

import msgspec

from tests.helpers.http import Receiver
from tests.transactions.cell_store import TERMS
from tests.transactions.replying import QUICK, lane
from waystation.delivery.addresses import AddressGuard
from waystation.delivery.outbox import Outbox
from waystation.delivery.schedule import Decision, Verdict
from waystation.delivery.sender import Sender
from waystation.logs.streams import StreamLogs
from waystation.runtime.clock import Clock
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.testing import CrashPoint, crash_points
from waystation.testing.endpoint import FakeEndpoint
from waystation.transactions import names
from waystation.transactions.cells import open_cells
from waystation.transactions.entry import Entry, NewTransaction
from waystation.transactions.record import TransactionState, encode
from waystation.transactions.reply_lanes import ReplyLayout, reply_word
from waystation.transactions.reply_sender import ReplySender
from waystation.transactions.services import Services
from waystation.transactions.signals import Signals
from waystation.transactions.wanted import Wanted

ID = f"tx-0000{1:036x}"


async def end(store: Store) -> None:
    """Ends it, from outside; as often as it is called."""
    await Signals(store, TERMS).cancel("default", [ID], cause="by hand", grace_ms=1)


async def deliver(store: Store, url: str, *, claim_ms: int) -> None:
    """What a deliverer does, in an order that is the same each time."""

    async def unused(*_: object) -> None:
        raise AssertionError("there is no channel and no topic")

    signals, sender = Signals(store, TERMS), Sender(AddressGuard(loopback=True))
    services = Services(sender.send, *(unused,) * 3, lambda *_: "", unused, lambda *_: "")
    replies = ReplySender(store, signals, sender, services, settings=QUICK, clock=Clock())
    outbox, place, done = Outbox(store, ReplyLayout(1)), lane(url), Decision(Verdict.DONE)
    try:
        while await outbox.waiting(place):
            token = os.urandom(8).hex()
            claim = await outbox.claim(place, most=1, claim_ms=claim_ms, token=token)
            for claimed in claim.items:
                outcome = await replies.deliver(place, claimed)
                assert outcome.succeeded
                hears = replies.concluded
                await outbox.settle(place, claimed, done, outcome, at_ms=0, hears=hears)
    finally:
        await sender.close()


def test_a_death_at_any_call_sends_the_end_once_more_at_most_and_notes_it_once(
    store_server: EmbeddedServer,
) -> None:
    """F-03"""
    with Receiver(FakeEndpoint()) as receiver:
        metadata = msgspec.json.encode({"webhook": receiver.url})
        item = NewTransaction(
            id=ID,
            owner="default",
            pipeline="refund",
            version="v1",
            group="workers",
            state=encode(TransactionState(type="refund", metadata=metadata)),
            reply=reply_word("default", Wanted(webhook=receiver.url)),
        )

        async def prepare(store: Store) -> None:
            receiver.received.clear()
            await open_cells(store, StreamLogs(store), 1)
            fields = ("active", "v1", "type", 1, "paused", 0)
            await store.call("HSET", names.pipeline(0, "default", "refund"), *fields)
            await Entry(store, TERMS).start(0, [item])

        async def scenario(store: Store) -> None:
            await end(store)
            # Everyone who starts after our death finds what we claimed due again.
            await deliver(store, receiver.url, claim_ms=20)

        async def after(store: Store, point: CrashPoint) -> None:
            # Given a client that repeats what was not answered, and another deliverer
            await end(store)
            outbox = Outbox(store, ReplyLayout(1))
            assert not await outbox.waiting(lane(receiver.url)) or await outbox.lanes()
            await deliver(store, receiver.url, claim_ms=60_000)
            # Then it came, twice at most, with the same id and the same end
            assert 1 <= len(receiver.received) <= 2, point
            assert len({each.headers["webhook-id"] for each in receiver.received}) == 1
            assert {json.loads(each.body)["eventType"] for each in receiver.received} == {
                "complete"
            }
            assert len(await outbox.records(lane(receiver.url))) == 1, "settled once"
            told = ("webhook_status", "notifiedTime")
            status, at = await store.call("HMGET", names.state(ID), *told)
            assert status == b"delivered"
            assert int(at) > 0
            assert await store.call("EXISTS", "{tx.0}:webhookH") == 0

        points = crash_points(store_server.address, scenario, after, prepare=prepare)

    assert len(points) >= 3 * 6
