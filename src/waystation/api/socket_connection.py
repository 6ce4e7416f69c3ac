"""uvicorn's WebSocket connection with bounds that it lacks: time to send, unread replies, places.

Compression is off: it costs memory for each connection, and lets a few bytes become a megabyte.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Request

from waystation.api.connection import STALLED_SECONDS_MAX, Bounds
from waystation.api.reply import Send, http_shed
from waystation.api.request import hold_bytes

_TOO_SLOW = 1008
_TOO_LARGE = 1009
_TRY_AGAIN = 1013
#: Fragments of one message. Each costs more than its bytes, and an empty one has none.
_FRAGMENTS_MAX = 1000
#: Frames around the largest content: the names of its fields, a message id.
ENVELOPE_BYTES_MAX = 4096


class BoundedSocket(WebSocketsSansIOProtocol):
    """Adds to uvicorn's connection when a message began to come, and what is not taken."""

    bounds: Bounds
    placed = False
    #: Bytes of a frame that is not complete yet.
    came = 0
    #: Bytes of an unfinished message that count for the budget of all.
    held = 0
    #: When the message that is not complete yet began to come; 0 without one.
    begun_at = 0.0
    unsent = 0
    taken_at = 0.0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # Its debug lines have the address that was asked for, and in that a token.
        self.conn.debug = False

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        hold_bytes(-self.held)
        self.held = 0
        self.bounds.placed -= self.placed
        self.placed = False

    def data_received(self, data: bytes) -> None:
        if self.close_sent and self.conn.parser_exc is not None:
            return  # Nothing that follows a breach of the protocol can be read.
        self.came += len(data)
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            # The library has written a refusal, and uvicorn does not send it.
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()
        self._hold(max(0, self.came) + (self.conn.current_size or 0))
        if self.came <= 0 and not self.frames:
            self.begun_at = 0.0
        elif not self.begun_at:
            self.begun_at = self.loop.time()
        if len(self.frames) > _FRAGMENTS_MAX:
            self._fail(_TOO_LARGE, "too many fragments")

    def _hold(self, unfinished: int) -> None:
        change, self.held = unfinished - self.held, unfinished
        if not hold_bytes(change) and change > 0:
            http_shed.inc()
            self._fail(_TRY_AGAIN, "busy")

    def handle_connect(self, event: Request) -> None:
        self.came = 0
        super().handle_connect(event)

    def handle_events(self) -> None:
        self.came -= sum(_wire_bytes(each) for each in self.conn.events if isinstance(each, Frame))
        super().handle_events()

    def send_receive_event_to_app(self) -> None:
        super().send_receive_event_to_app()
        self.begun_at = 0.0

    def pause_writing(self) -> None:
        # A client that does not read is not listened to: its pings would be answered into memory.
        super().pause_writing()
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.read_paused:
            self.transport.resume_reading()

    async def receive(self) -> Any:
        message = await self.queue.get()
        if self.read_paused and self.queue.empty():
            self.read_paused = False
            if self.writable.is_set():
                self.transport.resume_reading()
        return message

    def expire(self, now: float) -> None:
        """Ends a connection whose client takes too long to send a message, or to take ours."""
        listens = not self.read_paused and self.writable.is_set()
        if self.begun_at and listens and now - self.begun_at > self.bounds.read_seconds_max:
            self._fail(_TOO_SLOW, "too slow")
        unsent = self.transport.get_write_buffer_size()
        if unsent == 0 or unsent != self.unsent:
            self.unsent, self.taken_at = unsent, now
        elif now - self.taken_at > STALLED_SECONDS_MAX:
            self.transport.abort()

    def _fail(self, code: int, reason: str) -> None:
        if self.close_sent or self.transport.is_closing():
            return
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.conn.fail(code, reason)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.transport.close()


def _wire_bytes(frame: Frame) -> int:
    """What a client's frame took on its way: head, mask and content, in the shortest form."""
    size = len(frame.data)
    return size + (6 if size < 126 else 8 if size < 65_536 else 14)


def bounded_socket(bounds: Bounds) -> type[asyncio.Protocol]:
    """The connection class for uvicorn, which makes its connections itself, with `bounds` in it."""
    return type("BoundedSocket", (BoundedSocket,), {"bounds": bounds})


def is_blocked_socket(send: Send) -> bool:
    """Whether the client has not taken what was sent so far."""
    connection = getattr(send, "__self__", None)
    return isinstance(connection, BoundedSocket) and (
        not connection.writable.is_set() or connection.transport.get_write_buffer_size() > 0
    )


def note_refused(send: Send) -> None:
    """Tells uvicorn that a refusal was meant: it logs one as an error of ours else."""
    connection = getattr(send, "__self__", None)
    if isinstance(connection, BoundedSocket):
        connection.handshake_complete = True


def hang_up_socket(send: Send) -> None:
    """Ends the connection at once, whatever was not taken."""
    connection = getattr(send, "__self__", None)
    assert isinstance(connection, BoundedSocket)
    connection.transport.abort()
