"""A station of the demo: a real `waystation serve` process that can be killed and started again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.request
from pathlib import Path
from types import TracebackType

from demo.process import DemoProcess
from demo.receiver import Receiver
from waystation.runtime.data_files import write_private

_CONFIG = """
[delivery]
loopback = true  # the receiver is on this machine

[subscriptions]
lease_seconds = 1.0  # the shards of a killed process are another's a second later

[transactions]
lease_seconds = 1.0  # what a killed worker held is another's a second later
archive_delay_seconds = 0.1  # what sleeps leaves the store at once, but slowly enough to be seen
archive_batch = 20
archive_pause_seconds = 0.1
archive_pause_idle_seconds = 0.1
archive_role_seconds = 1.0  # a killed archiver is followed by another a second later
archive_grace_seconds = 0.2

[webhooks]
secret_file = "{secret}"
first_wait_seconds = 0.2

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
        write_private(secret, self.receiver.secret)
        config = _CONFIG.format(url=self.receiver.url, secret=secret)
        write_private(self.data / "waystation.toml", config)
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

    def deliverer(self) -> DemoProcess:
        """A process beside it, on the same store, that delivers its part of all subscriptions."""
        return DemoProcess(self.data)

    async def nodes_with(self, step: str) -> set[str]:
        """The ids of the processes that serve a step."""
        url = f"{self.url}/v1/nodes"
        found = json.loads(await asyncio.to_thread(lambda: urllib.request.urlopen(url).read()))  # noqa: S310 (our own station)
        return {each["id"] for each in found["nodes"] if step in each["steps"]}

    def kill(self) -> int:
        """Ends the process as a crash would; returns its id."""
        assert self._process is not None
        return self._process.kill()

    def kill_store(self) -> int:
        """Ends the store's process as a crash would; returns its id."""
        known = json.loads((self.data / "store" / "server.json").read_text())
        os.kill(known["process"], signal.SIGKILL)
        return int(known["process"])
