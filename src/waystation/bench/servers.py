"""The servers under measurement, each in a process of its own: `ours`, and `bare`.

    python -m waystation.bench.servers ours|bare DATA LEVEL

Both use the embedded store of the data folder. Asked anything, they answer with their port.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import msgspec
import uvicorn

from waystation.api.server import ApiServer
from waystation.bench.bare import BareApp
from waystation.bench.children import answer_questions
from waystation.node import open_node
from waystation.settings import Durability, HttpSettings, Settings, StoreSettings
from waystation.store import Store
from waystation.store.embedded import EmbeddedServer
from waystation.telemetry.logging import configure_logging


class Server:
    """Starts at the first question."""

    def __init__(self, kind: str, data: str, level: Durability) -> None:
        self._kind = kind
        self._data = data
        self._level = level
        self._port = 0
        #: Kept, so that nothing of it is collected while it serves.
        self._running: tuple[object, ...] = ()

    async def answer(self, question: dict[str, Any]) -> dict[str, int]:
        """The port."""
        if not self._port:
            await (self._start_ours() if self._kind == "ours" else self._start_bare())
        return {"port": self._port}

    async def _start_ours(self) -> None:
        settings = Settings(
            data=self._data,
            http=HttpSettings(port=0),
            store=StoreSettings(durability=self._level),
        )
        node = await open_node(settings)
        server = ApiServer(node)
        self._port = await server.start()
        self._running = (node, server)

    async def _start_bare(self) -> None:
        store_server = EmbeddedServer(Path(self._data) / "store", durability=self._level)
        store_server.start()
        app = BareApp(Store(store_server.address))
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(
            app,  # type: ignore[arg-type]
            access_log=False,
            http="httptools",
            lifespan="off",
            log_config=None,
            server_header=False,
            timeout_keep_alive=75,
            ws="none",
        )
        server = uvicorn.Server(config)
        config.load()
        server.lifespan = config.lifespan_class(config)
        await server.startup(sockets=[listener])
        self._port = int(listener.getsockname()[1])
        self._running = (store_server, server)


def main() -> None:
    """Serves until standard input ends."""
    configure_logging(format="json", level="warning")
    kind, data, level = sys.argv[1:]
    server = Server(kind, data, msgspec.convert(level, Durability))
    answer_questions(server.answer)


if __name__ == "__main__":
    main()
