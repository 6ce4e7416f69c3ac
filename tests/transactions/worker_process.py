"""A process that runs the steps of an app, until it is ended.

    python -m tests.transactions.worker_process ADDRESS CATALOGUE_FOLDER MODULE:APP LEASE_MS

ADDRESS is the path of a Unix socket, or a loopback port. It prints a line once it works, and ends
on SIGTERM as a node does.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import TracebackType

import msgspec

from tests.helpers.store_faults import address_of
from tests.transactions.engine_helpers import QUICK, open_machine
from waystation.store.address import Address
from waystation.transactions.worker import end_process


async def main(address: str, folder: str, spec: str, lease_ms: str) -> None:
    module, _, name = spec.partition(":")
    app = getattr(import_module(module), name)
    at = address_of(address)
    limits = msgspec.structs.replace(
        QUICK, lease_ms=int(lease_ms), rescues_max=2, hung_seconds=1.0, grace_seconds=1.5
    )
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    async with open_machine(at, app, Path(folder), workers=0, flush=False) as machine:
        await machine.worker(limits=limits, on_deaf=end_process)
        print(os.getpid(), flush=True)  # noqa: T201 (to the parent)
        await ended.wait()


class WorkerProcess:
    """Such a process, of a test."""

    def __init__(
        self, address: Address, folder: Path, spec: str, *, lease_ms: int = 300, **environment: str
    ) -> None:
        where = address.path or str(address.port)
        command = [sys.executable, "-m", "tests.transactions.worker_process"]
        self.process = subprocess.Popen(
            [*command, where, str(folder), spec, str(lease_ms)],
            stdout=subprocess.PIPE,
            env={**os.environ, **environment},
        )
        assert self.process.stdout is not None
        self._stdout = self.process.stdout

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    async def working(self) -> None:
        """Waits until it works."""
        assert await asyncio.to_thread(self._stdout.readline), "it ended before it worked"

    def signal(self, number: int) -> None:
        """Sends a signal."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """kill -9, and waits for the end."""
        self.process.kill()
        self.process.wait()
        self._stdout.close()

    async def ended(self, seconds: float = 15.0) -> int:
        """Waits for its end; returns its exit code."""
        return await asyncio.to_thread(self.process.wait, seconds)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
