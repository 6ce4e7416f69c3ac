"""`bench pools`: what a relay costs beside a bare handler, and how a pool grows and moves."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from waystation.store.embedded.server import EmbeddedServer
from waystation_bench import driver, servers
from waystation_bench.benchmark import Benchmark, Contender, Run
from waystation_bench.channels import cpu_ratio
from waystation_bench.children import Child
from waystation_bench.http_load import CONNECTIONS
from waystation_bench.pool_load import FEW, RECIPIENTS, envelope
from waystation_bench.preparation import store_version
from waystation_bench.report import Process, Promise, Row, Sample
from waystation_bench.target import Target

#: Keys of the pool with many, and keys of the worker that goes.
MANY = 100_000
MOVED = 10_000
#: Run by name, in processes of their own.
_SERVERS = servers.__name__
_DRIVER = driver.__name__


@dataclass(frozen=True, kw_only=True)
class _Plan:
    relay_rounds: int
    relay_seconds: float
    #: Pairs of measurements.
    pairs: int
    moves: int
    #: Age of the run after which no further round is begun: relay, moves.
    seconds_max: tuple[float, float] = (math.inf,) * 2


_QUICK = _Plan(relay_rounds=5, relay_seconds=0.5, pairs=30, moves=3, seconds_max=(20, 30))
_FULL = _Plan(relay_rounds=9, relay_seconds=1.5, pairs=200, moves=9)


def _measure(run: Run, folder: Path) -> None:
    plan = _QUICK if run.quick else _FULL
    run.settings.update(
        durability="memory",
        connections=CONNECTIONS,
        envelope_bytes=len(envelope(0)),
        recipients=RECIPIENTS,
        few=FEW,
        many=MANY,
        moved=MOVED,
        rounds=plan.relay_rounds,
        round_seconds=plan.relay_seconds,
    )
    run.steps = 2 * plan.relay_rounds + plan.moves + 1
    relay_max, moves_max = plan.seconds_max
    with Doors(folder) as doors:
        run.versions["store"] = asyncio.run(store_version(doors.store))
        contenders = [
            doors.contender("relay.ours", "relay_ours", "relay", plan.relay_seconds),
            doors.contender("relay.bare", "relay_bare", "bare", plan.relay_seconds),
        ]
        run.rounds("memory", contenders, rounds=plan.relay_rounds, seconds_max=relay_max)
        moves = [doors.contender("reassign.ours", "pool_reassign", None, MOVED)]
        run.rounds("memory", moves, rounds=plan.moves, seconds_max=moves_max)
        depth = doors.contender("depth.keys", "pool_depth", None, [MANY, plan.pairs])
        run.rounds("memory", [depth], rounds=1)


class Doors:
    """A store, a relay and a bare handler that use it, and the driver; each its own process."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._stack = ExitStack()
        #: Servers by kind; None is the store alone.
        self.targets: dict[str | None, Target] = {}

    def __enter__(self) -> Doors:
        with ExitStack() as stack:
            server = EmbeddedServer(self._data / "store", durability="memory")
            self.store = stack.enter_context(server)
            self.targets[None] = Target(
                store_path=self.store.address.path,
                store_process=self.store.process_id,
                data=str(self._data),
            )
            self._driver = stack.enter_context(Child(_DRIVER))
            children = {
                kind: stack.enter_context(Child(_SERVERS, kind, str(self._data), "memory"))
                for kind in ("relay", "bare")
            }
            # All processes are under way before the first is waited for.
            for kind, child in children.items():
                port, process = child.ask({})["port"], child.process_id
                self.targets[kind] = msgspec.structs.replace(
                    self.targets[None], port=port, process=process
                )
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def contender(self, name: str, job: str, server: str | None, amount: object) -> Contender:
        """One who is driven by `job`, against a server or against the store alone."""
        process: Process = "server" if server else "caller"
        return Contender(name, process, partial(self.drive, job, server, amount))

    def drive(self, job: str, server: str | None, amount: object) -> Sample:
        """One round of a job."""
        question = {"job": job, "target": self.targets[server], "amount": amount}
        return msgspec.convert(self._driver.ask(question), Sample)


def _figure(row: str, figure: str) -> Callable[[Mapping[str, Row]], float]:
    return lambda rows: rows[f"{row}@memory"].figures[figure]


POOLS = Benchmark(
    name="pools",
    asks="What does a relay cost beside a bare handler, and how does a pool grow and move?",
    measure=_measure,
    promises=(
        Promise(
            name="relay_vs_bare",
            bar=0.6,
            at="least",
            value=cpu_ratio("relay.bare", "relay.ours"),
            meaning="server CPU per envelope, bare handler with the same script / our relay",
        ),
        Promise(
            name="cost_100k_vs_10_keys",
            bar=1.3,
            at="most",
            value=_figure("depth.keys", "many_vs_few"),
            meaning="time of a message, enqueued to acknowledged, beside 100,000 keys / 10",
        ),
        Promise(
            name="reassign_10k_keys_s",
            bar=1,
            at="most",
            value=_figure("reassign.ours", "all_s"),
            meaning="seconds until 10,000 keys with messages have left a dead worker",
        ),
    ),
)
