"""A small HTTP application: one handler, errors as problems, and a bound for everything."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
from collections.abc import Awaitable, Callable

from waystation.api.connection import SURPLUS
from waystation.api.problems import problem, problem_for, status_of
from waystation.api.reply import (
    CLOSE,
    Heads,
    Receive,
    Reply,
    Scope,
    Send,
    expects_continue,
    http_shed,
)
from waystation.api.reply import write_whole as write_at_once
from waystation.api.request import ClientGoneError, Request
from waystation.api.socket_connection import note_refused
from waystation.errors import BusyError, OutcomeUnknownError
from waystation.runtime.logging import logger
from waystation.runtime.metrics import Count
from waystation.telemetry import metrics

_log = logger("relay")

Handler = Callable[[Request], Awaitable[Reply]]


class _Counts(dict[int, Count]):
    """Counts of a door by status, looked up once."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind = kind

    def __missing__(self, status: int) -> Count:
        count = self[status] = metrics.relay_requests.of(self._kind, str(status))
        return count


class HttpApp:
    """An ASGI application. `kind` is its label in metrics."""

    def __init__(self, kind: str, handler: Handler, *, body_bytes_max: int) -> None:
        self._kind = kind
        self._handler = handler
        self._body_bytes_max = body_bytes_max
        self._heads = Heads(((b"x-content-type-options", b"nosniff"),))
        self._prefix = secrets.token_hex(4).encode() + b"-"
        self._count = itertools.count(1)
        self._counts = _Counts(kind)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await refuse_socket(send, Reply(404))
            return
        request = Request(scope, receive, body_bytes_max=self._body_bytes_max)
        request.id = b"%b%x" % (self._prefix, next(self._count))
        try:
            reply = await self._reply(request)
            if not write_at_once(send, reply, self._heads, request.id):
                await _write(request, reply, send)
            self._counts[reply.status].inc()
        except ClientGoneError:
            pass
        except asyncio.CancelledError:
            # A stop that could wait no longer; uvicorn refuses a second reply.
            error = OutcomeUnknownError("The relay stopped before the request was done.")
            with contextlib.suppress(RuntimeError):
                await _write(request, _failure(error, request), send)
        finally:
            if request.held_bytes:
                request.let_go()

    async def _reply(self, request: Request) -> Reply:
        if SURPLUS in request.scope["state"]:
            http_shed.inc()
            busy = BusyError("The relay has as many connections as it can serve.")
            reply = _failure(busy, request)
            reply.headers = (*reply.headers, CLOSE)
            return reply
        try:
            return await self._handler(request)
        except ClientGoneError:
            raise
        except Exception as error:
            return _failure(error, request)


def no_such_path(request: Request) -> Reply:
    """404."""
    return _problem(request, 404, "not-found", "There is nothing here.")


def no_such_method(request: Request, *allowed: str) -> Reply:
    """405, with what is allowed."""
    reply = _problem(request, 405, "method-not-allowed", f"Use {' or '.join(allowed)}.")
    reply.headers = (*reply.headers, (b"allow", ", ".join(allowed).encode()))
    return reply


def upgrade_required(request: Request) -> Reply:
    """426: this door is for WebSockets."""
    text = "This is a WebSocket: ask for an upgrade."
    reply = _problem(request, 426, "upgrade-required", text)
    reply.headers = (*reply.headers, (b"upgrade", b"websocket"), (b"connection", b"upgrade"))
    return reply


async def refuse_socket(send: Send, reply: Reply) -> None:
    """Answers an upgrade with an ordinary reply."""
    start = {"type": "websocket.http.response.start", "status": reply.status}
    with contextlib.suppress(OSError):  # The client may be gone by now.
        await send({**start, "headers": list(reply.headers)})
        await send({"type": "websocket.http.response.body", "body": reply.body})
        note_refused(send)


def _problem(request: Request, status: int, code: str, text: str) -> Reply:
    path = request.scope["path"]
    return problem(status, code, text, path=path, request_id=request.id.decode())


def _failure(error: Exception, request: Request) -> Reply:
    if status_of(error) == 500:
        # The request id, never the body: it belongs to the user.
        _log.error("request failed", error=error, request=request.id.decode())
    return problem_for(error, path=request.scope["path"], request_id=request.id.decode())


async def _write(request: Request, reply: Reply, send: Send) -> None:
    headers = [*reply.headers, (b"x-request-id", request.id)]
    if expects_continue(send):
        # The client holds its body back and may never send it: nothing can follow.
        headers.append(CLOSE)
    headers.append((b"content-length", b"%d" % len(reply.body)))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    body = b"" if request.scope["method"] == "HEAD" else reply.body
    await send({"type": "http.response.body", "body": body})
