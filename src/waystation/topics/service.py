"""Topic service: creates, grows, switches, blocks, deletes, restores and purges topics.

Each method changes the database, the logs and the cached definition in steps that can be repeated.
A process can crash between two steps. Then the definitions in database and store differ, or a log
is missing. The next process that detects this finishes the change.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from waystation.catalogue import Catalogue
from waystation.db.definitions import Definitions, require_version
from waystation.errors import (
    ConflictError,
    GrowthStopsSubscriptionsError,
    InvalidInputError,
    LogNotFoundError,
    TopicNotFoundError,
    TopicSubscribedError,
)
from waystation.logs.protocol import Logs
from waystation.runtime.clock import Clock
from waystation.runtime.ids import require_name
from waystation.runtime.tasks import for_each
from waystation.store.client import Store
from waystation.topics.keys import definition_key
from waystation.topics.model import (
    ALIVE,
    EVERY,
    PARTITIONS_DEFAULT,
    PARTITIONS_MAX,
    StorageTopicDefinition,
    TopicDefinition,
    decode_topic,
    encode_topic,
    topic_not_found,
)
from waystation.topics.rate_limits import check_rate
from waystation.topics.router import is_advised
from waystation.topics.schemas import check_schema
from waystation.types.topic import TopicOptions

#: Number of subscriptions that an error message lists.
_NAMED_MAX = 10


class TopicReaders(Protocol):
    """The subscriptions of topics. A protocol, because topics may not import subscriptions."""

    async def names(self, project: str, topic: str) -> list[str]:
        """Return the names of the subscriptions that read a topic."""
        ...

    async def stopped_by(self, topic: TopicDefinition, index: int) -> list[str]:
        """Name the subscriptions that would stop before the storage topic at `index`.

        A subscription can continue if each group keeps the shard that it has in the storage topic
        before.
        """
        ...

    async def hold(self, topic: TopicDefinition) -> None:
        """Place a retention hold of each subscription on the next storage topic."""
        ...


class TopicDefinitions(Definitions[TopicDefinition]):
    """Topic definitions in the database, in the store and in the memory of this process."""

    kind = "topic"
    usable_states = ALIVE

    def encode(self, definition: TopicDefinition) -> bytes:
        return encode_topic(definition)

    def decode(self, body: bytes) -> TopicDefinition:
        return decode_topic(body)

    def cache_key(self, project: str, name: str) -> str:
        return definition_key(project, name)

    def not_found(self, name: str) -> TopicNotFoundError:
        return topic_not_found(name)


class TopicService:
    """Changes and returns the topics of all projects."""

    def __init__(
        self,
        catalogue: Catalogue,
        store: Store,
        logs: Logs,
        readers: TopicReaders,
        *,
        clock: Clock,
        strict: bool = False,
    ) -> None:
        self._definitions = TopicDefinitions(catalogue, store, clock=clock)
        self._logs = logs
        self._readers = readers
        self._clock = clock
        #: Setting `topics.strict_partitions`: reject numbers of partitions with few divisors.
        self._strict = strict

    # -- Reading -----------------------------------------------------------------------------

    def get_recent(self, project: str, name: str) -> TopicDefinition | None:
        """Return the topic if this process read it in the last two seconds; else None.

        The topic can have any state. The method does not wait.
        """
        return self._definitions.get_recent(project, name)

    async def get(self, project: str, name: str) -> TopicDefinition:
        """Return the topic, which may be up to two seconds old.

        Raise TopicNotFoundError if it does not exist or is deleted.
        """
        topic = await self.get_any(project, name)
        if topic.state not in ALIVE:
            raise topic_not_found(name)
        return topic

    async def get_newest(self, project: str, name: str) -> TopicDefinition:
        """Return the latest version of the topic, which `get` may not return yet.

        Raise TopicNotFoundError if it does not exist or is deleted.
        """
        copied = await self.get(project, name)
        # Fall back to the store, because a restored database may not have the topic yet.
        topic = await self._definitions.read_row(project, name) or copied
        if topic.state not in ALIVE:
            raise topic_not_found(name)
        return topic

    async def get_any(self, project: str, name: str) -> TopicDefinition:
        """Return the topic, even if it is deleted.

        Raise TopicNotFoundError if it does not exist.
        """
        require_name(name, field="topic")
        topic = await self._definitions.read_cached(project, name)
        if topic is None:
            # Copy the topic from the database: the store is new, or a node crashed while it created
            # the topic.
            read_at = self._clock.uptime_s()
            topic = await self._definitions.read_row(project, name)
            if topic is None:
                raise topic_not_found(name)
            await self._publish(topic)
            topic = self._definitions.remember(topic, read_at)
        if topic.state == "purged":
            raise topic_not_found(name)
        return topic

    async def list(
        self, project: str, *, after: str = "", limit: int, deleted: bool = False
    ) -> list[TopicDefinition]:
        """Return topics of a project, sorted by name. Include deleted ones with `deleted`."""
        states = (*ALIVE, "deleted") if deleted else ALIVE
        return await self._definitions.page(project, states, after=after, limit=limit)

    def read_all(self) -> AsyncIterator[Sequence[TopicDefinition]]:
        """Return the topics of all projects in pages, in every state.

        Read them from the database.
        """
        return self._definitions.read_all()

    # -- Changes -----------------------------------------------------------------------------

    async def create(
        self,
        project: str,
        name: str,
        *,
        partitions: int = PARTITIONS_DEFAULT,
        options: TopicOptions | None = None,
    ) -> TopicDefinition:
        """Create a topic. Raise ConflictError if one with this name exists, even a deleted one."""
        require_name(name, field="name")
        self._check_partitions(partitions)
        options = options or TopicOptions()
        _check_options(options)
        purged, written = await self._definitions.read_newest(project, name) or (None, None)
        if purged is not None and purged.state != "purged":
            raise ConflictError(f"Topic '{name}' already exists.")
        # The store may have messages of a topic that this database does not know. Continue with the
        # next number, so that the new topic neither contains nor deletes those messages.
        former = purged or await self._definitions.read_cached(project, name)
        number = former.next_number if former else 0
        topic = TopicDefinition(
            project=project,
            name=name,
            version=former.version + 1 if former else 1,
            options=options,
            storage=(StorageTopicDefinition(number=number, partitions=partitions),),
            created_ms=self._clock.now_ms(),
            first_number=purged.first_number if purged else number,
        )
        await self._definitions.create(topic, over=written)
        await self._publish(topic)
        return self._definitions.remember(topic, self._clock.uptime_s())

    async def add_storage_topic(
        self,
        project: str,
        name: str,
        partitions: int,
        *,
        version: int | None = None,
        force: bool = False,
    ) -> TopicDefinition:
        """Add a storage topic. Producers use it after `switch_produce`.

        A caller that passes the version can repeat the call after a lost reply. Raise
        GrowthStopsSubscriptionsError if a subscription could not continue with the storage topic,
        unless `force` is set. The check can miss a subscription that is created at the same time.
        `switch_produce` repeats the check.
        """
        self._check_partitions(partitions)
        topic = None
        while topic is None:
            present = await self._present(project, name, version)
            if not force:
                await self._require_consistent(
                    present.with_storage(partitions), len(present.storage)
                )
            topic = await self._add_to(present, partitions, version)
        await self.create_logs(topic)
        return topic

    async def _add_to(
        self, present: TopicDefinition, partitions: int, version: int | None
    ) -> TopicDefinition | None:
        """Add a storage topic. Return None if another process added one since the check."""
        fits = False

        def added(topic: TopicDefinition) -> TopicDefinition:
            nonlocal fits
            require_version(topic, version, kind="topic")
            fits = topic.storage == present.storage
            return topic.with_storage(partitions) if fits else topic

        topic = await self._definitions.change(present.project, present.name, added)
        return topic if fits else None

    async def switch_produce(
        self, project: str, name: str, *, version: int | None = None, force: bool = False
    ) -> TopicDefinition:
        """Move the produce pointer to the next storage topic. Do nothing at the last one.

        When the call returns, older storage topics accept no further messages. A caller that passes
        the version can repeat the call after a lost reply. Raise GrowthStopsSubscriptionsError if
        a subscription could not continue with the next storage topic, unless `force` is set.
        """
        topic = await self._present(project, name, version)
        next_index = topic.produce_pointer + 1
        if not force and next_index < len(topic.storage):
            await self._require_consistent(topic, next_index)
        return await self.finish_switch(topic)

    async def _present(self, project: str, name: str, version: int | None) -> TopicDefinition:
        """Return the topic from the database. Raise ConflictError if it has another version."""

        def checked(topic: TopicDefinition) -> TopicDefinition:
            require_version(topic, version, kind="topic")
            return topic

        return await self._definitions.change(project, name, checked)

    async def finish_switch(self, topic: TopicDefinition) -> TopicDefinition:
        """Seal the current storage topic and move the produce pointer to the next one.

        Any process can finish a switch that another one started. Do nothing at the last one.
        """
        next_index = topic.produce_pointer + 1
        if next_index >= len(topic.storage):
            return topic
        await self.create_logs(topic)
        # Place the holds before the first append, because trimming can delete messages without one.
        await self._readers.hold(topic)
        log = topic.log(topic.target)

        async def seal(partition: int) -> None:
            await self._logs.seal(log, partition, next_index)

        await for_each(range(topic.target.partitions), seal)

        def moved(now: TopicDefinition) -> TopicDefinition:
            # Move the pointer only from the storage topic that was sealed. Another process may have
            # moved it, or may have purged the topic and created a new one with this name.
            return now.switched() if now.target.number == topic.target.number else now

        return await self._definitions.change(topic.project, topic.name, moved)

    async def change_options(
        self, project: str, name: str, options: TopicOptions, *, version: int
    ) -> TopicDefinition:
        """Replace the options of a topic. Raise ConflictError if it has another version."""
        _check_options(options)

        def changed(topic: TopicDefinition) -> TopicDefinition:
            require_version(topic, version, kind="topic")
            return topic.with_options(options, now_ms=self._clock.now_ms())

        topic = await self._definitions.change(project, name, changed)
        for storage in topic.storage:
            await self._set_retention(topic, storage)
        return topic

    async def block(self, project: str, name: str) -> TopicDefinition:
        """Block a topic: reject new messages. Stored messages stay readable."""
        return await self._definitions.change(
            project, name, lambda topic: topic.in_state("blocked")
        )

    async def unblock(self, project: str, name: str) -> TopicDefinition:
        """Unblock a topic: accept messages again."""
        return await self._definitions.change(project, name, lambda topic: topic.in_state("active"))

    async def delete(self, project: str, name: str) -> TopicDefinition:
        """Delete a topic. `restore` restores it with its messages until `purge` deletes them."""
        await self.get(project, name)
        await self._require_no_readers(project, name)
        return await self._definitions.change(project, name, lambda topic: topic.deleted())

    async def restore(self, project: str, name: str) -> TopicDefinition:
        """Restore a deleted topic in the state before its deletion: active or blocked."""

        def restored(topic: TopicDefinition) -> TopicDefinition:
            if topic.state != "deleted":
                raise ConflictError(f"Topic '{name}' is not deleted.")
            return topic.restored()

        return await self._definitions.change(project, name, restored, states=(*ALIVE, "deleted"))

    async def purge(self, project: str, name: str) -> None:
        """Delete the messages of a deleted topic permanently and free its name."""

        def purged(topic: TopicDefinition) -> TopicDefinition:
            if topic.state in ALIVE:
                raise ConflictError(
                    f"Topic '{name}' is not deleted.",
                    hint=f"Delete it with `waystation topic delete {name}` first.",
                )
            return topic if topic.state == "purged" else topic.in_state("purged")

        require_name(name, field="topic")
        # A subscription may have been created during the deletion.
        await self._require_no_readers(project, name)
        topic = await self._definitions.change(project, name, purged, states=EVERY)
        await self.delete_purged_logs(
            topic, {topic.log(each): each.partitions for each in topic.storage}
        )

    # -- Recovery ----------------------------------------------------------------------------

    async def create_logs(self, topic: TopicDefinition) -> None:
        """Create the missing logs of the current storage topic and of later ones.

        A log can be missing because a node crashed after it stored the definition.
        """
        for storage in topic.storage[topic.produce_pointer :]:
            await self._logs.create(topic.log(storage), storage.partitions, topic.retention)

    async def reconcile(self, topic: TopicDefinition) -> None:
        """Make database and cached definition equal after a crash. The higher version wins."""
        copied = await self._definitions.cached_version(topic)
        if copied < topic.version:
            await self._publish(topic)
        elif copied > topic.version:
            # The topic has just changed, or the database was restored from a backup. `change` reads
            # both definitions again and writes the newer one to the database.
            await self._definitions.change(topic.project, topic.name, lambda now: now, states=EVERY)

    async def _publish(self, topic: TopicDefinition) -> None:
        """Create the logs of a topic, then write its definition to the store.

        Processes that read the definition expect the logs.
        """
        if topic.state in ALIVE:
            await self.create_logs(topic)
        await self._definitions.publish(topic)

    async def delete_purged_logs(self, topic: TopicDefinition, logs: dict[str, int]) -> None:
        """Delete the logs of purged storage topics.

        `logs` maps the names of existing logs to their numbers of partitions.
        """
        for number in topic.purged_numbers:
            if partitions := logs.get(topic.log_of(number)):
                await self._logs.delete(topic.log_of(number), partitions)

    async def _set_retention(self, topic: TopicDefinition, storage: StorageTopicDefinition) -> None:
        """Set the retention of the topic in all existing partitions of a storage topic."""
        log = topic.log(storage)

        async def set_retention(partition: int) -> None:
            with contextlib.suppress(LogNotFoundError):
                await self._logs.set_retention(log, partition, topic.retention)

        await for_each(range(storage.partitions), set_retention)

    async def _require_consistent(self, topic: TopicDefinition, index: int) -> None:
        """Raise GrowthStopsSubscriptionsError if subscriptions would stop at storage topic `index`.

        A subscription stops at a storage topic that could move groups to other shards.
        """
        stopped = await self._readers.stopped_by(topic, index)
        if not stopped:
            return
        more = len(stopped) - _NAMED_MAX
        names = ", ".join(stopped[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
        base, partitions = topic.storage[index - 1].router.base, topic.storage[index].partitions
        raise GrowthStopsSubscriptionsError(
            f"With {partitions} partitions, storage topic {index} of topic '{topic.name}' could"
            f" move groups to other shards. These subscriptions would stop at it: {names}.",
            hint=(
                f"Use a multiple of {base} partitions. The number of shards of each subscription"
                f" must divide {base}, or be 1. To let the subscriptions stop, repeat with `force`"
                " (`--force`)."
            ),
        )

    async def _require_no_readers(self, project: str, name: str) -> None:
        if readers := await self._readers.names(project, name):
            names = ", ".join(readers[:_NAMED_MAX]) + ", …" * (len(readers) > _NAMED_MAX)
            raise TopicSubscribedError(
                f"Topic '{name}' is used by subscriptions: {names}.",
                hint="Delete each of them with `waystation subscription delete NAME` first.",
            )

    def _check_partitions(self, partitions: int) -> None:
        if not 1 <= partitions <= PARTITIONS_MAX:
            raise InvalidInputError(
                f"A topic must have 1 to {PARTITIONS_MAX} partitions; {partitions} were requested.",
                field="partitions",
            )
        if self._strict and not is_advised(partitions):
            raise InvalidInputError(
                f"Only few numbers of shards divide {partitions} partitions evenly.",
                field="partitions",
                hint="Use 1, 2, 3 or a multiple of 4 or 6, or disable `topics.strict_partitions`.",
            )


def _check_options(options: TopicOptions) -> None:
    check_rate(options.rate)
    if options.json_schema is not None:
        check_schema(options.json_schema)
