"""The deliverer: sends what agents have put into their outbound list, and tries again what failed.

Nothing ends it: a message that cannot be read or sent is a dead letter, a store that is away is
waited for. Many messages are under way at once, with a share, a breaker and a line for each
endpoint, so that one that hangs holds up nobody. A message that finds its endpoint ill or busy is
put off, which is no attempt; one that is put off for too long is a dead letter too.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from waystation.acapy.holding import Holding, Settlements
from waystation.acapy.outbound import OutboundQueue
from waystation.acapy.outbound_message import OutboundMessage, read_message
from waystation.acapy.retry_set import RetrySet
from waystation.acapy.socket_sender import SocketSender
from waystation.config import DelivererConfig
from waystation.delivery.claims import AWAY
from waystation.delivery.request import Failure, Outcome, Outgoing
from waystation.delivery.schedule import (
    FATAL_CODES,
    GONE,
    Schedule,
    Verdict,
)
from waystation.delivery.sender import Sender
from waystation.delivery.standing import Reservation, Standing
from waystation.errors import MessageInvalidError
from waystation.runtime.clock import Clock
from waystation.runtime.logging import logger
from waystation.runtime.service import Wakeup
from waystation.store.pubsub import RECHECK_S
from waystation.telemetry import metrics

_log = logger("deliverer")

#: The plugin's: six attempts, +5, +7.48, +11.18, +16.72 and +25 s, whatever the status was.
SCHEDULE = Schedule(
    attempts=6,
    first_seconds=5.0,
    multiplier=5**0.25,
    jitter=0.0,
    retry_codes=(GONE, *sorted(FATAL_CODES)),
)
#: Agents give no hint when they put something into their list.
_POLL_SECONDS = 0.2
_STORE_PAUSE_SECONDS = 0.5
#: What is being written down when we stop gets this long.
_STORE_SECONDS_MAX = 2.0
#: Messages of one look at the list, or at the set.
_LOOK_MAX = 64
#: Messages in memory, for each that may be sent at once: they wait in line at their endpoints.
_HELD_FACTOR = 4
#: What found no slot of its endpoint is put off for so long, at least.
_PUT_OFF_SECONDS = 1.0
_STANDINGS_MAX = 10_000


class Deliverer:
    """Delivers from one list and one retry set, until it is stopped; any number may do so."""

    def __init__(
        self,
        outbound: OutboundQueue,
        retries: RetrySet,
        sender: Sender,
        sockets: SocketSender,
        *,
        clock: Clock,
        settings: DelivererConfig,
        schedule: Schedule = SCHEDULE,
        rng: random.Random | None = None,
    ) -> None:
        self._outbound = outbound
        self._retries = retries
        self._sender = sender
        self._sockets = sockets
        self._clock = clock
        self._settings = settings
        self._schedule = schedule
        self._rng = rng or random.Random()
        self._settlements = Settlements(outbound, retries)
        #: How long a message waits in line: as long as those before it may take.
        self._line_seconds = settings.timeout_seconds
        self._lease_seconds = 4 * settings.timeout_seconds
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._standings: OrderedDict[str, Standing] = OrderedDict()
        #: Messages in our hands, and those of them that are being written down.
        self._tasks: set[asyncio.Task[None]] = set()
        self._settling: set[asyncio.Task[None] | None] = set()
        self._looker: asyncio.Task[None] | None = None
        self._waiter = Wakeup(recheck_s=RECHECK_S)
        self._stopping = False
        self._count = 0

    def __repr__(self) -> str:
        return f"<Deliverer {self._outbound.name} [{len(self._tasks)} held]>"

    @property
    def alive(self) -> bool:
        """Whether it still looks for messages."""
        return self._looker is not None and not self._looker.done()

    async def start(self) -> None:
        """Begins to deliver."""
        self._looker = asyncio.get_running_loop().create_task(self._look_on())

    async def stop(self, *, grace_seconds: float = 5.0) -> None:
        """Takes nothing more, lets attempts finish, and gives the rest back uncounted."""
        self._stopping = True
        self._waiter.set()
        if self._looker is not None:
            # Not cut off: what it is just taking would be nobody's until its lease ends.
            await asyncio.wait([self._looker], timeout=grace_seconds)
            self._looker.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace_seconds)
        for task in self._tasks - self._settling:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_STORE_SECONDS_MAX)
        rest = list(self._tasks)
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    # -- Looking for messages ----------------------------------------------------------------

    async def _look_on(self) -> None:
        while not self._stopping:
            self._waiter.clear()
            pause, found = _POLL_SECONDS, 0
            try:
                found = await self._look()
            except AWAY as error:
                _log.warning("messages cannot be read", problem=str(error))
                pause = _STORE_PAUSE_SECONDS
            except Exception as error:
                # Something in the store that is not ours. It must not end all deliveries.
                _log.error("looking for messages broke", error=error)
                pause = _STORE_PAUSE_SECONDS
            if not found and not self._stopping:
                await self._waiter.wait(pause)

    async def _look(self) -> int:
        """Takes what there is room for; what is due again has half of it at most."""
        room = _HELD_FACTOR * self._settings.concurrency - len(self._tasks)
        if room <= 0:
            return 0
        until = self._clock.monotonic() + self._lease_seconds
        lease_ms = round(self._lease_seconds * 1000)
        due = await self._retries.take(min(_LOOK_MAX, (room + 1) // 2), lease_ms)
        for member in due:
            self._begin(Holding(member, None, until))
        if len(due) >= room or self._stopping:
            return len(due)
        taken = await self._outbound.take(min(_LOOK_MAX, room - len(due)), lease_ms)
        for each in taken:
            self._begin(Holding(each.raw, each.number, until))
        return len(due) + len(taken)

    def _begin(self, held: Holding) -> None:
        task = asyncio.get_running_loop().create_task(self._handle(held))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._settling.discard(task)
        self._waiter.set()
        error = None if task.cancelled() else task.exception()
        if error is not None:
            # It is still held, and comes again when its lease is over.
            _log.error("a delivery broke", error=error)

    # -- One message -------------------------------------------------------------------------

    async def _handle(self, held: Holding) -> None:
        try:
            now_ms = self._clock.now_ms()
            message = read_message(held.raw, new_id=held.new_id, now_ms=now_ms)
        except MessageInvalidError as error:
            await self._bury(held, None, str(error))
            return
        try:
            await self._deliver(held, message)
        except asyncio.CancelledError:
            if not self._stopping:
                raise
            await self._written(held, lambda: self._settlements.back(held))

    async def _deliver(self, held: Holding, message: OutboundMessage) -> None:
        standing = self._standing(message.origin)
        reserved = await self._reserve(standing, is_fresh=not message.retries)
        if reserved is None:
            await self._put_off(held, message, standing)
            return
        outcome = Outcome(failure=Failure.CANCELLED)
        try:
            outcome = await self._send(held, message)
        finally:
            now = self._clock.monotonic()
            standing.report(outcome, now=now, probe=reserved.probe, source=message.id)
        await self._conclude(held, message, outcome)

    async def _reserve(self, standing: Standing, *, is_fresh: bool) -> Reservation | None:
        """A slot of the endpoint; None when it has none for now."""
        if len(standing.lanes) >= self._settings.concurrency:
            return None
        self._count += 1
        name, waiter = str(self._count), Wakeup(recheck_s=RECHECK_S)
        until = self._clock.monotonic() + self._line_seconds
        standing.join(name, waiter.set)
        try:
            while True:
                waiter.clear()
                now = self._clock.monotonic()
                reserved = standing.reserve(name, now, 1, is_fresh=is_fresh)
                if reserved.slots:
                    return reserved
                if now >= until or standing.wait_seconds(now) < float("inf"):
                    return None
                await waiter.wait(until - now)
        finally:
            standing.leave(name)

    async def _send(self, held: Holding, message: OutboundMessage) -> Outcome:
        seconds = self._settings.timeout_seconds
        request = Outgoing(
            url=message.url,
            headers=message.headers,
            body=message.payload,
            connect_seconds_max=seconds,
            total_seconds_max=seconds,
        )
        async with self._slots:
            if self._clock.monotonic() + seconds > held.until:
                # It waited for long: another would take it while we send.
                return Outcome(failure=Failure.CANCELLED)
            try:
                if message.url.startswith("ws"):
                    return await self._sockets.send(request)
                return await self._sender.send(request)
            except Exception as error:
                # A defect of ours: it must not come for ever.
                _log.error("an attempt broke", error=error, id=message.id)
                return Outcome(failure=Failure.BROKEN, detail="the request could not be made")

    async def _conclude(self, held: Holding, message: OutboundMessage, outcome: Outcome) -> None:
        attempt = message.retries + 1
        if outcome.failure is Failure.CANCELLED:
            await self._written(held, lambda: self._settlements.back(held))
            return
        decision = self._schedule.decide(outcome, attempt=attempt, rng=self._rng)
        metrics.deliverer_attempts.of(decision.verdict.value).inc()
        match decision.verdict:
            case Verdict.DONE:
                await self._written(held, lambda: self._settlements.done(held))
            case Verdict.RETRY:
                wait_ms = round(decision.wait_seconds * 1000)
                await self._again(held, message, retries=attempt, wait_ms=wait_ms)
            case _:
                await self._bury(held, message, decision.cause, attempts=attempt)

    async def _put_off(self, held: Holding, message: OutboundMessage, standing: Standing) -> None:
        """Not now, and not counted; unless it has been so for too long."""
        held_for = (self._clock.now_ms() - message.since_ms) / 1000
        patience = self._settings.patience_seconds - held_for
        if patience <= 0:
            cause = "its endpoint was ill or busy for too long"
            await self._bury(held, message, cause, attempts=message.retries)
            return
        left = standing.wait_seconds(self._clock.monotonic())
        wait = max(_PUT_OFF_SECONDS, left if left < float("inf") else 0.0)
        # Not all at the same moment: only a few of them will get a slot.
        wait = min(wait * (1 + self._rng.random() / 2), patience + _POLL_SECONDS)
        await self._again(held, message, retries=message.retries, wait_ms=round(wait * 1000))

    async def _again(
        self, held: Holding, message: OutboundMessage, *, retries: int, wait_ms: int
    ) -> None:
        again = self._settlements.again
        await self._written(held, lambda: again(held, message, retries=retries, wait_ms=wait_ms))

    async def _bury(
        self, held: Holding, message: OutboundMessage | None, cause: str, *, attempts: int = 0
    ) -> None:
        async def bury() -> None:
            settle = self._settlements.bury
            dropped = await settle(held, message, cause=cause, attempts=attempts)
            if dropped:
                _log.warning("dead letters were dropped to make room", count=dropped)

        # Neither its address nor its payload: they belong to the user.
        _log.warning("a message is a dead letter", cause=cause, attempts=attempts)
        metrics.deliverer_attempts.of("dead").inc()
        await self._written(held, bury)

    async def _written(self, held: Holding, settle: Callable[[], Awaitable[None]]) -> None:
        """Writes it down, however long the store is away, while the message is ours."""
        self._settling.add(asyncio.current_task())
        while True:
            try:
                await settle()
            except AWAY as error:
                if self._clock.monotonic() >= held.until:
                    _log.warning("a message is left to its lease", problem=str(error))
                    return
                await asyncio.sleep(_STORE_PAUSE_SECONDS)
            else:
                return

    def _standing(self, origin: str) -> Standing:
        standing = self._standings.get(origin)
        if standing is None:
            standing = self._standings[origin] = Standing(origin)
            while len(self._standings) > _STANDINGS_MAX:
                self._standings.popitem(last=False)
        self._standings.move_to_end(origin)
        return standing
