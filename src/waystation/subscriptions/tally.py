"""The tally: what shards of this process do, counted for Prometheus under bounded names."""

from __future__ import annotations

from waystation.runtime.metrics import Count
from waystation.subscriptions.names import Place
from waystation.subscriptions.states import Verdict
from waystation.telemetry import metrics

#: What is told of a subscription or shard that has no label of its own.
OTHER = "other"
#: Labels are for ever in whoever collects metrics: so many names, and so many shards of each.
NAMES_MAX = 200
SHARDS_MAX = 64


class Labels:
    """The names that subscriptions have in metrics: the first ones their own, later ones `other`.

    The bound holds for the life of a process: counters never go away.
    """

    def __init__(self, names_max: int = NAMES_MAX) -> None:
        self._names_max = names_max
        self._names: set[str] = set()

    def subscription(self, place: Place) -> str:
        """What a subscription is called; with its project, unless that is the default one."""
        name = place.subscription
        if place.project != "default":
            name = f"{place.project}.{name}"
        if name not in self._names:
            if len(self._names) >= self._names_max:
                return OTHER
            self._names.add(name)
        return name

    def shard(self, place: Place) -> str:
        """What a shard is called."""
        return str(place.shard) if place.shard < SHARDS_MAX else OTHER


class Tally:
    """Counts attempts and doubles; `Counts` of the shards of a process."""

    def __init__(self) -> None:
        self.labels = Labels()
        self._attempts: dict[tuple[Place, Verdict], Count] = {}

    def attempted(self, place: Place, verdict: Verdict) -> None:
        """A request has ended; `release`: it was as if it had not been made."""
        count = self._attempts.get((place, verdict))
        if count is None:
            name = self.labels.subscription(place)
            count = metrics.subscription_attempts.of(name, verdict.value)
            self._attempts[place, verdict] = count
        count.inc()

    def doubled(self, place: Place) -> None:
        """What was delivered or pushed had been settled before."""
        metrics.subscription_doubles.of(self.labels.subscription(place)).inc()
