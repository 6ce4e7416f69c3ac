"""What a benchmark found: samples become rows, rows become bars, all become one JSON object."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import msgspec

from waystation.types.message import Durability

#: Whose CPU time `cpu_us` of a row is: the HTTP server's, or that of the process that calls.
Process = Literal["server", "caller"]


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """What one round measured."""

    operations: int
    seconds: float
    #: Of the measured process and of the store, over the same window.
    cpu_seconds: float
    store_cpu_seconds: float
    #: Whatever else was measured; the unit is the end of the name (`p99_ms`).
    figures: dict[str, float] = {}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One contender at one durability level: medians over the rounds, unless told otherwise."""

    #: `<what>.<who>@<level>`
    name: str
    level: Durability
    process: Process
    #: Operations per second.
    rate: float
    #: CPU microseconds per operation of the measured process, and of the store.
    cpu_us: float
    store_cpu_us: float
    rounds: int
    figures: dict[str, float] = {}
    #: The lower quartile of each figure: of a delay, what it is where the machine adds little.
    calm: dict[str, float] = {}


def row_of(name: str, level: Durability, process: Process, samples: Sequence[Sample]) -> Row:
    """The medians of all rounds, each figure by itself."""

    def median(value: Callable[[Sample], float]) -> float:
        return round(statistics.median(value(sample) for sample in samples), 3)

    return Row(
        name=f"{name}@{level}",
        level=level,
        process=process,
        rate=median(lambda sample: sample.operations / sample.seconds),
        cpu_us=median(lambda sample: sample.cpu_seconds / sample.operations * 1e6),
        store_cpu_us=median(lambda sample: sample.store_cpu_seconds / sample.operations * 1e6),
        rounds=len(samples),
        figures={
            figure: median(lambda sample, figure=figure: sample.figures[figure])  # type: ignore[misc]
            for figure in samples[0].figures
        },
        calm={
            figure: round(_lower_quartile([sample.figures[figure] for sample in samples]), 3)
            for figure in samples[0].figures
        },
    )


def _lower_quartile(values: list[float]) -> float:
    return sorted(values)[len(values) // 4]


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """A promise about speed, kept or not. Without a value it does not hold."""

    name: str
    value: float | None
    bar: float
    holds: bool


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """A bar before the run: how its value comes from rows, and which side is good."""

    name: str
    bar: float
    at: Literal["least", "most"]
    #: Takes rows by name; a row that is not there raises KeyError.
    value: Callable[[Mapping[str, Row]], float]
    #: What is divided by what, for people.
    meaning: str

    def judge(self, rows: Sequence[Row]) -> tuple[Bar, str]:
        """The bar, and a sentence when a row is missing for it."""
        try:
            value = round(self.value({row.name: row for row in rows}), 3)
        except KeyError as error:
            bar = Bar(name=self.name, value=None, bar=self.bar, holds=False)
            return bar, f"{self.name} does not hold: there is no row {error.args[0]}."
        holds = value >= self.bar if self.at == "least" else value <= self.bar
        return Bar(name=self.name, value=value, bar=self.bar, holds=holds), ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that `--json` prints."""

    name: str
    versions: dict[str, str]
    settings: dict[str, object]
    rows: list[Row]
    bars: list[Bar]
    #: Sentences about what is missing or odd; empty when all went well.
    notes: list[str]
    seconds: float

    @property
    def holds(self) -> bool:
        """Whether every bar holds."""
        return all(bar.holds for bar in self.bars)
