"""How a subscription stands: each shard with its state, lag, retries and dead letters; and sums."""

from __future__ import annotations

from typing import Literal

import msgspec

from waystation.errors import ShardLostError
from waystation.runtime.tasks import for_each
from waystation.subscriptions.backlog import Backlog, Backlogs
from waystation.subscriptions.definition import Subscription
from waystation.subscriptions.hindrances import Circumstances, Hindrance, Hindrances
from waystation.subscriptions.looking import Looking
from waystation.subscriptions.looks import ShardLook
from waystation.subscriptions.states import ShardState
from waystation.subscriptions.subscriptions import Subscriptions

#: Shards that are looked at together.
_AT_ONCE = 8


class ShardStanding(msgspec.Struct, kw_only=True):
    """A shard at one moment."""

    shard: int
    state: ShardState
    #: Code of what keeps it from delivering, as `why` tells it; empty: nothing does.
    reason: str
    #: The node that delivers it; empty: none.
    owner: str
    #: Messages of the topic that are not acknowledged, and when the oldest was produced.
    lag: int
    oldest_ms: int
    retry: int = 0
    retry_bytes: int = 0
    dead: int = 0
    dead_bytes: int = 0
    #: Groups that are not clean, those of them that are parked, and dead letters of no group.
    groups: int = 0
    parked: int = 0
    alone: int = 0
    #: Heads that wait for their time, and heads that somebody works on.
    due: int = 0
    under_way: int = 0
    #: Dead letters that were dropped for room.
    dropped: int = 0
    next_due_ms: int = 0
    oldest_failed_ms: int = 0


class SubscriptionStanding(msgspec.Struct, kw_only=True):
    """All shards of a subscription, and their sums."""

    name: str
    state: Literal["creating", "active", "paused", "deleting", "deleted"]
    lag: int
    retry: int
    dead: int
    groups: int
    parked: int
    #: What is kept of retries and dead letters together.
    bytes: int
    shards: list[ShardStanding]


class Overview:
    """Looks at all shards of a subscription."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        looking: Looking,
        backlogs: Backlogs,
        hindrances: Hindrances,
    ) -> None:
        self._subscriptions = subscriptions
        self._looking = looking
        self._backlogs = backlogs
        self._hindrances = hindrances

    async def of(self, project: str, name: str) -> SubscriptionStanding:
        """How a subscription stands now."""
        subscription = await self._subscriptions.get(project, name)
        around = await self._hindrances.circumstances(subscription)
        shards: list[ShardStanding] = []

        async def look(shard: int) -> None:
            shards.append(await self._shard(around, shard))

        await for_each(range(subscription.shards), look, at_once=_AT_ONCE)
        shards.sort(key=lambda each: each.shard)
        paused = any(each.state is ShardState.PAUSED for each in shards)
        return SubscriptionStanding(
            name=name,
            state="paused" if paused and subscription.state == "active" else subscription.state,
            lag=sum(each.lag for each in shards),
            retry=sum(each.retry for each in shards),
            dead=sum(each.dead for each in shards),
            groups=sum(each.groups for each in shards),
            parked=sum(each.parked for each in shards),
            bytes=sum(each.retry_bytes + each.dead_bytes for each in shards),
            shards=shards,
        )

    async def look(self, subscription: Subscription, shard: int) -> ShardLook | None:
        """A shard as it is; None for one that is not there yet, or not any more."""
        try:
            return await self._looking.shard(subscription.place(shard))
        except ShardLostError:
            return None

    async def _shard(self, around: Circumstances, shard: int) -> ShardStanding:
        look = await self.look(around.subscription, shard)
        hindrance = await self._hindrances.of(around, shard, look)
        backlog = await self.backlog(around, shard, look)
        return _standing(shard, look, hindrance, backlog)

    async def backlog(self, around: Circumstances, shard: int, look: ShardLook | None) -> Backlog:
        """What a shard has before it in its topic."""
        if look is None or around.topic is None:
            return Backlog()
        subscription = around.subscription
        place = subscription.place(shard)
        return await self._backlogs.of(subscription, around.topic, place, look.low)


def _standing(
    shard: int, look: ShardLook | None, hindrance: Hindrance | None, backlog: Backlog
) -> ShardStanding:
    known = ShardStanding(
        shard=shard,
        state=ShardState.RUNNING if hindrance is None else hindrance.state,
        reason="" if hindrance is None else hindrance.code,
        owner="",
        lag=backlog.messages,
        oldest_ms=backlog.oldest_ms,
    )
    if look is None:
        return known
    return msgspec.structs.replace(
        known,
        owner=look.owner if look.until_ms > look.now_ms else "",
        retry=look.retry_count,
        retry_bytes=look.retry_bytes,
        dead=look.dead_count,
        dead_bytes=look.dead_bytes,
        groups=look.groups,
        parked=look.parked,
        alone=look.alone,
        due=look.due,
        under_way=look.taken,
        dropped=look.dropped,
        next_due_ms=look.next_due_ms,
        oldest_failed_ms=look.oldest_failed_ms,
    )
