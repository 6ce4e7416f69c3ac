"""`bench delivery`: what a subscription costs beside a bare client, and a bad group the others."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from waystation_bench.benchmark import Benchmark, BenchmarkError, Contender, Run
from waystation_bench.delivery_load import BACKOFF_SECONDS, FATAL, RETRIED
from waystation_bench.delivery_node import DATA_BYTES, GROUPS, LANES, MESSAGES_PER_SECOND
from waystation_bench.preparation import store_version
from waystation_bench.report import Promise, Row, Sample
from waystation_bench.send_load import CONCURRENT
from waystation_bench.sender import Stage

_Value = Callable[[Mapping[str, Row]], float]

#: Messages of each of the thousand groups, where some requests fail.
_EACH = 60
#: Of the client that decides no bar.
_AIOHTTP_ROUNDS = 2
#: One request in so many fails.
_EVERY = 20
#: Statuses of failing groups: 500 tells nothing of the load, 502 and 429 are signs of an overload.
_STATUSES = {"first_groups": (500, 502, 429), "tenth": (500, 502)}
#: Time of a reply where groups fail: with few slots, replies that take no time cost nothing.
_REPLY_MS = 20


@dataclass(frozen=True, kw_only=True)
class _Plan:
    bare_seconds: float
    #: Rounds, messages that are there, and seconds in the middle of them that are measured.
    grouped_rounds: int
    grouped_items: int
    grouped_seconds: float
    failing_rounds: int
    pipeline_rounds: int
    pipeline_items: int
    pipeline_seconds: float
    many_rounds: int
    many_seconds: float
    uneven_rounds: int
    #: Messages of each group where a tenth of the groups fails.
    uneven_each: int
    #: Groups whose bytes are counted.
    weighed: int
    #: Age of the run after which no further round is begun: grouped, failing, pipeline, many.
    seconds_max: tuple[float, float, float, float] = (math.inf,) * 4


_QUICK = _Plan(
    bare_seconds=0.5,
    grouped_rounds=5,
    grouped_items=20_000,
    grouped_seconds=0.6,
    failing_rounds=3,
    pipeline_rounds=3,
    pipeline_items=40_000,
    pipeline_seconds=0.5,
    many_rounds=5,
    many_seconds=1.0,
    uneven_rounds=1,
    uneven_each=5,
    weighed=10_000,
    seconds_max=(30, 55, 85, 110),
)
_FULL = _Plan(
    bare_seconds=1.5,
    grouped_rounds=9,
    grouped_items=60_000,
    grouped_seconds=2.0,
    failing_rounds=5,
    pipeline_rounds=5,
    pipeline_items=120_000,
    pipeline_seconds=1.5,
    many_rounds=9,
    many_seconds=4.0,
    uneven_rounds=3,
    uneven_each=20,
    weighed=50_000,
)


def _measure(run: Run, folder: Path) -> None:
    plan = _QUICK if run.quick else _FULL
    run.settings.update(
        durability="memory",
        data_bytes=DATA_BYTES,
        groups=GROUPS,
        concurrent=CONCURRENT,
        backoff_seconds=BACKOFF_SECONDS,
        messages_of_a_failing_group=_EACH,
        subscriptions=LANES,
        messages_per_second=MESSAGES_PER_SECOND,
        uneven=[list(each) for each in _uneven(plan).values()],
        weighed=plan.weighed,
        rounds=plan.grouped_rounds,
    )
    run.steps = 2 * (plan.grouped_rounds + plan.pipeline_rounds + plan.many_rounds)
    run.steps += 2 * plan.failing_rounds + _AIOHTTP_ROUNDS + 3
    run.steps += sum(1 + len(each) for each in _STATUSES.values()) * plan.uneven_rounds
    grouped_max, failing_max, pipeline_max, many_max = plan.seconds_max
    with Endpoints(folder) as stage:
        run.versions["store"] = asyncio.run(store_version(stage.store))
        bare = stage.contender("deliver.bare", "deliver_bare", plan.bare_seconds)
        grouped = [plan.grouped_items, plan.grouped_seconds]
        contenders = [bare, stage.contender("deliver.grouped", "deliver_grouped", grouped)]
        run.rounds("memory", contenders, rounds=plan.grouped_rounds, seconds_max=grouped_max)
        aiohttp = stage.contender("deliver.aiohttp", "deliver_aiohttp", plan.bare_seconds)
        run.rounds("memory", [aiohttp], rounds=_AIOHTTP_ROUNDS)
        fails = {"every": _EVERY, "status": 500}
        contenders = [
            stage.contender("failing.bare", "deliver_bare", plan.bare_seconds),
            stage.contender("failing.grouped", "deliver_failing", [GROUPS, _EACH], fails),
        ]
        run.rounds("memory", contenders, rounds=plan.failing_rounds, seconds_max=failing_max)
        for name, (groups, each, failing) in _uneven(plan).items():
            run.rounds(
                "memory", stage.uneven(name, groups, each, failing), rounds=plan.uneven_rounds
            )
        pipeline = [plan.pipeline_items, plan.pipeline_seconds]
        contenders = [
            stage.contender("pipeline.start_batch", "start_ours", plan.pipeline_seconds),
            stage.contender("pipeline.ours", "deliver_pipeline", pipeline),
        ]
        run.rounds("memory", contenders, rounds=plan.pipeline_rounds, seconds_max=pipeline_max)
        many = [stage.many(plan.many_seconds, hanging) for hanging in (0, 1)]
        run.rounds("memory", many, rounds=plan.many_rounds, seconds_max=many_max)
        run.rounds("memory", stage.weighs(plan.weighed), rounds=1)


def _uneven(plan: _Plan) -> dict[str, tuple[int, int, int]]:
    """Return the loads in which some groups fail: groups, messages of each, failing groups."""
    return {
        "first_groups": (200, 10 if plan is _QUICK else 20, 20),
        "tenth": (1000, plan.uneven_each, 100),
    }


def _first_fails(groups: int, status: int) -> dict[str, int]:
    """Return the question that makes the receivers fail the first attempts of so many groups."""
    return {"first_fails": groups, "status": status, "delay_ms": _REPLY_MS}


class Endpoints(Stage):
    """The stage of `bench sender`, with receivers that answer as a round wants it."""

    def contender(
        self, name: str, job: str, amount: object, answers: Mapping[str, int] | None = None
    ) -> Contender:
        """One who delivers to the first receiver."""
        return Contender(name, "caller", partial(self._deliver, job, amount, answers or {}))

    def uneven(self, name: str, groups: int, each: int, failing: int) -> list[Contender]:
        """A plain loop, and subscriptions; first attempts of the first groups fail."""
        load = [groups, each]
        return [
            self.contender(f"{name}.loop", "deliver_by_loop", load, _first_fails(failing, 500)),
            *(
                self.contender(
                    f"{name}.ours_{status}", "deliver_failing", load, _first_fails(failing, status)
                )
                for status in _STATUSES[name]
            ),
        ]

    def many(self, seconds: float, hanging: int) -> Contender:
        """Fifty subscriptions; all endpoints answer, or the last one hangs."""
        name = "many.one_hangs" if hanging else "many.all_answer"
        return Contender(name, "caller", partial(self._deliver_many, seconds, hanging))

    def weighs(self, count: int) -> list[Contender]:
        """Groups that are clean, retrying, parked."""
        return [
            self.contender(f"weigh.{name}", "weigh_groups", [count, status], answers)
            for name, status, answers in (
                ("clean", 200, {}),
                ("retrying", RETRIED, {"every": 1, "status": RETRIED}),
                ("parked", FATAL, {"every": 1, "status": FATAL}),
            )
        ]

    def _deliver(self, job: str, amount: object, answers: Mapping[str, int]) -> Sample:
        self._receivers.ask({"hanging": 0, **answers})
        return self.drive(job, self.receiver, amount)

    def _deliver_many(self, seconds: float, hanging: int) -> Sample:
        self._receivers.ask({"hanging": hanging})
        sample = self.drive("deliver_many", self.receiver, seconds)
        delays = sorted(self._receivers.ask({"delays_of": LANES - 1})["delays_ms"])
        if len(delays) < sample.operations:
            raise BenchmarkError(f"Only {len(delays)} of {sample.operations} messages arrived.")
        figures = {"p50_ms": delays[len(delays) // 2], "p99_ms": delays[len(delays) * 99 // 100]}
        return msgspec.structs.replace(sample, figures=figures)


def _rates(ours: str, other: str) -> _Value:
    return lambda rows: rows[f"{ours}@memory"].rate / rows[f"{other}@memory"].rate


def _figure(row: str, figure: str) -> _Value:
    return lambda rows: rows[f"{row}@memory"].figures[figure]


def _promise(name: str, bar: float, value: _Value, meaning: str, *, most: bool = False) -> Promise:
    at: Literal["least", "most"] = "most" if most else "least"
    return Promise(name=name, bar=bar, at=at, value=value, meaning=meaning)


DELIVERY = Benchmark(
    name="delivery",
    asks="What does a subscription cost beside a bare client, and a bad group the others?",
    measure=_measure,
    promises=(
        _promise(
            "grouped_vs_bare_client",
            0.5,
            _rates("deliver.grouped", "deliver.bare"),
            "messages per second, ordered groups / bare libcurl loop with the same requests",
        ),
        _promise(
            "grouped_1000_groups_5pc_failures_vs_bare",
            0.3,
            _rates("failing.grouped", "failing.bare"),
            "the same, 1,000 groups of 60 messages, 5 % of all requests fail, backoff 100 ms",
        ),
        *(
            _promise(
                f"first_20_of_200_groups_failing_{status}_vs_loop",
                2.0,
                _rates("first_groups.loop", f"first_groups.ours_{status}"),
                "seconds until 4,000 messages (quick 2,000) are delivered, the first 20 of 200"
                f" groups answer {status} to each first attempt / seconds of a plain loop",
                most=True,
            )
            for status in _STATUSES["first_groups"]
        ),
        *(
            _promise(
                f"tenth_of_1000_groups_failing_{status}_vs_loop",
                2.0,
                _rates("tenth.loop", f"tenth.ours_{status}"),
                f"the same, 100 of 1,000 groups answer {status} to each first attempt; 20 messages"
                " a group, quick 5",
                most=True,
            )
            for status in _STATUSES["tenth"]
        ),
        _promise(
            "pipeline_endpoint_vs_start_batch",
            0.5,
            _rates("pipeline.ours", "pipeline.start_batch"),
            "transactions that messages start per second / starts in batches of a hundred",
        ),
        _promise(
            "others_p99_with_one_hanging",
            1.2,
            lambda rows: (
                rows["many.one_hangs@memory"].figures["p99_ms"]
                / rows["many.all_answer@memory"].figures["p99_ms"]
            ),
            "p99 from produced to received of 49 subscriptions, the 50th endpoint hangs / answers",
            most=True,
        ),
        _promise(
            "store_bytes_per_retrying_group",
            300,
            _figure("weigh.retrying", "group_bytes"),
            "memory of the store for a group that is retrying, without its message",
            most=True,
        ),
        _promise(
            "store_bytes_per_parked_group",
            200,
            _figure("weigh.parked", "group_bytes"),
            "memory of the store for a group that is parked, without its message",
            most=True,
        ),
        _promise(
            "store_bytes_per_clean_group",
            0,
            _figure("weigh.clean", "group_bytes"),
            "memory of the store for a group whose messages are all delivered",
            most=True,
        ),
    ),
)
