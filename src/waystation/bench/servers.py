"""The servers under measurement, each in a process of its own: `ours`, and `bare`.

    python -m waystation.bench.servers ours|bare DATA LEVEL

Both use the embedded store of the data folder. Asked anything, they answer with their port.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import uvicorn

from waystation.api.server import ApiServer
from waystation.bench.bare import BareApp
from waystation.bench.children import Answer, answer_questions
from waystation.node import open_node
from waystation.settings import Durability, HttpSettings, Settings, StoreSettings
from waystation.store import Store
from waystation.store.embedded import EmbeddedServer
from waystation.telemetry.logging import configure_logging


@asynccontextmanager
async def ours(data: Path, level: Durability) -> AsyncIterator[Answer]:
    """A whole station as `waystation serve` runs it, keys required."""
    settings = Settings(
        data=str(data), http=HttpSettings(port=0), store=StoreSettings(durability=level)
    )
    node = await open_node(settings)
    try:
        server = ApiServer(node)
        port = await server.start()
        try:
            yield _telling(port)
        finally:
            await server.stop()
    finally:
        await node.close()


@asynccontextmanager
async def bare(data: Path, level: Durability) -> AsyncIterator[Answer]:
    """The bare handlers on uvicorn, with the same event loop, parser and store client."""
    with EmbeddedServer(data / "store", durability=level) as store_server:
        store = Store(store_server.address)
        config = uvicorn.Config(
            BareApp(store),
            access_log=False,
            http="httptools",
            lifespan="off",
            log_config=None,
            server_header=False,
            timeout_keep_alive=75,
            ws="none",
        )
        server = uvicorn.Server(config)
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        try:
            yield _telling(int(listener.getsockname()[1]))
        finally:
            server.should_exit = True
            await serving
            await store.close()


def _telling(port: int) -> Answer:
    async def tell(question: dict[str, Any]) -> dict[str, int]:
        return {"port": port}

    return tell


def main() -> None:
    """Serves until standard input ends."""
    configure_logging(format="json", level="warning")
    kind, data, level = sys.argv[1:]
    serve = {"bare": bare, "ours": ours}[kind]
    answer_questions(serve(Path(data), msgspec.convert(level, Durability)))


if __name__ == "__main__":
    main()
