"""`bench history`: what recording costs, how fast Spark reads and ingests, how audits grow."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path

import msgspec

from waystation.config import RecordLogs
from waystation.store.embedded.server import EmbeddedServer
from waystation_bench.benchmark import Benchmark, BenchmarkError, Contender, Run
from waystation_bench.children import Child
from waystation_bench.delivery_node import DATA_BYTES, GROUPS, PARTITIONS
from waystation_bench.processes import cpu_seconds
from waystation_bench.report import Promise, Row, Sample
from waystation_bench.sender import Stage
from waystation_bench.workshop import Workshop

_SECONDS_MAX = 900.0
#: The larger of two audits has so many times the rows of the smaller.
_TIMES = 10
#: Tries to see a difference between two sizes.
_TRIES = 8


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much of everything."""

    delivery_rounds: int
    delivery_items: int
    delivery_seconds: float
    transaction_rounds: int
    transactions: int
    #: Messages of the small topic and of the large one: rates are the slope between them.
    few: int
    many: int
    read_rounds: int
    #: Messages of the smaller audit.
    audited: int
    #: Messages that go live through the system and are audited there; 0: none.
    live: int
    memory: str
    #: Age of the run after which no further round is begun: delivery, transactions, reading.
    seconds_max: tuple[float, float, float] = (math.inf,) * 3


QUICK = Plan(
    delivery_rounds=3,
    delivery_items=12_000,
    delivery_seconds=0.5,
    transaction_rounds=3,
    transactions=10_000,
    few=50_000,
    many=300_000,
    read_rounds=2,
    audited=10_000,
    live=0,
    memory="2g",
    seconds_max=(20, 40, 80),
)
_FULL = Plan(
    delivery_rounds=9,
    delivery_items=60_000,
    delivery_seconds=2.0,
    transaction_rounds=7,
    transactions=100_000,
    few=500_000,
    many=2_500_000,
    read_rounds=5,
    audited=1_000_000,
    live=1_000_000,
    memory="3g",
)


def _measure(run: Run, folder: Path) -> None:
    plan = QUICK if run.quick else _FULL
    run.settings.update(
        durability="memory",
        data_bytes=DATA_BYTES,
        groups=GROUPS,
        partitions=PARTITIONS,
        few=plan.few,
        many=plan.many,
        transactions=plan.transactions,
        audited=[plan.audited, plan.audited * _TIMES],
        live=plan.live,
        memory=plan.memory,
    )
    run.versions.update({name: metadata.version(name) for name in ("pyspark", "deltalake")})
    run.steps = 2 * (plan.delivery_rounds + plan.transaction_rounds) + 4
    run.steps += 5 * plan.read_rounds + 2 + bool(plan.live)
    deliveries_max, transactions_max, reads_max = plan.seconds_max
    with Stage(folder / "delivery") as stage:
        amount = [plan.delivery_items, plan.delivery_seconds]
        contenders = [_delivers(stage, record, amount) for record in ("none", "full")]
        run.rounds("memory", contenders, rounds=plan.delivery_rounds, seconds_max=deliveries_max)
    with Workshop(folder / "transactions", "memory", {}) as shop:
        contenders = [shop.lives(record, plan.transactions) for record in ("none", "full")]
        run.rounds(
            "memory", contenders, rounds=plan.transaction_rounds, seconds_max=transactions_max
        )
    with Reading(run, folder / "history", plan) as reading:
        contenders = reading.contenders()
        run.rounds("memory", contenders, rounds=plan.read_rounds, seconds_max=reads_max)
        run.rounds("memory", reading.audits(), rounds=1)
        if plan.live:
            run.rounds("memory", [reading.live(folder / "live")], rounds=1)


def _delivers(stage: Stage, record: RecordLogs, amount: list[float]) -> Contender:
    target = msgspec.structs.replace(stage.receiver, record=record)
    job = partial(stage.drive, "deliver_grouped", target, amount)
    return Contender(f"deliver.{record}", "caller", job)


class Reading:
    """Two stores with a topic each, one small and one large, and a Spark session."""

    def __init__(self, run: Run, folder: Path, plan: Plan) -> None:
        self._run = run
        self._folder = folder
        self._plan = plan
        self._stack = ExitStack()

    def __enter__(self) -> Reading:
        # Late: other benchmarks do without Spark. Run by name, in a process of its own.
        from waystation_bench import spark_load  # noqa: PLC0415

        plan = self._plan
        with ExitStack() as stack:
            self._folder.mkdir(parents=True)
            self._stores = [
                stack.enter_context(EmbeddedServer(self._folder / size, durability="memory"))
                for size in ("few", "many")
            ]
            self._run.step("Spark")
            spark = Child(spark_load.__name__, str(self._folder), plan.memory)
            self._spark = stack.enter_context(spark)
            for size, store, count in self._sizes():
                self._run.step(f"{count:,} messages")
                self._ask("fill", store=store, count=count)
                self._ask("copy", store=store, size=size)
                self._ask("make_view", store=store, size=size)
            self._run.step("warm up")
            for contender in self.contenders():
                contender.sample()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def contenders(self) -> list[Contender]:
        """The topic, its copy as Parquet, ingest, the lake through its view, and a copy of that."""
        return [
            Contender(f"read.{name}", "caller", partial(self._slope, question))
            for name, question in (
                ("parquet", lambda size, store, count: {"job": "parquet", "size": size}),
                ("topic", lambda size, store, count: {"job": "topic", "store": store}),
                (
                    "ingest",
                    lambda size, store, count: {"job": "ingest", "store": store, "count": count},
                ),
                ("view", lambda size, store, count: {"job": "view", "size": size}),
                ("view_parquet", lambda size, store, count: {"job": "view_parquet", "size": size}),
            )
        ]

    def audits(self) -> list[Contender]:
        """A lake, and one that is ten times as large."""
        few = self._plan.audited
        return [
            Contender("audit.few", "caller", partial(self._audit, "lake-few", few)),
            Contender("audit.many", "caller", partial(self._audit, "lake-many", few * _TIMES)),
        ]

    def live(self, folder: Path) -> Contender:
        """Messages that have gone through the system, audited beside the store that has them."""
        return Contender("audit.live", "caller", partial(self._live, folder))

    def _sizes(self) -> Iterator[tuple[str, str, int]]:
        counts = (self._plan.few, self._plan.many)
        for size, server, count in zip(("few", "many"), self._stores, counts, strict=True):
            yield size, f"unix://{server.address.path}", count

    def _slope(self, question: Callable[[str, str, int], dict[str, object]]) -> Sample:
        """What the messages take that the large one has more: starts and plans do not count."""
        for _ in range(_TRIES):
            few, many = (
                self._sample(question(*size), store) for store, size in enumerate(self._sizes())
            )
            if many.seconds > few.seconds:
                return Sample(
                    operations=self._plan.many - self._plan.few,
                    seconds=many.seconds - few.seconds,
                    cpu_seconds=max(many.cpu_seconds - few.cpu_seconds, 0.0),
                    store_cpu_seconds=many.store_cpu_seconds,
                    figures={"few_seconds": few.seconds, "many_seconds": many.seconds},
                )
        raise BenchmarkError("What is larger was quicker: nothing can be said about its rate.")

    def _sample(self, question: dict[str, object], store: int) -> Sample:
        process = self._stores[store].process_id
        before = cpu_seconds(process)
        told = self._ask(**question)  # type: ignore[arg-type]
        return Sample(
            operations=1,
            seconds=told["seconds"],
            cpu_seconds=told["cpu_seconds"],
            store_cpu_seconds=cpu_seconds(process) - before,
        )

    def audit_again(self, lake: str, messages: int) -> Sample:
        """Audits a lake that was made; BenchmarkError if something is wrong with it."""
        return _audited(messages, self._ask("audit", name=lake, messages=messages))

    def _audit(self, lake: str, messages: int) -> Sample:
        self._ask("make_lake", name=lake, messages=messages)
        return self.audit_again(lake, messages)

    def _live(self, folder: Path) -> Sample:
        messages = self._plan.live
        with Stage(folder) as stage:
            stage.drive("deliver_failing", stage.receiver, [GROUPS, messages // GROUPS])
            store = f"unix://{stage.store.address.path}"
            return _audited(messages, self._ask("audit_live", store=store, messages=messages))

    def _ask(self, job: str, **question: object) -> dict[str, float]:
        told = self._spark.ask({"job": job, **question}, seconds_max=_SECONDS_MAX)
        return msgspec.convert(told, dict[str, float])


def _audited(messages: int, told: Mapping[str, float]) -> Sample:
    return Sample(
        operations=messages,
        seconds=told["seconds"],
        cpu_seconds=told["cpu_seconds"],
        store_cpu_seconds=0.0,
        figures={"seconds": told["seconds"], "peak_gib": told["peak_gib"]},
    )


def _rates(one: str, other: str) -> Callable[[Mapping[str, Row]], float]:
    return lambda rows: rows[f"{one}@memory"].rate / rows[f"{other}@memory"].rate


def _figure(row: str, figure: str) -> Callable[[Mapping[str, Row]], float]:
    return lambda rows: rows[f"{row}@memory"].figures[figure]


def _growth(rows: Mapping[str, Row]) -> float:
    many, few = (rows[f"audit.{size}@memory"].figures["seconds"] for size in ("many", "few"))
    return many / few


HISTORY = Benchmark(
    name="history",
    asks="What does recording cost, how fast does Spark read and ingest, how do audits grow?",
    measure=_measure,
    promises=(
        Promise(
            name="topic_read_vs_parquet",
            bar=0.3,
            at="least",
            value=_rates("read.topic", "read.parquet"),
            meaning="whole rows per second through Spark, a topic / the same rows as Parquet",
        ),
        Promise(
            name="lake_view_vs_parquet",
            bar=0.9,
            at="least",
            value=_rates("read.view", "read.view_parquet"),
            meaning="whole rows per second through Spark, a view of the lake / the same as Parquet",
        ),
        Promise(
            name="ingest_vs_topic_read",
            bar=0.5,
            at="least",
            value=_rates("read.ingest", "read.topic"),
            meaning="messages per second, read and committed to the lake / only read",
        ),
        Promise(
            name="record_overhead_on_transactions",
            bar=1.15,
            at="most",
            value=_rates("transactions.none", "transactions.full"),
            meaning="time of a no-op transaction from start to end, written down / not",
        ),
        Promise(
            name="record_overhead_on_delivery",
            bar=1.15,
            at="most",
            value=_rates("deliver.none", "deliver.full"),
            meaning="time of a delivery of a grouped message, written down / not",
        ),
        Promise(
            name="audit_10m_vs_1m",
            bar=12,
            at="most",
            value=_growth,
            meaning="time of an audit, ten times as many rows / the smaller lake",
        ),
        Promise(
            name="audit_peak_gib",
            bar=6,
            at="most",
            value=_figure("audit.many", "peak_gib"),
            meaning="memory of Spark's processes together in the larger audit",
        ),
    ),
)
