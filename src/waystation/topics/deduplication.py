"""Deduplication: a message whose id was produced within the window is not appended again.

The memory of ids is in each partition's slot, written by the script that appends. A message that
was produced before a switch is remembered in the storage topic of that time: those sealed within
the window are asked first. What is sealed takes nothing more, so the answer stays true.

Ids count within their group, or, without one, in the whole topic: both find the same partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from waystation.clock import Clock
from waystation.logs import Logs
from waystation.logs.streams import raise_refusal
from waystation.store import Store, keys, script
from waystation.topics.topic import StorageTopic, Topic

_APPEND_ONCE = script(__package__, "append_once")
#: Clocks of processes and the store differ a little; to ask once too often does no harm.
_MARGIN_MS = 60_000


class Routed(msgspec.Struct, frozen=True):
    """A message on its way, to be routed by its hash."""

    #: Position in its batch.
    position: int
    id: str
    #: What deduplication knows it by.
    scoped_id: str
    hashed: int
    packed: bytes


class Place(msgspec.Struct, frozen=True):
    """Where a message is; a duplicate is where the first one is."""

    #: Index of the storage topic.
    storage: int
    partition: int
    offset: int
    ms: int
    duplicate: bool = False


class Deduplication:
    """Appends what is new."""

    def __init__(self, store: Store, logs: Logs, *, clock: Clock) -> None:
        self._store = store
        self._logs = logs
        self._clock = clock
        #: When a storage topic's last partition was sealed; it never changes.
        self._sealed_ms: dict[str, int] = {}

    async def append(self, topic: Topic, partition: int, messages: Sequence[Routed]) -> list[Place]:
        """Appends to a partition of the present storage topic what is not remembered anywhere."""
        earlier = await self._in_earlier_storage(topic, messages)
        fresh = [message for message in messages if message.position not in earlier]
        appended = await self._append(topic, partition, fresh) if fresh else []
        places = dict(zip((message.position for message in fresh), appended, strict=True))
        return [earlier.get(message.position) or places[message.position] for message in messages]

    async def _append(
        self, topic: Topic, partition: int, messages: Sequence[Routed]
    ) -> list[Place]:
        log = topic.log(topic.target)
        arguments: list[str | bytes | int] = [_window_ms(topic)]
        for message in messages:
            arguments += [message.scoped_id, message.packed]
        names = (keys.log_entries(log, partition), keys.log_head(log, partition))
        reply = await self._store.run(_APPEND_ONCE, names, arguments)
        raise_refusal(reply, log, partition)
        return [
            _place(topic.produce_pointer, partition, reply[i], duplicate=bool(reply[i + 1]))
            for i in range(1, len(reply), 2)
        ]

    async def _in_earlier_storage(
        self, topic: Topic, messages: Sequence[Routed]
    ) -> dict[int, Place]:
        """Messages that are remembered from before a switch, by their positions."""
        found: dict[int, Place] = {}
        for index in range(topic.produce_pointer):
            storage = topic.storage[index]
            if await self._forgotten(topic, storage):
                continue
            partitions = [storage.spread.partition_of(message.hashed) for message in messages]
            known = await asyncio.gather(
                *(
                    self._store.call(
                        "GET",
                        keys.log_message_id(topic.log(storage), partition, message.scoped_id),
                        repeatable=True,
                    )
                    for message, partition in zip(messages, partitions, strict=True)
                )
            )
            for message, partition, place in zip(messages, partitions, known, strict=True):
                if place is not None:
                    found[message.position] = _place(index, partition, place, duplicate=True)
        return found

    async def _forgotten(self, topic: Topic, storage: StorageTopic) -> bool:
        """Whether a storage topic was sealed so long ago that it remembers nothing."""
        log = topic.log(storage)
        if log not in self._sealed_ms:
            states = await asyncio.gather(
                *(self._logs.state(log, partition) for partition in range(storage.partitions))
            )
            self._sealed_ms[log] = max(state.sealed_ms for state in states)
        age = self._clock.now_ms() - self._sealed_ms[log]
        return age > _window_ms(topic) + _MARGIN_MS


def _window_ms(topic: Topic) -> int:
    return round(topic.options.dedup_seconds * 1000)


def _place(storage: int, partition: int, text: bytes, *, duplicate: bool) -> Place:
    offset, _, ms = text.partition(b"-")
    return Place(storage, partition, int(offset), int(ms), duplicate)
