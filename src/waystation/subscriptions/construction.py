"""What a subscription has in the store: shards with positions, holds, a record log; built, removed.

Each step can be repeated, by anyone and by two at once: a position is written once, a hold never
stays above the position that it is for, and what is removed lets nobody in who comes late. So
whoever finds something half-built or half-removed does the same again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from waystation.errors import LogNotFoundError, OffsetOutOfRangeError, TopicNotFoundError
from waystation.logs.protocol import Retention
from waystation.logs.streams import StreamLogs
from waystation.runtime.tasks import for_each
from waystation.store.client import Store
from waystation.store.dataset import history_reader
from waystation.store.scripts import script
from waystation.subscriptions import names
from waystation.subscriptions.definition import StartAt, Subscription
from waystation.subscriptions.operating import Operating
from waystation.subscriptions.positions import at_of, parse_at
from waystation.subscriptions.shard_store import ShardStore
from waystation.subscriptions.shards import assignments
from waystation.subscriptions.terms import NO_EPOCH
from waystation.topics.model import StorageTopicDefinition, TopicDefinition
from waystation.topics.service import TopicService

_REMOVE = script(__package__, "remove")
#: How long the rest of a removed shard keeps everyone off who still believes in it.
_REMAINS_MS = 3600 * 1000
#: How often a hold is tried again at what is kept by then: trimming goes on meanwhile.
_ATTEMPTS_MAX = 5
_NOWHERE: Mapping[str, int] = {}


class Construction:
    """Builds shards, moves them, removes them."""

    def __init__(
        self,
        store: Store,
        logs: StreamLogs,
        topics: TopicService,
        *,
        dataset: str,
        keeps: Retention,
    ) -> None:
        self._store = store
        self._logs = logs
        self._topics = topics
        self._dataset = dataset
        #: What record logs keep.
        self.keeps = keeps
        self._shards = ShardStore(store)
        self._operating = Operating(store, dataset=dataset)

    async def incarnations(self, subscription: Subscription) -> list[int]:
        """The incarnation that each shard has come to; 0 for one that is not there."""
        found = [0] * subscription.shards

        async def look(shard: int) -> None:
            key = subscription.place(shard).key("head")
            found[shard] = int(
                await self._store.call("HGET", key, "incarnation", repeatable=True) or 0
            )

        await for_each(range(subscription.shards), look)
        return found

    async def build(self, subscription: Subscription, start: StartAt) -> None:
        """Opens all shards that are not open, at `start`; ShardFrozenError if they are removed."""
        topic = await self._topic(subscription)
        keeps = self.keeps.divided(subscription.shards)
        if await self._logs.create(subscription.record_log, subscription.shards, keeps):
            await self._hold_for_history(subscription)
        terms = subscription.terms(self._dataset, NO_EPOCH)
        await self.hold_new(subscription, topic)

        async def open_(shard: int) -> None:
            place = subscription.place(shard)
            at = await self._hold_at(subscription, topic, shard, start)
            await self._shards.establish(place, terms, at, topic=subscription.topic)
            await self._hold_positions(subscription, topic, shard)

        there = await self.incarnations(subscription)
        await for_each((shard for shard, found in enumerate(there) if not found), open_)

    async def _hold_for_history(self, subscription: Subscription) -> None:
        """Register the reader of history with a new record log, so that it keeps what it may.

        History itself comes with its next round, and by then little would be left of a busy shard.
        """
        reader = await history_reader(self._store)
        if reader:
            for shard in range(subscription.shards):
                # History may have been quicker, and the log may have dropped its first entries.
                with contextlib.suppress(OffsetOutOfRangeError):
                    await self._logs.hold(subscription.record_log, shard, reader, 0)

    async def move(self, subscription: Subscription) -> None:
        """Brings all shards to the incarnation of their subscription, and to where it begins."""
        topic = await self._topic(subscription)
        await self.hold_new(subscription, topic)

        async def move(shard: int) -> None:
            # Holds go down before positions do, and up after them. And down again: where they
            # stayed, the owner may have moved them up until it was fenced.
            place = subscription.place(shard)
            present = await self._positions(subscription, shard)
            at = await self._hold_at(subscription, topic, shard, subscription.start, present)
            await self._operating.reset(place, subscription.incarnation, at)
            await self._hold_positions(subscription, topic, shard)

        there = await self.incarnations(subscription)
        late = (shard for shard, found in enumerate(there) if found < subscription.incarnation)
        await for_each(late, move)

    async def remove(self, subscription: Subscription) -> None:
        """Removes all but the record log, which is sealed: nothing happens there any more."""
        topic = await self._topic(subscription)

        async def remove(shard: int) -> None:
            place = subscription.place(shard)
            partitions = _partitions(subscription, topic, shard)
            words = [at_of(storage.number, each) for storage, each in partitions]
            await self._store.run(_REMOVE, [place.log], ["deleted", _REMAINS_MS, *words])
            with contextlib.suppress(LogNotFoundError):
                await self._logs.seal(subscription.record_log, shard, subscription.generation + 1)

        await for_each(range(subscription.shards), remove)
        await self.let_go(subscription)

    async def let_go(self, subscription: Subscription) -> None:
        """Releases all holds, and forgets operations; some may have come after the removal."""
        topic = await self._topic(subscription)
        reader = names.reader(subscription.name)
        partitions = (
            [
                (topic.log(storage), partition)
                for storage in topic.storage
                for partition in range(storage.partitions)
            ]
            if topic
            else []
        )

        async def release(partition: tuple[str, int]) -> None:
            await self._logs.release(*partition, reader)

        await for_each(partitions, release)
        named = (subscription.project, subscription.name)
        operations = (names.operations(*named), names.open_operations(*named))
        await self._store.call("UNLINK", *operations, repeatable=True)

    async def hold_new(self, subscription: Subscription, topic: TopicDefinition | None) -> None:
        """Holds the storage topics that come after the one that is produced to, whole."""
        new = topic.storage[topic.produce_pointer + 1 :] if topic else ()
        wanted = {at_of(each.number, i): 0 for each in new for i in range(each.partitions)}
        await self._hold(subscription, topic, wanted)

    async def behind(self, subscription: Subscription, start: StartAt) -> int:
        """How many messages lie behind a beginning: what a reset there would deliver."""
        topic, count = await self._topic(subscription), 0
        for shard in range(subscription.shards):
            for storage, partition in _partitions(subscription, topic, shard, produced=True):
                assert topic is not None
                with contextlib.suppress(LogNotFoundError):
                    offset = await self._offset(topic.log(storage), partition, start)
                    state = await self._logs.state(topic.log(storage), partition)
                    count += state.end - offset
        return count

    # -- Where a shard begins, and what it needs ---------------------------------------------

    async def _topic(self, subscription: Subscription) -> TopicDefinition | None:
        try:
            return await self._topics.get_any(subscription.project, subscription.topic)
        except TopicNotFoundError:
            return None

    async def _hold_at(
        self,
        subscription: Subscription,
        topic: TopicDefinition | None,
        shard: int,
        start: StartAt,
        present: Mapping[str, int] = _NOWHERE,
    ) -> dict[str, int]:
        """Where a shard begins in each partition; all of it is held, from where it is if lower."""
        found: dict[str, int] = {}
        for storage, partition in _partitions(subscription, topic, shard, produced=True):
            assert topic is not None
            log, at = topic.log(storage), at_of(storage.number, partition)
            for _ in range(_ATTEMPTS_MAX):
                with contextlib.suppress(LogNotFoundError, OffsetOutOfRangeError):
                    offset = await self._offset(log, partition, start)
                    if offset < present.get(at, offset + 1):
                        await self._hold_one(subscription, log, partition, offset)
                    found[at] = offset
                    break
        return found

    async def _offset(self, log: str, partition: int, start: StartAt) -> int:
        if isinstance(start, int):
            return await self._logs.offset_at(log, partition, start)
        state = await self._logs.state(log, partition)
        return state.end if start == "end" else state.first

    async def _hold_positions(
        self, subscription: Subscription, topic: TopicDefinition | None, shard: int
    ) -> None:
        """Holds from the positions on that a shard really has, whoever wrote them."""
        await self._hold(subscription, topic, await self._positions(subscription, shard))

    async def _positions(self, subscription: Subscription, shard: int) -> dict[str, int]:
        key = subscription.place(shard).key("pos")
        pairs = await self._store.call("HGETALL", key, repeatable=True)
        return {pairs[i].decode(): int(pairs[i + 1]) for i in range(0, len(pairs), 2)}

    async def _hold(
        self, subscription: Subscription, topic: TopicDefinition | None, wanted: Mapping[str, int]
    ) -> None:
        async def hold(at: str) -> None:
            assert topic is not None
            number, partition = parse_at(at)
            # What is not kept any more cannot be held; the shard's owner finds out, and records it.
            with contextlib.suppress(LogNotFoundError, OffsetOutOfRangeError):
                await self._hold_one(subscription, topic.log_of(number), partition, wanted[at])

        await for_each(wanted if topic else (), hold)

    async def _hold_one(
        self, subscription: Subscription, log: str, partition: int, offset: int
    ) -> None:
        """For this incarnation: an owner that is of a former one moves it no more."""
        reader, incarnation = names.reader(subscription.name), subscription.incarnation
        await self._logs.hold(log, partition, reader, offset, incarnation=incarnation)


def _partitions(
    subscription: Subscription, topic: TopicDefinition | None, shard: int, *, produced: bool = False
) -> list[tuple[StorageTopicDefinition, int]]:
    """The partitions of a shard; only of storage topics that were produced to, if so asked."""
    if topic is None:
        return []
    storage = [
        each
        for each in topic.storage[: topic.produce_pointer + 1 if produced else None]
        if each.number >= subscription.first_storage
    ]
    spreads = [each.router for each in storage]
    return [
        (storage[each.storage], partition)
        for each in assignments(shard, spreads, subscription.shards)
        for partition in each.partitions
    ]
