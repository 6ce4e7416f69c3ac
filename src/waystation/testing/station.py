"""A whole station for tests: node and HTTP server on a free port, in this process."""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

from waystation.api.server import ApiServer
from waystation.config import AuthConfig, Config, DeliveryConfig, HttpConfig, StoreConfig
from waystation.errors import SettingsError
from waystation.node import Node, open_node
from waystation.testing.servers import on_cluster
from waystation.transactions.app import App
from waystation.transactions.cells import open_cells

_T = TypeVar("_T")


@dataclass(frozen=True)
class Serving:
    """A running node with its server."""

    node: Node
    server: ApiServer
    port: int

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"


def quick_settings(data: str, **overrides: Any) -> Config:
    """Config for tests: no key, any free port, durability `memory`; sections can be given."""
    defaults: dict[str, Any] = {
        "data": data,
        "auth": AuthConfig(insecure=True),
        "delivery": DeliveryConfig(loopback=True),
        "http": HttpConfig(port=0),
        "store": StoreConfig(durability="memory", cluster=on_cluster()),
    }
    return Config(**{**defaults, **overrides})


@asynccontextmanager
async def serving(settings: Config, *, app: App | None = None) -> AsyncIterator[Serving]:
    """Runs a node and its server for the length of the block, in the running event loop."""
    node = await open_node(settings, app=app)
    try:
        server = ApiServer(node)
        port = await server.start()
        try:
            yield Serving(node, server, port)
        finally:
            await server.stop()
    finally:
        await node.close()


class Station:
    """The same for tests that are not asynchronous: it runs in a thread of its own."""

    def __init__(
        self, *, time_machine: bool = True, app: App | None = None, **overrides: Any
    ) -> None:
        self._overrides = {"time_machine": time_machine, **overrides}
        self._app = app
        self._loop: asyncio.AbstractEventLoop | None = None
        self._serving: Serving | None = None
        self._started = threading.Event()
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Station:
        self._thread.start()
        self._started.wait()
        if self._problem is not None:
            self._thread.join()
            raise self._problem
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    @property
    def url(self) -> str:
        """Where it listens."""
        return self._running().url

    def advance(
        self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0
    ) -> None:
        """Moves time forward everywhere; returns when everyone has it."""
        machine = self._running().node.opened.time_machine
        if machine is None:
            raise SettingsError("This station was made without a time machine.")
        self._await(machine.advance(((days * 24 + hours) * 60 + minutes) * 60 + seconds))

    def flush(self) -> None:
        """Forgets every channel, topic, subscription, pool, message, cursor and transaction."""
        self._await(_flush(self._running().node))

    def _await(self, work: Coroutine[Any, Any, _T]) -> _T:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=30)

    def _running(self) -> Serving:
        assert self._serving is not None, "use the station in a with block"
        return self._serving

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as problem:
            self._problem = problem
            self._started.set()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        with tempfile.TemporaryDirectory(
            prefix="waystation-test-", ignore_cleanup_errors=True
        ) as folder:
            settings = quick_settings(folder, **self._overrides)
            async with serving(settings, app=self._app) as self._serving:
                self._started.set()
                await self._stop.wait()


def _empty_archive(node: Node) -> None:
    """What sleeps there would come back. A server that a URL names is not ours to empty."""
    if node.settings.archive.url:
        return
    with closing(sqlite3.connect(node.settings.data_dir / "archive.db")) as database, database:
        database.execute("DELETE FROM state")


async def _flush(node: Node) -> None:
    # First: a topic that somebody reads is not deleted.
    subscriptions = node.subscriptions.subscriptions
    for each in [each async for page in subscriptions.everything() for each in page]:
        if each.state != "deleted":
            await subscriptions.delete(each.project, each.name)
    pools = node.pools.pools
    for pool in [pool async for page in pools.everything() for pool in page]:
        if pool.state != "deleted":
            await pools.delete(pool.project, pool.name)
    for topic in [topic async for page in node.topics.read_all() for topic in page]:
        if topic.state not in ("deleted", "purged"):
            await node.topics.delete(topic.project, topic.name)
        await node.topics.purge(topic.project, topic.name)
    # Not FLUSHDB: the format stamp and the time, which never runs backwards, stay.
    store = node.opened.store
    cursor = ""
    while cursor != "0":
        cursor, found = await store.scan(cursor or "0", match="*", count=1000)
        await store.unlink(
            [key for key in found if not key.startswith((b"waystation.", b"datp:node-"))]
        )
    await asyncio.to_thread(_empty_archive, node)
    # Pipelines are definitions: they stay, and so do the cells.
    settings = node.settings
    await open_cells(store, node.logs, settings.transactions.cells, full=settings.history.full)
    await node.engine.mend()
