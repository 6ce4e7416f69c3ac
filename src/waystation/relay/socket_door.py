"""The WebSocket door: one envelope in each frame, text or binary; answers come as binary frames.

A frame that is no envelope closes with 4400, a store that is away with 4503; what was enqueued
before stays so. At most 16 envelopes are under way on a connection: more are not read meanwhile.
One that is silent for a while with nothing under way is closed: its client comes back.
"""

from __future__ import annotations

import asyncio
import contextlib

from waystation.acapy.envelopes import WIRE
from waystation.acapy.recipients import Recipients, recipient_key
from waystation.api.problems import status_of
from waystation.api.reply import Receive, Reply, Scope, Send
from waystation.api.request import Request
from waystation.errors import WaystationError
from waystation.relay.http_app import HttpApp, refuse_socket, upgrade_required
from waystation.relay.relay import Relay
from waystation.runtime.logging import logger
from waystation.telemetry import metrics

_log = logger("relay")

UNDER_WAY_MAX = 16
#: "Going away", by RFC 6455: nothing is wrong.
_IDLE = 1001


class SocketDoor:
    """An ASGI application for WebSockets on `/`."""

    def __init__(self, relay: Relay, *, idle_seconds: float, body_bytes_max: int) -> None:
        self._relay = relay
        self._idle_seconds = idle_seconds
        self._plain = HttpApp("ws", self._upgrade, body_bytes_max=body_bytes_max)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            await self._plain(scope, receive, send)
        elif scope["path"] != "/":
            await refuse_socket(send, Reply(404))
        else:
            await receive()
            await send({"type": "websocket.accept"})
            await _Talk(self._relay, receive, send, self._idle_seconds).run()

    async def _upgrade(self, request: Request) -> Reply:
        return upgrade_required(request)


class _Talk:
    """One connection."""

    def __init__(self, relay: Relay, receive: Receive, send: Send, idle_seconds: float) -> None:
        self._relay = relay
        self._receive = receive
        self._send = send
        self._idle_seconds = idle_seconds
        self._slots = asyncio.Semaphore(UNDER_WAY_MAX)
        #: Envelopes under way, and those of them that are enqueued and wait for their answers.
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: set[asyncio.Task[None]] = set()
        self._open = True

    async def run(self) -> None:
        """Until either side closes."""
        try:
            while self._open:
                await self._slots.acquire()
                frame = await self._next_frame()
                if frame is None:
                    break
                self._take(frame)
        finally:
            self._open = False
            # What was read is enqueued whatever happens; its answer has nobody to go to.
            for task in self._waiting:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _next_frame(self) -> bytes | None:
        """The next frame; None: the connection is over."""
        while True:
            try:
                async with asyncio.timeout(self._idle_seconds):
                    message = await self._receive()
            except TimeoutError:
                if self._tasks:
                    continue
                await self._close(_IDLE, "idle")
                return None
            if message["type"] != "websocket.receive":
                self._open = False
                return None
            text = message.get("text")
            return text.encode() if text is not None else bytes(message["bytes"])

    def _take(self, body: bytes) -> None:
        # In the order of their frames: tasks begin in the order in which they were made, and what
        # they say to the store is said in that order.
        task = asyncio.get_running_loop().create_task(self._handle(body))
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._waiting.discard(task)
        self._slots.release()

    async def _handle(self, body: bytes) -> None:
        try:
            found = recipient_key(body)
            await self._pass_on(body, found)
            metrics.relay_requests.of("ws", "200").inc()
        except WaystationError as error:
            status = status_of(error)
            metrics.relay_requests.of("ws", str(status)).inc()
            await self._close(4000 + status, error.code)
        except OSError:
            self._open = False
        except Exception as error:
            _log.error("a frame broke", error=error)
            await self._close(4500, "internal")

    async def _pass_on(self, body: bytes, found: Recipients) -> None:
        accepted = await self._relay.accept(body, found, "ws", content_type=WIRE)
        if not accepted.answer_to or not self._open:
            return
        task = asyncio.current_task()
        assert task is not None
        self._waiting.add(task)
        answer = await self._relay.answer(accepted)
        if answer is not None and answer.data and self._open:
            await self._send({"type": "websocket.send", "bytes": answer.data})

    async def _close(self, code: int, reason: str) -> None:
        if self._open:
            self._open = False
            with contextlib.suppress(OSError, RuntimeError):
                await self._send({"type": "websocket.close", "code": code, "reason": reason})
