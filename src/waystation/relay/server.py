"""Runs doors: each listens on a port of its own, all share their bounds."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import uvicorn

from waystation.api.connection import Bounds, bounded_connection, expire_slow
from waystation.api.listening import QuietServer, connections_max, listen
from waystation.api.socket_connection import bounded_socket

_SWEEP_SECONDS = 1.0
_HEADER_BYTES_MAX = 32_768
_READ_SECONDS_MAX = 10.0
_GRACE_SECONDS = 5.0
#: The plugin's heartbeat; and what a client gets to answer it.
_PING_SECONDS = 3.0
_PONG_SECONDS = 10.0


class DoorPlan(msgspec.Struct, frozen=True):
    """An ASGI application, and where it listens."""

    app: Any
    host: str
    port: int


class DoorServer:
    """All doors of one process."""

    def __init__(self, plans: list[DoorPlan], *, body_bytes_max: int) -> None:
        self._plans = plans
        self._body_bytes_max = body_bytes_max
        self._bounds = Bounds(
            body_bytes_max=body_bytes_max,
            largest_body_bytes=body_bytes_max,
            connections_max=connections_max(0),
            header_bytes_max=_HEADER_BYTES_MAX,
            read_seconds_max=_READ_SECONDS_MAX,
            sockets_anywhere=True,
        )
        self._servers: list[QuietServer] = []
        self._serving: list[asyncio.Task[None]] = []
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self) -> list[int]:
        """Listens; the ports, which matter where a plan says 0."""
        sockets = []
        try:
            for plan in self._plans:
                sockets.append(listen(plan.host, plan.port))
        except BaseException:
            for each in sockets:
                each.close()
            raise
        loop = asyncio.get_running_loop()
        for plan, listener in zip(self._plans, sockets, strict=True):
            server = QuietServer(self._config(plan))
            self._servers.append(server)
            self._serving.append(loop.create_task(server.serve(sockets=[listener])))
        self._sweeper = loop.create_task(self._sweep())
        for server, task in zip(self._servers, self._serving, strict=True):
            while not server.started:
                if task.done():
                    task.result()
                await asyncio.sleep(0.001)
        return [int(each.getsockname()[1]) for each in sockets]

    async def stop(self) -> None:
        """Finishes what was begun, then lets go."""
        for server in self._servers:
            server.should_exit = True
        await asyncio.gather(*self._serving, return_exceptions=True)
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        for server in self._servers:
            for connection in list(server.server_state.connections):
                # Clients that did not take their replies within the grace time.
                connection.transport.abort()

    def _config(self, plan: DoorPlan) -> uvicorn.Config:
        return uvicorn.Config(
            plan.app,
            access_log=False,
            http=bounded_connection(self._bounds),
            lifespan="off",
            log_config=None,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=_GRACE_SECONDS,  # type: ignore[arg-type]
            timeout_keep_alive=75,
            ws=bounded_socket(self._bounds),
            ws_max_size=self._body_bytes_max,
            ws_per_message_deflate=False,
            ws_ping_interval=_PING_SECONDS,
            ws_ping_timeout=_PONG_SECONDS,
        )

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            for server in self._servers:
                expire_slow(server.server_state.connections, loop.time())
