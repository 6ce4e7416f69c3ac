"""Looking into topics: by place, by time, by group, by message id; and where a group lives.

Pages come with an opaque cursor that leads on, also at the end, where new messages may follow. A
page is made from a bounded number of messages and reads, so one that looks for something rare can
be empty and still lead on: `ended` says whether everything was seen. What was trimmed under a walk
is passed over; a place that a caller names himself is refused with the valid range. Messages that
are missing from a damaged log are passed over, too, and the page lists their ranges.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from waystation.errors import (
    InvalidInputError,
    LogDamagedError,
    LogNotFoundError,
    OffsetOutOfRangeError,
)
from waystation.logs.protocol import Entry, Logs
from waystation.messages.envelope import Envelope, unpack
from waystation.runtime.logging import logger
from waystation.topics.model import TopicDefinition
from waystation.topics.router import hash_of, is_consistent, shard_of_partition
from waystation.topics.service import TopicService
from waystation.topics.walk import Walk, everywhere, way_of

_log = logger("topics")

#: Messages of a page.
LIMIT_DEFAULT = 100
LIMIT_MAX = 1000
#: Messages that are looked at for one page, and how many of them are read together.
LOOK_MAX = 10_000
_READ = 500
#: Times that the store is asked for one page: partitions without messages cost that too.
READS_MAX = 200
#: Bytes of messages of a page, and of those that are looked at; one message is more at most.
_PAGE_BYTES_MAX = 8 * 1_048_576
_LOOK_BYTES_MAX = 32 * 1_048_576


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message and its place."""

    #: Index of the storage topic.
    storage: int
    partition: int
    offset: int
    ms: int
    message: Envelope


class MissingRange(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets of a partition that are missing, though retention did not remove them."""

    #: Index of the storage topic.
    storage: int
    partition: int
    #: From the first one up to, but not including, `to_offset`.
    from_offset: int
    to_offset: int


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Some messages, and what leads on."""

    messages: list[StoredMessage]
    cursor: str
    #: Whether everything that is there now was seen.
    ended: bool
    #: What the walk of this page found to be missing (`log.damaged`).
    damaged: list[MissingRange]


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """Where a group is in one storage topic."""

    #: Index of the storage topic.
    storage: int
    partition: int
    #: None where no number of shards was given.
    shard: int | None
    #: Whether this is the storage topic that is produced to.
    current: bool


class Whereabouts(msgspec.Struct, frozen=True, kw_only=True):
    """Where a group is in all storage topics."""

    group: str
    hash: int
    positions: list[Position]
    #: Whether the number of shards leaves every group in one shard; None where none was given.
    consistent: bool | None


class TopicQueries:
    """Reads; never changes anything."""

    def __init__(self, topics: TopicService, logs: Logs) -> None:
        self._topics = topics
        self._logs = logs

    async def partition(
        self,
        project: str,
        name: str,
        *,
        storage: int,
        partition: int,
        offset: int | None = None,
        since_ms: int | None = None,
        cursor: str = "",
        limit: int = LIMIT_DEFAULT,
    ) -> Page:
        """Messages of one partition from an offset, a time or a cursor on; else from the first."""
        if (offset is not None) + (since_ms is not None) + bool(cursor) > 1:
            raise InvalidInputError(
                "A page begins at an offset, at a time or at a cursor.", field="cursor"
            )
        topic = await self._topics.get(project, name)
        log = _log_of(topic, storage, partition)
        if since_ms is not None:
            offset = await self._logs.offset_at(log, partition, since_ms)
        elif offset is not None:
            state = await self._logs.state(log, partition)
            if not state.first <= offset <= state.end:
                raise OffsetOutOfRangeError(
                    f"Offset {offset} is outside of what is kept.", first=state.first, end=state.end
                )
        walk = Walk(topic, [(storage, partition)], f"partition {storage} {partition}", cursor)
        if offset is not None:
            walk.offset = offset
        return await self._page(walk, lambda _: True, limit)

    async def group(
        self,
        project: str,
        name: str,
        group: str,
        *,
        cursor: str = "",
        limit: int = LIMIT_DEFAULT,
    ) -> Page:
        """Messages of a group in their order, over all storage topics."""
        topic = await self._topics.get(project, name)
        walk = Walk(topic, way_of(topic, hash_of(group)), f"group {group}", cursor)
        return await self._page(walk, lambda message: message.group == group, limit)

    async def message(
        self,
        project: str,
        name: str,
        message_id: str,
        *,
        group: str | None = None,
        cursor: str = "",
        limit: int = LIMIT_DEFAULT,
    ) -> Page:
        """Messages with an id; more than one where it was produced more than once.

        Without a group those come first that have none, since their id says where they are; then
        everything else is looked through, page by page.
        """
        topic = await self._topics.get(project, name)
        way = way_of(topic, hash_of(message_id if group is None else group))
        if group is None:
            way = list(dict.fromkeys([*way, *everywhere(topic)]))
        walk = Walk(topic, way, f"message {group is None} {group} {message_id}", cursor)

        def wanted(message: Envelope) -> bool:
            return message.id == message_id and (group is None or message.group == group)

        return await self._page(walk, wanted, limit)

    async def where(
        self, project: str, name: str, group: str, *, shards: int | None = None
    ) -> Whereabouts:
        """The partition of a group in every storage topic, and its shard."""
        if shards is not None and shards < 1:
            raise InvalidInputError("There is one shard at least.", field="shards")
        topic = await self._topics.get(project, name)
        hashed = hash_of(group)
        positions = []
        for index, storage in enumerate(topic.storage):
            partition, partitions = storage.router.partition_of(hashed), storage.partitions
            shard = None if shards is None else shard_of_partition(partition, partitions, shards)
            positions.append(
                Position(
                    storage=index,
                    partition=partition,
                    shard=shard,
                    current=index == topic.produce_pointer,
                )
            )
        spreads = [storage.router for storage in topic.storage]
        return Whereabouts(
            group=group,
            hash=hashed,
            positions=positions,
            consistent=None if shards is None else is_consistent(spreads, shards),
        )

    # -- The machinery -----------------------------------------------------------------------

    async def _page(self, walk: Walk, wanted: Callable[[Envelope], bool], limit: int) -> Page:
        if not 1 <= limit <= LIMIT_MAX:
            raise InvalidInputError(f"A page has 1 to {LIMIT_MAX} messages.", field="limit")
        found: list[StoredMessage] = []
        damaged: list[MissingRange] = []
        reads = looked = looked_bytes = found_bytes = 0
        while reads < READS_MAX and looked < LOOK_MAX and looked_bytes < _LOOK_BYTES_MAX:
            reads += 1
            storage, partition = walk.place
            try:
                entries = await self._read(walk, min(_READ, LOOK_MAX - looked))
            except LogDamagedError as hole:
                damaged.append(_missing_range(walk, hole))
                walk.offset = hole.end
                continue
            if not entries and not walk.go_on():
                return Page(messages=found, cursor=walk.cursor(), ended=True, damaged=damaged)
            for entry in entries:
                walk.offset = entry.offset + 1
                looked += 1
                looked_bytes += len(entry.payload)
                message = unpack(entry.payload, project=walk.topic.project)
                if not wanted(message):
                    continue
                place = {"storage": storage, "partition": partition, "offset": entry.offset}
                found.append(StoredMessage(**place, ms=entry.ms, message=message))
                found_bytes += len(entry.payload)
                if len(found) == limit or found_bytes > _PAGE_BYTES_MAX:
                    return Page(messages=found, cursor=walk.cursor(), ended=False, damaged=damaged)
        return Page(messages=found, cursor=walk.cursor(), ended=False, damaged=damaged)

    async def _read(self, walk: Walk, limit: int) -> list[Entry]:
        """The next messages of a walk's partition; what is not kept any more is passed over."""
        try:
            return await self._logs.read(walk.log, walk.place[1], walk.offset, limit=limit)
        except OffsetOutOfRangeError as error:
            if walk.offset >= error.first:
                return []
            walk.offset = error.first
            return await self._read(walk, limit)
        except LogNotFoundError:
            return []  # Of a storage topic whose creation is under way.


def _missing_range(walk: Walk, hole: LogDamagedError) -> MissingRange:
    storage, partition = walk.place
    _log.error(
        "log damaged",
        code=hole.code,
        log=walk.log,
        partition=partition,
        from_offset=hole.start,
        to_offset=hole.end,
    )
    return MissingRange(
        storage=storage, partition=partition, from_offset=hole.start, to_offset=hole.end
    )


def _log_of(topic: TopicDefinition, storage: int, partition: int) -> str:
    if not 0 <= storage < len(topic.storage):
        raise LogNotFoundError(
            f"Topic {topic.name} has no storage topic {storage}.",
            hint=f"Valid are 0 to {len(topic.storage) - 1}.",
        )
    partitions = topic.storage[storage].partitions
    if not 0 <= partition < partitions:
        raise LogNotFoundError(
            f"Storage topic {storage} of {topic.name} has no partition {partition}.",
            hint=f"Valid are 0 to {partitions - 1}.",
        )
    return topic.log(topic.storage[storage])
