"""A worker of a pool in a process of its own, with the ordinary client or the asynchronous one.

    python -m tests.client.pool_worker_process URL POOL UID KIND

It prints a line when it works, and one for each message: what was handled, or was begun. A message
`die` ends the process as kill -9 does; `slow` takes a while; `held FOLDER` takes until there is a
file in that folder with the worker's own name.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from waystation.client import AsyncWaystation, Waystation

SLOW_SECONDS = 3.0


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def pauses(message: Any, uid: str) -> Iterator[float]:
    """What every handler does: it sleeps for each of these."""
    say("begun", message.key, message.content)
    word, _, folder = message.content.partition(" ")
    if word == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if word == "slow":
        yield SLOW_SECONDS
    while word == "held" and not Path(folder, uid).exists():
        yield 0.01
    say("done", message.key, message.content)


def work(url: str, pool: str, uid: str) -> None:
    def handle(message: Any) -> None:
        for seconds in pauses(message, uid):
            time.sleep(seconds)

    with (
        Waystation(url) as ws,
        ws.pools.worker(pool, handle, uid=uid, concurrency=8) as worker,
    ):
        say("works", worker.uid)
        worker.run()
    say("left", worker.lost)


async def work_async(url: str, pool: str, uid: str) -> None:
    async def handle(message: Any) -> None:
        for seconds in pauses(message, uid):
            await asyncio.sleep(seconds)

    async with (
        AsyncWaystation(url) as ws,
        ws.pools.worker(pool, handle, uid=uid, concurrency=8) as worker,
    ):
        say("works", worker.uid)
        await worker.run()
    say("left", worker.lost)


class WorkerProcess:
    """The process, and all that it has said."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._came = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._came:
                self.lines.append(line.rstrip("\n"))
                self._came.notify_all()

    def heard(self, word: str) -> list[str]:
        """The rest of the lines that begin with a word."""
        return [line.partition(" ")[2] for line in list(self.lines) if line.split(" ")[0] == word]

    def wait_for(self, word: str, count: int = 1, *, seconds: float = 30.0) -> list[str]:
        """Waits until so many of them came."""
        with self._came:
            assert self._came.wait_for(lambda: len(self.heard(word)) >= count, seconds), self.lines
        return self.heard(word)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Sends a signal, and waits for the end and for all that was said."""
        self.process.send_signal(number)
        code = self.process.wait(30)
        self._reader.join(10)
        return code


@contextmanager
def worker_process(
    url: str, pool: str, uid: str = "", *, kind: str = "sync"
) -> Iterator[WorkerProcess]:
    """A worker, until the end of the block at the latest."""
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, url, pool, uid or "-", kind],
        stdout=subprocess.PIPE,
        env=dict(os.environ),
        text=True,
    )
    worker = WorkerProcess(process)
    try:
        worker.wait_for("works")
        yield worker
    finally:
        process.kill()
        worker.end(signal.SIGKILL)
        assert process.stdout is not None
        process.stdout.close()


if __name__ == "__main__":
    given_url, given_pool, given_uid, given_kind = sys.argv[1:]
    given_uid = "" if given_uid == "-" else given_uid
    if given_kind == "sync":
        work(given_url, given_pool, given_uid)
    else:
        asyncio.run(work_async(given_url, given_pool, given_uid))
