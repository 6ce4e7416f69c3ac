"""The verbs of topics: create, add a storage topic, switch, block, delete, restore, purge.

Each is a sequence of steps that can be repeated: catalogue, logs, working copy. Whoever finds the
two copies apart, or a log missing that the topic names, finishes what another began.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence

from waystation.catalogue import Catalogue
from waystation.db.definitions import require_version
from waystation.errors import (
    ConflictError,
    GrowthStopsSubscriptionsError,
    InvalidInputError,
    LogNotFoundError,
    TopicSubscribedError,
)
from waystation.logs.protocol import Logs
from waystation.runtime.clock import Clock
from waystation.runtime.ids import require_name
from waystation.runtime.tasks import for_each
from waystation.store.client import Store
from waystation.topics.definitions import ALIVE, EVERY, TopicDefinitions, not_found
from waystation.topics.model import (
    PARTITIONS_DEFAULT,
    PARTITIONS_MAX,
    StorageTopic,
    Topic,
    TopicOptions,
)
from waystation.topics.rate_limits import check_rate
from waystation.topics.readers import NoReaders, Readers
from waystation.topics.router import is_advised
from waystation.topics.schemas import check_schema

#: Readers that an error names.
_NAMED_MAX = 10


class Topics:
    """All topics of all projects."""

    def __init__(
        self, catalogue: Catalogue, store: Store, logs: Logs, *, clock: Clock, strict: bool = False
    ) -> None:
        self._book = TopicDefinitions(catalogue, store, clock=clock)
        self._logs = logs
        self._clock = clock
        #: Whether the rule of partition counts is more than advice.
        self._strict = strict
        #: Who reads them; subscriptions say so by themselves.
        self.readers: Readers = NoReaders()

    # -- Looking -----------------------------------------------------------------------------

    def known(self, project: str, name: str) -> Topic | None:
        """The topic, if it was read a moment ago, in whichever state; never waits."""
        return self._book.known(project, name)

    async def get(self, project: str, name: str) -> Topic:
        """The topic as it is; TopicNotFoundError also for a deleted one."""
        topic = await self.get_any(project, name)
        if topic.state not in ALIVE:
            raise not_found(name)
        return topic

    async def newest(self, project: str, name: str) -> Topic:
        """Return the topic as the catalogue has it now; TopicNotFoundError also for a deleted one.

        `get` may return a version that is up to two seconds old.
        """
        copied = await self.get(project, name)
        # The store may know a topic that this catalogue never knew.
        topic = await self._book.read_row(project, name) or copied
        if topic.state not in ALIVE:
            raise not_found(name)
        return topic

    async def get_any(self, project: str, name: str) -> Topic:
        """The topic as it is, a deleted one included."""
        require_name(name, field="topic")
        topic = await self._book.read_cached(project, name)
        if topic is None:
            # A new store, or a creation that died half-way: the catalogue knows.
            read_at = self._clock.uptime_s()
            topic = await self._book.read_row(project, name)
            if topic is None:
                raise not_found(name)
            await self._hand_out(topic)
            topic = self._book.remember(topic, read_at)
        if topic.state == "purged":
            raise not_found(name)
        return topic

    async def list(
        self, project: str, *, after: str = "", limit: int, deleted: bool = False
    ) -> list[Topic]:
        """Topics of a project by name; those that were deleted only if asked for."""
        states = (*ALIVE, "deleted") if deleted else ALIVE
        return await self._book.page(project, states, after=after, limit=limit)

    def everything(self) -> AsyncIterator[Sequence[Topic]]:
        """All topics of all projects as the catalogue has them, in every state, page by page."""
        return self._book.everything()

    # -- Changing ----------------------------------------------------------------------------

    async def create(
        self,
        project: str,
        name: str,
        *,
        partitions: int = PARTITIONS_DEFAULT,
        options: TopicOptions | None = None,
    ) -> Topic:
        """Creates a topic; ConflictError when there is one, also a deleted one."""
        require_name(name, field="name")
        self._check_partitions(partitions)
        options = options or TopicOptions()
        _check_options(options)
        purged, written = await self._book.newest(project, name) or (None, None)
        if purged is not None and purged.state != "purged":
            raise ConflictError(f"There is a topic {name} already.")
        # The store may have messages of a topic that this catalogue never knew. They stay as they
        # are: neither mixed with ours nor deleted by us.
        former = purged or await self._book.read_cached(project, name)
        number = former.next_number if former else 0
        topic = Topic(
            project=project,
            name=name,
            version=former.version + 1 if former else 1,
            options=options,
            storage=(StorageTopic(number=number, partitions=partitions),),
            created_ms=self._clock.now_ms(),
            first_number=purged.first_number if purged else number,
        )
        await self._book.create(topic, over=written)
        await self._hand_out(topic)
        return self._book.remember(topic, self._clock.uptime_s())

    async def add_storage_topic(
        self,
        project: str,
        name: str,
        partitions: int,
        *,
        version: int | None = None,
        force: bool = False,
    ) -> Topic:
        """Append a storage topic. Messages go to the one before it until a switch.

        A caller that names the version can repeat the call after a lost reply. Raise
        GrowthStopsSubscriptionsError if subscriptions could not go on to the storage topic,
        unless `force` is set. A subscription that is created at the same time may be missed here;
        `switch_produce` finds it.
        """
        self._check_partitions(partitions)
        topic = None
        while topic is None:
            present = await self._present(project, name, version)
            if not force:
                await self._require_followed(present.with_storage(partitions), len(present.storage))
            topic = await self._add_to(present, partitions, version)
        await self.provide(topic)
        return topic

    async def _add_to(self, present: Topic, partitions: int, version: int | None) -> Topic | None:
        """Append a storage topic to those that were checked; None if there are others by now."""
        fits = False

        def added(topic: Topic) -> Topic:
            nonlocal fits
            require_version(topic, version, kind="topic")
            fits = topic.storage == present.storage
            return topic.with_storage(partitions) if fits else topic

        topic = await self._book.change(present.project, present.name, added)
        return topic if fits else None

    async def switch_produce(
        self, project: str, name: str, *, version: int | None = None, force: bool = False
    ) -> Topic:
        """Move production to the next storage topic; at the last one it stays.

        After the return nothing lands in an older storage topic. A caller that names the version
        can repeat the call after a lost reply. Raise GrowthStopsSubscriptionsError if subscriptions
        could not go on to the next storage topic, unless `force` is set.
        """
        topic = await self._present(project, name, version)
        following = topic.produce_pointer + 1
        if not force and following < len(topic.storage):
            await self._require_followed(topic, following)
        return await self.finish_switch(topic)

    async def _present(self, project: str, name: str, version: int | None) -> Topic:
        """Return the topic as the catalogue has it; ConflictError if it has another version."""

        def checked(topic: Topic) -> Topic:
            require_version(topic, version, kind="topic")
            return topic

        return await self._book.change(project, name, checked)

    async def finish_switch(self, topic: Topic) -> Topic:
        """Seals the present storage topic and moves the pointer, whoever had begun to."""
        following = topic.produce_pointer + 1
        if following >= len(topic.storage):
            return topic
        await self.provide(topic)
        # Before anything lands there: what nobody holds may go at any time.
        await self.readers.hold(topic)
        log = topic.log(topic.target)

        async def seal(partition: int) -> None:
            await self._logs.seal(log, partition, following)

        await for_each(range(topic.target.partitions), seal)

        def moved(now: Topic) -> Topic:
            # By the number: another may have moved the pointer, or have purged the topic and
            # created one of that name, of which nothing is sealed.
            return now.switched() if now.target.number == topic.target.number else now

        return await self._book.change(topic.project, topic.name, moved)

    async def change_options(
        self, project: str, name: str, options: TopicOptions, *, version: int
    ) -> Topic:
        """Puts other options in place of those of a version; ConflictError if that is not it."""
        _check_options(options)

        def changed(topic: Topic) -> Topic:
            require_version(topic, version, kind="topic")
            return topic.with_options(options, now_ms=self._clock.now_ms())

        topic = await self._book.change(project, name, changed)
        for storage in topic.storage:
            await self.retain(topic, storage)
        return topic

    async def block(self, project: str, name: str) -> Topic:
        """Refuses what is produced from now on; what is there stays readable."""
        return await self._book.change(project, name, lambda topic: topic.in_state("blocked"))

    async def unblock(self, project: str, name: str) -> Topic:
        """Takes messages again."""
        return await self._book.change(project, name, lambda topic: topic.in_state("active"))

    async def delete(self, project: str, name: str) -> Topic:
        """Deletes a topic; its messages stay until it is purged, and it can be restored."""
        await self.get(project, name)
        await self._require_unread(project, name)
        return await self._book.change(project, name, lambda topic: topic.deleted())

    async def restore(self, project: str, name: str) -> Topic:
        """Brings a deleted topic back as it was: one that was blocked is blocked."""

        def restored(topic: Topic) -> Topic:
            if topic.state != "deleted":
                raise ConflictError(f"Topic {name} is not deleted.")
            return topic.restored()

        return await self._book.change(project, name, restored, states=(*ALIVE, "deleted"))

    async def purge(self, project: str, name: str) -> None:
        """Deletes the messages of a deleted topic for good; then its name can be used again."""

        def purged(topic: Topic) -> Topic:
            if topic.state in ALIVE:
                raise ConflictError(f"Topic {name} is not deleted.", hint="Delete it first.")
            return topic if topic.state == "purged" else topic.in_state("purged")

        require_name(name, field="topic")
        # One may have come at the very moment of the deletion.
        await self._require_unread(project, name)
        topic = await self._book.change(project, name, purged, states=EVERY)
        await self.sweep(topic, {topic.log(each): each.partitions for each in topic.storage})

    # -- Finishing what was begun ------------------------------------------------------------

    async def provide(self, topic: Topic) -> None:
        """Makes sure that the logs from the pointer on exist; a creation may have died half-way."""
        for storage in topic.storage[topic.produce_pointer :]:
            await self._logs.create(topic.log(storage), storage.partitions, topic.retention)

    async def mend(self, topic: Topic) -> None:
        """Brings catalogue and working copy together; a change may have died between the two."""
        copied = await self._book.cached_version(topic)
        if copied < topic.version:
            await self._hand_out(topic)
        elif copied > topic.version:
            # It was changed a moment ago; or the catalogue came from a backup, and is brought up.
            await self._book.change(topic.project, topic.name, lambda now: now, states=EVERY)

    async def _hand_out(self, topic: Topic) -> None:
        """Puts a working copy; its logs first, since who finds it relies on them."""
        if topic.state in ALIVE:
            await self.provide(topic)
        await self._book.publish(topic)

    async def sweep(self, topic: Topic, logs: dict[str, int]) -> None:
        """Deletes those of these logs that belong to what was purged of the topic."""
        for number in topic.purged_numbers:
            if partitions := logs.get(topic.log_of(number)):
                await self._logs.delete(topic.log_of(number), partitions)

    async def retain(self, topic: Topic, storage: StorageTopic) -> None:
        """Writes the topic's retention to the partitions of a storage topic, as far as they are."""
        log = topic.log(storage)

        async def retain(partition: int) -> None:
            with contextlib.suppress(LogNotFoundError):
                await self._logs.retain(log, partition, topic.retention)

        await for_each(range(storage.partitions), retain)

    async def _require_followed(self, topic: Topic, index: int) -> None:
        """Raise if subscriptions could not go on to a storage topic."""
        stopped = await self.readers.stopped_by(topic, index)
        if not stopped:
            return
        more = len(stopped) - _NAMED_MAX
        told = ", ".join(stopped[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
        base, partitions = topic.storage[index - 1].spread.base, topic.storage[index].partitions
        raise GrowthStopsSubscriptionsError(
            f"Subscriptions of topic {topic.name} would stop before storage topic {index} with"
            f" {partitions} partitions, because a group could have another shard there: {told}.",
            hint=(
                f"A subscription can follow if its shards divide {base} and the partitions are a"
                f" multiple of {base}, or if it has 1 shard. To let these subscriptions stop there,"
                " repeat with `force` (`--force`)."
            ),
        )

    async def _require_unread(self, project: str, name: str) -> None:
        if readers := await self.readers.names(project, name):
            told = ", ".join(readers[:_NAMED_MAX]) + ", …" * (len(readers) > _NAMED_MAX)
            raise TopicSubscribedError(
                f"Topic {name} is read by subscriptions: {told}.", hint="Delete them first."
            )

    def _check_partitions(self, partitions: int) -> None:
        if not 1 <= partitions <= PARTITIONS_MAX:
            raise InvalidInputError(
                f"A topic has 1 to {PARTITIONS_MAX} partitions.", field="partitions"
            )
        if self._strict and not is_advised(partitions):
            raise InvalidInputError(
                f"{partitions} partitions do not split evenly in many ways.",
                field="partitions",
                hint="Use 1, 2, 3 or a multiple of 4 or 6, or do without strict counts.",
            )


def _check_options(options: TopicOptions) -> None:
    check_rate(options.rate)
    if options.json_schema is not None:
        check_schema(options.json_schema)
