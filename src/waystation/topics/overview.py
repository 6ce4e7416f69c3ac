"""How a topic stands: what each partition holds, what was lost, and what is nearly full."""

from __future__ import annotations

import msgspec

from waystation.errors import LogNotFoundError
from waystation.logs.protocol import Logs
from waystation.runtime.tasks import for_each
from waystation.topics.model import TopicDefinition
from waystation.topics.service import TopicService


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

    def __init__(self, topics: TopicService, logs: Logs) -> None:
        self._topics = topics
        self._logs = logs

    async def of(self, project: str, name: str) -> TopicStanding:
        """How a topic stands now."""
        topic = await self._topics.get(project, name)
        found: list[PartitionStanding] = []

        async def look(place: tuple[int, int]) -> None:
            standing = await self._look(topic, *place)
            if standing is not None:
                found.append(standing)

        await for_each(
            (
                (index, partition)
                for index, storage in enumerate(topic.storage)
                for partition in range(storage.partitions)
            ),
            look,
        )
        found.sort(key=lambda each: (each.storage, each.partition))
        return TopicStanding(
            messages=sum(each.end - each.first for each in found),
            bytes=sum(each.bytes for each in found),
            dropped=sum(each.dropped for each in found),
            partitions=found,
            warnings=_warnings(topic, found),
        )

    async def _look(
        self, topic: TopicDefinition, index: int, partition: int
    ) -> PartitionStanding | None:
        try:
            state = await self._logs.state(topic.log(topic.storage[index]), partition)
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


def _warnings(topic: TopicDefinition, partitions: list[PartitionStanding]) -> list[str]:
    warnings = []
    if near := sum(each.warned_ms > 0 for each in partitions):
        warnings.append(
            f"{near} of {len(partitions)} partitions are at least 70 % full of what is still "
            f"needed; when full, the policy is {topic.options.full_policy}."
        )
    if dropped := sum(each.dropped for each in partitions):
        warnings.append(f"{dropped} messages were dropped although a reader needed them.")
    return warnings
