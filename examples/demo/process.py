"""A `waystation serve` process of the demo, on the demo's data directory; it can be killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec

from waystation.errors import StationUnreachableError


class DemoProcess:
    """Runs from its making until it is killed or stopped."""

    def __init__(self, data: Path, *options: str, port: int = 0) -> None:
        command = [sys.executable, "-m", "waystation.cli.main", "serve", "--insecure", "--json"]
        command += ["--port", str(port), "--data", str(data)]
        command += ["--config", str(data / "waystation.toml"), *options]
        with open(data / "station.log", "ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 (our own interpreter and module)
                command,
                cwd=data,
                env=child_environment(),
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self._log = data / "station.log"

    def facts(self) -> dict[str, object]:
        """What it says about itself; waits until it is ready."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        self._process.stdout.close()
        if not line:
            said = self._log.read_text()[-2000:]
            raise StationUnreachableError(f"The station did not start. It said: {said}")
        found: dict[str, object] = msgspec.json.decode(line)
        return found

    def kill(self) -> int:
        """Ends the process as a crash would; returns its id."""
        self._process.kill()
        self._ended()
        return self._process.pid

    def stop(self) -> None:
        """Ends the process in order; one that has ended stays so."""
        self._process.terminate()
        self._ended()

    def _ended(self) -> None:
        self._process.wait(timeout=20)
        if self._process.stdout is not None:
            self._process.stdout.close()


def child_environment() -> dict[str, str]:
    """Return the environment of a child process.

    It has no settings of the user's own servers, because they would lead the demo to their store.
    Its PYTHONPATH leads to this package, which is not installed.
    """
    kept = {name: each for name, each in os.environ.items() if not name.startswith("WAYSTATION_")}
    path = (str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH"))
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, path))}
