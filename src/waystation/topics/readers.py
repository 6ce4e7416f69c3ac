"""Who reads topics. Readers are above topics, so topics ask them by this protocol."""

from __future__ import annotations

from typing import Protocol

from waystation.topics.model import Topic


class Readers(Protocol):
    """All that read topics and would miss one."""

    async def names(self, project: str, topic: str) -> list[str]:
        """Those that read a topic, as people know them."""
        ...

    async def stopped_by(self, topic: Topic, index: int) -> list[str]:
        """Return the readers that cannot go on to the storage topic with that index.

        A reader can go on if a group has the same shard in it as in the storage topic before.
        """
        ...

    async def hold(self, topic: Topic) -> None:
        """Has every reader hold the storage topic that is produced to next, before it is."""
        ...


class NoReaders:
    """Nobody reads."""

    async def names(self, project: str, topic: str) -> list[str]:
        return []

    async def stopped_by(self, topic: Topic, index: int) -> list[str]:
        return []

    async def hold(self, topic: Topic) -> None:
        return
