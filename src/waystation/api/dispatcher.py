"""The dispatcher: routes, checks keys, calls handlers, answers; one ASGI application.

Hot and DSPS-shaped routes are answered here, without layers in between; everything else goes on
to the wide application behind it. This is the only place that knows a request from its first
line to its last, so request ids, metrics, default headers and errors are made here.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import secrets
from collections.abc import Callable

from waystation.access import Access, Gate, Scope
from waystation.api.connection import SURPLUS, reading
from waystation.api.cors import Cors
from waystation.api.live_reply import LiveReply, SocketReply
from waystation.api.problems import dsps_error_for, problem, problem_for, status_of
from waystation.api.reply import (
    CLOSE,
    PART_BYTES,
    TEXT,
    Header,
    Heads,
    Receive,
    Reply,
    Send,
    expects_continue,
    hold_reply,
    send_body,
    write_whole,
)
from waystation.api.reply import Scope as AsgiScope
from waystation.api.request import ClientGoneError, Request
from waystation.api.routes import Route, RouteTable
from waystation.api.socket_connection import note_refused
from waystation.errors import BusyError, ForbiddenError, NotFoundError, OutcomeUnknownError
from waystation.runtime.logging import logger
from waystation.telemetry import metrics

_log = logger("http")

#: What DSPS adds to every routed reply.
_DEFAULT_HEADERS: tuple[Header, ...] = (
    (b"x-frame-options", b"deny"),
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-cache, no-store, max-age=0, must-revalidate"),
    (b"pragma", b"no-cache"),
    (b"expires", b"0"),
)
#: Paths under these keep DSPS's manners also where there is no route.
_DSPS_PREFIXES = ("/admin/", "/channel/", "/probe/")
#: What the wide application may be asked; other methods are no labels of metrics.
_WIDE_METHODS = ["DELETE", "GET", "POST", "PUT"]
_is_request_id = re.compile(rb"[0-9A-Za-z._-]{1,64}").fullmatch


class _InFlight:
    """Requests of this process that are being answered: counted without a lock, on one thread."""

    requests = 0


metrics.http_in_flight.set_function(lambda: _InFlight.requests)

#: A reader that was kept waiting longer has its key looked at again.
_RECHECK_SECONDS = 1.0


class Dispatcher:
    """The outermost ASGI application."""

    def __init__(
        self,
        table: RouteTable,
        gate: Gate,
        *,
        wide: object,
        cors: Cors,
        clock_seconds: Callable[[], float],
        body_bytes_max: int,
        path_prefix: str,
        durability: str,
    ) -> None:
        self._table = table
        self._gate = gate
        self._wide = wide
        self._cors = cors
        self._seconds = clock_seconds
        self._body_bytes_max = body_bytes_max
        self._prefix = path_prefix
        self._headers = (*_DEFAULT_HEADERS, (b"waystation-durability", durability.encode()))
        self._heads = Heads(self._headers)
        # Request ids: unique without asking the operating system each time.
        self._id_prefix = secrets.token_hex(4).encode() + b"-"
        self._id_counter = itertools.count(1)

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._open_socket(scope, receive, send)
            return
        begun = self._seconds()
        _InFlight.requests += 1
        request = Request(scope, receive, body_bytes_max=self._body_bytes_max)
        if not request.id or not _is_request_id(request.id):
            request.id = b"%b%x" % (self._id_prefix, next(self._id_counter))
        try:
            route = self._find(request)
            if route is None:
                await self._call_wide(request, send)
                return
            if isinstance(route, Route):
                name, reply = route.path, await self._call(route, request, begun)
            else:
                name, reply = route
            # Methods are free text on the wire; only those of a route may become a label.
            label = scope["method"] if name[0] == "/" else "-"
            # Before it is sent, because a slow reader says nothing about the server.
            took = self._seconds() - begun
            # The short way out, unless a client's own text is in the headers, as its origin.
            if request.origin is not None or not write_whole(send, reply, self._heads, request.id):
                reply = await self._send(request, reply, send)
            metrics.http.of(label, name, reply.status).note(took)
        except ClientGoneError:
            pass
        except asyncio.CancelledError:
            await self._give_up(request, send)
        finally:
            _InFlight.requests -= 1
            if request.held_bytes:
                request.let_go()

    async def _open_socket(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """A WebSocket passes the checks of a request; a refusal is an ordinary reply."""
        begun = self._seconds()
        scope["method"] = "GET"
        request = Request(scope, receive, body_bytes_max=0)
        request.id = b"%b%x" % (self._id_prefix, next(self._id_counter))
        found = self._find(request)
        if isinstance(found, tuple):
            name, reply = found
        elif found is not None and found.socket:
            name, reply = found.path, await self._call(found, request, begun)
        else:
            unknown = NotFoundError("There is no WebSocket here.")
            name, reply = "unknown", self._failure(unknown, request, dsps=False)
        label = "GET" if name[0] == "/" else "-"
        metrics.http.of(label, name, reply.status).note(self._seconds() - begun)
        if isinstance(reply, SocketReply):
            await reply.run(receive, send)
            return
        headers = [*reply.headers, *self._common_headers(request)]
        start = {"type": "websocket.http.response.start", "status": reply.status}
        with contextlib.suppress(OSError):  # The client may be gone by now.
            await send({**start, "headers": headers})
            await send({"type": "websocket.http.response.body", "body": reply.body})
            note_refused(send)

    # -- Finding and calling -----------------------------------------------------------------

    def _find(self, request: Request) -> Route | tuple[str, Reply] | None:
        """The route of a request; or why there is none, and the reply; None: it is not for us."""
        scope = request.scope
        path = self._path(scope["path"])
        if SURPLUS in scope["state"]:
            metrics.http_shed.inc()
            busy = BusyError("The server has as many connections as it can serve.")
            reply = self._failure(busy, request, dsps=_is_dsps(path))
            reply.headers = (*reply.headers, CLOSE)
            return "shed", reply
        if self._cors.is_foreign(request.host, request.origin):
            foreign = ForbiddenError("A station without keys does not serve pages of other sites.")
            return "foreign", self._failure(foreign, request, dsps=_is_dsps(path))
        found = self._table.find(path)
        method = scope["method"]
        if found is None:
            if _is_dsps(path):
                return "unknown", Reply(404, b"404 page not found", (TEXT,))
            if method == "OPTIONS" and request.origin is not None:
                return "wide", Reply(204, b"", self._cors.preflight(request.origin, _WIDE_METHODS))
            return None
        routes, request.params = found
        route = routes.get(method)
        if route is not None:
            return route
        if method == "HEAD" and "GET" in routes and routes["GET"].manner == "own":
            return routes["GET"]
        return "method", self._no_such_method(request, routes, method)

    async def _call(self, route: Route, request: Request, begun: float) -> Reply:
        """The handler's reply, behind the checks that come before it."""
        if route.body_bytes_max is not None:
            request.body_bytes_max = route.body_bytes_max
        try:
            if route.precheck is not None and (refusal := route.precheck(request)) is not None:
                return refusal
            if route.admission is not None and (coming := route.admission(request)) is not None:
                request.access = await coming
            scope = route.scope
            if scope is not None and not self._knows(request, scope):
                await self._check(request, scope)
            reply = await route.handler(request)
            if scope is Scope.READ and self._seconds() - begun > _RECHECK_SECONDS:
                await self._check_again(route, request, scope)
        except ClientGoneError:
            raise
        except Exception as error:
            reply = self._failure(error, request, dsps=route.manner == "dsps", verb=route.verb)
        return reply

    def _knows(self, request: Request, needed: Scope) -> bool:
        """The common case of `_check`, without a coroutine: a known key that may do this."""
        access = request.access or self._gate.admit(request.authorization)
        if access is None or needed not in access.scopes:
            return False
        request.access = access
        return True

    async def _check(self, request: Request, needed: Scope) -> None:
        access = self._gate.admit(request.authorization)
        if access is None:
            access = await self._gate.admit_unknown(request.authorization)
        if needed not in access.scopes:
            raise ForbiddenError(f"The key lacks the scope {needed.value!r}.")
        request.access = access

    async def _check_again(self, route: Route, request: Request, needed: Scope) -> None:
        """A poll may outlive its key or its token: what came meanwhile is not for a revoked one."""
        coming = route.admission(request) if route.admission is not None else None
        if coming is None or await coming is None:
            await self._check(request, needed)

    async def _call_wide(self, request: Request, send: Send) -> None:
        """Hands over to the wide application, which asks for the access where it needs one."""
        begun = self._seconds()
        path = self._path(request.scope["path"])
        scope = {**request.scope, "path": path, "root_path": ""}
        scope["state"] = {**scope.get("state", {}), "request": request, "admit": self._admit}
        extra = self._common_headers(request)
        start: dict[str, object] = {}

        async def send_with_headers(message: dict[str, object]) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *extra]}  # type: ignore[misc]
                # Sent with the body, in whose place there may be another reply.
                start = message
                status = message["status"]
                assert isinstance(status, int)
                method = request.scope["method"]
                label = method if method in _WIDE_METHODS else "-"
                metrics.http.of(label, "wide", status).note(self._seconds() - begun)
                return
            body = message.get("body", b"")
            assert isinstance(body, bytes)
            await self._send_wide(request, start, body, send)

        await self._wide(scope, request._receive, send_with_headers)  # type: ignore[operator]

    async def _send_wide(
        self, request: Request, start: dict[str, object], body: bytes, send: Send
    ) -> None:
        """Send a reply of the wide application, or 503 in its place."""
        if len(body) <= PART_BYTES or request.access is None:
            await send(start)
            await send({"type": "http.response.body", "body": body})
            return
        try:
            with hold_reply(request.access.project, len(body)), reading(send, len(body)):
                await send(start)
                await send_body(send, body)
        except BusyError as error:
            await self._send_now(request, self._failure(error, request, dsps=False), send)

    async def _admit(self, request: Request, needed: Scope) -> Access:
        await self._check(request, needed)
        assert request.access is not None
        return request.access

    def _path(self, path: str) -> str:
        if self._prefix and path.startswith(self._prefix + "/"):
            return path[len(self._prefix) :]
        return path if not self._prefix else "/\0"  # outside the prefix nothing is served

    # -- Answers -----------------------------------------------------------------------------

    def _no_such_method(self, request: Request, routes: dict[str, Route], method: str) -> Reply:
        methods = sorted(routes)
        allow = (b"allow", ", ".join(methods).encode())
        if method == "OPTIONS" and request.origin is not None:
            return Reply(204, b"", self._cors.preflight(request.origin, methods))
        if next(iter(routes.values())).manner == "dsps":
            return Reply(405, b"405 method not allowed", (TEXT, allow))
        detail = f"Only {', '.join(methods)} here."
        path = request.scope["path"]
        reply = problem(
            405, "method-not-allowed", detail, path=path, request_id=request.id.decode()
        )
        reply.headers = (*reply.headers, allow)
        return reply

    def _failure(self, error: Exception, request: Request, *, dsps: bool, verb: str = "") -> Reply:
        if status_of(error) == 500:
            # The request id, never the body: it belongs to the user.
            _log.error("request failed", error=error, request=request.id.decode())
        if dsps:
            return dsps_error_for(error, verb=verb)
        return problem_for(error, path=request.scope["path"], request_id=request.id.decode())

    async def _give_up(self, request: Request, send: Send) -> None:
        """The last word to a client whose request was not done when a stop could wait no longer."""
        error = OutcomeUnknownError("The server stopped before the request was done.")
        reply = self._failure(error, request, dsps=_is_dsps(self._path(request.scope["path"])))
        reply.headers = (*reply.headers, CLOSE)
        # uvicorn refuses a second reply where the first had begun.
        with contextlib.suppress(RuntimeError):
            await self._send(request, reply, send)

    def _common_headers(self, request: Request) -> tuple[Header, ...]:
        common = (*self._headers, (b"x-request-id", request.id))
        if request.origin is not None:
            return (*common, *self._cors.headers(request.origin))
        return common

    async def _send(self, request: Request, reply: Reply, send: Send) -> Reply:
        """Send a reply, or 503 in its place if slow readers hold too many bytes; return it."""
        size = len(reply.body)
        if size <= PART_BYTES or request.access is None:
            await self._send_now(request, reply, send)
            return reply
        try:
            with hold_reply(request.access.project, size), reading(send, size):
                await self._send_now(request, reply, send)
        except BusyError as error:
            dsps = _is_dsps(self._path(request.scope["path"]))
            reply = self._failure(error, request, dsps=dsps)
            await self._send_now(request, reply, send)
        return reply

    async def _send_now(self, request: Request, reply: Reply, send: Send) -> None:
        headers = [*reply.headers, *self._common_headers(request)]
        if expects_continue(send):
            # The client holds its body back and may never send it: nothing can follow.
            headers.append(CLOSE)
        if reply.status != 204 and not isinstance(reply, LiveReply):
            headers.append((b"content-length", b"%d" % len(reply.body)))
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        if isinstance(reply, LiveReply):
            await reply.run(send)
        else:
            await send_body(send, reply.body)


def _is_dsps(path: str) -> bool:
    return path.startswith(_DSPS_PREFIXES) or path in ("/admin", "/channel", "/probe")
