"""A node with the history role and Spark, which is killed at a stage of an ingest: `FOLDER STAGE`.

The ingest process kills the node with SIGKILL when a stage of `ingest_process.STAGES` is done for
the first time, or at its own start for `starting`, and goes on as if nothing had happened. For
another word, nothing happens. Both processes run this module; the ingest process gets `child`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.history.ingest_process import STAGES
from tests.history.quick_spark import QUICK_SPARK
from waystation.config import HistoryConfig, StoreConfig
from waystation.history import jobs, process
from waystation.testing import serving
from waystation.testing.station import quick_settings


async def run_node(folder: Path, stage: str) -> None:
    """Serve until SIGTERM; print the URL of the server and the address of the store."""
    process.COMMAND = (
        *(sys.executable, "-m", "tests.history.node_process", "child", str(folder), stage),
    )
    settings = quick_settings(
        str(folder / "data"),
        store=StoreConfig(durability="disk"),
        history=HistoryConfig(
            run=True, every_seconds=0.1, master="local[1]", memory="512m", spark=QUICK_SPARK
        ),
    )
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    async with serving(settings) as running:
        sys.stdout.write(f"{running.url} {running.node.opened.store.address.path}\n")
        sys.stdout.flush()
        await ended.wait()


def run_child(folder: Path, stage: str) -> int:
    """Ingest as the process of a node does, and kill the node at the stage."""
    node = os.getppid()

    def kill() -> None:
        (folder / f"child-{stage}").write_text(f"{os.getpid()} {_java()}")
        os.kill(node, signal.SIGKILL)

    if stage == "starting":
        kill()
    elif stage in STAGES:
        _after(*STAGES[stage], kill)
    return jobs.main()


def _java() -> int:
    """Return the process id of Spark; 0 if it has not been started."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    return int(gateway.proc.pid) if gateway is not None else 0


def _after(owner: Any, name: str, kill: Callable[[], None]) -> None:
    original: Callable[..., Any] = getattr(owner, name)
    is_first = True

    def wrapped(*given: Any, **named: Any) -> Any:
        nonlocal is_first
        result = original(*given, **named)
        if is_first:
            is_first = False
            kill()
        return result

    setattr(owner, name, wrapped)


def main() -> int:
    """Run as node or as its child."""
    *kind, folder, stage = sys.argv[1:]
    if kind:
        return run_child(Path(folder), stage)
    asyncio.run(run_node(Path(folder), stage))
    return 0


if __name__ == "__main__":
    sys.exit(main())
