"""Deduplication: append only messages with ids that are new within the window of the topic.

The script that appends a message also stores its id, in the slot of the partition. After a switch,
the ids of older messages are in an earlier storage topic. Therefore the deduplicator first asks
every storage topic that was sealed within the window. A sealed storage topic receives no further
ids, so its answer stays valid.

An id is unique within its group, or within the topic if the message has no group; both lead to one
partition. The id of a CloudEvent is unique only within its source, which is therefore part of it.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Sequence
from typing import Protocol

from waystation.errors import StoreDamagedError
from waystation.logs import keys
from waystation.logs.streams import raise_refusal
from waystation.messages.cloudevents import event_source
from waystation.messages.envelope import Headers
from waystation.runtime.clock import Clock
from waystation.runtime.tasks import for_each
from waystation.store.client import Store
from waystation.store.scripts import script
from waystation.topics.model import StorageTopicDefinition, TopicDefinition
from waystation.types.message import Durability, Receipt

_APPEND_ONCE = script(__package__, "append_once")
_SEAL_AGE = script(__package__, "seal_age")
#: Seconds added to the window, because the clocks of process and store differ. Searching an expired
#: storage topic is harmless.
_MARGIN_S = 60
_SEALS_MAX = 10_000
#: Value of the key of an id: offset and time of the message.
_LOCATION = re.compile(rb"\d+-\d+")


class Routable(Protocol):
    """A message that can be routed and deduplicated: its fields, and its stored form `packed`."""

    @property
    def id(self) -> str: ...
    @property
    def group(self) -> str | None: ...
    @property
    def headers(self) -> Headers: ...
    @property
    def hash(self) -> int: ...
    @property
    def packed(self) -> bytes: ...


class Deduplicator:
    """Appends each message unless its id is already stored.

    The only state is a cache of the times at which storage topics were sealed.
    """

    def __init__(self, store: Store, *, clock: Clock, durability: Durability = "memory") -> None:
        self._store = store
        self._clock = clock
        self._durability: Durability = durability
        #: Log name -> monotonic time of its seal, which never changes.
        self._sealed_at: dict[str, float] = {}

    async def append(
        self, topic: TopicDefinition, partition: int, messages: Sequence[Routable]
    ) -> list[Receipt]:
        """Append messages with new ids to the current storage topic. Skip duplicates.

        Return one receipt per message. The receipt of a duplicate has the location of the first
        message with this id.
        """
        receipts = await self._find_in_earlier_storage(topic, messages)
        new = [index for index in range(len(messages)) if index not in receipts]
        if new:
            appended = await self._append(topic, partition, [messages[index] for index in new])
            receipts |= zip(new, appended, strict=True)
        return [receipts[index] for index in range(len(messages))]

    async def _append(
        self, topic: TopicDefinition, partition: int, messages: Sequence[Routable]
    ) -> list[Receipt]:
        log = topic.log(topic.target)
        arguments: list[str | bytes | int] = [_window_ms(topic)]
        for message in messages:
            arguments += [scoped_id(message), message.packed]
        reply = await self._store.run(_APPEND_ONCE, keys.all_of(log, partition), arguments)
        raise_refusal(reply, log, partition)
        return [
            self._receipt(
                message,
                topic.produce_pointer,
                partition,
                reply[1 + 2 * index],
                duplicate=bool(reply[2 + 2 * index]),
            )
            for index, message in enumerate(messages)
        ]

    async def _find_in_earlier_storage(
        self, topic: TopicDefinition, messages: Sequence[Routable]
    ) -> dict[int, Receipt]:
        """Search the earlier storage topics for the ids of messages.

        Return the receipts of the ids found. The key is the index in `messages`.
        """
        receipts: dict[int, Receipt] = {}
        for number in range(topic.produce_pointer):
            storage = topic.storage[number]
            if await self._is_expired(topic, storage):
                continue
            partitions = [storage.router.partition_of(message.hash) for message in messages]
            locations = await asyncio.gather(
                *(
                    self._store.call(
                        "GET",
                        keys.message_id(topic.log(storage), partition, scoped_id(message)),
                        repeatable=True,
                    )
                    for message, partition in zip(messages, partitions, strict=True)
                )
            )
            for index, location in enumerate(locations):
                if location is not None and not _LOCATION.fullmatch(location):
                    key = keys.message_id(
                        topic.log(storage), partitions[index], scoped_id(messages[index])
                    )
                    raise StoreDamagedError(key=key)
                if location is not None:
                    receipts[index] = self._receipt(
                        messages[index], number, partitions[index], location, duplicate=True
                    )
        return receipts

    def _receipt(
        self, message: Routable, storage: int, partition: int, location: bytes, *, duplicate: bool
    ) -> Receipt:
        offset, _, ms = location.partition(b"-")
        return Receipt(
            id=message.id,
            storage=storage,
            partition=partition,
            offset=int(offset),
            time_ms=int(ms),
            duplicate=duplicate,
            durability=self._durability,
        )

    async def _is_expired(self, topic: TopicDefinition, storage: StorageTopicDefinition) -> bool:
        """Return True if a storage topic was sealed so long ago that all its ids have expired."""
        log = topic.log(storage)
        if log not in self._sealed_at:
            age_s = await self._seal_age_s(log, storage.partitions)
            if age_s is None:
                return True
            if not age_s:
                return False
            if len(self._sealed_at) >= _SEALS_MAX:
                self._sealed_at.clear()
            self._sealed_at[log] = self._clock.monotonic() - age_s
        age_s = self._clock.monotonic() - self._sealed_at[log]
        return age_s > _window_ms(topic) / 1000 + _MARGIN_S

    async def _seal_age_s(self, log: str, partitions: int) -> float | None:
        """Return the time since the last partition was sealed.

        Return 0 if a partition is not sealed, and None if the log does not exist.
        """
        ages_ms: list[int] = []

        async def ask(partition: int) -> None:
            ages_ms.extend(await self._store.run(_SEAL_AGE, [keys.head(log, partition)], ()))

        await for_each(range(partitions), ask)
        return max(0.0, min(ages_ms) / 1000) if ages_ms else None


def scoped_id(message: Routable) -> str:
    """Return a text that is unique per message of a topic: source of the event, group and id."""
    # The first character shows which parts follow: `:` id only, a digit group and id, `s` source.
    # Therefore two messages with different parts never have the same text.
    group = message.group
    scoped = f":{message.id}" if group is None else f"{len(group)}:{group}:{message.id}"
    source = event_source(message.headers, message.id) if message.headers else None
    return scoped if source is None else f"s{_digest(source)}{scoped}"


def _digest(source: str) -> str:
    # Shorten the source, because the store keeps it with each id.
    return hashlib.blake2b(source.encode(), digest_size=16).hexdigest()


def _window_ms(topic: TopicDefinition) -> int:
    # At least 1, because the store rejects an expiry of 0.
    return max(1, round(topic.options.dedup_seconds * 1000))
