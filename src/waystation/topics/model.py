"""A topic: a sequence of storage topics, of which one is produced to.

The truth is in the catalogue. The store has a working copy, which every process reads.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from waystation.errors import InvalidInputError
from waystation.logs.protocol import FullPolicy, Retention
from waystation.messages.redaction import Pointers, Record
from waystation.topics.router import Spread

PARTITIONS_DEFAULT = 4
PARTITIONS_MAX = 1024
#: Each search, each look back for a repetition, and each pass of upkeep goes over all of them.
STORAGE_TOPICS_MAX = 100

#: Limits of a topic whose creator names none. Both are as users know them from other logs, but
#: the limit of bytes is lower because the messages are in memory.
MAX_BYTES_DEFAULT = 256 * 1_048_576
MAX_AGE_SECONDS_DEFAULT = 7 * 86_400.0

#: Lua and JavaScript count safely up to here.
_WHOLE_MAX = 2**53 - 1
_AGE_SECONDS_MAX = 100 * 365 * 86400

RateMode = Literal["disabled", "shadow", "enforced"]
#: A deleted topic can be restored. Of a purged one only a row is left, which knows what numbers
#: were used; a new topic of that name goes on from there.
TopicState = Literal["active", "blocked", "deleted", "purged"]


#: One for all that are alike: it is asked for with each request.
_spread = lru_cache(maxsize=4096)(Spread)


class StorageTopic(msgspec.Struct, frozen=True, kw_only=True):
    """One log of a topic."""

    #: Part of the log's name. Never used twice under one name of a topic, a deleted one included.
    number: int
    partitions: Annotated[int, Meta(ge=1, le=PARTITIONS_MAX)]
    #: K of the routing formula: how many times it has the partitions that its chain began with.
    factor: int = 1

    @property
    def spread(self) -> Spread:
        """How it spreads hashes."""
        return _spread(self.partitions, self.factor)


class RateLimit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much may be produced in a second; None: no bound."""

    mode: RateMode = "disabled"
    qps: Annotated[float, Meta(gt=0)] | None = None
    bytes_per_second: Annotated[float, Meta(gt=0)] | None = None


class TopicOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a user decides about a topic."""

    #: Every message needs a group; those of one group keep their order.
    grouped: bool = False
    #: Limit of each partition. Over it, messages that all readers have passed are deleted, oldest
    #: first; if that is not enough, `full_policy` decides. None: no limit.
    max_bytes: Annotated[int, Meta(ge=1, le=_WHOLE_MAX)] | None = MAX_BYTES_DEFAULT
    #: Older messages are deleted unless a reader still needs them. None: messages are kept forever.
    max_age_seconds: Annotated[float, Meta(ge=0.001, le=_AGE_SECONDS_MAX)] | None = (
        MAX_AGE_SECONDS_DEFAULT
    )
    full_policy: FullPolicy = "refuse"
    #: How long a message id is remembered; 0: not at all.
    dedup_seconds: Annotated[float, Meta(ge=0, le=7 * 86400)] = 0.0
    #: JSON Schema that every payload must match.
    json_schema: dict[str, object] | None = None
    rate: RateLimit = RateLimit()
    #: What history keeps of its messages.
    record: Record = "full"
    #: JSON pointers of values in payloads that history does not keep.
    redact: Pointers = ()


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic as it is now."""

    project: str
    name: str
    version: int
    options: TopicOptions
    storage: tuple[StorageTopic, ...]
    #: Index of the storage topic that is produced to.
    produce_pointer: int = 0
    state: TopicState = "active"
    #: What a deleted topic is again once it is restored.
    state_before: TopicState = "active"
    created_ms: int = 0
    #: Where the numbers of storage topics began. Those from here on that it does not have any more
    #: were purged; those before were another's, of whom the catalogue knows nothing.
    first_number: int = 0
    #: When `dedup_seconds` was changed last; 0: never, the topic was created with it.
    dedup_since_ms: int = 0

    @property
    def grouped(self) -> bool:
        """Whether each message must have a group."""
        return self.options.grouped

    @property
    def target(self) -> StorageTopic:
        """The storage topic that is produced to."""
        return self.storage[self.produce_pointer]

    @property
    def retention(self) -> Retention:
        """What its logs keep."""
        age = self.options.max_age_seconds
        return Retention(
            max_bytes=self.options.max_bytes,
            max_age_ms=None if age is None else round(age * 1000),
            policy=self.options.full_policy,
            version=self.version,
        )

    @property
    def purged_numbers(self) -> range:
        """Numbers of storage topics whose logs are to be deleted, if there is anything left."""
        purged = self.state == "purged"
        end = self.storage[-1].number + 1 if purged else self.storage[0].number
        return range(self.first_number, end)

    @property
    def next_number(self) -> int:
        """The first number that was never used."""
        return self.storage[-1].number + 1

    def log(self, storage: StorageTopic) -> str:
        """The name of a storage topic's log."""
        return self.log_of(storage.number)

    def log_of(self, number: int) -> str:
        """The name of the log of a storage topic that has this number, or had it."""
        return f"t.{self.project}.{self.name}.{number}"

    def with_storage(self, partitions: int) -> Topic:
        """The topic with one more storage topic at its end; the pointer stays."""
        if len(self.storage) >= STORAGE_TOPICS_MAX:
            raise InvalidInputError(
                f"Topic {self.name} has {STORAGE_TOPICS_MAX} storage topics, and no more are"
                " allowed.",
                field="partitions",
                hint="Grow in larger steps; a new topic can take over from here.",
            )
        factor = self.storage[-1].spread.followed_by(partitions).factor
        added = StorageTopic(number=self.next_number, partitions=partitions, factor=factor)
        return self._changed(storage=(*self.storage, added))

    def switched(self) -> Topic:
        """The topic with its pointer one further; at the last storage topic it stays there."""
        if self.produce_pointer + 1 >= len(self.storage):
            return self
        return self._changed(produce_pointer=self.produce_pointer + 1)

    def in_state(self, state: TopicState) -> Topic:
        """The topic in another state."""
        return self._changed(state=state)

    def deleted(self) -> Topic:
        """The topic as one that can be restored to what it is now."""
        return self._changed(state="deleted", state_before=self.state)

    def restored(self) -> Topic:
        """The topic in the state that it had before it was deleted."""
        return self._changed(state=self.state_before)

    def with_options(self, options: TopicOptions, *, now_ms: int) -> Topic:
        """The topic with other options, which hold from now on."""
        same = options.dedup_seconds == self.options.dedup_seconds
        return self._changed(
            options=options, dedup_since_ms=self.dedup_since_ms if same else now_ms
        )

    def _changed(self, **changes: object) -> Topic:
        return msgspec.structs.replace(self, version=self.version + 1, **changes)


encode_topic = msgspec.json.Encoder().encode
decode_topic = msgspec.json.Decoder(Topic).decode
