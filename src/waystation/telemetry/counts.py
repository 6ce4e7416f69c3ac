"""Counters in plain numbers, told to Prometheus when it asks.

For what is counted with every request: prometheus-client takes a lock and several calls each time.
All of ours are counted on one thread.
"""

from __future__ import annotations

from collections.abc import Iterator

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
    """The counts of one metric, by the value of its label; `of("")` where it has none."""

    def __init__(self, name: str, help_text: str, *, label: str = "") -> None:
        self._name = name
        self._help = help_text
        self._label = label
        self._counts: dict[str, Count] = {}

    def of(self, value: str = "") -> Count:
        """The count under this value of the label; made, and shown, from the first time on."""
        return self._counts.setdefault(value, Count())

    def collect(self) -> Iterator[Metric]:
        """What Prometheus gets to see."""
        labels = (self._label,) if self._label else ()
        family = CounterMetricFamily(self._name, self._help, labels=labels)
        for value, count in self._counts.items():
            family.add_metric((value,) if self._label else (), count.value)
        yield family
