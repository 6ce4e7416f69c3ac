"""A conversation over a WebSocket: messages and answers one way, acknowledgements the other.

Every frame is one JSON object in text. The server says `message`, `lost`, `published` and `error`;
the client says `ack` and `publish`. Its frames are handled one after the other, in their order; one
that cannot be handled is answered with an error, and the conversation goes on.

At most so many messages are under way unacknowledged; the next ones come when some were.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Annotated

import msgspec
from msgspec import Meta

from waystation.access import Access
from waystation.api.problems import status_of
from waystation.api.reply import Receive, Send, encode
from waystation.api.stream_admission import require_write
from waystation.api.stream_opening import AWAY_SECONDS, STORE_AWAY
from waystation.api.streams import Stream
from waystation.channels.model import StreamRead, decode_handle, encode_handle
from waystation.channels.reader import ChannelStream
from waystation.channels.service import ChannelService
from waystation.errors import (
    InvalidInputError,
    MessageMalformedError,
    TooLargeError,
    WaystationError,
)
from waystation.runtime.ids import require_name
from waystation.runtime.json_text import check_depth, is_json, shield, too_deep, unshield
from waystation.runtime.logging import logger

_log = logger("http")

#: A wait ends by itself after this; nothing depends on it.
_WAIT_SECONDS = 10.0


class Ack(msgspec.Struct, tag_field="type", tag="ack", forbid_unknown_fields=True):
    """Everything up to this message was taken."""

    ackHandle: Annotated[str, Meta(max_length=1000)]  # noqa: N815


class Publish(msgspec.Struct, tag_field="type", tag="publish", forbid_unknown_fields=True):
    """A message for the channel."""

    messageID: Annotated[str, Meta(max_length=1000)]  # noqa: N815
    content: msgspec.Raw


_decode_frame = msgspec.json.Decoder(Ack | Publish).decode


class BinaryFrameError(InvalidInputError):
    """A client sent a frame that is not text."""


class Conversation:
    """What both sides of one connection know."""

    def __init__(
        self,
        channels: ChannelService,
        names: tuple[str, str, str],
        access: Access,
        stream: ChannelStream,
        send: Send,
        *,
        under_way_max: int,
        content_bytes_max: int,
    ) -> None:
        self._channels = channels
        #: Project, channel, subscriber.
        self._names = names
        self._access = access
        self._stream = stream
        self._send = send
        self._under_way_max = under_way_max
        self._content_bytes_max = content_bytes_max
        #: Clocks of the messages that were sent and not acknowledged, in order.
        self._under_way: deque[int] = deque()
        self._room = asyncio.Event()
        #: Whether the client has hung up.
        self.gone = False

    # -- Server to client --------------------------------------------------------------------

    async def tell(self) -> None:
        """Sends messages as they come and as there is room for them; until it is interrupted."""
        _, channel, subscriber = self._names
        with self._stream:
            while True:
                found = await self._next()
                if found.lost:
                    await self._say(b'{"type":"lost","lostMessages":%d}' % found.lost)
                for clock, message in found.messages:
                    self._under_way.append(clock)
                    handle = encode_handle(channel, subscriber, clock).encode()
                    await self._say(
                        b'{"type":"message","messageID":%b,"content":%b,"ackHandle":"%b"}'
                        % (encode(message.id), bytes(message.content), handle)
                    )

    async def _next(self) -> StreamRead:
        try:
            if room := self._under_way_max - len(self._under_way):
                return await self._stream.next(room, wait_s=_WAIT_SECONDS)
            self._room.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_WAIT_SECONDS):
                    await self._room.wait()
            # Keeps the subscriber alive, and sees whether it is still there.
            return await self._stream.read(0)
        except STORE_AWAY:
            await asyncio.sleep(AWAY_SECONDS)
            return StreamRead(messages=[], lost=0, more=True)

    async def _say(self, frame: bytes) -> None:
        try:
            text = frame.decode()
        except UnicodeDecodeError:
            # A text frame must be UTF-8. A message that DSPS accepted need not be.
            await self._send({"type": "websocket.send", "bytes": frame})
        else:
            await self._send({"type": "websocket.send", "text": text})

    # -- Client to server --------------------------------------------------------------------

    async def listen(self, receive: Receive, running: Stream) -> None:
        """Handles what the client sends; its hanging up ends the stream."""
        try:
            while (frame := await receive())["type"] != "websocket.disconnect":
                if frame["type"] == "websocket.receive":
                    await self._handle(frame.get("text"))
        except OSError:
            pass
        except WaystationError as error:
            running.end(error)
            return
        except Exception as error:
            _log.error("a WebSocket failed", error=error)
            running.end(WaystationError())
            return
        self.gone = True
        running.end()

    async def _handle(self, text: str | None) -> None:
        if text is None:
            raise BinaryFrameError("Frames are text.")
        about: dict[str, str] = {}
        try:
            frame = _read(text)
            if isinstance(frame, Ack):
                about = {"ackHandle": frame.ackHandle}
                await self._ack(frame.ackHandle)
            else:
                about = {"messageID": frame.messageID}
                await self._publish(frame.messageID, unshield(bytes(frame.content)))
        except WaystationError as error:
            if status_of(error) == 500:
                raise
            told = {"type": "error", **about, "code": error.code, "detail": str(error)}
            await self._say(encode(told))

    async def _ack(self, handle: str) -> None:
        require_write(self._access, "Acknowledging")
        _, channel, subscriber = self._names
        clock = decode_handle(channel, subscriber, handle)
        await self._channels.ack(*self._names, handle)
        if clock is not None and clock in self._under_way:
            self._stream.acknowledged(clock)
            while self._under_way.popleft() != clock:
                pass
            self._room.set()

    async def _publish(self, message_id: str, content: bytes) -> None:
        require_write(self._access, "Publishing")
        require_name(message_id, field="messageID")
        if len(content) > self._content_bytes_max:
            raise TooLargeError(
                f"The content is larger than {self._content_bytes_max} bytes.", field="content"
            )
        if not is_json(content):
            check_depth(content, field="content")
            raise MessageMalformedError("The content is not JSON.")
        project, channel, _ = self._names
        await self._channels.publish(project, channel, message_id, content)
        await self._say(b'{"type":"published","messageID":"%b"}' % message_id.encode())


def _read(text: str) -> Ack | Publish:
    try:
        return _decode_shielded(text.encode())
    except RecursionError as error:
        raise too_deep("frame") from error
    except (msgspec.MsgspecError, UnicodeError) as error:
        told = str(error) if isinstance(error, msgspec.ValidationError) else "it is not JSON"
        raise InvalidInputError(f"The frame cannot be read: {told}.") from error


def _decode_shielded(frame: bytes) -> Ack | Publish:
    """Return a frame whose content is to be passed to `unshield`."""
    try:
        found: Ack | Publish = _decode_frame(frame)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        found = _decode_frame(shield(frame))
    return found
