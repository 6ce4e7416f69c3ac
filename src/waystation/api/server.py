"""Runs the HTTP server of a node: uvicorn on uvloop, with a shutdown that ends long polls first."""

from __future__ import annotations

import asyncio
import gc

import uvicorn
from litestar import Litestar

from waystation.api.admin_routes import AdminDoor, AdminRoutes
from waystation.api.callback_routes import CallbackRoutes
from waystation.api.channel_admission import ChannelAdmission
from waystation.api.channel_routes import ChannelRoutes
from waystation.api.client_address import ClientAddresses, Networks
from waystation.api.connection import Bounds, bounded_connection, expire_slow
from waystation.api.cors import Cors
from waystation.api.dispatcher import Dispatcher
from waystation.api.event_stream import EventStreamRoutes
from waystation.api.listening import QuietServer, connections_max, listen
from waystation.api.openapi import build_document
from waystation.api.pool_routes import PoolRoutes
from waystation.api.pool_worker_routes import PoolWorkerRoutes
from waystation.api.probe_routes import ProbeRoutes, Readiness
from waystation.api.reference import ReferenceRoutes
from waystation.api.routes import Route, RouteTable
from waystation.api.socket import SocketRoutes
from waystation.api.socket_connection import ENVELOPE_BYTES_MAX, bounded_socket
from waystation.api.stream_admission import StreamAdmission
from waystation.api.streams import Streams
from waystation.api.subscription_routes import SubscriptionRoutes
from waystation.api.topic_routes import TopicRoutes
from waystation.api.transaction_routes import TransactionRoutes
from waystation.api.wide import wide_app, wide_document
from waystation.api.wide_history import history_place
from waystation.channels.queries import ChannelQueries
from waystation.channels.tokens import RevocationList, TokenVerifier
from waystation.node import Node
from waystation.subscriptions.desk import open_desk
from waystation.transactions.archive_standing import ArchiveStanding

_SWEEP_SECONDS = 1.0


class ApiServer:
    """The HTTP server of one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._settings = node.settings.http
        self._stopping = False
        self._bounds = Bounds(
            body_bytes_max=self._settings.body_bytes_max,
            largest_body_bytes=node.settings.topics.body_bytes_max,
            connections_max=connections_max(self._settings.connections_max),
            header_bytes_max=self._settings.header_bytes_max,
            read_seconds_max=self._settings.read_seconds_max,
        )
        host = node.engine.host
        self._readiness = Readiness(
            node.opened,
            node.catalogue,
            node.gate,
            lambda: node.notes,
            stopping=lambda: self._stopping,
            working=lambda: host is None or host.healthy,
            delivering=lambda: node.subscriptions.healthy,
            open_breakers=lambda: len(node.subscriptions.standings.open_breakers),
            open_reply_breakers=lambda: len(node.replies.deliverer.open_breakers),
            history=lambda: node.history.status if node.history is not None else None,
        )
        self._desk = open_desk(
            node.subscriptions, node.opened.store, node.logs, node.topic_queries, clock=node.clock
        )
        self._subscriptions = SubscriptionRoutes(
            self._desk,
            node.subscriptions.operations,
            wait_seconds_max=self._settings.poll_seconds_max,
        )
        self._pool_workers = PoolWorkerRoutes(
            node.pools.pools,
            node.engine.callbacks,
            wait_seconds_max=self._settings.poll_seconds_max,
        )
        self._streams = Streams(seconds_max=self._settings.stream_seconds_max)
        self.app = self._build()
        self._server = QuietServer(self._uvicorn_config())
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> int:
        """Listens; returns the port, which matters when the settings said 0."""
        listener = listen(self._settings.host, self._settings.port)
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._server.serve(sockets=[listener])),
            loop.create_task(self._sweep()),
            loop.create_task(self._streams.keep_checking()),
        ]
        while not self._server.started:
            if self._tasks[0].done():
                self._tasks[0].result()
            await asyncio.sleep(0.001)
        port = int(listener.getsockname()[1])
        self._tell_own_url(port)
        return port

    def _tell_own_url(self, port: int) -> None:
        """For trying things out on one machine: who is asked there calls back there."""
        settings, urls = self._settings, self._node.engine.urls
        if settings.is_loopback and self._node.settings.delivery.loopback and not urls.public_url:
            host = f"[{settings.host}]" if ":" in settings.host else settings.host
            urls.public_url = f"http://{host}:{port}{settings.prefix}"

    async def stop(self) -> None:
        """Ends polls with an empty reply, and streams; finishes what was begun, then lets go."""
        self._stopping = True
        self._node.channels.end_polls()
        self._node.engine.waiting.end_waits()
        self._subscriptions.polls.end()
        self._pool_workers.end()
        self._streams.end_all()
        self._server.should_exit = True
        await self._tasks[0]
        for task in self._tasks[1:]:
            task.cancel()
        for connection in list(self._server.server_state.connections):
            # Clients that did not take their replies within the grace time.
            connection.transport.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _build(self) -> Dispatcher:
        node, settings = self._node, self._settings
        reference = ReferenceRoutes()
        verifier = TokenVerifier(node.settings.channels.rules)
        revocation = RevocationList(node.opened.store, node.clock)
        admission = ChannelAdmission(
            node.channels,
            verifier,
            revocation,
            node.clock,
            keys_needed=not node.gate.insecure,
            disclose=node.settings.channels.disclose_rejections,
        )
        cors = Cors(
            settings.cors_origins, insecure=node.gate.insecure, loopback_only=settings.is_loopback
        )
        stream_admission = StreamAdmission(node.channels, admission, node.gate, cors)
        trusted = Networks(settings.trusted_proxies, setting="http.trusted_proxies")
        addresses = ClientAddresses(settings.real_ip_header, trusted)
        routes = [
            *ChannelRoutes(
                node.channels,
                admission,
                poll_seconds_max=settings.poll_seconds_max,
                fetch_messages_max=node.settings.channels.fetch_messages_max,
            ).routes(),
            *AdminRoutes(
                AdminDoor(node.settings.admin, node.gate, addresses),
                revocation,
                skew_seconds_max=verifier.skew_max,
            ).routes(),
            *EventStreamRoutes(node.channels, self._streams, stream_admission).routes(),
            *SocketRoutes(
                node.channels,
                self._streams,
                stream_admission,
                content_bytes_max=settings.body_bytes_max,
            ).routes(),
            *self._topic_routes(),
            *TransactionRoutes(
                node.engine, clock=node.clock, wait_seconds_max=settings.poll_seconds_max
            ).routes(),
            *CallbackRoutes(node.engine.callbacks).routes(),
            *self._subscriptions.routes(),
            *PoolRoutes(
                node.pools.pools,
                identity=node.identity,
                wait_seconds_max=settings.poll_seconds_max,
            ).routes(),
            *self._pool_workers.routes(),
            *ProbeRoutes(self._readiness, metrics_public=settings.metrics_public).routes(),
            *reference.routes(),
        ]
        wide = self._wide(admission)
        reference.use(lambda: build_document(wide_document(), routes, prefix=settings.prefix))
        return Dispatcher(
            RouteTable(routes),
            node.gate,
            wide=wide,
            cors=cors,
            clock_seconds=node.clock.monotonic,
            body_bytes_max=settings.body_bytes_max,
            path_prefix=settings.prefix,
            durability=node.opened.durability,
        )

    def _wide(self, admission: ChannelAdmission) -> Litestar:
        node, settings = self._node, self._settings
        archivist = node.engine.archivist
        assert archivist is not None, "a process that serves has an archive"
        return wide_app(
            node.catalogue,
            node.channels,
            ChannelQueries(node.opened.store),
            admission,
            node.delivery.desk,
            node.topics,
            node.topic_queries,
            node.engine,
            node.replies.desk,
            ArchiveStanding(
                node.opened.store,
                node.engine.signals,
                archivist.archiving,
                cells=node.settings.transactions.cells,
                problem=node.engine.archive_error,
            ),
            node.subscriptions,
            self._desk,
            node.pools.pools,
            clock=node.clock,
            identity=node.identity,
            time_machine=node.opened.time_machine,
            history_place=history_place(node.settings, node.opened.dataset),
            body_bytes_max=settings.body_bytes_max,
        )

    def _topic_routes(self) -> list[Route]:
        node = self._node
        settings = node.settings.topics
        return TopicRoutes(
            node.topics,
            node.producer,
            node.topic_queries,
            ids=node.identity,
            message_bytes_max=settings.message_bytes_max,
            schemas=node.schemas,
            limits=node.limits,
            body_bytes_max=settings.body_bytes_max,
        ).routes()

    def _uvicorn_config(self) -> uvicorn.Config:
        return uvicorn.Config(
            self.app,
            access_log=False,
            http=bounded_connection(self._bounds),
            lifespan="off",
            log_config=None,
            # Who asks where a request comes from finds out for itself: see client_address.py.
            proxy_headers=False,
            server_header=False,
            # uvicorn says whole seconds, and takes any.
            timeout_graceful_shutdown=self._settings.grace_seconds,  # type: ignore[arg-type]
            timeout_keep_alive=75,
            ws=bounded_socket(self._bounds),
            ws_max_size=self._settings.body_bytes_max + ENVELOPE_BYTES_MAX,
            ws_per_message_deflate=False,
            ws_ping_interval=20.0,
            ws_ping_timeout=20.0,
        )

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            expire_slow(self._server.server_state.connections, loop.time())


def settle_memory() -> None:
    """Tells the garbage collector that what is loaded by now stays; for processes that only serve.

    Libraries are nearly all objects of a young server, and none of them is ever garbage. How often
    it looks is left as it is: to look less often takes longer each time, and polls would wait.
    """
    gc.collect()
    gc.freeze()
