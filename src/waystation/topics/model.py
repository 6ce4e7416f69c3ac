"""Topic definitions: options, storage topics, states, and the pure changes of a definition.

A topic is a sequence of storage topics, and the produce pointer names the one that producers
append to. The database holds the definition; the store caches it for all processes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated

import msgspec
from msgspec import Meta

from waystation.errors import InvalidInputError, TopicBlockedError, TopicNotFoundError
from waystation.logs.protocol import Retention
from waystation.topics.router import Router
from waystation.types.topic import StorageTopic, Topic, TopicOptions, TopicState

PARTITIONS_DEFAULT = 4
PARTITIONS_MAX = 1024
#: Limit of storage topics, because searches, deduplication and maintenance visit all of them.
STORAGE_TOPICS_MAX = 100

#: States in which clients can read the topic.
ALIVE: tuple[TopicState, ...] = ("active", "blocked")
EVERY: tuple[TopicState, ...] = (*ALIVE, "deleted", "purged")

#: Cached, because each produced message needs a router.
_router = lru_cache(maxsize=4096)(Router)


class StorageTopicDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """One log of a topic."""

    #: Number in the name of the log. Topics of the same name never reuse a number.
    number: int
    partitions: Annotated[int, Meta(ge=1, le=PARTITIONS_MAX)]
    #: K of the routing formula (`waystation.topics.router`).
    factor: int = 1

    @property
    def router(self) -> Router:
        """Router of the messages of this storage topic."""
        return _router(self.partitions, self.factor)


class TopicDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a topic."""

    project: str
    name: str
    version: int
    options: TopicOptions
    storage: tuple[StorageTopicDefinition, ...]
    #: Index of the storage topic that producers append to.
    produce_pointer: int = 0
    state: TopicState = "active"
    #: State that a deleted topic returns to when it is restored.
    state_before: TopicState = "active"
    created_ms: int = 0
    #: Number of the first storage topic that this database created under the name of the topic.
    #: Maintenance deletes logs with this or a higher number if the topic no longer has them. Logs
    #: with lower numbers belong to a topic of another database, and maintenance keeps them.
    first_number: int = 0
    #: Time of the last change of `dedup_seconds`; 0: never changed.
    dedup_since_ms: int = 0

    @property
    def grouped(self) -> bool:
        """Whether each message must have a group."""
        return self.options.grouped

    @property
    def target(self) -> StorageTopicDefinition:
        """The storage topic that producers append to."""
        return self.storage[self.produce_pointer]

    @property
    def retention(self) -> Retention:
        """Retention of the logs of the topic."""
        age = self.options.max_age_seconds
        return Retention(
            max_bytes=self.options.max_bytes,
            max_age_ms=None if age is None else round(age * 1000),
            policy=self.options.full_policy,
            version=self.version,
        )

    @property
    def purged_numbers(self) -> range:
        """Numbers of the purged storage topics, whose logs must be deleted."""
        purged = self.state == "purged"
        end = self.storage[-1].number + 1 if purged else self.storage[0].number
        return range(self.first_number, end)

    @property
    def next_number(self) -> int:
        """Number of the next storage topic to create."""
        return self.storage[-1].number + 1

    def log(self, storage: StorageTopicDefinition) -> str:
        """Return the name of a storage topic's log."""
        return self.log_of(storage.number)

    def log_of(self, number: int) -> str:
        """Return the log name for the number of a storage topic, which may be purged already."""
        return f"t.{self.project}.{self.name}.{number}"

    def public(self, *, warning: str | None = None) -> Topic:
        """Return the topic as the API shows it."""
        return Topic(
            name=self.name,
            version=self.version,
            state=self.state,
            options=self.options,
            storage=[
                StorageTopic(partitions=each.partitions, factor=each.factor)
                for each in self.storage
            ],
            produce_pointer=self.produce_pointer,
            created_ms=self.created_ms,
            warning=warning,
        )

    # -- Changes -----------------------------------------------------------------------------

    def with_storage(self, partitions: int) -> TopicDefinition:
        """Return the topic with one more storage topic, which producers do not use yet."""
        if len(self.storage) >= STORAGE_TOPICS_MAX:
            raise InvalidInputError(
                f"Topic '{self.name}' has {STORAGE_TOPICS_MAX} storage topics, which is the limit.",
                field="partitions",
                hint="Create another topic, or add more partitions with each storage topic.",
            )
        factor = self.storage[-1].router.followed_by(partitions).factor
        added = StorageTopicDefinition(
            number=self.next_number, partitions=partitions, factor=factor
        )
        return self._changed(storage=(*self.storage, added))

    def switched(self) -> TopicDefinition:
        """Return the topic with its produce pointer at the next storage topic.

        Return it unchanged if the pointer is at the last one.
        """
        if self.produce_pointer + 1 >= len(self.storage):
            return self
        return self._changed(produce_pointer=self.produce_pointer + 1)

    def in_state(self, state: TopicState) -> TopicDefinition:
        """Return the topic in another state."""
        return self._changed(state=state)

    def deleted(self) -> TopicDefinition:
        """Return the topic marked as deleted. It keeps its present state for `restored`."""
        return self._changed(state="deleted", state_before=self.state)

    def restored(self) -> TopicDefinition:
        """Return the deleted topic in the state that it had before the deletion."""
        return self._changed(state=self.state_before)

    def with_options(self, options: TopicOptions, *, now_ms: int) -> TopicDefinition:
        """Return the topic with other options. Record the time if `dedup_seconds` changes."""
        same = options.dedup_seconds == self.options.dedup_seconds
        return self._changed(
            options=options, dedup_since_ms=self.dedup_since_ms if same else now_ms
        )

    def _changed(self, **changes: object) -> TopicDefinition:
        return msgspec.structs.replace(self, version=self.version + 1, **changes)


encode_topic = msgspec.json.Encoder().encode
decode_topic = msgspec.json.Decoder(TopicDefinition).decode


def topic_not_found(name: str) -> TopicNotFoundError:
    """Return the error for a topic that is missing, deleted or in another project."""
    return TopicNotFoundError(
        f"Topic '{name}' does not exist.",
        hint=f"List topics with `waystation topic list`, or create it with"
        f" `waystation topic create {name}`.",
    )


def require_open(topic: TopicDefinition) -> None:
    """Raise TopicBlockedError or TopicNotFoundError if the topic accepts no messages."""
    if topic.state == "blocked":
        raise TopicBlockedError(
            f"Topic '{topic.name}' is blocked.",
            hint=f"Unblock it with `waystation topic unblock {topic.name}`.",
        )
    if topic.state != "active":
        raise topic_not_found(topic.name)
