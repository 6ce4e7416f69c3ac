"""A worker of a pool for the asynchronous client: takes messages, hands them out, settles them.

One message of a key is with a handler at a time, in order; a message that was acknowledged brings
the next of its key along. Everything is said again after a lost reply, so nothing is lost or
counted twice by that. Who is evicted, say after it was stopped for a while, begins anew: what it
had belongs to others by then.

A message that has crashed a worker before is run alone: what was not begun is given back, the rest
comes to its end first. So what kills its process takes nothing else along, and is a dead letter
after its attempts.

Beats come from beside the handlers: a handler must not hold up the event loop for longer than the
pool's `stale_seconds`.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from waystation.client.async_background import (
    AsyncCondition,
    AsyncFlag,
    AsyncHandler,
    AsyncWorker,
    on_signals,
)
from waystation.client.async_caller import AsyncCaller
from waystation.client.async_pool_hand import AsyncPoolHand
from waystation.client.async_pool_link import POLL_SECONDS, AsyncPoolLink
from waystation.client.async_transport import AsyncTransport
from waystation.client.codec import Codec
from waystation.client.pool_messages import (
    Renewed,
    Settled,
    Settlements,
    Taken,
    Takings,
    message_of,
    worker_name,
)
from waystation.client.pool_workload import Finished, Workload
from waystation.client.pools import BATCH_MAX
from waystation.errors import (
    InvalidInputError,
    WaystationError,
    WorkerEvictedError,
    WorkerUnknownError,
)
from waystation.runtime.ids import RandomIds, require_name
from waystation.runtime.logging import logger

_log = logger("client")

#: How often it is looked whether there is room for more.
_PAUSE_SECONDS = 0.5
#: How often it is heard of, and its leases begin anew, before it would be too late.
_TIMES = 3


class AsyncPoolWorker:
    """Works for one pool; made by `pools.worker`."""

    def __init__(
        self,
        transport: AsyncTransport,
        pool: str,
        handler: AsyncHandler,
        *,
        concurrency: int,
        uid: str,
        grace_seconds: float,
        codec: Codec | None,
    ) -> None:
        if not 1 <= concurrency <= 500:
            raise InvalidInputError(
                "A worker has 1 to 500 messages at a time.", field="concurrency"
            )
        self._identity = RandomIds()
        #: Whether another process can have the name on purpose, and takes the place then.
        self._named = bool(uid)
        self.uid = require_name(uid or worker_name(self._identity), field="uid")
        self.pool = pool
        self._stop, self._ended = AsyncFlag(), AsyncFlag()
        caller = AsyncCaller(transport)
        self._link = AsyncPoolLink(caller, pool, self.uid, self._identity, ended=self._ended)
        self._hand = AsyncPoolHand(self._link, handler)
        self._grace_seconds = grace_seconds
        self._codec = codec
        self._problem: Exception | None = None
        self._workers: list[AsyncWorker] = []
        self._taker: AsyncWorker | None = None
        #: Messages that other workers had taken over before they were acknowledged here.
        self.lost = 0
        # What follows is under the lock of `_changed`.
        self._changed = AsyncCondition()
        self._load = Workload(concurrency)
        self._hands = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.uid} of {self.pool}>"

    async def __aenter__(self) -> Self:
        await self._link.register()
        self._taker = AsyncWorker(self._take)
        self._workers = [AsyncWorker(self._settle), AsyncWorker(self._keep)]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def run(self) -> None:
        """Works until `stop`, SIGTERM or SIGINT, or until somebody drains it.

        Raises why it cannot go on: its pool is gone, its key is refused, another process has taken
        the name that it was given.
        """
        with on_signals(self.stop):
            await self._stop.wait()
        if self._problem is not None:
            raise self._problem

    def stop(self) -> None:
        """Ends `run`; may be called from a handler of signals."""
        self._stop.set()

    async def aclose(self) -> None:
        """Drains: takes nothing more, gives back what is not begun, lets the rest end, leaves."""
        self._stop.set()
        if self._taker is not None:
            self._taker.stop()
        async with self._changed:
            self._load.close()
            self._changed.notify_all()
        if self._problem is None:
            await self._link.say_once("drain")
            async with self._changed:
                await self._changed.wait_for(
                    lambda: self._load.is_idle, seconds=self._grace_seconds
                )
        self._ended.set()
        async with self._changed:
            self._changed.notify_all()
        for worker in self._workers:
            worker.stop()
        if self._problem is None:
            await self._link.say_once("leave")

    # -- Beginning, and beginning anew -------------------------------------------------------

    async def _begin_anew(self, error: WaystationError) -> None:
        """After an eviction, or when it was forgotten: what is not begun belongs to others."""
        if self._named and isinstance(error, WorkerUnknownError):
            # Somebody else has the name now: to take it back would go on for ever.
            raise error
        async with self._changed:
            self._load.lose()
        if not self._stop.is_set:
            _log.warning("a worker registers anew", pool=self.pool, problem=str(error))
            await self._link.register_anew()

    def _fail(self, error: Exception) -> None:
        self._problem = self._problem or error
        self._stop.set()

    # -- Taking ------------------------------------------------------------------------------

    async def _take(self) -> None:
        try:
            while not self._stop.is_set:
                async with self._changed:
                    await self._changed.wait_for(
                        lambda: self._load.room > 0 or self._load.closed, seconds=_PAUSE_SECONDS
                    )
                    most = min(self._load.room, BATCH_MAX)
                if most > 0 and not self._stop.is_set:
                    await self._take_some(most)
        except Exception as error:
            self._fail(error)

    async def _take_some(self, most: int) -> None:
        query = f"?wait={POLL_SECONDS:.0f}s&max={most}"
        try:
            body = {"token": self._identity.token(16)}
            takings = await self._link.say("take", Takings, body, query)
        except (WorkerEvictedError, WorkerUnknownError) as error:
            await self._begin_anew(error)
            return
        async with self._changed:
            self._add(takings.items)
        if takings.state != "live":
            # An operator drains it.
            self._stop.set()

    def _add(self, items: list[Taken]) -> None:
        self._load.add(items)
        while self._hands < self._load.hands:
            self._hands += 1
            self._workers.append(AsyncWorker(self._work))
        self._changed.notify_all()

    # -- Handling ----------------------------------------------------------------------------

    async def _work(self) -> None:
        """One of the hands: message after message."""
        load = self._load
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: load.next() is not None or load.closed)
                taken = load.next()
                if taken is None:
                    return
                message = message_of(taken, self._codec)
                load.begin(taken, message)
            finished = await self._hand.handle(taken, message)
            async with self._changed:
                load.finish(finished)
                self._changed.notify_all()

    # -- Settling ----------------------------------------------------------------------------

    async def _settle(self) -> None:
        """Says what came of messages, as many together as have come meanwhile."""
        try:
            while True:
                async with self._changed:
                    await self._changed.wait_for(lambda: self._load.unsettled or self._ended.is_set)
                    items = self._load.settle(BATCH_MAX)
                    if not items:
                        return
                    more = self._load.wants_more and not self._stop.is_set
                following = await self._settle_some(items, more=more)
                async with self._changed:
                    self._load.settled()
                    self._add(following)
        except Exception as error:
            self._fail(error)

    async def _settle_some(self, items: list[Finished], *, more: bool) -> list[Taken]:
        """Acks and nacks; the next messages of keys."""
        acks = [each.taken.receipt for each in items if each.verdict == "done"]
        nacks = [each.nack for each in items if each.verdict != "done"]
        results: list[Settled] = []
        if acks:
            body: dict[str, Any] = {"items": acks, "next": more}
            results += (await self._link.say("ack", Settlements, body)).results
        if nacks:
            results += (await self._link.say("nack", Settlements, {"items": nacks})).results
        self.lost += sum(each.outcome == "lost" for each in results)
        return [each.next for each in results if each.next is not None]

    # -- Beating -----------------------------------------------------------------------------

    async def _keep(self) -> None:
        """Is heard of, and keeps what it has, until the very end."""
        try:
            while not self._ended.is_set:
                await self._ended.wait(self._link.patience_seconds / _TIMES)
                if not self._ended.is_set:
                    await self._keep_once()
        except Exception as error:
            self._fail(error)

    async def _keep_once(self) -> None:
        async with self._changed:
            held = {each.key: each for each in self._load.held}
        try:
            if not held:
                await self._link.say("beat", dict, {})
            for first in range(0, len(held), BATCH_MAX):
                some = list(held.values())[first : first + BATCH_MAX]
                body = {"items": [each.receipt for each in some]}
                lost = (await self._link.say("renew", Renewed, body)).lost
                async with self._changed:
                    self._load.mark_lost(held[key] for key in lost)
        except (WorkerEvictedError, WorkerUnknownError) as error:
            if not self._load.closed:
                await self._begin_anew(error)
