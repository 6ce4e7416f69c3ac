"""Stations as processes of their own, started by the real command line."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from waystation.store.address import Address

_EXIT_SECONDS_MAX = 30.0


class StationProcess:
    """A running `waystation serve`; what it logs is in `log`."""

    def __init__(self, process: subprocess.Popen[str], said: dict[str, Any], log: Path) -> None:
        self.process = process
        self.said = said
        self.log = log

    @property
    def url(self) -> str:
        """Where it listens."""
        return str(self.said["url"])

    @property
    def store(self) -> Address:
        """Its embedded store."""
        return Address(path=self.said["store"].removeprefix("unix:"))

    @property
    def id(self) -> int:
        """The process."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""
        return self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal."""
        self.process.send_signal(number)

    async def exit_code(self) -> int:
        """Waits for the end of the process."""
        return await asyncio.to_thread(self.process.wait, _EXIT_SECONDS_MAX)

    def resident_bytes(self) -> int:
        """Memory in use."""
        pages = int(Path(f"/proc/{self.id}/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    def descriptors(self) -> int:
        """Open file descriptors."""
        return len(os.listdir(f"/proc/{self.id}/fd"))


@contextmanager
def station_process(
    data: Path, *options: str, descriptors_max: int = 0, **environment: str
) -> Iterator[StationProcess]:
    """Serves from `data` for the length of the block; `--insecure` unless options say otherwise."""
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
