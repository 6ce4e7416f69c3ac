"""`bench transactions`: how fast they are worked off beside job queues, and what each one costs."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from waystation.types.message import Durability
from waystation_bench.benchmark import Benchmark, Run
from waystation_bench.channels import Level, cpu_ratio
from waystation_bench.drain_load import SLEEPER_DATA, STARTS_PER_SECOND
from waystation_bench.http_load import CONTENT
from waystation_bench.preparation import store_version
from waystation_bench.report import Promise, Row
from waystation_bench.start_load import BATCH
from waystation_bench.transaction_peers import BULLMQ, PYTHON_PEERS
from waystation_bench.workshop import Workshop


@dataclass(frozen=True, kw_only=True)
class _Plan:
    #: Rounds of drains; what ours, a peer and BullMQ work off in each. Rates are compared, so that
    #: each has as much as takes it a second or some.
    drain_rounds: int
    drain_items: int
    peer_items: int
    bullmq_items: int
    #: The same at level `disk`.
    disk_rounds: int
    disk_items: int
    disk_peer_items: int
    #: Three steps, which decide no bar.
    three_rounds: int
    pace_rounds: int
    pace_seconds: float
    idle_seconds: float
    sleepers: int
    start_rounds: int
    start_seconds: float
    http_rounds: int
    #: Transactions in the cell with many, and pairs of measurements.
    many: int
    pairs: int
    #: Age of the run after which no further round is begun: drains, delays, starts, disk, HTTP.
    seconds_max: tuple[float, float, float, float, float] = (math.inf,) * 5


_QUICK = _Plan(
    drain_rounds=3,
    drain_items=33_400,
    peer_items=3_000,
    bullmq_items=15_000,
    disk_rounds=3,
    disk_items=10_000,
    disk_peer_items=1_000,
    three_rounds=1,
    pace_rounds=3,
    pace_seconds=1.0,
    idle_seconds=3.0,
    sleepers=20_000,
    start_rounds=5,
    start_seconds=0.4,
    http_rounds=5,
    many=100_000,
    pairs=40,
    seconds_max=(70, 95, 120, 155, 170),
)
_FULL = _Plan(
    drain_rounds=5,
    drain_items=200_000,
    peer_items=10_000,
    bullmq_items=100_000,
    disk_rounds=5,
    disk_items=50_000,
    disk_peer_items=3_000,
    three_rounds=3,
    pace_rounds=5,
    pace_seconds=5.0,
    idle_seconds=10.0,
    sleepers=100_000,
    start_rounds=9,
    start_seconds=1.5,
    http_rounds=9,
    many=1_000_000,
    pairs=200,
)


def _measure(run: Run, folder: Path) -> None:
    plan = _QUICK if run.quick else _FULL
    peers = [peer.name for peer in PYTHON_PEERS if peer.name in run.peers]
    run.settings.update(
        durability="memory",
        also_measured="disk",
        peers=sorted(run.peers),
        drained=plan.drain_items * plan.drain_rounds,
        drained_by_a_peer=plan.peer_items * plan.drain_rounds,
        data_bytes=len(CONTENT),
        sleeper_data_bytes=len(SLEEPER_DATA),
        batch=BATCH,
        starts_per_second=STARTS_PER_SECOND,
        many=plan.many,
        rounds=plan.drain_rounds,
    )
    sides = len(peers) + 1
    drains = plan.drain_rounds * (len(run.peers) + 1) + plan.three_rounds
    run.steps = drains + (plan.disk_rounds + plan.pace_rounds) * sides + 4
    run.steps += (plan.start_rounds + plan.http_rounds) * 2
    _, delays_max, starts_max, disk_max, http_max = plan.seconds_max
    with Workshop(folder / "memory", "memory", run.peers) as shop:
        run.versions["store"] = asyncio.run(store_version(shop.store))
        _drain(run, plan, shop, peers)
        shop.empty()
        with shop.working() as station:
            run.rounds("memory", [shop.idles(station, plan.idle_seconds)], rounds=1)
            paces = [shop.paces(station, plan.pace_seconds)]
            paces += [shop.peer_paces(peer, plan.pace_seconds) for peer in peers]
            run.rounds("memory", paces, rounds=plan.pace_rounds, seconds_max=delays_max)
            run.rounds("memory", [shop.weighs(station, plan.sleepers)], rounds=1)
        starts = [
            shop.contender("start_batch.ours", "start_ours", plan.start_seconds),
            shop.contender("start_batch.raw", "start_raw", plan.start_seconds),
        ]
        run.rounds("memory", starts, rounds=plan.start_rounds, seconds_max=starts_max)
        depths = [
            shop.contender("depth.queued", "depth_queued", [plan.many, plan.pairs]),
            shop.contender("depth.asleep", "depth_asleep", [plan.many, plan.pairs]),
        ]
        run.rounds("memory", depths, rounds=1)
    with Workshop(folder / "disk", "disk", run.peers) as shop:
        contenders = [shop.drains(1, plan.disk_items)]
        contenders += [shop.peer_drains(peer, plan.disk_peer_items) for peer in peers]
        run.rounds("disk", contenders, rounds=plan.disk_rounds, seconds_max=disk_max)
    with Level(folder / "http", "memory") as http:
        contenders = [
            http.contender("start_http.ours", "start_http", "ours", plan.start_seconds),
            http.contender("start_http.bare", "start_http", "bare", plan.start_seconds),
        ]
        run.rounds("memory", contenders, rounds=plan.http_rounds, seconds_max=http_max)


def _drain(run: Run, plan: _Plan, shop: Workshop, peers: list[str]) -> None:
    contenders = [shop.drains(1, plan.drain_items)]
    contenders += [shop.peer_drains(peer, plan.peer_items) for peer in peers]
    if BULLMQ.name in run.peers:
        contenders.append(shop.peer_drains(BULLMQ.name, plan.bullmq_items))
    rounds, seconds_max = plan.drain_rounds, plan.seconds_max[0]
    run.rounds("memory", contenders, rounds=rounds, seconds_max=seconds_max)
    run.rounds("memory", [shop.drains(3, plan.drain_items // 2)], rounds=plan.three_rounds)
    ours, *others = (row for row in run.rows if row.name.startswith("drain."))
    compared = {
        "vs_" + other.name.removeprefix("drain.").partition("@")[0]: round(
            ours.rate / other.rate, 2
        )
        for other in others
    }
    run.rows[run.rows.index(ours)] = msgspec.structs.replace(ours, figures=compared)


def _of_peers(rows: Mapping[str, Row], what: str, level: Durability) -> list[Row]:
    """What Python peers have done. Those of a quick run must be there: nobody is beaten unseen."""
    names = {peer.name: f"{what}.{peer.name}@{level}" for peer in PYTHON_PEERS}
    needed = {names[peer.name] for peer in PYTHON_PEERS if peer.quick}
    return [rows[name] for name in names.values() if name in needed or name in rows]


def _drain_ratio(level: Durability) -> Callable[[Mapping[str, Row]], float]:
    def ratio(rows: Mapping[str, Row]) -> float:
        best = max(row.rate for row in _of_peers(rows, "drain", level))
        return rows[f"drain.ours@{level}"].rate / best

    return ratio


def _rate_ratio(ours: str, other: str) -> Callable[[Mapping[str, Row]], float]:
    return lambda rows: rows[f"{ours}@memory"].rate / rows[f"{other}@memory"].rate


def _depth_ratio(rows: Mapping[str, Row]) -> float:
    """The worse of the two."""
    depths = (rows["depth.queued@memory"], rows["depth.asleep@memory"])
    return max(row.figures["many_vs_few"] for row in depths)


def _p99_ratio(rows: Mapping[str, Row]) -> float:
    best = min(row.figures["p99_ms"] for row in _of_peers(rows, "pace", "memory"))
    return rows["pace.ours@memory"].figures["p99_ms"] / best


def _figure(row: str, figure: str) -> Callable[[Mapping[str, Row]], float]:
    return lambda rows: rows[f"{row}@memory"].figures[figure]


TRANSACTIONS = Benchmark(
    name="transactions",
    asks="How fast are transactions beside job queues, and what does each one cost?",
    measure=_measure,
    peers=(*PYTHON_PEERS, BULLMQ),
    promises=(
        Promise(
            name="drain_vs_best_python_peer",
            bar=4,
            at="least",
            value=_drain_ratio("memory"),
            meaning="no-op transactions worked off per second, ours / fastest Python job queue",
        ),
        Promise(
            name="drain_disk_vs_best_python_peer",
            bar=5,
            at="least",
            value=_drain_ratio("disk"),
            meaning="the same on a store that syncs every write to disk",
        ),
        Promise(
            name="start_batch_vs_raw",
            bar=0.5,
            at="least",
            value=_rate_ratio("start_batch.ours", "start_batch.raw"),
            meaning="starts per second, calls of 100 / a bare pipelined script, same bytes",
        ),
        Promise(
            name="start_http_vs_bare",
            bar=0.5,
            at="least",
            value=cpu_ratio("start_http.bare", "start_http.ours"),
            meaning="server CPU per start, bare handler / ours with a key",
        ),
        Promise(
            name="p99_ms_vs_best_peer",
            bar=3,
            at="most",
            value=_p99_ratio,
            meaning="p99 from start to the call of the step at 200 a second, ours / best peer",
        ),
        Promise(
            name="idle_cpu_percent",
            bar=2,
            at="most",
            value=_figure("idle.ours", "cpu_percent"),
            meaning="of one core, a whole station that has nothing to do",
        ),
        Promise(
            name="store_bytes_per_sleeper",
            bar=2000,
            at="most",
            value=_figure("weigh.ours", "sleeper_bytes"),
            meaning="memory of the store for one that sleeps, with 300 bytes of data",
        ),
        Promise(
            name="cost_1m_vs_1k",
            bar=1.3,
            at="most",
            value=_depth_ratio,
            meaning="time of a transaction beside many that are queued or asleep / beside 1,000",
        ),
    ),
)
