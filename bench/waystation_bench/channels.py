"""`bench channels`: what HTTP, keys and checks cost on top of the store, and how polls behave."""

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
from waystation_bench import driver, servers
from waystation_bench.benchmark import Benchmark, Contender, Run
from waystation_bench.children import Child
from waystation_bench.http_load import CONNECTIONS, CONTENT
from waystation_bench.poll_load import PUBLISHES_PER_SECOND
from waystation_bench.preparation import make_key, store_version
from waystation_bench.report import Process, Promise, Row, Sample
from waystation_bench.store_load import CALLERS, PUBLISHERS
from waystation_bench.target import Target

POLLS = 5000
#: Run by name, in processes of their own.
_SERVERS = servers.__name__
_DRIVER = driver.__name__


@dataclass(frozen=True, kw_only=True)
class _Plan:
    rounds: int
    seconds: float
    #: At level `disk`, which is reported and decides no bar.
    disk_rounds: int
    disk_seconds: float
    wake_seconds: float
    wait_rounds: int
    #: Age of the run after which no further round is begun, at `memory` and at `disk`.
    memory_seconds_max: float = math.inf
    disk_seconds_max: float = math.inf


_QUICK = _Plan(
    rounds=5,
    seconds=0.4,
    disk_rounds=1,
    disk_seconds=0.2,
    wake_seconds=1.0,
    wait_rounds=1,
    memory_seconds_max=28,
    disk_seconds_max=35,
)
_FULL = _Plan(
    rounds=9, seconds=1.5, disk_rounds=5, disk_seconds=1.5, wake_seconds=5.0, wait_rounds=3
)


def _measure(run: Run, folder: Path) -> None:
    plan = _QUICK if run.quick else _FULL
    run.settings.update(
        durability="memory",
        also_reported="disk",
        authentication="key",
        connections=CONNECTIONS,
        callers=CALLERS,
        publishers=PUBLISHERS,
        content_bytes=len(CONTENT),
        publishes_per_second=PUBLISHES_PER_SECOND,
        polls=POLLS,
        rounds=plan.rounds,
        round_seconds=plan.seconds,
    )
    # Six contenders at both levels; at `memory` also two for one call, and the polls.
    run.steps = plan.rounds * 9 + plan.wait_rounds + plan.disk_rounds * 6
    with Level(folder / "memory", "memory") as level:
        run.versions["store"] = asyncio.run(store_version(level.store))
        polls = [Contender("polls_wait.ours", "server", level.wait_on_fresh_server)]
        run.rounds("memory", polls, rounds=plan.wait_rounds)
        contenders = [
            *level.common(plan.seconds),
            level.contender("call.ours", "call_ours", None, plan.seconds),
            level.contender("call.redis_py", "call_redis_py", None, plan.seconds),
            level.contender("polls_wake.ours", "polls_wake", "ours", plan.wake_seconds),
        ]
        run.rounds("memory", contenders, rounds=plan.rounds, seconds_max=plan.memory_seconds_max)
    with Level(folder / "disk", "disk") as level:
        run.rounds(
            "disk",
            level.common(plan.disk_seconds),
            rounds=plan.disk_rounds,
            seconds_max=plan.disk_seconds_max,
        )


class Level:
    """A store at one durability level, with the servers and the driver that use it."""

    def __init__(self, data: Path, level: Durability) -> None:
        self._data = data
        self._level = level
        self._stack = ExitStack()
        #: Servers by kind; None is the store alone.
        self.targets: dict[str | None, Target] = {}

    def __enter__(self) -> Level:
        with ExitStack() as stack:
            self._data.mkdir(parents=True)
            self._key = asyncio.run(make_key(self._data))
            server = EmbeddedServer(self._data / "store", durability=self._level)
            self.store = stack.enter_context(server)
            self.targets[None] = Target(
                store_path=self.store.address.path,
                store_process=self.store.process_id,
                data=str(self._data),
                level=self._level,
            )
            self.driver = stack.enter_context(Child(_DRIVER))
            self.targets |= self._start_servers(stack, "ours", "bare")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def common(self, seconds: float) -> list[Contender]:
        """Those who are measured at every level, each beside its limit."""
        return [
            self.contender("publish_http.ours", "publish_http", "ours", seconds),
            self.contender("publish_http.bare", "publish_http", "bare", seconds),
            self.contender("fetch_ack_http.ours", "fetch_ack_http", "ours", seconds),
            self.contender("fetch_ack_http.bare", "fetch_ack_http", "bare", seconds),
            self.contender("publish_store.ours", "publish_ours", None, seconds),
            self.contender("publish_store.raw", "publish_raw", None, seconds),
        ]

    def contender(self, name: str, job: str, server: str | None, seconds: float) -> Contender:
        """One who is driven by `job`, against a server or against the store alone."""
        target = self.targets[server]
        process: Process = "server" if server else "caller"
        return Contender(name, process, lambda: self.drive(job, target, seconds))

    def wait_on_fresh_server(self) -> Sample:
        """Memory grows once: a server that was under load before would hide it."""
        with ExitStack() as stack:
            target = self._start_servers(stack, "ours")["ours"]
            return self.drive("polls_wait", target, POLLS)

    def _start_servers(self, stack: ExitStack, *kinds: str) -> dict[str | None, Target]:
        children = {
            kind: stack.enter_context(Child(_SERVERS, kind, str(self._data), self._level))
            for kind in kinds
        }
        # All processes are under way before the first is waited for.
        return {
            kind: msgspec.structs.replace(
                self.targets[None],
                port=child.ask({})["port"],
                process=child.process_id,
                key=self._key,
            )
            for kind, child in children.items()
        }

    def drive(self, job: str, target: Target, amount: float) -> Sample:
        """One round of a job; the amount is seconds, or a number of polls."""
        answer = self.driver.ask({"job": job, "target": target, "amount": amount})
        return msgspec.convert(answer, Sample)


def cpu_ratio(limit: str, ours: str) -> Callable[[Mapping[str, Row]], float]:
    """What share of the limit's rate a server keeps: its process decides, so CPU time tells."""
    return lambda rows: rows[f"{limit}@memory"].cpu_us / rows[f"{ours}@memory"].cpu_us


CHANNELS = Benchmark(
    name="channels",
    asks="What do HTTP, keys and checks cost on top of the store, and how do long polls behave?",
    measure=_measure,
    promises=(
        Promise(
            name="publish_http_vs_bare",
            bar=0.6,
            at="least",
            value=cpu_ratio("publish_http.bare", "publish_http.ours"),
            meaning="server CPU per publish, bare handler / ours with a key",
        ),
        Promise(
            name="fetch_ack_http_vs_bare",
            bar=0.6,
            at="least",
            value=cpu_ratio("fetch_ack_http.bare", "fetch_ack_http.ours"),
            meaning="server CPU per fetch and ack, bare handlers / ours with a key",
        ),
        Promise(
            name="publish_store_vs_raw",
            bar=0.7,
            at="least",
            value=lambda rows: (
                rows["publish_store.ours@memory"].rate / rows["publish_store.raw@memory"].rate
            ),
            meaning="publishes per second, Channels.publish / raw pipelined EVALSHA",
        ),
        Promise(
            name="coalesced_call_cpu_us",
            bar=20,
            at="most",
            value=lambda rows: rows["call.ours@memory"].cpu_us,
            meaning="CPU of our process per store call, 64 callers",
        ),
        Promise(
            name="poll_wake_p99_ms",
            bar=10,
            at="most",
            value=lambda rows: rows["polls_wake.ours@memory"].figures["p99_ms"],
            meaning="publish sent to poll answered, 200 publishes per second",
        ),
        Promise(
            name="mb_per_5000_polls",
            bar=400,
            at="most",
            value=lambda rows: rows["polls_wait.ours@memory"].figures["grown_mb"],
            meaning="growth of the server's memory",
        ),
    ),
)
