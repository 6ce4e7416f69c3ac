"""`bench sender`: what a delivery costs beside a bare client, and a bad endpoint the others."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

import msgspec

from waystation.store.embedded.server import EmbeddedServer
from waystation_bench import driver, receivers, servers
from waystation_bench.benchmark import Benchmark, BenchmarkError, Contender, Run
from waystation_bench.children import Child
from waystation_bench.http_load import CONTENT
from waystation_bench.lane_load import ITEMS_PER_SECOND, LANES
from waystation_bench.preparation import make_key, store_version
from waystation_bench.report import Promise, Row, Sample
from waystation_bench.send_load import CONCURRENT
from waystation_bench.target import Target

#: Run by name, in processes of their own.
_SERVERS = servers.__name__
_DRIVER = driver.__name__
_RECEIVERS = receivers.__name__
#: A million sleepers are not made in a minute.
_ANSWER_SECONDS_MAX = 900.0


@dataclass(frozen=True, kw_only=True)
class _Plan:
    send_rounds: int
    send_seconds: float
    #: Of those that decide no bar.
    other_send_rounds: int
    lane_rounds: int
    lane_seconds: float
    publish_rounds: int
    publish_seconds: float
    #: Age of the run after which no further round is begun: of sends, lanes and publishes.
    seconds_max: tuple[float, float, float] = (math.inf, math.inf, math.inf)


_QUICK = _Plan(
    send_rounds=15,
    send_seconds=0.2,
    other_send_rounds=2,
    lane_rounds=7,
    lane_seconds=1.0,
    publish_rounds=7,
    publish_seconds=0.4,
    seconds_max=(8, 27, 33),
)
_FULL = _Plan(
    send_rounds=25,
    send_seconds=0.5,
    other_send_rounds=5,
    lane_rounds=80,
    lane_seconds=1.0,
    publish_rounds=30,
    publish_seconds=0.5,
)


def _measure(run: Run, folder: Path) -> None:
    plan = _QUICK if run.quick else _FULL
    run.settings.update(
        durability="memory",
        concurrent=CONCURRENT,
        content_bytes=len(CONTENT),
        endpoints=LANES,
        items_per_second=ITEMS_PER_SECOND,
        rounds=plan.send_rounds,
        round_seconds=plan.send_seconds,
    )
    pairs = plan.send_rounds + plan.other_send_rounds + plan.lane_rounds + plan.publish_rounds
    run.steps = pairs * 2 + plan.other_send_rounds
    sends_max, lanes_max, publishes_max = plan.seconds_max
    with Stage(folder) as stage:
        run.versions["store"] = asyncio.run(store_version(stage.store))
        bare, ours, *others = stage.sends(plan.send_seconds)
        run.rounds("memory", [bare, ours], rounds=plan.send_rounds, seconds_max=sends_max)
        run.rounds("memory", others, rounds=plan.other_send_rounds)
        run.rows = [_beside_bare(row, run.rows) for row in run.rows]
        lanes = stage.lanes(plan.lane_seconds)
        run.rounds("memory", lanes, rounds=plan.lane_rounds, seconds_max=lanes_max)
        with stage.serving() as server:
            publishes = stage.publishes(server, plan.publish_seconds)
            run.rounds("memory", publishes, rounds=plan.publish_rounds, seconds_max=publishes_max)


class Stage:
    """A store, a driver that also delivers, fifty receivers, and a server when it is needed."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._data.mkdir(parents=True, exist_ok=True)
            server = EmbeddedServer(self._data / "store", durability="memory")
            self.store = stack.enter_context(server)
            self._driver = stack.enter_context(Child(_DRIVER))
            self._receivers = stack.enter_context(Child(_RECEIVERS, str(LANES)))
            ports = self._receivers.ask({"hanging": 0})["ports"]
            self.receiver = Target(
                store_path=self.store.address.path,
                store_process=self.store.process_id,
                port=ports[0],
                ports=tuple(ports),
                data=str(self._data),
            )
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @contextmanager
    def serving(self) -> Iterator[Target]:
        """A server whose webhooks go to the last receiver. It delivers as well: not before."""
        key = asyncio.run(make_key(self._data))
        port = str(self.receiver.ports[-1])
        with Child(_SERVERS, "webhooks", str(self._data), "memory", port) as child:
            yield msgspec.structs.replace(
                self.receiver, port=child.ask({})["port"], process=child.process_id, key=key
            )

    def sends(self, seconds: float) -> list[Contender]:
        """Five ways to one receiver."""
        jobs = {
            "send.bare": "send_bare",
            "send.ours": "send_ours",
            "send.awaited": "send_awaited",
            "send.aiohttp": "send_aiohttp",
            "send.deliverer": "deliver_ours",
        }
        return [
            Contender(name, "caller", partial(self.drive, job, self.receiver, seconds))
            for name, job in jobs.items()
        ]

    def lanes(self, seconds: float) -> list[Contender]:
        """Fifty receivers; all answer, or the last one hangs."""
        return [
            Contender("lanes.all_answer", "caller", partial(self._drive_lanes, seconds, 0)),
            Contender("lanes.one_hangs", "caller", partial(self._drive_lanes, seconds, 1)),
        ]

    def publishes(self, server: Target, seconds: float) -> list[Contender]:
        """Publishes over HTTP, without a webhook and with one whose receiver hangs."""
        jobs = {"publish.plain": "publish_plain", "publish.webhook": "publish_webhook"}
        self._receivers.ask({"hanging": 1})
        return [
            Contender(name, "server", partial(self.drive, job, server, seconds))
            for name, job in jobs.items()
        ]

    def _drive_lanes(self, seconds: float, hanging: int) -> Sample:
        self._receivers.ask({"hanging": hanging})
        sample = self.drive("deliver_steadily", self.receiver, seconds)
        delays = self._receivers.ask({"delays_of": LANES - 1})["delays_ms"]
        if len(delays) < sample.operations:
            raise BenchmarkError(f"Only {len(delays)} of {sample.operations} deliveries arrived.")
        delays.sort()
        figures = {"p50_ms": delays[len(delays) // 2], "p99_ms": delays[len(delays) * 99 // 100]}
        return msgspec.structs.replace(sample, figures=figures)

    def drive(self, job: str, target: Target, amount: object) -> Sample:
        """One round of a job of the driver."""
        question = {"job": job, "target": target, "amount": amount}
        answer = self._driver.ask(question, seconds_max=_ANSWER_SECONDS_MAX)
        return msgspec.convert(answer, Sample)


def _beside_bare(row: Row, rows: list[Row]) -> Row:
    """The row with its rate, and what its CPU time would allow, beside those of the bare client."""
    (bare,) = (each for each in rows if each.name == "send.bare@memory")
    figures = {
        "vs_bare_client": round(row.rate / bare.rate, 3),
        "cpu_vs_bare_client": round(bare.cpu_us / row.cpu_us, 3),
    }
    return msgspec.structs.replace(row, figures=figures)


SENDER = Benchmark(
    name="sender",
    asks="What does a delivery cost beside a bare client, and a bad endpoint the others?",
    measure=_measure,
    promises=(
        Promise(
            name="sender_vs_bare_client",
            bar=0.6,
            at="least",
            value=lambda rows: rows["send.ours@memory"].rate / rows["send.bare@memory"].rate,
            meaning="deliveries per second, our sender / bare libcurl loop, 64 concurrent",
        ),
        Promise(
            name="others_p99_with_one_hanging",
            bar=1.2,
            at="most",
            value=lambda rows: (
                rows["lanes.one_hangs@memory"].calm["p99_ms"]
                / rows["lanes.all_answer@memory"].calm["p99_ms"]
            ),
            meaning="p99 from due to received at 49 endpoints, the 50th hangs / answers; of each "
            "the lower quartile of the rounds",
        ),
        Promise(
            name="webhook_overhead_on_publish",
            bar=1.1,
            at="most",
            value=lambda rows: (
                rows["publish.plain@memory"].rate / rows["publish.webhook@memory"].rate
            ),
            meaning="time per publish over HTTP, with a webhook whose receiver hangs / without",
        ),
    ),
)
