"""The shape of a benchmark, and the run that it is handed."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from waystation.errors import WaystationError
from waystation.runtime.clock import Clock
from waystation.types.message import Durability
from waystation_bench.peers import Peer
from waystation_bench.report import Process, Promise, Row, Sample, row_of

#: Called before each step with how many are done, how many there are, and what comes now.
Progress = Callable[[int, int, str], None]


class BenchmarkError(WaystationError):
    """A benchmark could not be run to its end; its figures would mean nothing."""

    code = "bench.failed"


@dataclass(frozen=True)
class Contender:
    """One who is measured: a sampler that runs one round and says what it took."""

    name: str
    process: Process
    sample: Callable[[], Sample]


@dataclass
class Run:
    """One run of a benchmark: what it was asked, and what it has found so far."""

    quick: bool
    #: What runs the peers that are there, by name.
    peers: dict[str, Path]
    progress: Progress
    steps: int = 0
    rows: list[Row] = field(default_factory=list)
    settings: dict[str, object] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    #: Sentences about what is missing or odd.
    notes: list[str] = field(default_factory=list)
    _done: int = 0
    _clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self._begun = self._clock.monotonic()

    def step(self, text: str) -> None:
        """Tells what happens now."""
        self.progress(self._done, self.steps, text)
        self._done += 1

    def rounds(
        self,
        level: Durability,
        contenders: list[Contender],
        *,
        rounds: int,
        seconds_max: float = math.inf,
    ) -> None:
        """Measures all contenders in turn, round after round, and records the medians.

        In turn, because the machine changes under us: what slows one round down slows all who
        take part in it. No further round is begun once the run is older than `seconds_max`.
        """
        samples: dict[str, list[Sample]] = {contender.name: [] for contender in contenders}
        for number in range(1, rounds + 1):
            for contender in contenders:
                self.step(f"{level} · round {number} of {rounds} · {contender.name}")
                samples[contender.name].append(contender.sample())
            if self._clock.monotonic() - self._begun > seconds_max and number < rounds:
                self.notes.append(f"{level}: {number} of {rounds} rounds, for lack of time.")
                break
        for contender in contenders:
            row = row_of(contender.name, level, contender.process, samples[contender.name])
            self.rows.append(row)


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """What is asked, what is promised, and how it is measured."""

    name: str
    #: One question, for the list.
    asks: str
    promises: tuple[Promise, ...]
    peers: tuple[Peer, ...] = ()
    measure: Callable[[Run, Path], None]

    def run(self, run: Run) -> None:
        """Measures in a temporary folder that goes away afterwards."""
        with tempfile.TemporaryDirectory(
            prefix="waystation-bench-", ignore_cleanup_errors=True
        ) as folder:
            self.measure(run, Path(folder))
