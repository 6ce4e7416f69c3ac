"""A station of the demo: a real `waystation serve` process that can be killed and started again."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from types import TracebackType

from waystation.demo.process import DemoProcess
from waystation.demo.receiver import Receiver

_CONFIG = """
[delivery]
loopback = true  # the receiver is on this machine

[transactions]
lease_seconds = 1.0  # what a killed worker held is another's a second later

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


class DemoStation:
    """Starts, kills and starts again one server process on one data directory."""

    def __init__(self, data: Path, receiver: Receiver) -> None:
        #: Where the station and all workers run, and where they keep what they write.
        self.data = data
        #: Gets what is published to the channel `payments`.
        self.receiver = receiver
        self._process: DemoProcess | None = None
        self._port = 0
        self.facts: dict[str, object] = {}

    def __enter__(self) -> DemoStation:
        secret = self.data / "webhook.secret"
        secret.write_text(self.receiver.secret)
        config = _CONFIG.format(url=self.receiver.url, secret=secret)
        (self.data / "waystation.toml").write_text(config)
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.stop()

    @property
    def url(self) -> str:
        """Where it listens; the same after a restart."""
        return str(self.facts["url"])

    def start(self) -> None:
        """Starts the process and waits until it says where it listens."""
        self._process = DemoProcess(self.data, port=self._port)
        self.facts = self._process.facts()
        self._port = int(self.url.rpartition(":")[2])

    def worker(self, app: str) -> DemoProcess:
        """A process beside it, on the same store, that runs the steps of an app."""
        return DemoProcess(self.data, "--app", app)

    def kill(self) -> int:
        """Ends the process as a crash would; returns its id."""
        assert self._process is not None
        return self._process.kill()

    def kill_store(self) -> int:
        """Ends the store's process as a crash would; returns its id."""
        known = json.loads((self.data / "store" / "server.json").read_text())
        os.kill(known["process"], signal.SIGKILL)
        return int(known["process"])
