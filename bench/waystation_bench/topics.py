"""`bench topics`: what offsets, limits, seals and HTTP cost on top of streams, and how it grows."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec

from waystation.store.embedded.server import EmbeddedServer
from waystation.types.message import Durability
from waystation_bench import driver
from waystation_bench.benchmark import Benchmark, Contender, Run
from waystation_bench.channels import Level, cpu_ratio
from waystation_bench.children import Child
from waystation_bench.log_load import BATCH, CALLERS, DATA, LONG, PRODUCERS, READ, SHORT
from waystation_bench.preparation import store_version
from waystation_bench.report import Promise, Row, Sample
from waystation_bench.target import Target

#: Run by name, in a process of its own.
_DRIVER = driver.__name__


@dataclass(frozen=True, kw_only=True)
class _Plan:
    rounds: int
    seconds: float
    #: At level `disk`, which is reported and decides no bar.
    disk_rounds: int
    #: Measurements of a short log and a long one, one beside the other.
    pairs: int
    #: Over HTTP, which runs last.
    http_rounds: int
    #: Age of the run after which no further round is begun, at `memory`, at `disk`, over HTTP.
    memory_seconds_max: float = math.inf
    disk_seconds_max: float = math.inf
    http_seconds_max: float = math.inf


_QUICK = _Plan(
    rounds=3,
    seconds=0.5,
    disk_rounds=2,
    pairs=40,
    http_rounds=4,
    memory_seconds_max=22,
    disk_seconds_max=26,
    http_seconds_max=36,
)
_FULL = _Plan(rounds=9, seconds=1.5, disk_rounds=5, pairs=200, http_rounds=9)


def _measure(run: Run, folder: Path) -> None:
    plan = _QUICK if run.quick else _FULL
    run.settings.update(
        durability="memory",
        also_reported="disk",
        data_bytes=len(DATA),
        batch=BATCH,
        read=READ,
        callers=CALLERS,
        producers=PRODUCERS,
        short=SHORT,
        long=LONG,
        rounds=plan.rounds,
        round_seconds=plan.seconds,
    )
    run.steps = 2 + plan.rounds * 6 + plan.disk_rounds * 2 + plan.http_rounds * 3
    with StoreLevel(folder / "memory", "memory") as level:
        run.versions["store"] = asyncio.run(store_version(level.store))
        once = [
            level.contender("grow.ours", "log_grow", plan.pairs),
            level.contender("weigh.ours", "topic_weigh", 0),
        ]
        run.rounds("memory", once, rounds=1)
        contenders = [
            *level.appends(plan.seconds),
            level.contender("read.ours", "log_read_ours", plan.seconds),
            level.contender("read.raw", "log_read_raw", plan.seconds),
            level.contender("produce.1", "produce_1", plan.seconds),
            level.contender("produce.64", "produce_64", plan.seconds),
        ]
        run.rounds("memory", contenders, rounds=plan.rounds, seconds_max=plan.memory_seconds_max)
    with StoreLevel(folder / "disk", "disk") as level:
        run.rounds(
            "disk",
            level.appends(plan.seconds),
            rounds=plan.disk_rounds,
            seconds_max=plan.disk_seconds_max,
        )
    with Level(folder / "http", "memory") as http:
        contenders = [
            http.contender("produce_http.ours", "produce_http", "ours", plan.seconds),
            http.contender("produce_http.bare", "produce_http", "bare", plan.seconds),
            http.contender("produce_http.batches", "produce_http_batches", "ours", plan.seconds),
        ]
        run.rounds("memory", contenders, rounds=plan.http_rounds, seconds_max=plan.http_seconds_max)


class StoreLevel:
    """A store at one durability level, and the driver that uses it."""

    def __init__(self, data: Path, level: Durability) -> None:
        self._data = data
        self._level = level
        self._stack = ExitStack()

    def __enter__(self) -> StoreLevel:
        with ExitStack() as stack:
            self._data.mkdir(parents=True)
            server = EmbeddedServer(self._data / "store", durability=self._level)
            self.store = stack.enter_context(server)
            self._target = Target(
                store_path=self.store.address.path, store_process=self.store.process_id
            )
            self._driver = stack.enter_context(Child(_DRIVER))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def appends(self, seconds: float) -> list[Contender]:
        """Those who are measured at every level."""
        return [
            self.contender("append.ours", "log_append_ours", seconds),
            self.contender("append.raw", "log_append_raw", seconds),
        ]

    def contender(self, name: str, job: str, amount: float) -> Contender:
        """One who is driven by `job`; the amount is seconds, or a number of measurements."""
        return Contender(name, "caller", lambda: self.drive(job, amount))

    def drive(self, job: str, amount: float) -> Sample:
        """One round of a job."""
        answer = self._driver.ask({"job": job, "target": self._target, "amount": amount})
        return msgspec.convert(answer, Sample)


def _rate_ratio(ours: str, other: str) -> Callable[[Mapping[str, Row]], float]:
    return lambda rows: rows[f"{ours}@memory"].rate / rows[f"{other}@memory"].rate


TOPICS = Benchmark(
    name="topics",
    asks="What do offsets, limits, seals and HTTP cost on top of streams, and how does it grow?",
    measure=_measure,
    promises=(
        Promise(
            name="append_vs_raw",
            bar=1,
            at="least",
            value=_rate_ratio("append.ours", "append.raw"),
            meaning="messages per second, batches of 100 in one call / pipelines of 100 XADD",
        ),
        Promise(
            name="read_vs_raw",
            bar=0.6,
            at="least",
            value=_rate_ratio("read.ours", "read.raw"),
            meaning="messages per second, read as messages / plain XRANGE",
        ),
        Promise(
            name="cost_1m_vs_1k",
            bar=1.2,
            at="most",
            value=lambda rows: rows["grow.ours@memory"].figures["long_vs_short"],
            meaning="time of an append and a read at the end, 1 million messages / 1 thousand",
        ),
        Promise(
            name="cost_64_vs_1_partitions",
            bar=1.5,
            at="most",
            value=_rate_ratio("produce.1", "produce.64"),
            meaning="time per message, topic of 64 partitions / of 1, 64 producers of batches",
        ),
        Promise(
            name="store_bytes_per_100b",
            bar=250,
            at="most",
            value=lambda rows: rows["weigh.ours@memory"].figures["message_bytes"],
            meaning="memory of the store per message of 100 bytes, all of a topic's keys",
        ),
        Promise(
            name="http_produce_vs_bare",
            bar=0.6,
            at="least",
            value=cpu_ratio("produce_http.bare", "produce_http.ours"),
            meaning="server CPU per single message, bare handler / ours with a key",
        ),
        Promise(
            name="http_batch100_vs_single",
            bar=15,
            at="least",
            value=_rate_ratio("produce_http.batches", "produce_http.ours"),
            meaning="messages per second over HTTP, batches of 100 / single requests",
        ),
    ),
)
