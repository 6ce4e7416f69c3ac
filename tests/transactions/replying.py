"""Transactions that are told of: cells on the real store, and a deliverer at work."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tests.helpers.waiting import eventually
from tests.transactions.cell_store import TERMS, CellStore, open_cell_store
from waystation.config import WebhookConfig
from waystation.delivery.addresses import AddressGuard
from waystation.delivery.deliverer import Deliverer
from waystation.delivery.outbox import Outbox
from waystation.delivery.sender import Sender
from waystation.delivery.states import EndpointStates
from waystation.errors import ArchiveUnavailableError, WaystationError
from waystation.messages.envelope import Envelope
from waystation.runtime.clock import Clock
from waystation.store.embedded.server import EmbeddedServer
from waystation.transactions import names
from waystation.transactions.held import Held
from waystation.transactions.progress import Finish, Progress
from waystation.transactions.record import TransactionState, encode
from waystation.transactions.reply_desk import ReplyDesk
from waystation.transactions.reply_lanes import ReplyLayout, lane_of, receiver_of, reply_word
from waystation.transactions.reply_sender import ReplySender
from waystation.transactions.restoring import Loaded, LoadMode, Missing, Restoration, Restoring
from waystation.transactions.services import Services
from waystation.transactions.signals import Signals
from waystation.transactions.states import Status
from waystation.transactions.wanted import Wanted

QUICK = WebhookConfig(attempts=3, first_wait_seconds=0.02, fail_limit=0)


@dataclass
class Shelf:
    """An archive in memory: what was put on it can be brought back, unless it is away."""

    restoring: Restoring
    kept: dict[str, dict[bytes, bytes]] = field(default_factory=dict)
    away: bool = False
    #: What it takes to answer.
    seconds: float = 0.0
    asked: int = 0

    async def bring(
        self, owner: str, missing: Sequence[Missing], *, mode: LoadMode = ""
    ) -> dict[str, Loaded]:
        self.asked += 1
        await asyncio.sleep(self.seconds)
        if self.away:
            raise ArchiveUnavailableError("The archive is away.")
        items = [Restoration(each, self.kept.get(each.id)) for each in missing]
        cell = names.cell_of(missing[0].id)
        outcomes = await self.restoring.restore(cell, items, mode=mode)
        return {each.id: Loaded(done) for each, done in zip(missing, outcomes, strict=True)}


@dataclass
class Replying:
    """What a test gets hold of."""

    tx: CellStore
    signals: Signals
    shelf: Shelf
    progress: Progress
    outbox: Outbox
    desk: ReplyDesk
    states: EndpointStates
    deliverer: Deliverer
    published: list[tuple[str, str, str, Any]] = field(default_factory=list)
    produced: list[tuple[str, str, Envelope]] = field(default_factory=list)
    #: Raised by channel and topic, one after the other.
    refusals: list[WaystationError] = field(default_factory=list)

    async def begin(self, webhook: str = "", **more: Any) -> Held:
        """A transaction that runs and wants to be told of."""
        wanted = Wanted(webhook=webhook, **more)
        metadata = msgspec.json.encode({"webhook": webhook, "note": "kept"})
        state = encode(TransactionState(type="refund", metadata=metadata, traceparent="00-ab"))
        transaction_id = await self.tx.start(state=state, reply=reply_word("default", wanted))
        claims = (await self.tx.claim()).items
        (claimed,) = [each for each in claims if each.held.id == transaction_id]
        return claimed.held

    async def end(self, held: Held, webhook: str = "", output: bytes = b'{"n":1}') -> None:
        """The transaction succeeds."""
        metadata = msgspec.json.encode({"webhook": webhook, "note": "kept"})
        state = TransactionState(
            type="refund", metadata=metadata, output=output, traceparent="00-ab"
        )
        finish = Finish(held=held, state=encode(state), status=Status.SUCCESS, output=output)
        (verdict,) = await self.progress.finish(0, [finish])
        assert verdict.outcome == "done", verdict

    async def ended(self, webhook: str = "", **more: Any) -> str:
        """A transaction that has ended; returns its id."""
        held = await self.begin(webhook, **more)
        await self.end(held, webhook)
        return held.id

    async def until_empty(self, lane: str) -> None:
        """Waits until nothing waits in a lane."""
        await eventually(lambda: self._is_empty(lane))

    async def _is_empty(self, lane: str) -> bool:
        return not await self.outbox.waiting(lane)

    async def shelve(self, transaction_id: str) -> None:
        """Moves a state to the archive; nothing of it stays in the store."""
        pairs = await self.tx.store.call("HGETALL", names.state(transaction_id))
        self.shelf.kept[transaction_id] = dict(zip(pairs[::2], pairs[1::2], strict=True))
        await self.tx.store.call("UNLINK", names.state(transaction_id))


def lane(url: str) -> str:
    """The lane of a webhook of project `default` in cell 0."""
    return lane_of(0, receiver_of("default", "w", url))


@asynccontextmanager
async def replying(
    server: EmbeddedServer,
    settings: WebhookConfig = QUICK,
    *,
    start: bool = True,
    flush: bool = True,
) -> AsyncIterator[Replying]:
    """Sends the replies of one cell, or waits to be told so."""
    async with open_cell_store(server, flush=flush) as tx:
        shelf = Shelf(Restoring(tx.store, TERMS))
        signals, clock = Signals(tx.store, TERMS, shelf), Clock()
        sender, outbox = Sender(AddressGuard(loopback=True)), Outbox(tx.store, ReplyLayout(1))
        services = _services(sender)
        replies = ReplySender(
            tx.store, signals, sender, services[0], settings=settings, clock=clock
        )
        deliverer = Deliverer(
            outbox,
            tx.wakeups,
            sender,
            replies.endpoint,
            clock=clock,
            attempts_max=settings.workers,
            rng=random.Random(1),
        )
        running = Replying(
            tx,
            signals,
            shelf,
            Progress(tx.store, TERMS),
            outbox,
            ReplyDesk(outbox, signals, cells=1),
            EndpointStates(tx.store),
            deliverer,
            *services[1:],
        )
        if start:
            await deliverer.start()
        try:
            yield running
        finally:
            await deliverer.stop(grace_seconds=0.2)
            await sender.close()


def _services(sender: Sender) -> tuple[Services, list[Any], list[Any], list[WaystationError]]:
    published: list[Any] = []
    produced: list[Any] = []
    refusals: list[WaystationError] = []

    async def publish(project: str, channel: str, message_id: str, content: bytes) -> None:
        if refusals:
            raise refusals.pop(0)
        published.append((project, channel, message_id, msgspec.json.decode(content)))

    async def produce(project: str, topic: str, envelope: Envelope) -> None:
        if refusals:
            raise refusals.pop(0)
        produced.append((project, topic, envelope))

    async def check(wanted: Wanted) -> None:
        return None

    async def hand(*_: object) -> None:
        raise AssertionError("a reply goes to no pool")

    services = Services(
        sender.send, publish, produce, check, lambda *_: "", hand, answer_to=lambda *_: ""
    )
    return services, published, produced, refusals
