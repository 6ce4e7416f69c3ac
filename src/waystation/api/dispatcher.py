"""The dispatcher: the ASGI application that finds the route of a request and calls its handler.

It calls the handlers of hot routes and of routes of DSPS itself and passes all other requests to
the wide application. It sees each request from the first line to the reply, so it also creates
request ids, counts requests, adds common headers and turns errors into replies.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import secrets
from collections.abc import Callable, Iterator

from prometheus_client import Gauge
from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

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
    http_shed,
    send_body,
    write_whole,
)
from waystation.api.reply import Scope as AsgiScope
from waystation.api.request import ClientGoneError, Request
from waystation.api.routes import Route, RouteTable
from waystation.api.socket_connection import note_refused
from waystation.errors import BusyError, ForbiddenError, NotFoundError, OutcomeUnknownError
from waystation.runtime.logging import logger
from waystation.runtime.metrics import Histogram, registry

_log = logger("http")

#: Headers that DSPS adds to every reply of a route.
_DEFAULT_HEADERS: tuple[Header, ...] = (
    (b"x-frame-options", b"deny"),
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-cache, no-store, max-age=0, must-revalidate"),
    (b"pragma", b"no-cache"),
    (b"expires", b"0"),
)
#: Prefixes of paths whose errors have the shape of DSPS, also without a route.
_DSPS_PREFIXES = ("/admin/", "/channel/", "/probe/")
#: Methods of the wide application. Other methods are not used as labels of metrics.
_WIDE_METHODS = ["DELETE", "GET", "POST", "PUT"]
_is_request_id = re.compile(rb"[0-9A-Za-z._-]{1,64}").fullmatch


class RequestMetrics(Collector):
    """Number and time of requests by method, route and status. The caller bounds their number."""

    def __init__(self) -> None:
        self._histograms: dict[tuple[str, str, int], Histogram] = {}

    def of(self, method: str, route: str, status: int) -> Histogram:
        """Return the histogram of these three; create it on the first call."""
        key = (method, route, status)
        found = self._histograms.get(key)
        if found is None:
            found = self._histograms[key] = Histogram()
        return found

    def collect(self) -> Iterator[Metric]:
        """Yield the counts by method, route and status, and the times by route."""
        requests = CounterMetricFamily(
            "waystation_http_requests",
            "Requests answered, by route template and status.",
            labels=("method", "route", "status"),
        )
        times = HistogramMetricFamily(
            "waystation_http_request_seconds",
            "Time from the first byte of a request to its reply; long polls wait on purpose.",
            labels=("route",),
        )
        by_route: dict[str, Histogram] = {}
        for (method, route, status), each in self._histograms.items():
            requests.add_metric((method, route, str(status)), sum(each.counts))
            total = by_route.setdefault(route, Histogram())
            total.counts = [a + b for a, b in zip(total.counts, each.counts, strict=True)]
            total.seconds += each.seconds
        for route, total in by_route.items():
            times.add_metric((route,), total.buckets, total.seconds)
        yield requests
        yield times


class _InFlight:
    """Number of requests in progress. It needs no lock, because one thread counts."""

    requests = 0


_request_metrics = RequestMetrics()
registry.register(_request_metrics)
http_in_flight = Gauge(
    "waystation_http_requests_in_flight", "Requests that are being answered.", registry=registry
)
http_in_flight.set_function(lambda: _InFlight.requests)

#: After a longer wait, the key or token of a read is checked again.
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
        started = self._seconds()
        _InFlight.requests += 1
        request = Request(scope, receive, body_bytes_max=self._body_bytes_max)
        if not request.id or not _is_request_id(request.id):
            request.id = b"%b%x" % (self._id_prefix, next(self._id_counter))
        try:
            route = self._find_route(request)
            if route is None:
                await self._call_wide(request, send)
                return
            if isinstance(route, Route):
                name, reply = route.path, await self._run_handler(route, request, started)
            else:
                name, reply = route
            # Use the method as a label only with a route, because clients can send any method.
            label = scope["method"] if name[0] == "/" else "-"
            # Measure before sending, because a slow reader would add to the time.
            took = self._seconds() - started
            # Send in one write, unless the headers contain the origin of the client.
            if request.origin is not None or not write_whole(send, reply, self._heads, request.id):
                reply = await self._send(request, reply, send)
            _request_metrics.of(label, name, reply.status).note(took)
        except ClientGoneError:
            pass
        except asyncio.CancelledError:
            await self._give_up(request, send)
        finally:
            _InFlight.requests -= 1
            if request.held_bytes:
                request.let_go()

    async def _open_socket(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Check a WebSocket like a request and run it. A rejection is an ordinary HTTP reply."""
        started = self._seconds()
        scope["method"] = "GET"
        request = Request(scope, receive, body_bytes_max=0)
        request.id = b"%b%x" % (self._id_prefix, next(self._id_counter))
        found = self._find_route(request)
        if isinstance(found, tuple):
            name, reply = found
        elif found is not None and found.socket:
            name, reply = found.path, await self._run_handler(found, request, started)
        else:
            unknown = NotFoundError("There is no WebSocket here.")
            name, reply = "unknown", self._failure(unknown, request, dsps=False)
        label = "GET" if name[0] == "/" else "-"
        _request_metrics.of(label, name, reply.status).note(self._seconds() - started)
        if isinstance(reply, SocketReply):
            await reply.run(receive, send)
            return
        headers = [*reply.headers, *self._common_headers(request)]
        start = {"type": "websocket.http.response.start", "status": reply.status}
        with contextlib.suppress(OSError):  # The client may be gone by now.
            await send({**start, "headers": headers})
            await send({"type": "websocket.http.response.body", "body": reply.body})
            note_refused(send)

    # -- Routes and handlers -----------------------------------------------------------------

    def _find_route(self, request: Request) -> Route | tuple[str, Reply] | None:
        """Return the route, or a metric label and the reply that rejects the request.

        None: the wide application has the route.
        """
        scope = request.scope
        path = self._path(scope["path"])
        if SURPLUS in scope["state"]:
            http_shed.inc()
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

    async def _run_handler(self, route: Route, request: Request, started: float) -> Reply:
        """Check channel name, token and key, then call the handler and return its reply."""
        if route.body_bytes_max is not None:
            request.body_bytes_max = route.body_bytes_max
        try:
            if route.precheck is not None and (refusal := route.precheck(request)) is not None:
                return refusal
            if route.admission is not None and (coming := route.admission(request)) is not None:
                request.access = await coming
            scope = route.scope
            if scope is not None and not self._has_cached_scope(request, scope):
                await self._require_scope(request, scope)
            reply = await route.handler(request)
            if scope is Scope.READ and self._seconds() - started > _RECHECK_SECONDS:
                await self._recheck_access(route, request, scope)
        except ClientGoneError:
            raise
        except Exception as error:
            reply = self._failure(error, request, dsps=route.manner == "dsps", verb=route.verb)
        return reply

    def _has_cached_scope(self, request: Request, needed: Scope) -> bool:
        """Return True if a token or a cached key grants the scope. Most requests end here.

        False: `_require_scope` has to look up the key, or to raise the error.
        """
        access = request.access or self._gate.admit(request.authorization)
        if access is None or needed not in access.scopes:
            return False
        request.access = access
        return True

    async def _require_scope(self, request: Request, needed: Scope) -> None:
        access = self._gate.admit(request.authorization)
        if access is None:
            access = await self._gate.admit_unknown(request.authorization)
        if needed not in access.scopes:
            raise ForbiddenError(f"The key lacks the scope {needed.value!r}.")
        request.access = access

    async def _recheck_access(self, route: Route, request: Request, needed: Scope) -> None:
        """Check key or token again after a long poll, because it may have been revoked."""
        coming = route.admission(request) if route.admission is not None else None
        if coming is None or await coming is None:
            await self._require_scope(request, needed)

    async def _call_wide(self, request: Request, send: Send) -> None:
        """Pass the request to the wide application, which calls `_admit` on routes with a scope."""
        started = self._seconds()
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
                _request_metrics.of(label, "wide", status).note(self._seconds() - started)
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
        await self._require_scope(request, needed)
        assert request.access is not None
        return request.access

    def _path(self, path: str) -> str:
        if self._prefix and path.startswith(self._prefix + "/"):
            return path[len(self._prefix) :]
        return path if not self._prefix else "/\0"  # outside the prefix nothing is served

    # -- Replies -----------------------------------------------------------------------------

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
        """Reply 503 to a request that was cancelled because the server stops."""
        error = OutcomeUnknownError("The server stopped before the request was done.")
        reply = self._failure(error, request, dsps=_is_dsps(self._path(request.scope["path"])))
        reply.headers = (*reply.headers, CLOSE)
        # uvicorn refuses a second reply where the first had started.
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
