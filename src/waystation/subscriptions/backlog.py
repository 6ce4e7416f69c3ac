"""The backlog of a shard: what its topic has that it has not acknowledged yet.

Looked at from outside, in calls that only read. What is in retry or among dead letters is
acknowledged, and is not counted here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec

from waystation.errors import LogDamagedError, LogNotFoundError, OffsetOutOfRangeError
from waystation.logs.protocol import Logs
from waystation.store.client import Store
from waystation.subscriptions.definition import Subscription
from waystation.subscriptions.names import Place
from waystation.subscriptions.positions import at_of
from waystation.topics.model import StorageTopicDefinition, TopicDefinition
from waystation.topics.router import partitions_of


class Backlog(msgspec.Struct, frozen=True):
    """How far a shard is behind."""

    messages: int = 0
    #: When the oldest of them was produced; 0: there is none.
    oldest_ms: int = 0

    def __add__(self, other: Backlog) -> Backlog:
        times = [each for each in (self.oldest_ms, other.oldest_ms) if each]
        return Backlog(self.messages + other.messages, min(times, default=0))


class Backlogs:
    """Looks at backlogs."""

    def __init__(self, store: Store, logs: Logs) -> None:
        self._store = store
        self._logs = logs

    async def of(
        self,
        subscription: Subscription,
        topic: TopicDefinition,
        place: Place,
        low: Mapping[str, int],
    ) -> Backlog:
        """What a shard, whose positions are `low`, has before it."""
        found = Backlog()
        # Storage topics are read one after the other: before one that was begun with nothing is
        # left. So from the newest on, and no further back than that.
        for storage in reversed(topic.storage):
            if storage.number < subscription.first_storage:
                break
            parts = await asyncio.gather(
                *(
                    self._partition(topic, place, storage, partition, low)
                    for partition in partitions_of(
                        place.shard, storage.partitions, subscription.shards
                    )
                )
            )
            found = sum((each for each, _ in parts), found)
            if any(begun for _, begun in parts):
                break
        return found

    async def _partition(
        self,
        topic: TopicDefinition,
        place: Place,
        storage: StorageTopicDefinition,
        partition: int,
        low: Mapping[str, int],
    ) -> tuple[Backlog, bool]:
        """With whether something of it was acknowledged that is still kept."""
        at, log = at_of(storage.number, partition), topic.log(storage)
        # The end before the acknowledged ones: what comes between the two makes nothing negative.
        try:
            state = await self._logs.state(log, partition)
            begin = max(low.get(at, 0), state.first)
            begun = begin > state.first
            if begin >= state.end:
                return Backlog(), begun
            oldest_ms = await self._oldest_ms(log, partition, begin)
        except (LogNotFoundError, OffsetOutOfRangeError):
            return Backlog(), False  # Deleted or trimmed while we look.
        # Those that were acknowledged out of their order.
        ahead = await self._store.call("ZCOUNT", place.key(f"acks:{at}"), begin, f"({state.end}")
        messages = max(0, state.end - begin - int(ahead))
        return Backlog(messages, oldest_ms if messages else 0), begun

    async def _oldest_ms(self, log: str, partition: int, offset: int) -> int:
        """Return the time of the first existing message from an offset on; 0 if there is none."""
        try:
            batch = await self._logs.read(log, partition, offset, limit=1, bytes_max=1)
        except LogDamagedError as hole:
            return await self._oldest_ms(log, partition, hole.end)
        return batch.times_ms[0] if batch else 0
