"""Requests by route, and times of other things, counted in plain numbers and told to Prometheus
when it asks.

prometheus-client takes a lock and several calls for each of the three things that are noted about
a request, a tenth of what a small request costs. All of ours are answered on one thread.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

#: Upper bounds of the classes of time, in seconds; one more class takes what is longer.
BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0)


class Measure:
    """Replies of one route with one status; or whatever else takes time."""

    __slots__ = ("bounds", "classes", "seconds")

    def __init__(self, bounds: tuple[float, ...] = BOUNDS) -> None:
        self.bounds = bounds
        self.classes = [0] * (len(bounds) + 1)
        self.seconds = 0.0

    def note(self, seconds: float) -> None:
        """Counts one that took so long."""
        self.classes[bisect_left(self.bounds, seconds)] += 1
        self.seconds += seconds

    @property
    def buckets(self) -> list[tuple[str, float]]:
        """As Prometheus has them: each with all that are below."""
        names = [*map(str, self.bounds), "+Inf"]
        return list(zip(names, accumulate(self.classes), strict=True))


class Durations(Collector):
    """How long one kind of thing takes."""

    def __init__(self, name: str, help_text: str, *, bounds: tuple[float, ...]) -> None:
        self._name = name
        self._help = help_text
        self.measure = Measure(bounds)

    def collect(self) -> Iterator[Metric]:
        """What Prometheus gets to see."""
        family = HistogramMetricFamily(self._name, self._help)
        family.add_metric((), self.measure.buckets, self.measure.seconds)
        yield family


class Measures(Collector):
    """All measures, by method, route and status. The caller keeps the set of these small."""

    def __init__(self) -> None:
        self._measures: dict[tuple[str, str, int], Measure] = {}

    def of(self, method: str, route: str, status: int) -> Measure:
        """The measure of these three; made at the first time."""
        key = (method, route, status)
        found = self._measures.get(key)
        if found is None:
            found = self._measures[key] = Measure()
        return found

    def collect(self) -> Iterator[Metric]:
        """What Prometheus gets to see."""
        requests = CounterMetricFamily(
            "waystation_http_requests",
            "Requests answered, by route template and status.",
            labels=("method", "route", "status"),
        )
        times = HistogramMetricFamily(
            "waystation_http_request_seconds",
            "Time from the first byte of a request to its reply; long polls wait on purpose.",
            labels=("route",),
        )
        by_route: dict[str, Measure] = {}
        for (method, route, status), measure in self._measures.items():
            requests.add_metric((method, route, str(status)), sum(measure.classes))
            whole = by_route.setdefault(route, Measure())
            whole.classes = [a + b for a, b in zip(whole.classes, measure.classes, strict=True)]
            whole.seconds += measure.seconds
        for route, whole in by_route.items():
            times.add_metric((route,), whole.buckets, whole.seconds)
        yield requests
        yield times
