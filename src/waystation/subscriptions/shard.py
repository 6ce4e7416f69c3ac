"""A shard at work: reads its partitions, delivers in the order of groups, commits; until it stops.

`Shard` ties the parts together and has the loops that none of them has: reading ahead, asking for
what is due, pushing behind, keeping holds. Whoever runs it holds the lease before it is started,
and gives it back after it has stopped: an epoch belongs to one `Shard`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from functools import partial
from typing import Any

from waystation.errors import ShardFrozenError, ShardLostError, WaystationError
from waystation.runtime.logging import logger
from waystation.runtime.service import Wakeup
from waystation.store.leases import Lease
from waystation.store.pubsub import RECHECK_S
from waystation.subscriptions.committer import Committer
from waystation.subscriptions.courier import Courier
from waystation.subscriptions.definition import Subscription
from waystation.subscriptions.feed import Feed
from waystation.subscriptions.heads import Heads
from waystation.subscriptions.herald import Herald
from waystation.subscriptions.ledger import Ledger
from waystation.subscriptions.line import Line
from waystation.subscriptions.means import ShardMeans
from waystation.subscriptions.names import Place
from waystation.subscriptions.reader import Reader
from waystation.subscriptions.record_room import RecordRoom
from waystation.subscriptions.states import ShardState, Verdict
from waystation.subscriptions.tenure import AWAY, Tenure
from waystation.subscriptions.turns import Turns

_log = logger("subscriptions")

#: What is kept for us in the topic is told this often, or after so many messages.
_HOLD_SECONDS = 1.0
_HOLD_MESSAGES = 1000
#: Messages that are pushed behind with one look, and operations that are worked off with one step.
_PUSH_MAX = 100
_STEP_MAX = 200
_STEP_SECONDS_MIN = 0.25
#: A stopping shard gives the store this long, first to take its last results, then what it had.
_STORE_SECONDS_MAX = 1.5


class Shard:
    """One shard of a subscription, owned by this process."""

    def __init__(
        self, subscription: Subscription, place: Place, lease: Lease, means: ShardMeans
    ) -> None:
        self.place = place
        self._means = means
        self._tenure = Tenure(subscription, place, lease, dataset=means.dataset, clock=means.clock)
        self._tenure.store_is_full = means.store_is_full
        self._tenure.on_lost = self._on_lost
        self._line = Line()
        self._heads = Heads(means.store, self._tenure, self._line, clock=means.clock)
        self._committer = Committer(means.commits, self._tenure, on_committed=self._on_committed)
        self._reader: Reader | None = None
        self._courier: Courier | None = None
        self._feed: Feed | None = None
        self._herald = Herald(self._tenure, means)
        self._records = RecordRoom(self._tenure, means.logs, means.keeps)
        self._due_wake = Wakeup(recheck_s=RECHECK_S)
        self._push_wake = Wakeup(recheck_s=RECHECK_S)
        self._keep_wake = Wakeup(recheck_s=RECHECK_S)
        self._loops: set[asyncio.Task[None]] = set()
        self._listening = contextlib.ExitStack()
        self._endpoint_is_old = False
        #: Set when the shard was lost: it is to be stopped then.
        self.ended = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Shard {self.place.tag[1:-2]} {self.state}, {self._courier}>"

    # -- What is known of it -----------------------------------------------------------------

    @property
    def lost(self) -> str:
        """Why it is not ours any more; empty while it is."""
        return self._tenure.lost

    @property
    def version(self) -> int:
        """Of the definition that it works by."""
        return self._tenure.subscription.version

    @property
    def in_flight(self) -> int:
        """Requests under way."""
        return self._courier.under_way if self._courier is not None else 0

    @property
    def throttled(self) -> bool:
        """Whether its subscription lets it send no more for now."""
        return self._courier is not None and self._courier.throttled

    @property
    def fills_full_store(self) -> bool:
        """Whether it stopped reading because the store is full and its messages fail."""
        return self._tenure.full == "store"

    def carries(self, member: str) -> bool:
        """Whether a message is on its way to the endpoint."""
        return self._courier is not None and self._courier.carries(member)

    @property
    def problem(self) -> str:
        """Why its topic cannot be read; empty while it can."""
        return self._feed.problem if self._feed is not None else ""

    @property
    def state(self) -> ShardState:
        """What it does, or why it does not."""
        reader, courier = self._reader, self._courier
        if self.lost or reader is None or courier is None:
            return ShardState.UNOWNED
        if self._tenure.is_paused:
            return ShardState.PAUSED
        if self._tenure.full:
            return ShardState.FULL
        if courier.held:
            return ShardState.HELD
        return ShardState.AT_BARRIER if reader.at_barrier else ShardState.RUNNING

    # -- Life --------------------------------------------------------------------------------

    async def start(self) -> None:
        """Opens the shard and begins; ShardLostError or ShardFrozenError if it cannot be ours."""
        means, tenure = self._means, self._tenure
        opened = await means.store.open(self.place, tenure.terms)
        if opened.incarnation != tenure.terms.incarnation:
            raise ShardLostError(
                f"Shard {self.place.shard} of {self.place.subscription} is of incarnation"
                f" {opened.incarnation}, its definition of {tenure.terms.incarnation}."
            )
        tenure.opened(opened)
        endpoint = await means.endpoint(tenure.subscription)
        self._reader = reader = Reader(
            means.logs,
            tenure.subscription,
            self.place.shard,
            opened,
            topic=means.topic,
            pass_over=lambda at, from_, to, kind: means.store.pass_over(
                self.place, tenure.terms, at, from_, to, kind
            ),
        )
        self._ledger = Ledger(tenure, means, self._line, self._heads, reader, self._committer)
        turns = Turns(tenure, self._line, self._heads, reader, self._ledger)
        self._turns = turns
        self._courier = Courier(
            tenure,
            means,
            turns,
            self._ledger,
            on_asked=self._herald.tell,
            on_hold=self._herald.tell_hold,
        )
        self._courier.go_to(endpoint, means.standing(endpoint.target))
        self._committer.start()
        hint = self.place.due_hint.encode()
        self._listening.callback(means.wakeups.listen(hint, self._on_hint))
        self._listening.callback(means.clock.on_jump(self._on_jump))
        self._feed = Feed(tenure, means, reader, self._line, on_read=self._on_read)
        loops = self._ask_due(), self._push(), self._keep(), self._operate()
        for loop in (self._feed.run(), *loops):
            self._begin(loop)

    def use(self, subscription: Subscription) -> None:
        """A newer version of the definition, or new secrets: from the next request on."""
        self._tenure.use(subscription)
        self._endpoint_is_old = True
        if self._reader is not None and self._courier is not None:
            self._reader.use(self._tenure.subscription)
            self._ledger.use()
            self._courier.use()
        self._keep_wake.set()
        self._wake_all()

    async def stop(self, *, grace_seconds: float) -> None:
        """Reads nothing more, lets requests end, writes down what came of them, gives back others.

        What was begun and not ended in time is as if it had not been attempted.
        """
        lost = self.lost
        self._listening.close()
        loops = list(self._loops)
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        if self._courier is not None:
            self._committer.wants_heads = False
            await self._courier.drain(seconds=0.0 if lost else grace_seconds)
            await self._committer.stop(seconds=_STORE_SECONDS_MAX)
        if not self.lost:
            with contextlib.suppress(*AWAY, TimeoutError, ShardLostError, ShardFrozenError):
                async with asyncio.timeout(_STORE_SECONDS_MAX):
                    await self._give_back()
        await self._herald.stop(seconds=0.0 if lost else _STORE_SECONDS_MAX)

    async def _give_back(self) -> None:
        taken = self._heads.taken
        if taken:
            await self._means.store.give_back(self.place, self._tenure.terms, taken)
        if self._reader is not None:
            await self._reader.hold()

    # -- Loops -------------------------------------------------------------------------------

    async def _ask_due(self) -> None:
        """Takes heads when they are due and there are slots for them."""
        courier, heads, clock = self._courier, self._heads, self._means.clock
        assert courier is not None
        while True:
            self._due_wake.clear()
            room = courier.head_room - len(heads.ready)
            left = heads.next_at - clock.monotonic()
            if left > 0 or room <= 0:
                # When the pause of a breaker is over, a retry may be the only possible probe.
                held = courier.held or _HOLD_SECONDS
                await self._due_wake.wait(left if room > 0 else min(held, _HOLD_SECONDS))
                continue
            if await self._tenure.tried(partial(heads.take, room)):
                courier.pump()

    async def _push(self) -> None:
        """Has messages of groups that are not clean put behind those that wait in the store."""
        while True:
            self._push_wake.clear()
            found = self._line.behind(_PUSH_MAX)
            for each in found:
                if each.is_here or await self._turns.fetch(each):
                    self._ledger.push(each, Verdict.BEHIND)
            if not found:
                await self._push_wake.wait(float("inf"))

    async def _keep(self) -> None:
        """Tells the topic what we need, sees whether the shard is ours, takes a new endpoint."""
        reader = self._reader
        assert reader is not None
        while True:
            self._keep_wake.clear()
            if self._tenure.lease.lost:
                self._tenure.lose(ShardLostError.code)
                return
            if self._endpoint_is_old:
                await self._renew_endpoint()
            if self._tenure.is_sure:
                await self._tenure.tried(reader.hold)
                await self._records.look()
            self._wake_all()
            await self._keep_wake.wait(_HOLD_SECONDS)

    async def _renew_endpoint(self) -> None:
        """Goes to the endpoint as it is defined now; to the former one until that is known."""
        assert self._courier is not None
        self._endpoint_is_old = False
        try:
            endpoint = await self._means.endpoint(self._tenure.subscription)
        except WaystationError as error:
            self._endpoint_is_old = True
            _log.warning("an endpoint cannot be read", place=self.place.tag, problem=str(error))
        else:
            self._courier.go_to(endpoint, self._means.standing(endpoint.target))

    async def _operate(self) -> None:
        """Works off operations, step by step."""
        operations = self._means.operations
        if operations is None:
            return
        hint = self.place.due_hint.encode()
        with self._means.wakeups.listening(hint) as waiter:
            while True:
                waiter.clear()
                step = partial(operations.step, self.place, self._tenure.terms, _STEP_MAX)
                try:
                    seconds = await self._tenure.tried(step)
                except WaystationError as error:
                    # What one operation meets must not keep messages from being delivered.
                    _log.error("an operation broke", error=error, place=self.place.tag)
                    seconds = None
                if seconds is None or seconds >= _STEP_SECONDS_MIN:
                    await asyncio.sleep(_STEP_SECONDS_MIN)
                await waiter.wait(_HOLD_SECONDS if seconds is None else seconds)

    # -- Calls from elsewhere ----------------------------------------------------------------

    def _on_read(self) -> None:
        assert self._courier is not None
        self._courier.pump()
        if self._line.has_pushes:
            self._push_wake.set()

    def _on_committed(self) -> None:
        assert self._reader is not None
        assert self._feed is not None
        self._on_read()
        if self._reader.has_room:
            self._feed.waiter.set()
        self._due_wake.set()
        if self._reader.acknowledged >= _HOLD_MESSAGES:
            self._keep_wake.set()

    def _on_hint(self, _: bytes | None) -> None:
        self._heads.expect(self._means.clock.monotonic())
        self._due_wake.set()

    def _on_jump(self) -> None:
        self._heads.expect(self._means.clock.monotonic())
        self._wake_all()

    def _wake_all(self) -> None:
        """Makes everyone look: something may be possible that was not."""
        self._due_wake.set()
        self._push_wake.set()
        if self._feed is not None and self._courier is not None:
            self._feed.waiter.set()
            self._courier.pump_soon()

    def _on_lost(self) -> None:
        """Not ours any more: all is dropped, nothing is tried again."""
        _log.warning("a shard was lost", place=self.place.tag, why=self.lost)
        if self._courier is not None:
            self._courier.abort()
        for task in self._loops:
            task.cancel()
        self.ended.set()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._loops.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._loops.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # A defect of ours: whoever runs us opens the shard anew.
            _log.error("a shard broke", error=error, place=self.place.tag)
            self._tenure.lose("broken")
