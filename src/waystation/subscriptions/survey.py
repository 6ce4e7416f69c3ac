"""The survey: looks at the shards of this process now and then, and tells Prometheus what it saw.

Every shard is told by its owner, and by nobody else: summed over nodes, the figures are those of
all. What is lost or given away is not told any more. A look that fails costs nothing but itself.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

from waystation.errors import WaystationError
from waystation.runtime.clock import Clock
from waystation.runtime.service import Service
from waystation.subscriptions.backlog import Backlogs
from waystation.subscriptions.definition import Subscription
from waystation.subscriptions.looking import Looking
from waystation.subscriptions.looks import ShardLook
from waystation.subscriptions.names import Place
from waystation.subscriptions.owned import Owned
from waystation.subscriptions.states import ShardState
from waystation.subscriptions.tally import Labels
from waystation.telemetry import metrics
from waystation.topics.model import TopicDefinition

#: Time between two measurements of all shards.
_PERIOD_S = 10.0
#: Shards that are looked at together.
_AT_ONCE = 16

#: Figures of one shard by the name of their metric.
Figures = dict[str, float]
#: Whose sum says nothing: the greatest is told where shards share a label.
_GREATEST = ("oldest_seconds", "oldest_failure_seconds")


class Survey(Service):
    """Measures the shards of this process and sets their gauges."""

    #: A measurement may be cancelled anywhere.
    grace_s = 0.0

    def __init__(
        self,
        shards: Callable[[], Mapping[Place, Owned]],
        looking: Looking,
        backlogs: Backlogs,
        *,
        subscription: Callable[[str, str], Awaitable[Subscription]],
        topic: Callable[[str, str], Awaitable[TopicDefinition]],
        labels: Labels,
        clock: Clock,
    ) -> None:
        super().__init__("subscriptions", clock=clock)
        self._shards = shards
        self._looking = looking
        self._backlogs = backlogs
        self._subscription = subscription
        self._topic = topic
        self._labels = labels

    async def run(self) -> None:
        """Measure all shards every ten seconds until the service stops."""
        await self.repeat(self.look, every_s=_PERIOD_S)

    async def on_stop(self) -> None:
        """Clear the gauges."""
        self._tell({}, {})

    async def look(self) -> None:
        """Measure all shards once and set their gauges."""
        shards = dict(self._shards())
        turn = asyncio.Semaphore(_AT_ONCE)

        async def figures(place: Place, shard: Owned) -> Figures | None:
            async with turn:
                return await self._figures(place, shard)

        found = await asyncio.gather(*(figures(*each) for each in shards.items()))
        told = zip(shards, found, strict=True)
        self._tell(shards, {place: each for place, each in told if each is not None})

    async def _figures(self, place: Place, shard: Owned) -> Figures | None:
        """None: it could not be looked at; its owner says why elsewhere."""
        try:
            subscription = await self._subscription(place.project, place.subscription)
            look = await self._looking.shard(place)
            topic = await self._topic(place.project, subscription.topic)
            backlog = await self._backlogs.of(subscription, topic, place, look.low)
        except WaystationError:
            return None
        return {
            "lag_messages": backlog.messages,
            "oldest_seconds": _age(look, backlog.oldest_ms),
            "oldest_failure_seconds": _age(look, look.oldest_failed_ms),
            "retrying_groups": look.groups - look.parked,
            "parked_groups": look.parked,
            "retry_messages": look.retry_count,
            "dead_messages": look.dead_count,
            "retry_bytes": look.retry_bytes,
            "dead_bytes": look.dead_bytes,
            "in_flight": shard.in_flight,
        }

    def _tell(self, shards: Mapping[Place, Owned], found: Mapping[Place, Figures]) -> None:
        """All at once: what was told before and is not in it is gone."""
        states = Counter(each.state for each in shards.values())
        for state in ShardState:
            metrics.subscription_shards.labels(state.value).set(states[state])
        told: dict[tuple[str, str], Figures] = {}
        for place, figures in found.items():
            labels = self._labels.subscription(place), self._labels.shard(place)
            kept = told.setdefault(labels, {})
            for name, value in figures.items():
                both = kept.get(name, 0.0), value
                kept[name] = max(both) if name in _GREATEST else sum(both)
        for name, gauge in metrics.subscription_figures.items():
            gauge.clear()
            for labels, figures in told.items():
                gauge.labels(*labels).set(figures[name])


def _age(look: ShardLook, since_ms: int) -> float:
    return max(0.0, (look.now_ms - since_ms) / 1000) if since_ms else 0.0
