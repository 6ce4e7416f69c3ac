"""Topic queries: browse messages, locate groups, summarise partitions.

Each page has an opaque cursor for the next one. The last page has one too, because producers can
append more messages. The work for one page is bounded, so a search for a rare message can return an
empty page before the end. `ended` is True if the query has read all messages. A query skips
messages that retention deletes between two pages. It rejects an offset of the caller that is not
stored and reports the valid range.

A damaged log does not stop a query. The page lists missing offsets in `damaged`. It returns the
bytes of an entry that is not a message, with the reason in `unreadable`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Sequence

import msgspec

from waystation.errors import (
    InvalidInputError,
    LogDamagedError,
    LogNotFoundError,
    OffsetOutOfRangeError,
)
from waystation.logs.protocol import LogBatch, LogEntry, Logs
from waystation.messages.envelope import Envelope, unpack
from waystation.messages.formats import json_message
from waystation.runtime.logging import logger
from waystation.runtime.tasks import for_each
from waystation.topics.model import StorageTopicDefinition, TopicDefinition
from waystation.topics.router import hash_of, is_consistent, shard_of_partition
from waystation.topics.service import TopicService
from waystation.types.topic import (
    GroupLocation,
    GroupPartition,
    MissingRange,
    Partition,
    StoredMessage,
    StoredMessagePage,
    TopicPartitions,
)

_log = logger("topics")

#: Default and maximum of `limit`, the number of messages of a page.
LIMIT_DEFAULT = 100
LIMIT_MAX = 1000
#: Limit of the messages that one page scans.
SCAN_MAX = 10_000
#: Limit of the messages that one read returns.
_READ = 500
#: Limit of the reads for one page. Empty partitions need a read too.
READS_MAX = 200
#: Size in bytes at which a page ends, after the message that reaches it.
_PAGE_BYTES_MAX = 8 * 1_048_576
#: Size of scanned messages in bytes after which a page reads no more.
_SCAN_BYTES_MAX = 32 * 1_048_576


class TopicQueries:
    """Reads topics and their messages."""

    def __init__(self, topics: TopicService, logs: Logs) -> None:
        self._topics = topics
        self._logs = logs

    async def messages_in_partition(
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
    ) -> StoredMessagePage:
        """Return a page of messages of one partition.

        The page starts at `offset`, at the time `since_ms`, at `cursor`, or at the oldest message.
        Raise OffsetOutOfRangeError if the offset is not stored.
        """
        if (offset is not None) + (since_ms is not None) + bool(cursor) > 1:
            raise InvalidInputError("Set only one of offset, time_ms and cursor.", field="cursor")
        topic = await self._topics.get(project, name)
        log = _log_of(topic, storage, partition)
        if since_ms is not None:
            offset = await self._logs.offset_at(log, partition, since_ms)
        elif offset is not None:
            state = await self._logs.state(log, partition)
            if not state.first <= offset <= state.end:
                raise OffsetOutOfRangeError(
                    f"Offset {offset} is not stored.", first=state.first, end=state.end
                )
        position = _PartitionCursor(
            topic, [(storage, partition)], f"partition {storage} {partition}", cursor
        )
        if offset is not None:
            position.offset = offset
        return await self._page(position, lambda _: True, limit)

    async def messages_of_group(
        self,
        project: str,
        name: str,
        group: str,
        *,
        cursor: str = "",
        limit: int = LIMIT_DEFAULT,
    ) -> StoredMessagePage:
        """Return the messages of a group in order, over all storage topics."""
        topic = await self._topics.get(project, name)
        position = _PartitionCursor(
            topic, _partitions_of_hash(topic, hash_of(group)), f"group {group}", cursor
        )
        return await self._page(position, lambda message: message.group == group, limit)

    async def messages_with_id(
        self,
        project: str,
        name: str,
        message_id: str,
        *,
        group: str | None = None,
        cursor: str = "",
        limit: int = LIMIT_DEFAULT,
    ) -> StoredMessagePage:
        """Find messages by id. An id that was produced several times yields several messages.

        Without `group`, first search the partition that the id is routed to, because messages
        without a group are there. Then search all other partitions page by page.
        """
        topic = await self._topics.get(project, name)
        way = _partitions_of_hash(topic, hash_of(message_id if group is None else group))
        if group is None:
            way = list(dict.fromkeys([*way, *_all_partitions(topic)]))
        position = _PartitionCursor(
            topic, way, f"message {group is None} {group} {message_id}", cursor
        )

        def wanted(message: Envelope) -> bool:
            return message.id == message_id and (group is None or message.group == group)

        return await self._page(position, wanted, limit)

    async def locate_group(
        self, project: str, name: str, group: str, *, shards: int | None = None
    ) -> GroupLocation:
        """Return the partition of a group in each storage topic.

        With `shards`, also return the shard that reads each of these partitions.
        """
        if shards is not None and shards < 1:
            raise InvalidInputError(f"shards must be at least 1; it is {shards}.", field="shards")
        topic = await self._topics.get(project, name)
        hashed = hash_of(group)
        positions = []
        for index, storage in enumerate(topic.storage):
            partition, partitions = storage.router.partition_of(hashed), storage.partitions
            shard = None if shards is None else shard_of_partition(partition, partitions, shards)
            positions.append(
                GroupPartition(
                    storage=index,
                    partition=partition,
                    shard=shard,
                    current=index == topic.produce_pointer,
                )
            )
        routers = [storage.router for storage in topic.storage]
        return GroupLocation(
            group=group,
            hash=hashed,
            positions=positions,
            consistent=None if shards is None else is_consistent(routers, shards),
        )

    async def partitions(self, project: str, name: str) -> TopicPartitions:
        """Return the state of all partitions that exist."""
        topic = await self._topics.get(project, name)
        found: list[Partition] = []

        async def read(place: tuple[int, int]) -> None:
            partition = await self._partition(topic, *place)
            if partition is not None:
                found.append(partition)

        await for_each(
            (
                (index, partition)
                for index, storage in enumerate(topic.storage)
                for partition in range(storage.partitions)
            ),
            read,
        )
        found.sort(key=lambda each: (each.storage, each.partition))
        return TopicPartitions(
            messages=sum(each.end - each.first for each in found),
            bytes=sum(each.bytes for each in found),
            dropped=sum(each.dropped for each in found),
            partitions=found,
            warnings=_warnings(topic, found),
        )

    async def _partition(
        self, topic: TopicDefinition, index: int, partition: int
    ) -> Partition | None:
        try:
            state = await self._logs.state(topic.log(topic.storage[index]), partition)
        except LogNotFoundError:
            return None  # Another process is still creating the storage topic.
        return Partition(
            storage=index,
            partition=partition,
            first=state.first,
            end=state.end,
            bytes=state.bytes,
            last_ms=state.last_ms,
            dropped=state.dropped,
            sealed=state.sealed is not None,
            warned_ms=state.warned_ms,
        )

    async def _page(
        self, position: _PartitionCursor, wanted: Callable[[Envelope], bool], limit: int
    ) -> StoredMessagePage:
        """Return the next page of the messages that satisfy a predicate."""
        if not 1 <= limit <= LIMIT_MAX:
            raise InvalidInputError(
                f"limit must be 1 to {LIMIT_MAX}; it is {limit}.", field="limit"
            )
        found: list[StoredMessage] = []
        damaged: list[MissingRange] = []
        reads = scanned = scanned_bytes = found_bytes = 0
        ended = False
        while reads < READS_MAX and scanned < SCAN_MAX and scanned_bytes < _SCAN_BYTES_MAX:
            reads += 1
            try:
                batch = await self._read(position, min(_READ, SCAN_MAX - scanned))
            except LogDamagedError as gap:
                damaged.append(_missing_range(position, gap))
                position.offset = gap.end
                continue
            if batch is None:
                if position.next_partition():
                    continue
                ended = True
                break
            for entry in batch.entries():
                scanned += 1
                scanned_bytes += len(entry.payload)
                message, unreadable = _unpack(entry, position.topic.project)
                if not wanted(message):
                    continue
                found.append(_stored_message(position, entry, message, unreadable))
                found_bytes += len(entry.payload)
                if len(found) == limit or found_bytes > _PAGE_BYTES_MAX:
                    position.offset = entry.offset + 1
                    return StoredMessagePage(
                        messages=found, cursor=position.cursor(), ended=False, damaged=damaged
                    )
            position.offset = batch.next_offset
        return StoredMessagePage(
            messages=found, cursor=position.cursor(), ended=ended, damaged=damaged
        )

    async def _read(self, position: _PartitionCursor, limit: int) -> LogBatch | None:
        """Return the next stored messages of a partition. Return None at its end."""
        partition = position.place[1]
        try:
            batch = await self._logs.read(position.log, partition, position.offset, limit=limit)
        except OffsetOutOfRangeError as error:
            if position.offset >= error.first:
                return None
            position.offset = error.first
            return await self._read(position, limit)
        except LogNotFoundError:
            return None  # Another process is still creating the storage topic.
        return batch or None


class _Cursor(msgspec.Struct, frozen=True, array_like=True):
    """Decoded cursor of a page."""

    #: Hash of the query, because a cursor is valid only for its own query.
    query: str
    #: Number of the storage topic. An index could belong to another storage topic after a purge.
    number: int
    partition: int
    offset: int


_encode_cursor = msgspec.msgpack.Encoder().encode
_decode_cursor = msgspec.msgpack.Decoder(_Cursor).decode


class _PartitionCursor:
    """Position of a query that reads partitions one after the other.

    Storage topics after the current one are not visited. Earlier ones are sealed, so a query that
    reached the end of one of their partitions misses no later message.
    """

    def __init__(
        self, topic: TopicDefinition, places: Sequence[tuple[int, int]], query: str, cursor: str
    ) -> None:
        self.topic = topic
        self._places = places
        self._index = 0
        # Store a hash instead of the query, because users share cursors and a group can be the name
        # of a person.
        self._query = f"{hash_of(query):016x}"
        self.offset = 0
        if cursor:
            self._resume(_parse_cursor(cursor))

    @property
    def place(self) -> tuple[int, int]:
        """Index of the current storage topic, and partition in it."""
        return self._places[self._index]

    @property
    def log(self) -> str:
        """Name of the log of the current storage topic."""
        return self.topic.log(self.topic.storage[self.place[0]])

    def next_partition(self) -> bool:
        """Move to the next partition. Return False at the last one."""
        if self._index + 1 == len(self._places):
            return False
        self._index += 1
        self.offset = 0
        return True

    def cursor(self) -> str:
        """Return the position as an opaque text, with which a client requests the next page."""
        storage, partition = self.place
        number = self.topic.storage[storage].number
        packed = _encode_cursor(_Cursor(self._query, number, partition, self.offset))
        return base64.urlsafe_b64encode(packed).decode().rstrip("=")

    def _resume(self, cursor: _Cursor) -> None:
        for index, (storage, partition) in enumerate(self._places):
            at = (self._query, self.topic.storage[storage].number, partition)
            if at == (cursor.query, cursor.number, cursor.partition) and cursor.offset >= 0:
                self._index, self.offset = index, cursor.offset
                return
        raise _invalid_cursor()


def _parse_cursor(cursor: str) -> _Cursor:
    try:
        return _decode_cursor(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, binascii.Error, msgspec.DecodeError) as error:
        raise _invalid_cursor() from error


def _invalid_cursor() -> InvalidInputError:
    return InvalidInputError(
        "The cursor does not belong to this topic and query.",
        field="cursor",
        hint="Repeat the query without a cursor.",
    )


def _partitions_of_hash(topic: TopicDefinition, hashed: int) -> list[tuple[int, int]]:
    """Return the partition of a hash in each storage topic up to the current one.

    The result is a list of (index of the storage topic, partition).
    """
    return [(index, each.router.partition_of(hashed)) for index, each in _with_messages(topic)]


def _all_partitions(topic: TopicDefinition) -> Iterator[tuple[int, int]]:
    """Return (index of the storage topic, partition) for all partitions, up to the current one."""
    for index, storage in _with_messages(topic):
        for partition in range(storage.partitions):
            yield index, partition


def _with_messages(topic: TopicDefinition) -> Iterator[tuple[int, StorageTopicDefinition]]:
    return enumerate(topic.storage[: topic.produce_pointer + 1])


def _unpack(entry: LogEntry, project: str) -> tuple[Envelope, str]:
    """Return the message of an entry and an empty reason.

    If the entry is not a message, return its bytes as the payload of a message, and the reason.
    """
    try:
        return unpack(entry.payload, project=project), ""
    except ValueError as error:
        # Another program or a later release wrote the entry.
        return Envelope(id="", project=project, data=entry.payload), str(error)


def _stored_message(
    position: _PartitionCursor, entry: LogEntry, message: Envelope, unreadable: str
) -> StoredMessage:
    storage, partition = position.place
    return StoredMessage(
        storage=storage,
        partition=partition,
        offset=entry.offset,
        time_ms=entry.ms,
        message=json_message(message),
        unreadable=unreadable,
    )


def _missing_range(position: _PartitionCursor, gap: LogDamagedError) -> MissingRange:
    storage, partition = position.place
    _log.error(
        "log damaged",
        code=gap.code,
        log=position.log,
        partition=partition,
        from_offset=gap.start,
        to_offset=gap.end,
    )
    return MissingRange(
        storage=storage, partition=partition, from_offset=gap.start, to_offset=gap.end
    )


def _log_of(topic: TopicDefinition, storage: int, partition: int) -> str:
    if not 0 <= storage < len(topic.storage):
        raise LogNotFoundError(
            f"Topic '{topic.name}' has no storage topic {storage}.",
            hint=f"Use 0 to {len(topic.storage) - 1}.",
        )
    partitions = topic.storage[storage].partitions
    if not 0 <= partition < partitions:
        raise LogNotFoundError(
            f"Storage topic {storage} of topic '{topic.name}' has no partition {partition}.",
            hint=f"Use 0 to {partitions - 1}.",
        )
    return topic.log(topic.storage[storage])


def _warnings(topic: TopicDefinition, partitions: list[Partition]) -> list[str]:
    warnings = []
    if near := sum(each.warned_ms > 0 for each in partitions):
        warnings.append(
            f"{near} of {len(partitions)} partitions are at least 70 % full of messages that"
            f" readers still need; when full, the policy is {topic.options.full_policy}."
        )
    if dropped := sum(each.dropped for each in partitions):
        warnings.append(f"{dropped} messages were dropped although a reader needed them.")
    return warnings
