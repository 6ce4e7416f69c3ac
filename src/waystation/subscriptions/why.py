"""Why a message, a group, a shard or a subscription is where it is: a stable code, and a sentence.

It only looks. What keeps a whole shard from delivering comes before what is the matter with a
message of it, unless that waits for something of its own: its time, or an operator.
"""

from __future__ import annotations

from waystation.errors import InvalidInputError
from waystation.logs.protocol import Logs
from waystation.subscriptions.explanation import Explanation, Question, Subject
from waystation.subscriptions.hindrances import Hindrances
from waystation.subscriptions.looking import Looking
from waystation.subscriptions.overview import Overview
from waystation.subscriptions.selecting import Selecting
from waystation.subscriptions.subscriptions import Subscriptions
from waystation.subscriptions.trail import Trails
from waystation.subscriptions.why_group import GroupReasons
from waystation.subscriptions.why_message import MessageReasons
from waystation.subscriptions.why_shard import ShardReasons
from waystation.topics.queries import TopicQueries


class Why:
    """Explains."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        looking: Looking,
        selecting: Selecting,
        hindrances: Hindrances,
        overview: Overview,
        *,
        browser: TopicQueries,
        logs: Logs,
    ) -> None:
        self._subscriptions = subscriptions
        self._hindrances = hindrances
        self._shards = ShardReasons(hindrances, overview)
        self._groups = GroupReasons(selecting, overview, self._shards)
        self._messages = MessageReasons(
            looking,
            selecting,
            hindrances,
            overview,
            self._shards,
            self._groups,
            browser,
            Trails(logs),
        )

    async def explain(
        self,
        project: str,
        name: str,
        *,
        group: str = "",
        message: str = "",
        shard: int | None = None,
    ) -> Explanation:
        """The reason: of a message, a group or a shard if one is named, else of all."""
        if shard is not None and (group or message):
            raise InvalidInputError("Ask about a shard, or about a message.", field="shard")
        subscription = await self._subscriptions.get(project, name)
        if shard is not None and not 0 <= shard < subscription.shards:
            raise InvalidInputError(
                f"The shards are 0 to {subscription.shards - 1}.", field="shard"
            )
        around = await self._hindrances.circumstances(subscription)

        def about(subject: Subject) -> Question:
            return Question(subject=subject, around=around)

        if shard is not None:
            return await self._shards.shard(about("shard"), shard)
        if message:
            return await self._messages.message(about("message"), message, group)
        if group:
            return await self._groups.group(about("group"), group)
        return await self._shards.whole(about("subscription"))
