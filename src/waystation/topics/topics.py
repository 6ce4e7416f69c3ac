"""The verbs of topics: create, add a storage topic, switch, block, delete, restore.

Every change is written to the catalogue first, against the version it was made from, and then to
the working copy in the store. Whoever finds the two apart, or a log missing that the topic names,
finishes what another began: all steps can be repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from waystation.catalogue import Catalogue, DefinitionRecord
from waystation.clock import Clock
from waystation.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    TopicNotFoundError,
)
from waystation.ids import require_name
from waystation.logs import Logs
from waystation.store import Store, keys, script
from waystation.topics.routing import is_advised
from waystation.topics.topic import (
    PARTITIONS_DEFAULT,
    PARTITIONS_MAX,
    StorageTopic,
    Topic,
    TopicOptions,
    decode_topic,
    encode_topic,
)

_PUT = script(__package__, "put")
_KIND = "topic"
#: A topic that was read longer ago is read again before it is used.
_FRESH_SECONDS = 2.0
_KNOWN_MAX = 10_000
#: How often a change is made anew because others changed the topic meanwhile.
_ATTEMPTS_MAX = 20


class Topics:
    """All topics of all projects."""

    def __init__(
        self, catalogue: Catalogue, store: Store, logs: Logs, *, clock: Clock, strict: bool = False
    ) -> None:
        self._catalogue = catalogue
        self._store = store
        self._logs = logs
        self._clock = clock
        #: Whether the rule of partition counts is more than advice.
        self._strict = strict
        self._known: dict[tuple[str, str], tuple[Topic, float]] = {}

    # -- Looking -----------------------------------------------------------------------------

    def known(self, project: str, name: str) -> Topic | None:
        """The topic, if it was read a moment ago; never waits."""
        found = self._known.get((project, name))
        if found is None or self._clock.real_seconds() - found[1] > _FRESH_SECONDS:
            return None
        return found[0]

    async def get(self, project: str, name: str) -> Topic:
        """The topic as it is; TopicNotFoundError also for a deleted one."""
        topic = await self.get_any(project, name)
        if topic.state == "deleted":
            raise _not_found(name)
        return topic

    async def get_any(self, project: str, name: str) -> Topic:
        """The topic as it is, a deleted one included."""
        require_name(name, field="topic")
        read_at = self._clock.real_seconds()
        body = await self._store.call("HGET", keys.topic(project, name), "body", repeatable=True)
        if body is not None:
            topic = decode_topic(body)
        else:
            # A new store, or a creation that died half-way: the catalogue knows.
            topic = await self._from_catalogue(project, name)
            await self._put(topic)
        return self._remember(topic, read_at)

    async def list(
        self, project: str, *, after: str = "", limit: int, deleted: bool = False
    ) -> list[Topic]:
        """Topics of a project by name; those that were deleted only if asked for."""
        records = await self._catalogue.definitions(_KIND, project, after=after, limit=limit)
        topics = [decode_topic(record.body) for record in records]
        return [topic for topic in topics if deleted or topic.state != "deleted"]

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
        require_name(name, field="topic")
        self._check_partitions(partitions)
        topic = Topic(
            project=project,
            name=name,
            version=1,
            options=options or TopicOptions(),
            storage=(StorageTopic(number=0, partitions=partitions),),
            created_ms=self._clock.now_ms(),
        )
        await self._catalogue.add_definition(self._record(topic))
        await self.provide(topic)
        await self._put(topic)
        return topic

    async def add_storage_topic(self, project: str, name: str, partitions: int) -> Topic:
        """Appends a storage topic; what is produced goes on to the one before until a switch."""
        self._check_partitions(partitions)
        topic = await self._change(project, name, lambda topic: topic.with_storage(partitions))
        await self.provide(topic)
        return topic

    async def switch_produce(self, project: str, name: str) -> Topic:
        """Moves production to the next storage topic; at the last one it stays.

        After it has returned, nothing lands in an older storage topic.
        """
        topic = await self._from_catalogue(project, name)
        if topic.produce_pointer + 1 < len(topic.storage):
            return await self.finish_switch(topic)
        return topic

    async def finish_switch(self, topic: Topic) -> Topic:
        """Seals the present storage topic and moves the pointer, whoever had begun to."""
        following = topic.produce_pointer + 1
        await self.provide(topic)
        log = topic.log(topic.target)
        await asyncio.gather(
            *(
                self._logs.seal(log, partition, following)
                for partition in range(topic.target.partitions)
            )
        )

        def moved(now: Topic) -> Topic:
            return now.switched() if now.produce_pointer < following else now

        return await self._change(topic.project, topic.name, moved)

    async def change_options(
        self, project: str, name: str, options: TopicOptions, *, version: int
    ) -> Topic:
        """Puts other options in place of those of a version; ConflictError if that is not it."""

        def changed(topic: Topic) -> Topic:
            if topic.version != version:
                raise ConflictError(
                    f"Topic {name} has version {topic.version}, not {version}.",
                    hint="Read it again, and change what it is now.",
                )
            return topic.with_options(options)

        return await self._change(project, name, changed)

    async def block(self, project: str, name: str) -> Topic:
        """Refuses what is produced from now on; what is there stays readable."""
        return await self._change(project, name, lambda topic: topic.in_state("blocked"))

    async def unblock(self, project: str, name: str) -> Topic:
        """Takes messages again."""
        return await self._change(project, name, lambda topic: topic.in_state("active"))

    async def delete(self, project: str, name: str) -> Topic:
        """Deletes a topic; its messages stay until it is purged, and it can be restored."""
        return await self._change(project, name, lambda topic: topic.in_state("deleted"))

    async def restore(self, project: str, name: str) -> Topic:
        """Brings a deleted topic back."""

        def restored(topic: Topic) -> Topic:
            if topic.state != "deleted":
                raise ConflictError(f"Topic {name} is not deleted.")
            return topic.in_state("active")

        return await self._change(project, name, restored, deleted=True)

    async def provide(self, topic: Topic) -> None:
        """Makes sure that the logs from the pointer on exist; a creation may have died half-way."""
        for storage in topic.storage[topic.produce_pointer :]:
            await self._logs.create(topic.log(storage), storage.partitions, topic.retention)

    # -- The machinery -----------------------------------------------------------------------

    async def _change(
        self,
        project: str,
        name: str,
        change: Callable[[Topic], Topic],
        *,
        deleted: bool = False,
    ) -> Topic:
        for _ in range(_ATTEMPTS_MAX):
            topic = await self._from_catalogue(project, name)
            if topic.state == "deleted" and not deleted:
                raise _not_found(name)
            changed = change(topic)
            if changed.version != topic.version:
                try:
                    await self._catalogue.change_definition(self._record(changed))
                except ConflictError:
                    continue  # Another was quicker: what it did is the new beginning.
            await self._put(changed)
            return changed
        raise ConflictError(f"Topic {name} is changed by too many at once.")

    async def _from_catalogue(self, project: str, name: str) -> Topic:
        record = await self._catalogue.definition(_KIND, project, name)
        if record is None:
            raise _not_found(name)
        return decode_topic(record.body)

    async def _put(self, topic: Topic) -> None:
        await self._store.run(
            _PUT,
            [keys.topic(topic.project, topic.name)],
            [topic.version, encode_topic(topic)],
        )
        self._remember(topic, self._clock.real_seconds())

    def _remember(self, topic: Topic, read_at: float) -> Topic:
        """Keeps the newest that was seen, and returns it: the same object while it is the same."""
        key = (topic.project, topic.name)
        known = self._known.get(key)
        if known is not None and known[0].version >= topic.version:
            topic = known[0]
        elif len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        self._known[key] = (topic, read_at)
        return topic

    def _record(self, topic: Topic) -> DefinitionRecord:
        return DefinitionRecord(
            kind=_KIND,
            project=topic.project,
            name=topic.name,
            version=topic.version,
            body=encode_topic(topic),
            changed_ms=self._clock.now_ms(),
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


def _not_found(name: str) -> NotFoundError:
    return TopicNotFoundError(f"There is no topic {name}.")
