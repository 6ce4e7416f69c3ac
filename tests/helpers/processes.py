"""Child processes of tests: programs, and servers that tests kill and restart."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from waystation.store.address import Address

_USER = """
import sys
from pathlib import Path
from waystation.store.embedded.server import EmbeddedServer
with EmbeddedServer(Path(sys.argv[1]), durability=sys.argv[2]) as server:
    print(server.process_id, flush=True)
    sys.stdin.read()
"""


class User:
    """Process that uses the embedded store of a folder until it leaves or is killed."""

    def __init__(self, folder: Path, *, durability: str = "memory") -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _USER, str(folder), durability],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._server_id = 0

    @property
    def server_id(self) -> int:
        """Process id of the store server; waits until this user has started."""
        assert self._process.stdout is not None
        if not self._server_id:
            self._server_id = int(self._process.stdout.readline())
        return self._server_id

    def leave(self) -> None:
        """End the process cleanly, so that it releases the store."""
        self._process.communicate()
        assert self._process.returncode == 0

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self._process.kill()
        self._process.communicate()


def ended(process_id: int, *, seconds: float = 15.0) -> bool:
    """Wait for the end of a process, which need not be a child of this one.

    Return False if it still runs after `seconds`.
    """
    try:
        descriptor = os.pidfd_open(process_id)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(seconds * 1000))
    finally:
        os.close(descriptor)


def parent_of(process_id: int) -> int:
    """Return the parent of a process. The parent of the embedded server is its supervisor."""
    return int(Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[1])


_EXIT_SECONDS_MAX = 30.0


class StationProcess:
    """Running `waystation serve`, with its log file."""

    def __init__(self, process: subprocess.Popen[str], said: dict[str, Any], log: Path) -> None:
        self.process = process
        self.said = said
        self.log = log

    @property
    def url(self) -> str:
        """Base URL of the server."""
        return str(self.said["url"])

    @property
    def store(self) -> Address:
        """Address of its embedded store."""
        return Address(path=self.said["store"].removeprefix("unix:"))

    @property
    def id(self) -> int:
        """Process id."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """True while the process runs."""
        return self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        self.process.send_signal(number)

    async def exit_code(self) -> int:
        """Wait for the end of the process and return its exit code."""
        return await asyncio.to_thread(self.process.wait, _EXIT_SECONDS_MAX)

    def resident_bytes(self) -> int:
        """Return the resident memory of the process."""
        pages = int(Path(f"/proc/{self.id}/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    def descriptors(self) -> int:
        """Return the number of open file descriptors."""
        return len(os.listdir(f"/proc/{self.id}/fd"))


@contextmanager
def station_process(
    data: Path, *options: str, descriptors_max: int = 0, **environment: str
) -> Iterator[StationProcess]:
    """Run `waystation serve` on the data directory `data` for the length of the block.

    Without options the server runs with `--insecure`. `descriptors_max` limits its open files.
    """
    log = data.with_name(f"{data.name}.log")
    inherited = {name: value for name, value in os.environ.items() if "WAYSTATION" not in name}

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors_max, descriptors_max))

    with log.open("a") as stderr:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "waystation.cli.main", "serve"),
                *("--port", "0", "--data", str(data), "--json"),
                *(options or ("--insecure",)),
            ],
            cwd=data.parent,
            env={**inherited, **environment},
            preexec_fn=limit if descriptors_max else None,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, log.read_text()
        yield StationProcess(process, json.loads(line), log)
    finally:
        process.terminate()
        process.communicate(timeout=_EXIT_SECONDS_MAX)
