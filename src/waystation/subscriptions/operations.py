"""Operations of subscriptions: redrive, skip, purge and reset, durable and with progress.

An operation is entered first, then told to its shards; from then on it will be done, whoever dies.
The owner of each shard works it off in steps, each of which notes how far it came together with
what it did. One about a single group or message takes its first steps at once, so that it is done,
or marked, when the call returns. It has ended when all shards have no step left and nothing that it
marked is open.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from math import ceil

from waystation.errors import ConflictError, OperationEndedError, ShardFrozenError, ShardLostError
from waystation.runtime.clock import Clock
from waystation.runtime.ids import IdSource
from waystation.store.client import Store
from waystation.subscriptions import names
from waystation.subscriptions.definition import Subscription
from waystation.subscriptions.looking import Looking
from waystation.subscriptions.looks import OperationLook
from waystation.subscriptions.means import RedriveLimit
from waystation.subscriptions.names import Place
from waystation.subscriptions.operating import STEP_MAX, Operating
from waystation.subscriptions.operation import ENDED, Asked, Kept, Operation, check_asked, show
from waystation.subscriptions.operation_book import OperationBook
from waystation.subscriptions.rate import take_permits
from waystation.subscriptions.selecting import Selecting
from waystation.subscriptions.states import OperationState
from waystation.subscriptions.stepping import Stepping
from waystation.subscriptions.subscriptions import Subscriptions
from waystation.subscriptions.terms import Terms

#: How often an owner looks for operations; a new one is also told by a hint.
_IDLE_SECONDS = 5.0
#: And while there are some that it waits for.
_BUSY_SECONDS = 1.0
#: Steps of a call that is about one group; what is longer goes on in the background.
_STEPS_AT_ONCE = 50
#: Those that have ended and are remembered.
ENDED_MAX = 1000
#: Shards whose redrive rates are remembered. One that is forgotten waits for its next step.
_LIMITS_MAX = 10_000
#: With a rate: seconds of messages that are marked ahead, and seconds between two steps.
_AHEAD_SECONDS = 2.0
_RATED_SECONDS = 0.25
_UNKNOWN = RedriveLimit("", None)
#: What owners note beside what scripts do: that one step was all.
_NOTES = ("ran",)

#: By shard: what it says of its operations.
_Looks = Sequence[dict[str, OperationLook]]


class Operations:
    """All operations of all subscriptions."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        store: Store,
        *,
        clock: Clock,
        identity: IdSource,
        dataset: str,
        keep_ms: int,
    ) -> None:
        self._subscriptions = subscriptions
        self._book = OperationBook(store)
        self._looking = Looking(store)
        self._operating = Operating(store, dataset=dataset)
        self._stepping = Stepping(subscriptions, self._operating, clock=clock)
        self._selecting = Selecting(subscriptions, self._looking)
        self._clock = clock
        self._identity = identity
        #: How long one that has ended is remembered.
        self._keep_ms = keep_ms
        self._store = store
        #: Shard → epoch of its owner in this process, and the rate of its redrives.
        self._limits: dict[Place, tuple[int, RedriveLimit | None]] = {}

    # -- Asking for them ---------------------------------------------------------------------

    async def begin(self, project: str, name: str, asked: Asked) -> Operation:
        """Begins an operation; or, in a dry run, counts what it is about."""
        check_asked(asked)
        subscription = await self._subscriptions.get(project, name)
        if subscription.state != "active":
            raise ConflictError(f"Subscription {name} is {subscription.state}.")
        plan = await self._selecting.plan(subscription, asked)
        if asked.dry_run:
            return await self._stepping.count(subscription, plan)
        # Ids grow with time, so that lists have an order.
        operation = f"{self._clock.now_ms():012x}-{self._identity.token(4)}"
        kept = await self._book.enter(project, name, operation, plan)
        if asked.kind == "reset":
            await self._reset(subscription, kept)
        else:
            await self._tell(subscription, kept)
        # One with a rate is left to the owner of its shard, who keeps to the rate.
        if plan.shard is not None and asked.rate is None:
            await self._work_at_once(subscription.place(plan.shard), kept)
        return await self.get(project, name, operation)

    async def get(self, project: str, name: str, operation: str) -> Operation:
        """An operation as it is."""
        subscription = await self._subscriptions.get(project, name)
        kept = await self._book.get(project, name, operation)
        return await self._see(subscription, kept, await self._looks(subscription))

    async def list(
        self, project: str, name: str, *, after: str = "", limit: int
    ) -> list[Operation]:
        """Operations, the newest first, behind the one that `after` names."""
        subscription = await self._subscriptions.get(project, name)
        kept = [
            each for each in await self._book.all(project, name) if not after or each.id < after
        ]
        looks = await self._looks(subscription)
        return [await self._see(subscription, each, looks) for each in kept[:limit]]

    async def pause(self, project: str, name: str, operation: str) -> Operation:
        """Marks nothing more for now; what is marked goes on."""
        return await self._move(project, name, operation, OperationState.PAUSED)

    async def resume(self, project: str, name: str, operation: str) -> Operation:
        """Goes on where it was."""
        return await self._move(project, name, operation, OperationState.BEGUN)

    async def cancel(self, project: str, name: str, operation: str) -> Operation:
        """Marks nothing more; what is marked goes on, or waits for another operation."""
        return await self._move(project, name, operation, OperationState.CANCELLED)

    async def _move(
        self, project: str, name: str, operation: str, state: OperationState
    ) -> Operation:
        subscription = await self._subscriptions.get(project, name)
        kept = await self._book.move(project, name, operation, state)
        if kept.state is not state and kept.state in ENDED:
            raise OperationEndedError(f"Operation {operation} is {kept.state}.")
        if kept.state is OperationState.BEGUN:
            await self._tell(subscription, kept)
        return await self.get(project, name, operation)

    # -- Working them off --------------------------------------------------------------------

    async def step(self, place: Place, terms: Terms, credit: int) -> float:
        """One step of each in a shard, by its owner; seconds until there is more to do."""
        open_ = await self._book.open(place.project, place.subscription)
        await self._limit(place, terms.epoch, open_)
        if not open_:
            return _IDLE_SECONDS
        looks, seconds = await self._looking.operations(place), _BUSY_SECONDS
        for kept in open_:
            look = looks.get(kept.id, OperationLook())
            if not kept.plan.covers(place.shard) or not look.asked:
                continue
            if kept.plan.is_over(look):
                await self._conclude(place, kept, look)
            elif kept.state is OperationState.BEGUN:
                most, wait = await self._room(place, kept, look, credit)
                if most > 0:
                    stepped = await self._stepping.step(place, kept, look.cursor, most)
                    if kept.plan.single and not stepped.cursor:
                        await self._operating.progress(place, terms, kept.id, {"ran": "1"})
                seconds = min(seconds, wait)
        return seconds

    async def _room(
        self, place: Place, kept: Kept, look: OperationLook, credit: int
    ) -> tuple[int, float]:
        """Return how many messages a step may mark now, and the seconds until the next step."""
        rate = kept.plan.asked.rate
        if rate is None:
            return credit, 0.0
        if kept.plan.asked.kind == "redrive":
            # The owner of a shard delivers them by the rate. Marked ahead is what two seconds take,
            # so that little goes on after the operation was paused or cancelled.
            ahead = max(2, ceil(rate * _AHEAD_SECONDS))
            return max(0, min(credit, ahead - look.open)), _RATED_SECONDS
        key = names.rate(place.project, place.subscription, kept.id)
        return await take_permits(self._store, key, rate, credit)

    def redrive_limit(self, place: Place, epoch: int) -> RedriveLimit | None:
        """Return the rate of dead letters that an owner of a shard redrives; None if there is none.

        Of several redrives the lowest rate holds for all. An owner that has not seen yet which
        redrives there are gets a limit without a rate, and waits.
        """
        known_epoch, limit = self._limits.get(place, (0, None))
        return limit if known_epoch == epoch else _UNKNOWN

    async def _limit(self, place: Place, epoch: int, open_: Sequence[Kept]) -> None:
        """Find the rate of redrives of a shard, before any of them marks something."""
        rated = [
            RedriveLimit(kept.id, kept.plan.asked.rate)
            for kept in open_
            if kept.plan.asked.kind == "redrive"
            and kept.plan.asked.rate is not None
            and kept.plan.covers(place.shard)
        ]
        limit = min(rated, key=lambda each: each.rate or 0.0) if rated else None
        former = self._limits.get(place, (0, None))[1]
        if limit is None and former is not None:
            # What a cancelled redrive has marked goes on, at its rate.
            look = (await self._looking.operations(place)).get(former.operation)
            limit = former if look is not None and look.open else None
        if len(self._limits) >= _LIMITS_MAX:
            self._limits.clear()
        self._limits[place] = epoch, limit

    async def tend(self, subscription: Subscription) -> None:
        """What upkeep does: tells shards what they were not told, ends and forgets what is over."""
        kept = await self._book.all(subscription.project, subscription.name)
        if not kept:
            return
        looks = await self._looks(subscription)
        for each in kept:
            if each.state in ENDED:
                continue
            if each.plan.asked.kind == "reset":
                await self._reset(subscription, each)
                continue
            if not all(look.asked for look in _of(each, looks)):
                await self._tell(subscription, each)
            await self._see(subscription, each, looks)
        ended = [each for each in kept if each.state in ENDED]
        over_ms = self._clock.now_ms() - self._keep_ms
        for each in ended[:ENDED_MAX]:
            if each.ended_ms < over_ms:
                await self._forget(subscription, each)
        for each in ended[ENDED_MAX:]:
            await self._forget(subscription, each)

    async def _work_at_once(self, place: Place, kept: Kept) -> None:
        cursor = ""
        for _ in range(_STEPS_AT_ONCE):
            cursor = (await self._stepping.step(place, kept, cursor, STEP_MAX)).cursor
            if not cursor:
                break
        look = (await self._looking.operations(place)).get(kept.id, OperationLook())
        if not cursor and not look.open:
            named = (place.project, place.subscription)
            await self._book.move(*named, kept.id, OperationState.DONE)

    async def _reset(self, subscription: Subscription, kept: Kept) -> None:
        asked, named = kept.plan.asked, (subscription.project, subscription.name)
        assert asked.to is not None
        await self._subscriptions.reset(*named, asked.to, incarnation=kept.plan.incarnation)
        await self._book.move(*named, kept.id, OperationState.DONE)

    # -- How far they are --------------------------------------------------------------------

    async def _looks(self, subscription: Subscription) -> _Looks:
        places = map(subscription.place, range(subscription.shards))
        return [await self._looking.operations(place) for place in places]

    async def _see(self, subscription: Subscription, kept: Kept, looks: _Looks) -> Operation:
        """An operation with its progress; one that turns out to be over is ended by that."""
        here = _of(kept, looks)
        over = all(kept.plan.is_over(look) and not look.open for look in here)
        if over and kept.state not in ENDED and kept.plan.asked.kind != "reset":
            named = (subscription.project, subscription.name)
            kept = await self._book.move(*named, kept.id, OperationState.DONE)
        return show(kept, here)

    async def _conclude(self, place: Place, kept: Kept, look: OperationLook) -> None:
        """Ends an operation, if this shard was the last that had something open."""
        subscription = self._subscriptions.known(place.project, place.subscription)
        if subscription is None:
            subscription = await self._subscriptions.get(place.project, place.subscription)
        if not look.open:
            await self._see(subscription, kept, await self._looks(subscription))

    async def _tell(self, subscription: Subscription, kept: Kept) -> None:
        """Tells the shards of it, whether they know it or not; their owners hear of it."""
        for shard in kept.plan.shards(subscription.shards):
            place = subscription.place(shard)
            # One that is being mended or removed is told later, by upkeep.
            with contextlib.suppress(ShardFrozenError, ShardLostError):
                await self._operating.enlist(place, kept.id, kept.plan.asked.kind.encode())

    async def _forget(self, subscription: Subscription, kept: Kept) -> None:
        for shard in kept.plan.shards(subscription.shards):
            await self._operating.forget(subscription.place(shard), kept.id, _NOTES)
        # Last: a forgetting that died half-way is found, and done again.
        await self._book.forget(subscription.project, subscription.name, kept.id)


def _of(kept: Kept, looks: _Looks) -> Sequence[OperationLook]:
    """What the shards say that it is about."""
    shards = kept.plan.shards(len(looks))
    return [looks[shard].get(kept.id, OperationLook()) for shard in shards]
