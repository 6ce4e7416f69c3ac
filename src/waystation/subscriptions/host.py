"""The host: all shards that one node delivers, taken, kept and given as placement says.

It takes the leases of the shards that should be its own, gives those that should be another's, and
lets go what it has lost. A shard that its node does not come for is anyone's after a while. A host
that holds shards and is deaf for three leases has lost them all: it ends its process, with an exit
code that says so, and whoever watches it starts another.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from waystation.errors import (
    BusyError,
    CatalogueError,
    ShardFrozenError,
    ShardLostError,
    StoreDataLostError,
    StoreError,
)
from waystation.runtime.clock import Clock
from waystation.runtime.logging import logger
from waystation.store.client import Store
from waystation.store.leases import Lease, LeaseRenewer, Leases
from waystation.store.pubsub import PubSub
from waystation.subscriptions.definition import Subscription
from waystation.subscriptions.names import DELIVERY, Place
from waystation.subscriptions.owned import Definitions, OpenShard, Owned
from waystation.subscriptions.placement import Patience, Placement
from waystation.transactions.worker import DEAF_EXIT_CODE

_log = logger("delivery")

#: What may come to be later, without anybody's doing.
_AWAY = (BusyError, CatalogueError, StoreError, TimeoutError)
#: Leases without an answer after which a host is not ready, and after which it is deaf.
_UNHEALTHY_LEASES = 2
_DEAF_LEASES = 3
#: Hints that come closer together than this share a look.
_LOOK_SECONDS_MIN = 0.02
#: Shards that are opened at a time.
_OPENING_MAX = 32
#: What the store gets to answer while we stop, and what a shard gets beyond its grace time.
_STORE_SECONDS_MAX = 2.0
_STOP_SECONDS_MAX = 6.0


def end_process(reason: str) -> None:
    """Ends the process at once: all that it holds is another's by now."""
    _log.error("the delivery node is deaf", reason=reason)
    os._exit(DEAF_EXIT_CODE)


@dataclass
class _Held:
    """A shard with its lease."""

    place: Place
    subscription: Subscription
    shard: Owned
    lease: Lease
    taken_at: float
    #: Not given to another before this time.
    keep_until: float
    watch: asyncio.Task[None] | None = None
    leaving: asyncio.Task[None] | None = None


class Host:
    """Delivers shards from `start` to `stop`."""

    def __init__(
        self,
        store: Store,
        wakeups: PubSub,
        definitions: Definitions,
        open_shard: OpenShard,
        *,
        renewer: LeaseRenewer,
        clock: Clock,
        node: str,
        patience: Patience | None = None,
        shards_max: int = 1000,
        grace_seconds: float = 5.0,
        on_deaf: Callable[[str], None] = end_process,
    ) -> None:
        self._patience = patience = patience or Patience()
        self._store = store
        self._wakeups = wakeups
        self._definitions = definitions
        self._open_shard = open_shard
        self._clock = clock
        self._shards_max = shards_max
        self._grace_seconds = grace_seconds
        self._on_deaf = on_deaf
        self._placement = Placement(store, node=node, patience=patience)
        lease_ms = round(patience.lease_seconds * 1000)
        self._leases = Leases(store, renewer, owner=node, lease_ms=lease_ms)
        self._opening = asyncio.Semaphore(_OPENING_MAX)
        self._known: Sequence[Subscription] = ()
        self._held: dict[Place, _Held] = {}
        #: Leases that were let go, and the store has not heard of it: not to be opened under.
        self._unreleased: dict[Place, Lease] = {}
        #: Shards that ended by themselves soon after they were taken, and until when they rest.
        self._resting: dict[Place, float] = {}
        #: Shards of others that nobody had at the last look, and when that was.
        self._strays: set[Place] = set()
        self._strays_at = clock.monotonic()
        self._answered_at = self._looked_at = clock.uptime_s()
        self._unheard = 0.0
        self._stopping = False
        self._looker: asyncio.Task[None] | None = None
        self._forget_jumps: Callable[[], None] = lambda: None

    def __repr__(self) -> str:
        return f"<Host {self.node} [{len(self._held)} shards]>"

    @property
    def node(self) -> str:
        """What this node is called, as owner of leases, too."""
        return self._placement.node

    @property
    def shards(self) -> Mapping[Place, Owned]:
        """What it delivers, and what it is about to give."""
        return {place: held.shard for place, held in self._held.items()}

    @property
    def healthy(self) -> bool:
        """Whether the store has answered lately."""
        silent = self._clock.uptime_s() - self._answered_at
        return silent < _UNHEALTHY_LEASES * self._patience.lease_seconds

    async def start(self) -> None:
        """Begins to look for shards."""
        self._forget_jumps = self._clock.on_jump(self._leases.renewer.renew_soon)
        self._answered_at = self._looked_at = self._clock.uptime_s()
        self._looker = asyncio.get_running_loop().create_task(self._look_on())

    async def stop(self, *, grace_seconds: float | None = None) -> None:
        """Takes nothing more, lets requests end, gives all shards to the others at once."""
        self._stopping = True
        self._forget_jumps()
        # Others know from here on what will be theirs, and take it when it is free.
        await self._placement.leave()
        if self._looker is not None:
            # Not cut off at once: a lease that is just taken would be nobody's until its end.
            await asyncio.wait([self._looker], timeout=_STORE_SECONDS_MAX)
            self._looker.cancel()
            await asyncio.gather(self._looker, return_exceptions=True)
        grace = self._grace_seconds if grace_seconds is None else grace_seconds
        for held in list(self._held.values()):
            self._let_go(held, grace_seconds=grace)
        await asyncio.gather(*(held.leaving for held in self._held.values() if held.leaving))
        self._leases.close()

    # -- Looking -----------------------------------------------------------------------------

    async def _look_on(self) -> None:
        with self._wakeups.listening(DELIVERY.encode()) as waiter:
            while not self._stopping:
                waiter.clear()
                try:
                    await self._look()
                except _AWAY as error:
                    if isinstance(error, StoreDataLostError):
                        # The store answers. The process must not end as one without a store does,
                        # because it continues when the operator accepts the loss.
                        self._answered_at = self._clock.uptime_s()
                    _log.warning("shards cannot be looked for", problem=str(error))
                except Exception as error:
                    # A defect of ours, or something strange in the store. What is held goes on.
                    _log.error("looking for shards broke", error=error)
                self._listen()
                await asyncio.sleep(_LOOK_SECONDS_MIN)
                await waiter.wait(0 if self._stopping else self._patience.beat_seconds)

    def _listen(self) -> None:
        """Counts the time in which nothing was heard, but not that in which we stood still."""
        now, before = self._clock.uptime_s(), self._looked_at
        self._looked_at = now
        if self._answered_at >= before or self._stopping or not self._held:
            self._unheard = 0.0
            return
        self._unheard += min(now - before, self._patience.lease_seconds)
        if self._unheard > _DEAF_LEASES * self._patience.lease_seconds:
            self._on_deaf("the store has not answered for three leases")

    async def _look(self) -> None:
        await self._placement.attend()
        self._answered_at = self._clock.uptime_s()
        wanted = {
            subscription.place(shard): subscription
            for subscription in await self._defined()
            for shard in range(subscription.shards)
        }
        owners = self._placement.owners(list(wanted))
        for held in list(self._held.values()):
            self._review(held, wanted.get(held.place), owners.get(held.place))
        own = [place for place, node in owners.items() if node == self.node]
        await self._take_all(own, wanted)
        await self._take_all(await self._stray(owners), wanted, keep=True)

    async def _defined(self) -> Sequence[Subscription]:
        """All subscriptions; as they were known last while the catalogue is away."""
        try:
            self._known = await self._definitions()
        except CatalogueError as error:
            _log.warning("subscriptions cannot be read", problem=str(error))
        return self._known

    def _review(self, held: _Held, subscription: Subscription | None, owner: str | None) -> None:
        if held.leaving is not None:
            return
        if held.lease.lost:
            self._let_go(held, grace_seconds=0)
        elif subscription is None or (
            owner != self.node and self._clock.monotonic() >= held.keep_until
        ):
            self._let_go(held, grace_seconds=self._grace_seconds)
        elif subscription.version > held.subscription.version:
            held.subscription = subscription
            held.shard.use(subscription)

    async def _stray(self, owners: Mapping[Place, str]) -> list[Place]:
        """Shards of others that were free at the last look and still are; now and then."""
        now = self._clock.monotonic()
        if now - self._strays_at < self._patience.stray_seconds:
            return []
        others = [
            place for place, node in owners.items() if node != self.node and place not in self._held
        ]
        ends = await self._store.pipeline(
            [("HGET", place.lease, "until_ms") for place in others], repeatable=True
        )
        free = {
            place
            for place, until in zip(others, ends, strict=True)
            if not isinstance(until, StoreError) and int(until or 0) < self._placement.now_ms
        }
        both, self._strays, self._strays_at = free & self._strays, free, now
        return [place for place in others if place in both]

    # -- Taking and giving -------------------------------------------------------------------

    async def _take_all(
        self, places: Sequence[Place], wanted: Mapping[Place, Subscription], *, keep: bool = False
    ) -> None:
        now = self._clock.monotonic()
        self._resting = {place: until for place, until in self._resting.items() if until > now}
        free = [place for place in places if place not in (self._held.keys() | self._resting)]
        room = 0 if self._stopping else max(0, self._shards_max - len(self._held))
        keep_until = now + self._patience.keep_seconds if keep else 0.0
        taking = (self._take(each, wanted[each], keep_until) for each in free[:room])
        await asyncio.gather(*taking)

    async def _take(self, place: Place, subscription: Subscription, keep_until: float) -> None:
        try:
            if (former := self._unreleased.get(place)) is not None:
                await former.release()
                del self._unreleased[place]
            lease = await self._leases.acquire(place.lease)
        except _AWAY as error:
            _log.warning("a shard cannot be taken", shard=place.tag, problem=str(error))
            return
        if lease is None:
            return
        shard = self._open_shard(subscription, place, lease)
        held = _Held(place, subscription, shard, lease, self._clock.monotonic(), keep_until)
        self._held[place] = held
        held.watch = asyncio.get_running_loop().create_task(self._run(held))

    async def _run(self, held: _Held) -> None:
        """Starts a shard and waits for its end; it is taken again then, under another epoch."""
        try:
            async with self._opening:
                await held.shard.start()
            await held.shard.ended.wait()
        except Exception as error:
            _tell(held.place, error)
        # Once in a beat at most: what breaks at once must not keep the store busy.
        self._resting[held.place] = held.taken_at + self._patience.beat_seconds
        self._let_go(held, grace_seconds=0)

    def _let_go(self, held: _Held, *, grace_seconds: float) -> None:
        if held.leaving is None:
            work = self._give(held, grace_seconds)
            held.leaving = asyncio.get_running_loop().create_task(work)

    async def _give(self, held: _Held, grace_seconds: float) -> None:
        if held.watch is not None:
            held.watch.cancel()
            await asyncio.gather(held.watch, return_exceptions=True)
        try:
            async with asyncio.timeout(grace_seconds + _STOP_SECONDS_MAX):
                await held.shard.stop(grace_seconds=grace_seconds)
        except Exception as error:
            _tell(held.place, error)
        await self._release(held.place, held.lease)
        del self._held[held.place]

    async def _release(self, place: Place, lease: Lease) -> None:
        """Before it is taken again, by us, too: an epoch has one shard that works under it."""
        try:
            async with asyncio.timeout(_STORE_SECONDS_MAX):
                await lease.release()
                await self._placement.tell()
        except _AWAY as error:
            self._unreleased[place] = lease
            _log.warning("a shard was not given back", shard=place.tag, problem=str(error))


def _tell(place: Place, error: Exception) -> None:
    if isinstance(error, (*_AWAY, ShardLostError, ShardFrozenError)):
        _log.warning("a shard is not delivered", shard=place.tag, problem=str(error))
    else:
        _log.error("a shard broke", shard=place.tag, error=error)
