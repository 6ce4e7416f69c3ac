"""Metrics of the process: the registry, counters and histograms without locks, and their text form.

The classes of prometheus-client take a lock and several calls for each change, about a tenth of
the cost of a small request. The counters and histograms here are plain numbers that one thread
changes; the registry reads them when Prometheus asks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

CONTENT_TYPE = CONTENT_TYPE_LATEST
registry = CollectorRegistry()
ProcessCollector(registry=registry)

#: Upper limits of the default buckets, in seconds. One more bucket has all longer times.
BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0)
#: Labels with the name of a pool or subscription as `<project>.<name>`.
_NAME_LABELS = ("pool", "subscription")


class Count:
    """A number that only grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def inc(self, amount: int = 1) -> None:
        """Increase the count by `amount`."""
        self.value += amount


class CountFamily(Collector):
    """The counts of one metric by the values of its labels."""

    def __init__(self, name: str, help_text: str, *, labels: Sequence[str] = ()) -> None:
        self._name = name
        self._help = help_text
        self._labels = tuple(labels)
        self._counts: dict[tuple[str, ...], Count] = {}

    def of(self, *values: str) -> Count:
        """Return the count of these label values. Prometheus sees the count from this call on."""
        return self._counts.setdefault(values, Count())

    def collect(self) -> Iterator[Metric]:
        """Yield the counts for Prometheus."""
        family = CounterMetricFamily(self._name, self._help, labels=self._labels)
        for values, count in self._counts.items():
            family.add_metric(values, count.value)
        yield family


class Histogram:
    """Number of durations in each bucket, and the sum of all durations."""

    __slots__ = ("bounds", "counts", "seconds")

    def __init__(self, bounds: tuple[float, ...] = BOUNDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.seconds = 0.0

    def note(self, seconds: float) -> None:
        """Add one duration to its bucket and to the sum."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.seconds += seconds

    @property
    def buckets(self) -> list[tuple[str, float]]:
        """The buckets for Prometheus. Each contains the counts of all smaller ones."""
        names = [*map(str, self.bounds), "+Inf"]
        return list(zip(names, accumulate(self.counts), strict=True))


class _HistogramCollector(Collector):
    def __init__(self, name: str, help_text: str, *, bounds: tuple[float, ...]) -> None:
        self._name = name
        self._help = help_text
        self.histogram = Histogram(bounds)

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._help)
        family.add_metric((), self.histogram.buckets, self.histogram.seconds)
        yield family


def count_family(name: str, help_text: str, *, label: str = "") -> CountFamily:
    """Declare a counter; `label` has the names of its labels, separated by spaces."""
    family = CountFamily(name, help_text, labels=label.split())
    registry.register(family)
    return family


def histogram(name: str, help_text: str, *bounds: float) -> Histogram:
    """Declare a histogram of seconds with these upper limits of its buckets."""
    collector = _HistogramCollector(name, help_text, bounds=bounds)
    registry.register(collector)
    return collector.histogram


def exposition(project: str = "", *, owns_bare_names: bool = False) -> bytes:
    """Return metrics as OpenMetrics text: all, or those of one project's pools and subscriptions.

    Metrics of the whole process count all projects, so they are left out for a single one. With
    `owns_bare_names`, labels without a project belong to this one, the default project.
    """
    source = _ProjectMetrics(project, owns_bare_names=owns_bare_names) if project else registry
    text: bytes = generate_latest(source)  # type: ignore[no-untyped-call]
    return text


class _ProjectMetrics:
    """The samples of the registry whose labels name a pool or subscription of one project."""

    def __init__(self, project: str, *, owns_bare_names: bool) -> None:
        self._prefix = f"{project}."
        self._owns_bare_names = owns_bare_names

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics that have samples of the project, with only these samples."""
        for metric in registry.collect():
            own = [each for each in metric.samples if self._is_own(each.labels)]
            if own:
                found = copy(metric)
                found.samples = own
                yield found

    def _is_own(self, labels: Mapping[str, str]) -> bool:
        found = [labels[name] for name in _NAME_LABELS if labels.get(name)]
        return any(
            each.startswith(self._prefix) or (self._owns_bare_names and "." not in each)
            for each in found
        )
