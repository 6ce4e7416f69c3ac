"""Counters in plain numbers, told to Prometheus when it asks.

For what is counted with every request: prometheus-client takes a lock and several calls each time.
All of ours are counted on one thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector


class Count:
    """One number that only grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def inc(self, amount: int = 1) -> None:
        """Adds to it."""
        self.value += amount


class Counts(Collector):
    """The counts of one metric, by the values of its labels; `of()` where it has none."""

    def __init__(self, name: str, help_text: str, *, labels: Sequence[str] = ()) -> None:
        self._name = name
        self._help = help_text
        self._labels = tuple(labels)
        self._counts: dict[tuple[str, ...], Count] = {}

    def of(self, *values: str) -> Count:
        """The count under these values of the labels; made, and shown, from the first time on."""
        return self._counts.setdefault(values, Count())

    def collect(self) -> Iterator[Metric]:
        """What Prometheus gets to see."""
        family = CounterMetricFamily(self._name, self._help, labels=self._labels)
        for values, count in self._counts.items():
            family.add_metric(values, count.value)
        yield family
