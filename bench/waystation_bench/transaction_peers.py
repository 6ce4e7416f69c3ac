"""The job systems that transactions are measured against, each driven through `rival.py`.

They get the same store at the same level over the same socket, one process each, and their own
client to fill their queue. A rate counts from the first call of a job to the last: what a peer does
to start, and to acknowledge its last jobs, is not held against it.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from waystation_bench import rival
from waystation_bench.benchmark import BenchmarkError
from waystation_bench.peers import NodePeer, Peer
from waystation_bench.processes import cpu_seconds
from waystation_bench.report import Sample

#: Client libraries of the store, as fast as each peer can have them.
_CLIENT = ("hiredis==3.5.0", "redis==8.1.0")

BULLMQ = NodePeer("bullmq", ("bullmq@5.80.0",))
#: A quick run has the three that are fastest.
PYTHON_PEERS = (
    Peer("dramatiq", ("dramatiq==2.2.1", *_CLIENT)),
    Peer("huey", ("huey==3.5.4", *_CLIENT)),
    Peer("taskiq", ("taskiq==0.13.0", "taskiq-redis==1.2.4", "uvloop==0.23.0", *_CLIENT)),
    Peer("arq", ("arq==0.28.0", "hiredis==3.5.0", "redis==5.3.1", "uvloop==0.23.0"), quick=False),
    Peer("celery", ("celery[redis]==5.7.0", *_CLIENT), quick=False),
    Peer(
        "saq",
        ("saq==0.26.4", "hiredis==3.5.0", "redis==7.4.1", "typing-extensions", "uvloop==0.23.0"),
        quick=False,
    ),
)
_BULLMQ_SCRIPT = Path(__file__).with_name("bullmq_rival.js")
#: The longest that one of them may take for a verb; more means that it hangs.
_SECONDS_MAX = 120.0
_WORDS_MAX = 300


def quantiles(delays_ms: list[float]) -> dict[str, float]:
    """Of delays that are sorted."""
    count = len(delays_ms)
    return {"p50_ms": delays_ms[count // 2], "p99_ms": delays_ms[count * 99 // 100]}


class Rival:
    """One of them, on one store."""

    def __init__(self, name: str, runs: Path, store_path: str, store_process: int) -> None:
        self.name = name
        self._store_process = store_process
        # Isolated: neither our folder nor our path is to be seen from there.
        command = [str(runs), "-I", rival.__file__, name]
        if name == BULLMQ.name:
            command = [shutil.which("node") or "node", str(_BULLMQ_SCRIPT), str(runs)]
        self._command = [*command, store_path]

    def fill(self, count: int) -> None:
        """Puts so many jobs into its queue."""
        self._do("fill", count)

    def drain(self, count: int) -> Sample:
        """Works off what it was filled with; one operation = one job."""
        with self._started("work", count) as process:
            first = self._told(process)
            return self._sample(first, self._told(process), count - 1)

    def pace(self, count: int, per_second: int) -> Sample:
        """Works while jobs come at a steady rate; tells how long each took to be called."""
        self.fill(1)
        with self._started("work", count + 1) as process:
            # It has called the first one, so it is ready.
            first = self._told(process)
            self._do("pace", count, per_second)
            last = self._told(process)
        delays = sorted(last[0]["delays_ms"][1:])
        return msgspec.structs.replace(self._sample(first, last, count), figures=quantiles(delays))

    def _sample(self, first: tuple[Any, float], last: tuple[Any, float], count: int) -> Sample:
        (begun, store_begun), (ended, store_ended) = first, last
        return Sample(
            operations=count,
            seconds=ended["at"] - begun["at"],
            cpu_seconds=ended["cpu_seconds"] - begun["cpu_seconds"],
            store_cpu_seconds=store_ended - store_begun,
        )

    def _told(self, process: subprocess.Popen[bytes]) -> tuple[Any, float]:
        """What the worker says next, and the CPU time of the store then."""
        line = self._line(process)
        return line, cpu_seconds(self._store_process)

    def _line(self, process: subprocess.Popen[bytes]) -> Any:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise BenchmarkError(f"The peer {self.name} ended before its work was done.")
        return msgspec.json.decode(line)

    def _do(self, *verb: object) -> None:
        with self._started(*verb) as process:
            if process.wait() != 0:
                raise BenchmarkError(f"The peer {self.name} could not {verb[0]} its queue.")

    @contextmanager
    def _started(self, *verb: object) -> Iterator[subprocess.Popen[bytes]]:
        with ExitStack() as stack:
            said = stack.enter_context(tempfile.TemporaryFile())
            process = subprocess.Popen(  # noqa: S603 (our own script in the peer's environment)
                [*self._command, *map(str, verb)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=said,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            guard = threading.Timer(_SECONDS_MAX, process.kill)
            guard.start()
            stack.callback(guard.cancel)
            try:
                yield process
            except BenchmarkError as error:
                process.wait()
                said.seek(0)
                words = said.read()[-_WORDS_MAX:].decode(errors="replace").strip()
                raise BenchmarkError(f"{error.message} {words}".strip()) from error
