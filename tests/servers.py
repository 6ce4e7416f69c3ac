"""Servers with settings of a test's own choice, as processes that nobody keeps or restarts."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from waystation.store.address import Address
from waystation.store.embedded.server import supervisor
from waystation.store.plan import server_program

_READY_SECONDS_MAX = 20.0


class PlainServer:
    """One server process on a Unix socket; kill and start it at will."""

    def __init__(self, folder: Path, *options: str, wrapper: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.address = Address(path=str(folder / "plain.sock"))
        self._command = [
            *wrapper,
            server_program(),
            *("--port", "0", "--unixsocket", self.address.path, "--dir", str(folder)),
            *("--save", "", "--logfile", str(folder / "server.log"), *options),
        ]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when the server has loaded its data, or raises when it ends before."""
        self.process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        until = time.monotonic() + _READY_SECONDS_MAX
        while not supervisor.answers(self.address.path):
            assert self.process.poll() is None, (self.folder / "server.log").read_text()
            assert time.monotonic() < until, "the server does not answer"
            time.sleep(0.005)

    def kill(self) -> None:
        """kill -9; returns when the process is gone."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@contextmanager
def plain_server(*options: str) -> Iterator[PlainServer]:
    """A plain server in a folder of its own, with a short path, for the length of the block."""
    folder = Path(tempfile.mkdtemp(prefix="ws-"))
    server = PlainServer(folder, *options)
    try:
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)
