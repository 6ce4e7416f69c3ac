"""Deduplication: a message whose id was produced within the window is not appended again.

The memory of ids is in each partition's slot, written by the script that appends. A message that
was produced before a switch is remembered in the storage topic of that time: those sealed within
the window are asked first. What is sealed takes nothing more, so the answer stays true.

Ids count within their group, or, without one, in the whole topic: both find the same partition.
A CloudEvent's own id counts within its source besides, since that is where it is unique.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence

import msgspec

from waystation.logs import keys
from waystation.logs.streams import raise_refusal
from waystation.messages.cloudevents import event_source
from waystation.runtime.clock import Clock
from waystation.runtime.tasks import for_each
from waystation.store.client import Store
from waystation.store.scripts import script
from waystation.topics.lane import Routed
from waystation.topics.model import StorageTopic, Topic

_APPEND_ONCE = script(__package__, "append_once")
_SEAL_AGE = script(__package__, "seal_age")
#: A process's seconds are not quite the store's; to ask once too often does no harm.
_MARGIN_SECONDS = 60
_SEALS_KEPT = 10_000


class Place(msgspec.Struct, frozen=True, gc=False):
    """Where a message is; a duplicate is where the first one is."""

    #: Index of the storage topic.
    storage: int
    partition: int
    offset: int
    ms: int
    duplicate: bool = False


class Deduplication:
    """Appends what is new."""

    def __init__(self, store: Store, *, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        #: When a storage topic's last partition was sealed; it never changes. By the seconds of
        #: this process from when it asked the store: what time each of them has is no matter.
        self._sealed_at: dict[str, float] = {}

    async def append(self, topic: Topic, partition: int, messages: Sequence[Routed]) -> list[Place]:
        """Appends to a partition of the present storage topic what is not remembered anywhere."""
        places = await self._in_earlier_storage(topic, messages)
        fresh = [index for index in range(len(messages)) if index not in places]
        if fresh:
            appended = await self._append(topic, partition, [messages[index] for index in fresh])
            places |= zip(fresh, appended, strict=True)
        return [places[index] for index in range(len(messages))]

    async def _append(
        self, topic: Topic, partition: int, messages: Sequence[Routed]
    ) -> list[Place]:
        log = topic.log(topic.target)
        arguments: list[str | bytes | int] = [_window_ms(topic)]
        for message in messages:
            arguments += [scoped_id(message), message.packed]
        reply = await self._store.run(_APPEND_ONCE, keys.all_of(log, partition), arguments)
        raise_refusal(reply, log, partition)
        return [
            _place(topic.produce_pointer, partition, reply[i], duplicate=bool(reply[i + 1]))
            for i in range(1, len(reply), 2)
        ]

    async def _in_earlier_storage(
        self, topic: Topic, messages: Sequence[Routed]
    ) -> dict[int, Place]:
        """Messages that are remembered from before a switch, by their indices."""
        found: dict[int, Place] = {}
        for number in range(topic.produce_pointer):
            storage = topic.storage[number]
            if await self._forgotten(topic, storage):
                continue
            partitions = [storage.spread.partition_of(message.hashed) for message in messages]
            known = await asyncio.gather(
                *(
                    self._store.call(
                        "GET",
                        keys.message_id(topic.log(storage), partition, scoped_id(message)),
                        repeatable=True,
                    )
                    for message, partition in zip(messages, partitions, strict=True)
                )
            )
            for index, (partition, place) in enumerate(zip(partitions, known, strict=True)):
                if place is not None:
                    found[index] = _place(number, partition, place, duplicate=True)
        return found

    async def _forgotten(self, topic: Topic, storage: StorageTopic) -> bool:
        """Whether a storage topic was sealed so long ago that it remembers nothing."""
        log = topic.log(storage)
        if log not in self._sealed_at:
            age_seconds = await self._seal_age(log, storage.partitions)
            if age_seconds is None:
                return True
            if not age_seconds:
                return False
            if len(self._sealed_at) >= _SEALS_KEPT:
                self._sealed_at.clear()
            self._sealed_at[log] = self._clock.monotonic() - age_seconds
        age_seconds = self._clock.monotonic() - self._sealed_at[log]
        return age_seconds > _window_ms(topic) / 1000 + _MARGIN_SECONDS

    async def _seal_age(self, log: str, partitions: int) -> float | None:
        """How long ago a log's last partition was sealed; 0: not all are. None: it is gone."""
        found: list[int] = []

        async def look(partition: int) -> None:
            found.extend(await self._store.run(_SEAL_AGE, [keys.head(log, partition)], ()))

        await for_each(range(partitions), look)
        return max(0.0, min(found) / 1000) if found else None


def scoped_id(message: Routed) -> str:
    """What a message is known by: its id within its group, or within the topic."""
    # A colon, a length or a letter first, so that no two can be read as one another.
    group = message.group
    scoped = f":{message.id}" if group is None else f"{len(group)}:{group}:{message.id}"
    source = event_source(message.headers, message.id) if message.headers else None
    return scoped if source is None else f"s{_short(source)}{scoped}"


def _short(source: str) -> str:
    """A source may be long, and is remembered with each id."""
    return hashlib.blake2b(source.encode(), digest_size=16).hexdigest()


def _window_ms(topic: Topic) -> int:
    # One at least: a key that expires in no time cannot be written.
    return max(1, round(topic.options.dedup_seconds * 1000))


def _place(storage: int, partition: int, text: bytes, *, duplicate: bool) -> Place:
    offset, _, ms = text.partition(b"-")
    return Place(storage, partition, int(offset), int(ms), duplicate)
