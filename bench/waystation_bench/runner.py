"""Runs a benchmark: peers first, then the measurement, then the bars."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

from waystation.runtime.clock import Clock
from waystation_bench.benchmark import Benchmark, Progress, Run
from waystation_bench.peers import PEERS_FOLDER, Peer, PeerMissingError, ensure_peer
from waystation_bench.processes import require_linux
from waystation_bench.report import Report

#: Packages whose versions decide speed.
_PACKAGES = ("waystation", "hiredis", "httptools", "msgspec", "redis", "uvicorn", "uvloop")


def run_benchmark(
    benchmark: Benchmark,
    *,
    quick: bool,
    progress: Progress,
    peers_folder: Path = PEERS_FOLDER,
) -> Report:
    """Measures and judges; a bar that lacks a row does not hold, and a note says why."""
    require_linux()
    wanted = [peer for peer in benchmark.peers if peer.quick or not quick]
    peers, notes = _find_peers(wanted, progress, peers_folder)
    run = Run(quick=quick, peers=peers, progress=progress, notes=notes)
    run.versions["python"] = platform.python_version()
    run.versions.update({name: metadata.version(name) for name in _PACKAGES})
    run.settings.update(quick=quick, cores=os.cpu_count())
    clock = Clock()
    begun = clock.monotonic()
    benchmark.run(run)
    bars = []
    for promise in benchmark.promises:
        bar, note = promise.judge(run.rows)
        bars.append(bar)
        notes += [note] if note else []
    return Report(
        name=benchmark.name,
        versions=run.versions,
        settings=run.settings,
        rows=run.rows,
        bars=bars,
        notes=notes,
        seconds=round(clock.monotonic() - begun, 1),
    )


def _find_peers(
    peers: list[Peer], progress: Progress, folder: Path
) -> tuple[dict[str, Path], list[str]]:
    """Before the clock runs: an installation is no part of a measurement."""
    found: dict[str, Path] = {}
    notes = []
    for number, peer in enumerate(peers):
        progress(number, len(peers), f"peer {peer.name}")
        try:
            found[peer.name] = ensure_peer(peer, folder)
        except PeerMissingError as error:
            notes.append(str(error))
    return found, notes
