"""The verbs of channels for the asynchronous client.

Every verb may be repeated without harm (a publish has an id, an acknowledgement only moves
forward), so all of them are tried again when the station is away for a moment.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

from waystation.client.async_transport import AsyncTransport
from waystation.client.messages import (
    Answer,
    Batch,
    Received,
    decode_batch,
    encode_content,
    raise_for,
)
from waystation.errors import StationUnreachableError
from waystation.ids import Identity, RandomIdentity, require_name

#: Pauses before the second, third… try; together they outlast a restart of the store.
_PAUSES_SECONDS = (0.05, 0.2, 0.5, 1.0, 2.0)
#: What a station that is busy, or a proxy before one that is away, answers.
_AWAY = frozenset({502, 503, 504})


class AsyncChannels:
    """Publish, subscribe, fetch, acknowledge."""

    def __init__(self, transport: AsyncTransport, *, identity: Identity | None = None) -> None:
        self._transport = transport
        self._identity = identity or RandomIdentity()

    async def publish(self, channel: str, content: Any, *, message_id: str = "") -> str:
        """Publishes JSON; returns the message id. Give an id of your own to publish just once."""
        message_id = message_id or f"msg-{self.new_id()}"
        path = f"{_channel(channel)}/message/{require_name(message_id, field='message_id')}"
        await self._do("PUT", path, body=encode_content(content))
        return message_id

    async def subscribe(self, channel: str, subscriber: str) -> None:
        """Creates a subscriber that sees what is published from now on; keeps one that exists."""
        await self._do("PUT", _subscription(channel, subscriber))

    async def unsubscribe(self, channel: str, subscriber: str) -> None:
        """Deletes a subscriber, if it is there."""
        await self._do("DELETE", _subscription(channel, subscriber))

    async def fetch(
        self, channel: str, subscriber: str, *, timeout: float = 0.0, limit: int = 64
    ) -> Batch:
        """Unread messages, waiting up to `timeout` seconds for the first one."""
        path = f"{_subscription(channel, subscriber)}?timeout={timeout * 1000:.0f}ms&max={limit}"
        return decode_batch(await self._do("GET", path, patience=timeout))

    async def ack(self, channel: str, subscriber: str, handle: str) -> None:
        """Acknowledges everything up to the batch that brought the handle."""
        path = f"{_subscription(channel, subscriber)}/message?ackHandle={quote(handle)}"
        await self._do("DELETE", path)

    async def listen(
        self, channel: str, subscriber: str, *, timeout: float = 30.0, limit: int = 64
    ) -> AsyncIterator[Received]:
        """Yields messages for ever, acknowledging a batch once all of it was taken.

        A consumer that dies in the middle gets the batch again: at least once.
        """
        await self.subscribe(channel, subscriber)
        while True:
            batch = await self.fetch(channel, subscriber, timeout=timeout, limit=limit)
            for message in batch.messages:
                yield message
            if batch.handle:
                await self.ack(channel, subscriber, batch.handle)

    def new_id(self) -> str:
        """A name that nobody else has, for a message or a subscriber."""
        return self._identity.token(16)

    async def _do(
        self, method: str, path: str, *, body: bytes | None = None, patience: float = 0.0
    ) -> Answer:
        for pause in (*_PAUSES_SECONDS, None):
            try:
                answer = await self._transport.request(method, path, body=body, patience=patience)
            except StationUnreachableError:
                if pause is None:
                    raise
            else:
                if answer.status not in _AWAY or pause is None:
                    break
            await self._transport.sleep(pause)
        raise_for(answer)
        return answer


def _channel(channel: str) -> str:
    return f"/channel/{require_name(channel, field='channel')}"


def _subscription(channel: str, subscriber: str) -> str:
    name = require_name(subscriber, field="subscriber")
    return f"{_channel(channel)}/subscription/polling/{name}"
