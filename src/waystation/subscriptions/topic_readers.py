"""The subscriptions of a topic, as topics ask for them: who reads it, and what they hold."""

from __future__ import annotations

from collections.abc import AsyncIterator

from waystation.subscriptions.construction import Construction
from waystation.subscriptions.definition import Subscription
from waystation.subscriptions.definitions import ALIVE, THERE, SubscriptionDefinitions
from waystation.topics.model import TopicDefinition
from waystation.topics.router import is_consistent

_PAGE = 200


class SubscriptionReaders:
    """`topics.Readers`, by the book of subscriptions."""

    def __init__(self, definitions: SubscriptionDefinitions, construction: Construction) -> None:
        self._definitions = definitions
        self._construction = construction

    async def names(self, project: str, topic: str) -> list[str]:
        return [each.name async for each in self._of(project, topic)]

    async def stopped_by(self, topic: TopicDefinition, index: int) -> list[str]:
        before = topic.storage[index - 1]
        spreads = (before.router, topic.storage[index].router)
        return [
            f"{each.name} ({each.shards} shards)"
            async for each in self._of(topic.project, topic.name)
            if each.state in ALIVE
            # One that begins behind the step has no group in the storage topic before.
            and each.first_storage <= before.number
            and not is_consistent(spreads, each.shards)
        ]

    async def hold(self, topic: TopicDefinition) -> None:
        async for each in self._of(topic.project, topic.name):
            await self._construction.hold_next(each, topic)

    async def _of(self, project: str, topic: str) -> AsyncIterator[Subscription]:
        after = ""
        while page := await self._definitions.page(project, THERE, after=after, limit=_PAGE):
            for each in page:
                if each.topic == topic:
                    yield each
            after = page[-1].name
