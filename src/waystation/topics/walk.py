"""A walk through partitions, one after the other, that can be interrupted and taken up again.

A walk never goes beyond the storage topic that is produced to: all before it are sealed, so to have
seen their end is to have seen everything; the last one is where new messages come.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence

import msgspec

from waystation.errors import InvalidInputError
from waystation.topics.model import StorageTopic, TopicDefinition
from waystation.topics.router import hash_of


class _Cursor(msgspec.Struct, frozen=True, array_like=True):
    """Where a walk goes on."""

    #: What the walk is for: a cursor leads on in its own walk alone.
    purpose: str
    #: Number of the storage topic: an index could mean another one after a purge.
    number: int
    partition: int
    offset: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Cursor).decode


class Walk:
    """Where it is, and how to go on; it does not read."""

    def __init__(
        self, topic: TopicDefinition, way: Sequence[tuple[int, int]], purpose: str, cursor: str
    ) -> None:
        self.topic = topic
        self._way = way
        self._index = 0
        # Not the text itself: a cursor is passed around, and a group may be somebody's name.
        self._purpose = f"{hash_of(purpose):016x}"
        self.offset = 0
        if cursor:
            self._resume(_parsed(cursor))

    @property
    def place(self) -> tuple[int, int]:
        """Index of the storage topic, and partition."""
        return self._way[self._index]

    @property
    def log(self) -> str:
        """The log that it is in."""
        return self.topic.log(self.topic.storage[self.place[0]])

    def go_on(self) -> bool:
        """To the next partition; false, and it stays, where there is none."""
        if self._index + 1 == len(self._way):
            return False
        self._index += 1
        self.offset = 0
        return True

    def cursor(self) -> str:
        """What leads on from here."""
        storage, partition = self.place
        number = self.topic.storage[storage].number
        packed = _encode(_Cursor(self._purpose, number, partition, self.offset))
        return base64.urlsafe_b64encode(packed).decode().rstrip("=")

    def _resume(self, cursor: _Cursor) -> None:
        for index, (storage, partition) in enumerate(self._way):
            at = (self._purpose, self.topic.storage[storage].number, partition)
            if at == (cursor.purpose, cursor.number, cursor.partition) and cursor.offset >= 0:
                self._index, self.offset = index, cursor.offset
                return
        raise _not_a_cursor()


def way_of(topic: TopicDefinition, hashed: int) -> list[tuple[int, int]]:
    """The partition of a hash in each storage topic that has been produced to, in that order."""
    return [(index, each.router.partition_of(hashed)) for index, each in _produced(topic)]


def everywhere(topic: TopicDefinition) -> Iterator[tuple[int, int]]:
    """All partitions that have been produced to."""
    for index, storage in _produced(topic):
        for partition in range(storage.partitions):
            yield index, partition


def _produced(topic: TopicDefinition) -> Iterator[tuple[int, StorageTopic]]:
    return enumerate(topic.storage[: topic.produce_pointer + 1])


def _parsed(cursor: str) -> _Cursor:
    try:
        return _decode(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, binascii.Error, msgspec.DecodeError) as error:
        raise _not_a_cursor() from error


def _not_a_cursor() -> InvalidInputError:
    return InvalidInputError(
        "The cursor is not one of this topic and this question.",
        field="cursor",
        hint="Begin without one.",
    )
