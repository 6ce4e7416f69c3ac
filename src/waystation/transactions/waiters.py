"""The waiting room: who waits in this process for which transaction, its end or its progress.

The end of a transaction that somebody waits for is published with its id, and so is each progress
report; scripts publish only those, so a wait is noted in the store first. All waits of a process
share one subscription per cell, and one more while somebody asks for progress there. A hint can be
lost, so who waits also looks now and then.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable

from waystation.errors import StoreFullError
from waystation.runtime.clock import Clock
from waystation.runtime.service import Wakeup
from waystation.store.client import Store
from waystation.store.pubsub import RECHECK_S, PubSub
from waystation.telemetry import metrics
from waystation.transactions import names
from waystation.transactions.head import parse
from waystation.transactions.signals import Signals
from waystation.transactions.states import State
from waystation.transactions.summary import progress_at

#: A note outlasts its wait by this, for the last look.
_SLACK_MS = 1_000

#: Tells that the client who waits is gone; made only when there is something to wait for.
Abandonment = Callable[[], asyncio.Future[object]]


class WaitingRoom:
    """See the module."""

    def __init__(self, store: Store, wakeups: PubSub, signals: Signals, *, clock: Clock) -> None:
        self._store = store
        self._wakeups = wakeups
        self._signals = signals
        self._clock = clock
        self._waiters: dict[str, set[Wakeup]] = {}
        #: By topic: what ends its subscription.
        self._subscribed: dict[bytes, Callable[[], None]] = {}
        #: How many ask for progress, by topic.
        self._curious: Counter[bytes] = Counter()
        self._closed = False

    def __repr__(self) -> str:
        return f"<WaitingRoom [{sum(map(len, self._waiters.values()))} waiters]>"

    async def ended(
        self, transaction_id: str, seconds: float, *, abandonment: Abandonment | None = None
    ) -> bool:
        """Whether it has ended, after a wait of up to `seconds`; one that is gone has."""
        return await self.news(transaction_id, seconds, after=None, abandonment=abandonment)

    async def news(
        self,
        transaction_id: str,
        seconds: float,
        *,
        after: int | None,
        abandonment: Abandonment | None = None,
    ) -> bool:
        """Whether it has ended, or has reported progress since version `after`, if that is given.

        Waits for it for up to `seconds`; one that is gone has ended.
        """
        until = self._clock.monotonic() + seconds
        gone: asyncio.Future[object] | None = None
        waiter = self._enter(transaction_id, curious=after is not None)
        try:
            # First: from here on its end is told to us.
            with contextlib.suppress(StoreFullError):
                wait_ms = round(seconds * 1000) + _SLACK_MS
                await self._signals.mark([transaction_id], wait_ms=wait_ms)
            while True:
                # Clear, then look, then wait: what lands in between sets the flag again.
                waiter.clear()
                if await self._has_news(transaction_id, after):
                    return True
                left = until - self._clock.monotonic()
                if left <= 0 or self._closed or (gone is not None and gone.done()):
                    return False
                if gone is None and abandonment is not None:
                    gone = abandonment()
                    gone.add_done_callback(lambda _: waiter.set())
                await waiter.wait(left)
        finally:
            if gone is not None:
                gone.cancel()
            self._leave(transaction_id, waiter, curious=after is not None)

    def end_waits(self) -> None:
        """Ends every wait as if its time were over, and lets none wait any more."""
        self._closed = True
        self._wake_all()

    def close(self) -> None:
        """Ends waits and subscriptions."""
        self.end_waits()
        for end in self._subscribed.values():
            end()
        self._subscribed.clear()

    async def _has_news(self, transaction_id: str, after: int | None) -> bool:
        # Not the whole state: many may wait for the same, and look again and again.
        key = names.state(transaction_id)
        line, reported = await self._store.call("HMGET", key, "head", "progressAt", repeatable=True)
        if line is not None:
            complete, at = parse(line).state is State.COMPLETE, int(reported or 0)
        else:
            # What sleeps in the archive has not ended.
            (found,) = await self._signals.get("", [transaction_id])
            if found is None:
                return True
            complete, at = found.head.state is State.COMPLETE, progress_at(found)
        return complete or (after is not None and at > after)

    def _enter(self, transaction_id: str, *, curious: bool) -> Wakeup:
        cell, waiter = names.cell_of(transaction_id), Wakeup(recheck_s=RECHECK_S)
        metrics.transaction_waiters.inc()
        self._waiters.setdefault(transaction_id, set()).add(waiter)
        self._subscribe(names.ended_topic(cell))
        if curious:
            topic = names.progress_topic(cell)
            self._curious[topic] += 1
            self._subscribe(topic)
        return waiter

    def _leave(self, transaction_id: str, waiter: Wakeup, *, curious: bool) -> None:
        waiters = self._waiters[transaction_id]
        waiters.discard(waiter)
        metrics.transaction_waiters.dec()
        if not waiters:
            del self._waiters[transaction_id]
        if not curious:
            return
        topic = names.progress_topic(names.cell_of(transaction_id))
        self._curious[topic] -= 1
        # None: it was ended by close.
        if not self._curious[topic] and (end := self._subscribed.pop(topic, None)) is not None:
            end()

    def _subscribe(self, topic: bytes) -> None:
        if topic not in self._subscribed:
            self._subscribed[topic] = self._wakeups.listen(topic, self._hear)

    def _hear(self, payload: bytes | None) -> None:
        if payload is None:
            self._wake_all()
            return
        for each in payload.decode().split(" "):
            for waiter in self._waiters.get(each, ()):
                waiter.set()

    def _wake_all(self) -> None:
        for waiters in self._waiters.values():
            for waiter in waiters:
                waiter.set()
