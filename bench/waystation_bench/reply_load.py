"""Load of webhooks of transactions: ends that are told, beside our sender with the same bytes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec

from waystation.config import WebhookConfig
from waystation.delivery.addresses import AddressGuard
from waystation.delivery.deliverer import Deliverer
from waystation.delivery.outbox import Outbox
from waystation.delivery.request import Outcome, Outgoing
from waystation.delivery.sender import Sender
from waystation.runtime.clock import Clock
from waystation.store.keys import DEFAULT_PROJECT
from waystation.store.pubsub import PubSub
from waystation.transactions.cells import BATCH_MAX
from waystation.transactions.held import Held
from waystation.transactions.holding import Holding
from waystation.transactions.progress import Finish, Progress
from waystation.transactions.record import TransactionState, encode
from waystation.transactions.reply_lanes import ReplyLayout, lane_of, receiver_of, reply_word
from waystation.transactions.reply_sender import ReplySender
from waystation.transactions.services import Services
from waystation.transactions.signals import Signals
from waystation.transactions.states import Status
from waystation.transactions.wanted import Wanted
from waystation_bench.benchmark import BenchmarkError
from waystation_bench.report import Sample
from waystation_bench.send_load import CONCURRENT, senders
from waystation_bench.sleepers import TERMS, Sleepers, opened_sleepers
from waystation_bench.target import Target, Window

_LEASE_MS = 600_000
_WARM = 500
_OUTPUT = b'{"order":"o-1","amount":1}'


async def webhooks_ours(target: Target, count: int) -> Sample:
    """One operation = one end whose webhook has arrived, is settled, and noted.

    The ends themselves are others' work, and over when the window begins.
    """
    async with _opened(target) as replies:
        # The lane is found by then, and its receiver has earned its slots.
        await replies.end(await replies.running(_WARM))
        await replies.told()
        await replies.end(await replies.running(count))
        window, left = Window(target, os.getpid()), await replies.waiting()
        await replies.told()
        if left < count / 4:
            raise BenchmarkError(f"Of {count}, {left} were left to be told.")
        return window.close(left)


async def webhooks_sender(target: Target, seconds: float) -> Sample:
    """The same request as of such a webhook, again and again, through `Sender.send`."""
    async with _opened(target) as replies:
        await replies.end(await replies.running(1))
        await replies.told()
        request, sender = replies.sender.last, replies.sender
        assert request is not None, "it was told"
        return await senders(target, seconds, lambda _: sender.send(request))


JOBS: dict[str, Callable[[Target, Any], Awaitable[Sample]]] = {
    "webhooks_ours": webhooks_ours,
    "webhooks_sender": webhooks_sender,
}


class _NotingSender(Sender):
    """Knows the last request."""

    last: Outgoing | None = None

    async def send(self, request: Outgoing) -> Outcome:
        self.last = request
        return await super().send(request)


class _Replies:
    """Transactions with a webhook, and a deliverer at work."""

    def __init__(self, sleepers: Sleepers, sender: _NotingSender, outbox: Outbox, url: str) -> None:
        self.sender = sender
        self._sleepers = sleepers
        self._outbox = outbox
        self._holding = Holding(sleepers.store, TERMS)
        self._progress = Progress(sleepers.store, TERMS)
        self._lane = lane_of(0, receiver_of(DEFAULT_PROJECT, "w", url))
        self._reply = reply_word(DEFAULT_PROJECT, Wanted(webhook=url))
        metadata = msgspec.json.encode({"webhook": url})
        self._state = encode(TransactionState(type="bench", metadata=metadata, output=_OUTPUT))

    async def running(self, count: int) -> list[Held]:
        """So many that run."""
        held: list[Held] = []
        for first in range(0, count, BATCH_MAX):
            size = min(BATCH_MAX, count - first)
            await self._sleepers.start(size, delay_ms=0, reply=self._reply, state=self._state)
            claim = await self._holding.claim(
                0, "master", node="bench", number=first + 1, most=size, lease_ms=_LEASE_MS
            )
            held += [each.held for each in claim.items]
        if len(held) != count:
            raise BenchmarkError(f"Of {count}, {len(held)} run.")
        return held

    async def end(self, held: list[Held]) -> None:
        """All succeed."""
        for first in range(0, len(held), BATCH_MAX):
            ends = [
                Finish(held=each, state=self._state, status=Status.SUCCESS, output=_OUTPUT)
                for each in held[first : first + BATCH_MAX]
            ]
            for verdict in await self._progress.finish(0, ends):
                assert verdict.outcome == "done", verdict

    async def told(self) -> None:
        """Waits until all were delivered."""
        await self._sleepers.until(self.waiting, 0)

    async def waiting(self) -> int:
        """How many are to be told yet."""
        return await self._outbox.waiting(self._lane)


@contextlib.asynccontextmanager
async def _opened(target: Target) -> AsyncIterator[_Replies]:
    url, clock = f"http://127.0.0.1:{target.port}/hook", Clock()
    sender, wakeups = _NotingSender(AddressGuard(loopback=True)), PubSub(target.store_address)
    async with opened_sleepers(target) as sleepers:
        store, outbox = sleepers.store, Outbox(sleepers.store, ReplyLayout(1))
        replies = ReplySender(
            store,
            Signals(store, TERMS),
            sender,
            Services(sender.send, *(_unused,) * 3, lambda *_: "", _unused, lambda *_: ""),
            settings=WebhookConfig(workers=CONCURRENT),
            clock=clock,
        )
        deliverer = Deliverer(
            outbox, wakeups, sender, replies.endpoint, clock=clock, attempts_max=CONCURRENT
        )
        await wakeups.start()
        await deliverer.start()
        try:
            yield _Replies(sleepers, sender, outbox, url)
        finally:
            await deliverer.stop()
            await sender.close()
            await wakeups.stop()


async def _unused(*_: object) -> None:
    raise AssertionError("there are webhooks alone")
