"""Subscriptions as the readers of topics, which topics see only as a protocol."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from waystation.errors import LogNotFoundError, OffsetOutOfRangeError
from waystation.logs.protocol import Logs
from waystation.runtime.tasks import for_each
from waystation.subscriptions.definition import Subscription
from waystation.subscriptions.definitions import ALIVE, THERE, SubscriptionDefinitions
from waystation.subscriptions.names import reader
from waystation.topics.model import TopicDefinition
from waystation.topics.router import is_consistent

_PAGE = 200


class SubscriptionReaders:
    """Implements `TopicReaders` with the definitions of subscriptions."""

    def __init__(self, definitions: SubscriptionDefinitions, logs: Logs) -> None:
        self._definitions = definitions
        self._logs = logs

    async def names(self, project: str, topic: str) -> list[str]:
        """Return the names of the subscriptions of a topic."""
        return [each.name async for each in self._of(project, topic)]

    async def stopped_by(self, topic: TopicDefinition, index: int) -> list[str]:
        """Name the subscriptions that would stop before the storage topic at `index`."""
        before = topic.storage[index - 1]
        routers = (before.router, topic.storage[index].router)
        return [
            f"{each.name} ({each.shards} shards)"
            async for each in self._of(topic.project, topic.name)
            if each.state in ALIVE
            # A subscription that starts at the later storage topic has no groups in the one before.
            and each.first_storage <= before.number
            and not is_consistent(routers, each.shards)
        ]

    async def hold(self, topic: TopicDefinition) -> None:
        """Let every subscription hold the next storage topic from its first message on."""
        async for each in self._of(topic.project, topic.name):
            await self._hold_next(each, topic)

    async def _hold_next(self, subscription: Subscription, topic: TopicDefinition) -> None:
        following = topic.produce_pointer + 1
        if following >= len(topic.storage):
            return
        storage, name = topic.storage[following], reader(subscription.name)
        log = topic.log(storage)

        async def hold(partition: int) -> None:
            # Another node may have finished the switch. A partition with messages was held before
            # the first of them, and its shard may have moved the hold since.
            if (await self._logs.state(log, partition)).end == 0:
                # The log may have been trimmed or purged since. The shard's owner records a loss.
                with contextlib.suppress(LogNotFoundError, OffsetOutOfRangeError):
                    await self._logs.hold(
                        log, partition, name, 0, incarnation=subscription.incarnation
                    )

        await for_each(range(storage.partitions), hold)

    async def _of(self, project: str, topic: str) -> AsyncIterator[Subscription]:
        after = ""
        while page := await self._definitions.page(project, THERE, after=after, limit=_PAGE):
            for each in page:
                if each.topic == topic:
                    yield each
            after = page[-1].name
