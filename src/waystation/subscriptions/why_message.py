"""Why a message is where it is: kept, settled, or still to be read."""

from __future__ import annotations

from typing import Any

import msgspec

from waystation.errors import TopicNotFoundError
from waystation.runtime.clock import utc_text
from waystation.subscriptions.explanation import Explanation, Question, because
from waystation.subscriptions.hindrances import Hindrances
from waystation.subscriptions.looking import Looking
from waystation.subscriptions.looks import Found
from waystation.subscriptions.overview import Overview
from waystation.subscriptions.positions import Position
from waystation.subscriptions.selecting import Selecting
from waystation.subscriptions.shards import partition_owner
from waystation.subscriptions.states import MessageState
from waystation.subscriptions.trail import Trails
from waystation.subscriptions.why_group import GroupReasons
from waystation.subscriptions.why_shard import ShardReasons
from waystation.topics.queries import TopicQueries
from waystation.types.topic import StoredMessage as Produced

#: Pages of the topic that are gone through for a message whose group is not said.
_PAGES_MAX = 20


class MessageReasons:
    """Explains messages."""

    def __init__(
        self,
        looking: Looking,
        selecting: Selecting,
        hindrances: Hindrances,
        overview: Overview,
        shards: ShardReasons,
        groups: GroupReasons,
        browser: TopicQueries,
        trails: Trails,
    ) -> None:
        self._looking = looking
        self._selecting = selecting
        self._hindrances = hindrances
        self._overview = overview
        self._shards = shards
        self._groups = groups
        self._browser = browser
        self._trails = trails

    async def message(self, asked: Question, message: str, group: str) -> Explanation:
        """A message: kept in retry or among dead letters, in its topic, or neither."""
        found = await self._find(asked, message, group)
        if found is not None:
            return await self._kept(asked, *found)
        produced, all_seen = await self._produced(asked, message, group)
        if produced is None:
            return _unknown(asked, message, all_seen=all_seen)
        return await self._in_topic(asked, message, produced)

    async def _find(self, asked: Question, message: str, group: str) -> tuple[int, Found] | None:
        subscription = asked.subscription
        shards = range(subscription.shards)
        for shard in await self._selecting.shards(subscription, group) if group else shards:
            place = subscription.place(shard)
            if await self._overview.look(subscription, shard) is None:
                continue
            found = await self._looking.find(place, message, group=group)
            if found is not None:
                return shard, found
        return None

    async def _kept(self, asked: Question, shard: int, found: Found) -> Explanation:
        """In retry, or among dead letters."""
        place, record = asked.subscription.place(shard), found.record
        facts = {"shard": shard, **asked.told(record)}
        if record.group and found.state is not MessageState.ALONE:
            look = await self._looking.group(place, record.group)
            if found.state is MessageState.BEHIND and look.head is not None:
                return self._groups.behind(asked, shard, record.group, look, ahead=found.ahead)
            return await self._groups.head(asked, shard, record.group, look)
        single = await self._looking.single(place, found.queue, found.number)
        if found.queue == "retry" or single.operation:
            return await self._groups.due(
                asked, shard, facts, record, single, redriving=bool(single.operation)
            )
        at = utc_text(record.last_failure_ms)
        text = f"It is a dead letter since {at}{because(record)}; no other waits for it."
        return asked.answer("dead", text, **facts, number=found.number)

    async def _produced(
        self, asked: Question, message: str, group: str
    ) -> tuple[Produced | None, bool]:
        """Where the topic has it; and whether all of the topic was seen."""
        project, topic, cursor = asked.subscription.project, asked.subscription.topic, ""
        try:
            for _ in range(_PAGES_MAX):
                page = await self._browser.messages_with_id(
                    project, topic, message, group=group or None, cursor=cursor, limit=1
                )
                if page.messages or page.ended:
                    return next(iter(page.messages), None), page.ended
                cursor = page.cursor
        except TopicNotFoundError:
            return None, True
        return None, False

    async def _in_topic(self, asked: Question, message: str, produced: Produced) -> Explanation:
        """Not in retry and not dead: settled, or still to be read."""
        subscription, topic = asked.subscription, asked.around.topic
        assert topic is not None
        storage = topic.storage[produced.storage]
        shard = partition_owner(produced.partition, storage.partitions, subscription.shards)
        place = subscription.place(shard)
        position = Position(
            subscription.incarnation, storage.number, produced.partition, produced.offset
        )
        facts = {
            "shard": shard,
            "position": f"{storage.number}.{produced.partition}.{produced.offset}",
        }
        if storage.number < subscription.first_storage:
            text = "It was produced before the subscription began."
            return asked.answer("settled", text, **facts, how="before")
        look = await self._looking.message(
            place, position.storage, position.partition, position.offset
        )
        grouped = subscription.options.grouped
        if grouped is None:
            grouped = topic.options.grouped
        group = (produced.message.group or "") if grouped else ""
        if look.acknowledged:
            # It may have come into retry after we looked there.
            moved = await self._find(asked, message, group) if group else None
            if moved is not None:
                return await self._kept(asked, *moved)
            return await self._settled(asked, shard, position, produced.time_ms, facts)
        owned = self._hindrances.shards().get(place)
        if look.taken or (owned is not None and owned.carries(position.member)):
            return asked.answer("under_way", "Its first attempt is under way.", **facts)
        return await self._waiting(asked, shard, group, produced.offset - look.low, facts)

    async def _settled(
        self, asked: Question, shard: int, position: Position, ms: int, facts: dict[str, Any]
    ) -> Explanation:
        ending = await self._trails.ending(asked.subscription.place(shard), position, ms)
        at = f" at {utc_text(ending.at_ms)}" if ending.at_ms else ""
        text = {
            "delivered": f"It was delivered{at}, by attempt {ending.attempt}.",
            "before": "It was produced before the subscription began.",
            "trimmed": f"The topic let go of it before it was delivered{at}.",
            "damaged": f"It was missing from its log before it was delivered{at} (log.damaged).",
            "unknown": "It is settled; the record log does not say any more how.",
        }.get(ending.how, f"It was {ending.how}{at}.")
        told = {name: value for name, value in msgspec.structs.asdict(ending).items() if value}
        return asked.answer("settled", text, **facts, **told)

    async def _waiting(
        self, asked: Question, shard: int, group: str, behind: int, facts: dict[str, Any]
    ) -> Explanation:
        """In the topic, and to be delivered from there."""
        facts = {**facts, "behind": behind}
        hindered = await self._shards.hindered(asked, shard, heads=False)
        if hindered is not None:
            hindered.facts = facts | hindered.facts
            return hindered
        if group:
            look = await self._looking.group(asked.subscription.place(shard), group)
            if look.head is not None:
                return self._groups.behind(asked, shard, group, look, ahead=look.retry + look.dead)
        text = f"Its turn has not come: about {behind:,} messages of its partition are before it."
        return asked.answer("not_read_yet", text, **facts)


def _unknown(asked: Question, message: str, *, all_seen: bool) -> Explanation:
    text = f"Topic {asked.subscription.topic} has no message {message[:80]!r}."
    if not all_seen:
        text = "It was not found among those that were looked at; say its group, too."
    return asked.answer("unknown", text, id=message, all_seen=all_seen)
