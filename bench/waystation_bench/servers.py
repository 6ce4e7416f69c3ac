"""The servers under measurement, each a process of its own.

    python -m waystation_bench.servers ours|relay|bare DATA LEVEL
    python -m waystation_bench.servers working DATA LEVEL [full|none]
    python -m waystation_bench.servers webhooks DATA LEVEL PORT

They use the embedded store of the data folder. Asked anything, they answer with their port; one
that works, also with the delays of its steps.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import uvicorn

from waystation.api.server import ApiServer, settle_memory
from waystation.config import (
    ChannelConfig,
    ChannelRule,
    Config,
    DeliveryConfig,
    DoorRule,
    HistoryConfig,
    HttpConfig,
    RecordLogs,
    RelayConfig,
    StoreConfig,
    TransactionConfig,
    WebhookRule,
)
from waystation.errors import ConflictError
from waystation.node import open_node
from waystation.relay.opening import open_relay
from waystation.runtime.logging import configure_logging
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.keys import DEFAULT_PROJECT
from waystation.types.message import Durability
from waystation_bench import bench_app
from waystation_bench.bare import PARTITIONS, BareApp
from waystation_bench.bench_app import delays_ms
from waystation_bench.children import Answer, answer_questions

#: A receiver that hangs is given up on after this.
_RECEIVER_SECONDS_MAX = 2.0


@asynccontextmanager
async def ours(
    data: Path,
    level: Durability,
    channels: ChannelConfig | None = None,
    app: str = "",
    history: HistoryConfig | None = None,
) -> AsyncIterator[Answer]:
    """A whole station as `waystation serve` runs it, keys required."""
    settings = Config(
        channels=channels or ChannelConfig(),
        data=str(data),
        delivery=DeliveryConfig(loopback=True),
        history=history or HistoryConfig(),
        http=HttpConfig(port=0, metrics_public=True),
        store=StoreConfig(durability=level),
        transactions=TransactionConfig(app=app),
    )
    node = await open_node(settings)
    try:
        with contextlib.suppress(ConflictError):
            await node.topics.create(DEFAULT_PROJECT, "bench", partitions=PARTITIONS)
        server = ApiServer(node)
        port = await server.start()
        settle_memory()
        try:
            yield _telling(port)
        finally:
            await server.stop()
    finally:
        await node.close()


def webhooks(data: Path, level: Durability, port: str) -> AbstractAsyncContextManager[Answer]:
    """The same with rules: `webhook` is told to the receiver on `port`, `plain` to nobody."""
    webhook = WebhookRule(
        name="bench", url=f"http://127.0.0.1:{port}/hook", timeout_seconds=_RECEIVER_SECONDS_MAX
    )
    rules = (
        ChannelRule(pattern="plain"),
        ChannelRule(pattern="webhook", webhooks=(webhook,)),
    )
    return ours(data, level, ChannelConfig(rules=rules))


@asynccontextmanager
async def working(
    data: Path, level: Durability, record: RecordLogs = "full"
) -> AsyncIterator[Answer]:
    """The same as `waystation serve --app` runs it: it works from the moment it is open."""
    history = HistoryConfig(record=record)
    async with ours(data, level, app=f"{bench_app.__name__}:app", history=history) as tell:

        async def tell_all(question: dict[str, Any]) -> dict[str, object]:
            told = {**msgspec.to_builtins(await tell(question)), "delays_ms": [*delays_ms]}
            delays_ms.clear()
            return told

        yield tell_all


@asynccontextmanager
async def relay(data: Path, level: Durability) -> AsyncIterator[Answer]:
    """The door of agents as `waystation relay` runs it, before pool `bench`."""
    settings = Config(
        data=str(data),
        relay=RelayConfig(doors=(DoorRule("http", "127.0.0.1", 0),), pool="bench"),
        store=StoreConfig(durability=level),
    )
    async with open_relay(settings) as running:
        ((_, address),) = running.doors
        settle_memory()
        yield _telling(int(address.rpartition(":")[2]))


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
    # Rounds begin on an emptied store, which a server may well warn about.
    configure_logging(format="json", level="error")
    kind, data, level, *more = sys.argv[1:]
    serve: dict[str, Callable[..., AbstractAsyncContextManager[Answer]]]
    serve = {
        "bare": bare,
        "ours": ours,
        "relay": relay,
        "webhooks": webhooks,
        "working": working,
    }
    answer_questions(serve[kind](Path(data), msgspec.convert(level, Durability), *more))


if __name__ == "__main__":
    main()
