"""How a topic stands: what each partition holds, what was lost, and what is nearly full."""

from __future__ import annotations

import asyncio

import msgspec

from waystation.errors import LogNotFoundError
from waystation.logs import Logs
from waystation.topics.topic import StorageTopic, Topic
from waystation.topics.topics import Topics

#: Partitions that are asked together; more would make other callers of the store wait.
_AT_ONCE = 64


class PartitionStanding(msgspec.Struct, frozen=True, kw_only=True):
    """One partition of a storage topic."""

    #: Index of the storage topic.
    storage: int
    partition: int
    #: Offset of the oldest message that is kept, and of the next one that will come.
    first: int
    end: int
    bytes: int
    #: Time of the newest message; 0 before the first.
    last_ms: int
    #: Messages that were dropped although somebody still needed them.
    dropped: int
    #: Whether it takes nothing more.
    sealed: bool
    #: Since when what is needed fills 70 % of the limit or more; 0: it does not.
    warned_ms: int


class TopicStanding(msgspec.Struct, frozen=True, kw_only=True):
    """All partitions of a topic that exist, and what a person should know."""

    messages: int
    bytes: int
    dropped: int
    partitions: list[PartitionStanding]
    warnings: list[str]


class Overview:
    """Looks at all partitions of a topic."""

    def __init__(self, topics: Topics, logs: Logs) -> None:
        self._topics = topics
        self._logs = logs

    async def of(self, project: str, name: str) -> TopicStanding:
        """How a topic stands now."""
        topic = await self._topics.get(project, name)
        found = []
        for index, storage in enumerate(topic.storage):
            for first in range(0, storage.partitions, _AT_ONCE):
                together = range(first, min(first + _AT_ONCE, storage.partitions))
                looks = (self._look(topic, index, storage, partition) for partition in together)
                found += [each for each in await asyncio.gather(*looks) if each is not None]
        return TopicStanding(
            messages=sum(each.end - each.first for each in found),
            bytes=sum(each.bytes for each in found),
            dropped=sum(each.dropped for each in found),
            partitions=found,
            warnings=_warnings(topic, found),
        )

    async def _look(
        self, topic: Topic, index: int, storage: StorageTopic, partition: int
    ) -> PartitionStanding | None:
        try:
            state = await self._logs.state(topic.log(storage), partition)
        except LogNotFoundError:
            return None  # Its creation is under way.
        return PartitionStanding(
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


def _warnings(topic: Topic, partitions: list[PartitionStanding]) -> list[str]:
    warnings = []
    if near := sum(each.warned_ms > 0 for each in partitions):
        warnings.append(
            f"{near} of {len(partitions)} partitions are at least 70 % full of what is still "
            f"needed; when full, the policy is {topic.options.full_policy}."
        )
    if dropped := sum(each.dropped for each in partitions):
        warnings.append(f"{dropped} messages were dropped although a reader needed them.")
    return warnings
