"""A station of the demo: a real `waystation serve` process that can be killed and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType

import msgspec

from waystation.demo.receiver import Receiver
from waystation.errors import StationUnreachableError

_CONFIG = """
[delivery]
loopback = true  # the receiver is on this machine

[[channels.rules]]
pattern = ".+"

[[channels.rules]]
pattern = "payments"

[[channels.rules.webhooks]]
name = "ledger"
url = "{url}/payments"
secret_file = "{secret}"
first_wait_seconds = 0.2
timeout_seconds = 1.0
"""


def _is_setting(variable: str) -> bool:
    return variable.startswith("WAYSTATION_")


class DemoStation:
    """Starts, kills and starts again one server process on one data directory."""

    def __init__(self, data: Path, receiver: Receiver) -> None:
        self._data = data
        #: Gets what is published to the channel `payments`.
        self.receiver = receiver
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0
        self.facts: dict[str, object] = {}

    def __enter__(self) -> DemoStation:
        secret = self._data / "webhook.secret"
        secret.write_text(self.receiver.secret)
        config = _CONFIG.format(url=self.receiver.url, secret=secret)
        (self._data / "waystation.toml").write_text(config)
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(timeout=20)

    @property
    def url(self) -> str:
        """Where it listens; the same after a restart."""
        return str(self.facts["url"])

    def start(self) -> None:
        """Starts the process and waits until it says where it listens."""
        command = [sys.executable, "-m", "waystation.cli.main", "serve", "--insecure", "--json"]
        command += ["--port", str(self._port), "--data", str(self._data)]
        command += ["--config", str(self._data / "waystation.toml")]
        with open(self._data / "station.log", "ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 (our own interpreter and module)
                command,
                cwd=self._data,
                # Settings of the user's own stations must not lead the demo to their store.
                env={name: value for name, value in os.environ.items() if not _is_setting(name)},
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        self._process.stdout.close()
        if not line:
            said = (self._data / "station.log").read_text()[-2000:]
            raise StationUnreachableError(f"The station did not start. It said: {said}")
        self.facts = msgspec.json.decode(line)
        self._port = int(self.url.rpartition(":")[2])

    def kill(self) -> int:
        """Ends the process as a crash would; returns its id."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        return self._process.pid

    def kill_store(self) -> int:
        """Ends the store's process as a crash would; returns its id."""
        known = json.loads((self._data / "store" / "server.json").read_text())
        os.kill(known["process"], signal.SIGKILL)
        return int(known["process"])
