"""`bench archive`: what it costs to let go of states, to bring them back, and to tell of ends."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from waystation_bench.benchmark import Benchmark, Contender, Run
from waystation_bench.http_load import CONTENT
from waystation_bench.postgres import PostgresMissingError, postgres_server, version_of
from waystation_bench.preparation import store_version
from waystation_bench.report import Promise, Row
from waystation_bench.send_load import CONCURRENT
from waystation_bench.sender import Stage
from waystation_bench.sleepers import ROWS


@dataclass(frozen=True, kw_only=True)
class _Plan:
    #: Rounds of archiving, and states of each.
    archive_rounds: int
    archive_items: int
    #: Sleepers whose bytes are counted, without an external id and with one.
    weighed: int
    wake_rounds: int
    wake_items: int
    start_seconds: float
    webhook_rounds: int
    webhook_items: int
    send_seconds: float
    #: Sleepers in the cell with many, and pairs of measurements.
    many: int
    pairs: int
    #: Age of the run after which no further round is begun: PostgreSQL, SQLite, wakes, webhooks.
    seconds_max: tuple[float, float, float, float] = (math.inf,) * 4


_QUICK = _Plan(
    archive_rounds=5,
    archive_items=20_000,
    weighed=20_000,
    wake_rounds=3,
    wake_items=20_000,
    start_seconds=0.5,
    webhook_rounds=5,
    webhook_items=3_000,
    send_seconds=0.4,
    many=100_000,
    pairs=30,
    seconds_max=(30, 55, 80, 100),
)
_FULL = _Plan(
    archive_rounds=9,
    archive_items=100_000,
    weighed=100_000,
    wake_rounds=5,
    wake_items=100_000,
    start_seconds=1.5,
    webhook_rounds=9,
    webhook_items=20_000,
    send_seconds=1.5,
    many=1_000_000,
    pairs=200,
)


def _measure(run: Run, folder: Path) -> None:
    plan = _QUICK if run.quick else _FULL
    run.settings.update(
        durability="memory",
        data_bytes=len(CONTENT),
        rows_of_an_upsert=ROWS,
        archived=plan.archive_items,
        woken=plan.wake_items,
        webhooks=plan.webhook_items,
        concurrent=CONCURRENT,
        many=plan.many,
        rounds=plan.archive_rounds,
    )
    run.steps = 2 * (2 * plan.archive_rounds + plan.wake_rounds + plan.webhook_rounds) + 3
    postgres_max, sqlite_max, wakes_max, webhooks_max = plan.seconds_max
    with Stage(folder) as stage:
        run.versions["store"] = asyncio.run(store_version(stage.store))
        place = _Place(stage, folder)
        with _postgres(run) as url:
            if url:
                contenders = place.archives("postgres", plan.archive_items, url)
                rounds = plan.archive_rounds
                run.rounds("memory", contenders, rounds=rounds, seconds_max=postgres_max)
        contenders = place.archives("sqlite", plan.archive_items, "")
        run.rounds("memory", contenders, rounds=plan.archive_rounds, seconds_max=sqlite_max)
        weighs = [
            place.contender("weigh.sleeper", "archive_weigh", [plan.weighed, 0]),
            place.contender("weigh.sleeper_with_id", "archive_weigh", [plan.weighed, 1]),
        ]
        run.rounds("memory", weighs, rounds=1)
        wakes = [
            place.contender("wake.ours", "wake_archived", plan.wake_items),
            place.contender("wake.start_batch", "start_ours", plan.start_seconds),
        ]
        run.rounds("memory", wakes, rounds=plan.wake_rounds, seconds_max=wakes_max)
        webhooks = [
            place.contender("webhooks.ours", "webhooks_ours", plan.webhook_items),
            place.contender("webhooks.sender", "webhooks_sender", plan.send_seconds),
        ]
        run.rounds("memory", webhooks, rounds=plan.webhook_rounds, seconds_max=webhooks_max)
        depth = place.contender("depth.archived", "depth_archived", [plan.many, plan.pairs])
        run.rounds("memory", [depth], rounds=1)


class _Place:
    """Contenders on one stage."""

    def __init__(self, stage: Stage, data: Path) -> None:
        self._stage = stage
        # Who starts by the batch is a node of that folder.
        self._target = msgspec.structs.replace(stage.receiver, data=str(data))

    def contender(self, name: str, job: str, amount: object) -> Contender:
        """One who needs nobody but the driver, and perhaps a receiver."""
        return Contender(name, "caller", partial(self._stage.drive, job, self._target, amount))

    def archives(self, database: str, count: int, url: str) -> list[Contender]:
        """Our archiver, and the bare statements."""
        return [
            self.contender(f"archive.{database}", "archive_ours", [count, url]),
            self.contender(f"archive.{database}_bare", "archive_bare", [count, url]),
        ]


@contextlib.contextmanager
def _postgres(run: Run) -> Iterator[str]:
    """The URL of a server; empty without one, which its bar then says."""
    with contextlib.ExitStack() as stack:
        try:
            url = stack.enter_context(postgres_server())
        except PostgresMissingError as error:
            run.notes.append(str(error))
            url = ""
        else:
            run.versions["postgres"] = version_of(url)
        yield url


def _rates(ours: str, other: str) -> Callable[[Mapping[str, Row]], float]:
    return lambda rows: rows[f"{ours}@memory"].rate / rows[f"{other}@memory"].rate


def _figure(row: str, figure: str) -> Callable[[Mapping[str, Row]], float]:
    return lambda rows: rows[f"{row}@memory"].figures[figure]


ARCHIVE = Benchmark(
    name="archive",
    asks="What does it cost to let go of states, to bring them back, and to tell of ends?",
    measure=_measure,
    promises=(
        Promise(
            name="pg_archive_vs_copy_upsert",
            bar=0.5,
            at="least",
            value=_rates("archive.postgres", "archive.postgres_bare"),
            meaning="states per second, our archiver / COPY and upsert of the same rows",
        ),
        Promise(
            name="sqlite_archive_vs_executemany",
            bar=0.5,
            at="least",
            value=_rates("archive.sqlite", "archive.sqlite_bare"),
            meaning="states per second, our archiver / executemany of the same rows",
        ),
        Promise(
            name="store_bytes_per_archived_sleeper",
            bar=200,
            at="most",
            value=_figure("weigh.sleeper", "sleeper_bytes"),
            meaning="memory of the store for one that sleeps and is archived",
        ),
        Promise(
            name="store_bytes_per_archived_sleeper_with_id",
            bar=350,
            at="most",
            value=_figure("weigh.sleeper_with_id", "sleeper_bytes"),
            meaning="the same with an external id of 14 letters",
        ),
        Promise(
            name="wake_100k_per_s_vs_start",
            bar=0.4,
            at="least",
            value=_rates("wake.ours", "wake.start_batch"),
            meaning="archived ones that are due, loaded and queued per second / starts in batches",
        ),
        Promise(
            name="webhooks_vs_sender",
            bar=0.5,
            at="least",
            value=_rates("webhooks.ours", "webhooks.sender"),
            meaning="ends whose webhooks are delivered and settled / requests of our sender",
        ),
        Promise(
            name="cost_1m_vs_1k_sleepers",
            bar=1.3,
            at="most",
            value=_figure("depth.archived", "many_vs_few"),
            meaning="time of a look, a switch, a wake-up beside many archived sleepers / 1,000",
        ),
    ),
)
