"""What keeps a shard from delivering: looked at from outside, by whoever asks.

All is in the store, so every process tells the same. Breakers are in the process that delivers; it
reports open ones to the store within a second. Throttles are told by that process alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, Literal

import msgspec

from waystation.delivery.standing import Standing
from waystation.delivery.states import Disabled, EndpointStates
from waystation.errors import LogNotFoundError
from waystation.logs.protocol import Logs
from waystation.runtime.clock import Clock, utc_text
from waystation.store.client import Store
from waystation.subscriptions.definition import Subscription
from waystation.subscriptions.looks import ShardLook
from waystation.subscriptions.names import DELIVERY, Place
from waystation.subscriptions.owned import Owned
from waystation.subscriptions.placement import Patience
from waystation.subscriptions.positions import at_of
from waystation.subscriptions.record_room import bounds_reading, is_full
from waystation.subscriptions.shards import readable
from waystation.subscriptions.states import ShardState
from waystation.subscriptions.subscriptions import Subscriptions
from waystation.topics.model import TopicDefinition
from waystation.topics.router import partitions_of

#: A delivery node that was silent for so long is gone.
_SILENT_MS = round(Patience().silent_seconds * 1000)

HindranceCode = Literal[
    "barrier",
    "breaker_open",
    "dead_full",
    "endpoint_disabled",
    "endpoint_held",
    "frozen",
    "inconsistent_shards",
    "paused",
    "record_full",
    "retry_full",
    "store_full",
    "throttled",
    "topic_deleted",
    "topic_missing",
    "unowned",
]


class Hindrance(msgspec.Struct, frozen=True, kw_only=True):
    """Why a shard does not deliver, or not all."""

    code: HindranceCode
    text: str
    state: ShardState
    #: Whether it holds up what is in retry or redriven, too; else only what is in the topic.
    heads: bool = True
    facts: dict[str, Any] = {}


class Circumstances(msgspec.Struct, frozen=True, kw_only=True):
    """What is the same for all shards of a subscription, at one moment."""

    subscription: Subscription
    #: None: it was purged.
    topic: TopicDefinition | None
    target: str
    disabled: Disabled | None
    held_ms: int
    #: Of this process; None where nothing is sent to the endpoint.
    standing: Standing | None
    #: Node whose breaker for the endpoint is open → ms until its next probe, as it reported.
    breakers: dict[str, int]
    #: Delivery nodes, and when each was last heard, by the store's clock.
    beats: dict[str, int]


class Hindrances:
    """Finds them, the one that matters most first."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        store: Store,
        logs: Logs,
        *,
        target: Callable[[Subscription], str],
        standing: Callable[[str], Standing | None],
        shards: Callable[[], Mapping[Place, Owned]],
        clock: Clock,
    ) -> None:
        self._subscriptions = subscriptions
        self._store = store
        self._states = EndpointStates(store)
        self._logs = logs
        self._target = target
        self._standing = standing
        #: Those that this process delivers.
        self.shards = shards
        self._clock = clock

    async def circumstances(self, subscription: Subscription) -> Circumstances:
        """What all its shards work under."""
        target, survey = self._target(subscription), await self._states.survey()
        return Circumstances(
            subscription=subscription,
            topic=await self._subscriptions.topic_of(subscription),
            target=target,
            disabled=survey.disabled.get(target),
            held_ms=survey.held_ms.get(target, 0),
            standing=self._standing(target),
            breakers={
                node: report[target] for node, report in survey.breakers.items() if target in report
            },
            beats=await self._beats(),
        )

    async def _beats(self) -> dict[str, int]:
        pairs = await self._store.call("ZRANGE", DELIVERY, 0, -1, "WITHSCORES", repeatable=True)
        return {pairs[i].decode(): int(float(pairs[i + 1])) for i in range(0, len(pairs), 2)}

    async def of(
        self, around: Circumstances, shard: int, look: ShardLook | None
    ) -> Hindrance | None:
        """What keeps a shard from delivering; None: nothing does. `look` is None for none there."""
        if look is None:
            return _unowned(around, "", 0)
        found = _of_store(around, look) or self._of_owner(around, shard, look)
        found = found or _of_room(around, look)
        found = found or await self._of_records(around, shard)
        if found is not None:
            return found
        storage = await self.barrier_of(around, shard, look)
        return None if storage is None else _at_barrier(around, storage)

    def _of_owner(self, around: Circumstances, shard: int, look: ShardLook) -> Hindrance | None:
        """Find what the owner of a shard knows: all if that is this process, else its breaker."""
        owned = self.shards().get(around.subscription.place(shard))
        if owned is None:
            probe_ms = around.breakers.get(look.owner)
            return None if probe_ms is None else _breaker_open(around, probe_ms / 1000)
        standing, held = around.standing, {"target": around.target}
        if standing is not None and not standing.breaker.is_closed:
            seconds = standing.breaker.next_at() - self._clock.monotonic()
            return _breaker_open(around, max(0.0, seconds) if isfinite(seconds) else 0.0)
        if owned.fills_full_store:
            text = "The store is above its memory limit, and messages fail: the topic is not read."
            return _in_main("store_full", text, ShardState.FULL, {})
        if owned.throttled:
            options = around.subscription.options
            facts = {**held, "rate": options.rate, "error_percent": options.error_percent}
            text = "Its rate, or the share of failures that it allows, is used up for now."
            return Hindrance(code="throttled", text=text, state=ShardState.HELD, facts=facts)
        return None

    async def _of_records(self, around: Circumstances, shard: int) -> Hindrance | None:
        keeps = self._subscriptions.construction.keeps
        if not bounds_reading(keeps):
            return None
        try:
            size = (await self._logs.state(around.subscription.record_log, shard)).bytes
        except LogNotFoundError:
            return None
        if not is_full(keeps, size):
            return None
        text = (
            f"Its record log fills {size:,} of {keeps.max_bytes:,} bytes, and history has not read"
            " them: the topic is not read."
        )
        facts = {"bytes": size, "max_bytes": keeps.max_bytes}
        return _in_main("record_full", text, ShardState.FULL, facts)

    async def barrier_of(self, around: Circumstances, shard: int, look: ShardLook) -> int | None:
        """Number of the storage topic that a shard cannot go on to; None: it can go on."""
        topic, subscription = around.topic, around.subscription
        if topic is None:
            return None
        spreads = [each.router for each in topic.storage]
        first = next(
            (
                i
                for i, each in enumerate(topic.storage)
                if each.number >= subscription.first_storage
            ),
            len(spreads),
        )
        for index in range(first, len(spreads) - 1):
            if not await self._is_finished(around, topic, index, shard, look):
                return None
            if readable(spreads, index, subscription.shards) == index + 1:
                return topic.storage[index + 1].number
        return None

    async def _is_finished(
        self, around: Circumstances, topic: TopicDefinition, index: int, shard: int, look: ShardLook
    ) -> bool:
        storage = topic.storage[index]
        partitions = partitions_of(shard, storage.partitions, around.subscription.shards)
        if not partitions:
            return topic.produce_pointer > index
        for partition in partitions:
            try:
                state = await self._logs.state(topic.log(storage), partition)
            except LogNotFoundError:
                return False
            low = look.low.get(at_of(storage.number, partition), 0)
            if state.sealed is None or low < state.end:
                return False
        return True


def _of_store(around: Circumstances, look: ShardLook) -> Hindrance | None:
    """What holds up all of a shard, and what its topic does."""
    subscription, now = around.subscription, look.now_ms
    if look.frozen:
        text = f"The shard is frozen: {look.frozen}."
        return Hindrance(
            code="frozen", text=text, state=ShardState.FROZEN, facts={"cause": look.frozen}
        )
    if subscription.is_paused(now):
        return _paused(subscription)
    if not look.owner or look.until_ms <= now:
        return _unowned(around, look.owner, now)
    target = {"target": around.target}
    if around.disabled is not None:
        cause, since = around.disabled.cause, around.disabled.at_ms
        return Hindrance(
            code="endpoint_disabled",
            text=f"The endpoint is disabled since {utc_text(since)}: {cause.removesuffix('.')}.",
            state=ShardState.HELD,
            facts={**target, "cause": cause, "since_ms": since},
        )
    if around.held_ms > 0:
        text = f"The endpoint asked to be left alone for {around.held_ms / 1000:.0f} s more."
        return Hindrance(
            code="endpoint_held",
            text=text,
            state=ShardState.HELD,
            facts={**target, "seconds": around.held_ms / 1000},
        )
    return _of_topic(around)


def _of_topic(around: Circumstances) -> Hindrance | None:
    name, topic = around.subscription.topic, around.topic
    facts, running = {"topic": name}, ShardState.RUNNING
    if topic is None or topic.state == "purged":
        return _in_main("topic_missing", f"There is no topic {name}.", running, facts)
    if topic.state == "deleted":
        text = f"Topic {name} is deleted; it goes on when that is restored."
        return _in_main("topic_deleted", text, running, facts)
    return None


def _of_room(around: Circumstances, look: ShardLook) -> Hindrance | None:
    options, full = around.subscription.options, ShardState.FULL
    most = options.retry_max_bytes
    if most is not None and look.retry_bytes >= most:
        text = f"Retries fill {look.retry_bytes:,} of {most:,} bytes: the topic is not read."
        facts = {"bytes": look.retry_bytes, "max_bytes": most}
        return _in_main("retry_full", text, full, facts)
    most = options.dead_max_bytes
    if most is None or look.dead_bytes < most:
        return None
    if options.dead_full_policy == "drop_and_count" and look.dead_bytes == most:
        return None
    text = f"Dead letters fill {look.dead_bytes:,} of {most:,} bytes: the topic is not read."
    facts = {"bytes": look.dead_bytes, "max_bytes": most}
    return _in_main("dead_full", text, full, facts)


def _breaker_open(around: Circumstances, seconds: float) -> Hindrance:
    return Hindrance(
        code="breaker_open",
        text=(
            "The circuit breaker of the endpoint is open, because requests of several groups failed"
            f" and none succeeded. The next probe is sent in {seconds:.0f} s; `waystation"
            " subscription resume` closes the breaker at once."
        ),
        state=ShardState.HELD,
        facts={"target": around.target, "seconds": round(seconds, 3)},
    )


def _in_main(code: HindranceCode, text: str, state: ShardState, facts: dict[str, Any]) -> Hindrance:
    """What keeps the topic from being read, while retries go on."""
    return Hindrance(code=code, text=text, state=state, heads=False, facts=facts)


def _paused(subscription: Subscription) -> Hindrance:
    until, reason = subscription.paused_until_ms, subscription.paused_reason
    ends = f"until {utc_text(until)}" if until else "until somebody resumes it"
    because = f": {reason.removesuffix('.')}" if reason else ""
    return Hindrance(
        code="paused",
        text=f"The subscription is paused {ends}{because}.",
        state=ShardState.PAUSED,
        facts={"until_ms": until, "reason": reason},
    )


def _unowned(around: Circumstances, owner: str, now_ms: int) -> Hindrance:
    alive = sum(beat >= now_ms - _SILENT_MS for beat in around.beats.values())
    state = around.subscription.state
    if state != "active":
        text = f"The subscription is {state}, so no node delivers the shard."
    elif not alive:
        text = "No delivery node is alive."
    else:
        text = f"No node has the shard at this moment; {alive} delivery nodes are alive."
    facts = {"last_owner": owner, "delivery_nodes": alive}
    return Hindrance(code="unowned", text=text, state=ShardState.UNOWNED, facts=facts)


def _at_barrier(around: Circumstances, storage: int) -> Hindrance:
    shards = around.subscription.shards
    text = (
        f"It has read all before storage topic {storage}, and cannot go on to that: with {shards}"
        " shards a group could have another shard there. To deliver what is in it, create another"
        " subscription with `--from` the time of the switch, which gets a number of shards that"
        " can follow, and delete this one when its retries and dead letters are settled."
    )
    facts = {"storage": storage, "shards": shards}
    return _in_main("barrier", text, ShardState.AT_BARRIER, facts)
