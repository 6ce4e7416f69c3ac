"""The verbs of channels for the asynchronous client.

Every verb may be repeated without harm (a publish has an id, an acknowledgement only moves
forward), so all of them are tried again when the station is away for a moment.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from datetime import datetime
from typing import Any, Literal
from urllib.parse import quote

from waystation.client.async_caller import AsyncCaller
from waystation.client.async_transport import AsyncTransport
from waystation.client.messages import (
    Batch,
    Received,
    decode_answer,
    decode_batch,
    encode_batches,
    encode_content,
)
from waystation.errors import ChannelFullError
from waystation.runtime.ids import IdSource, RandomIds, require_name
from waystation.runtime.json_values import encode_json
from waystation.types.channel import (
    Channel,
    ChannelPage,
    PublishedMessage,
    PublishedMessages,
    Sought,
    Subscriber,
    SubscriberPage,
)


class AsyncChannels:
    """Publish, subscribe, fetch, acknowledge; look at channels and move subscribers."""

    def __init__(self, transport: AsyncTransport, *, identity: IdSource | None = None) -> None:
        self._caller = AsyncCaller(transport)
        self._identity = identity or RandomIds()

    async def publish(self, channel: str, content: Any, *, message_id: str = "") -> str:
        """Publishes JSON; returns the message id. Give an id of your own to publish just once."""
        message_id = message_id or f"msg-{self.new_id()}"
        path = f"{_channel(channel)}/message/{require_name(message_id, field='message_id')}"
        await self._caller.call("PUT", path, body=encode_content(content))
        return message_id

    async def publish_many(
        self, channel: str, messages: Iterable[tuple[str, Any]]
    ) -> list[PublishedMessage]:
        """Publishes pairs of id and JSON in their order; an empty id is replaced by a new one.

        Large batches take several requests. When one fails, those before it are published: with
        ids of your own the whole call may be repeated. Raises ChannelFullError only when not one
        message found room; else those that did not are told as `full`.
        """
        path = f"{_control(channel)}/messages"
        named = (
            (require_name(each or f"msg-{self.new_id()}", field="message_id"), content)
            for each, content in messages
        )
        done: list[PublishedMessage] = []
        # All are put together before the first is sent: a bad one publishes nothing.
        for ids, body in list(encode_batches(named)):
            try:
                answer = await self._caller.call("POST", path, body=body)
                done += decode_answer(answer, PublishedMessages).messages
            except ChannelFullError:
                if all(each.outcome == "full" for each in done):
                    raise
                done += [PublishedMessage(id=each, outcome="full", clock=None) for each in ids]
        return done

    async def subscribe(self, channel: str, subscriber: str) -> None:
        """Creates a subscriber that sees what is published from now on; keeps one that exists."""
        await self._caller.call("PUT", _subscription(channel, subscriber))

    async def unsubscribe(self, channel: str, subscriber: str) -> None:
        """Deletes a subscriber, if it is there."""
        await self._caller.call("DELETE", _subscription(channel, subscriber))

    async def fetch(
        self, channel: str, subscriber: str, *, timeout: float = 0.0, limit: int = 64
    ) -> Batch:
        """Unread messages, waiting up to `timeout` seconds for the first one."""
        path = f"{_subscription(channel, subscriber)}?timeout={timeout * 1000:.0f}ms&max={limit}"
        return decode_batch(await self._caller.call("GET", path, patience=timeout))

    async def ack(self, channel: str, subscriber: str, handle: str) -> None:
        """Acknowledges everything up to the batch that brought the handle.

        A batch without messages has an empty handle, and acknowledging that changes nothing.
        """
        if not handle:
            return
        path = f"{_subscription(channel, subscriber)}/message?ackHandle={quote(handle)}"
        await self._caller.call("DELETE", path)

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
            await self.ack(channel, subscriber, batch.handle)

    async def seek(
        self,
        channel: str,
        subscriber: str,
        *,
        to: Literal["beginning", "end"] | None = None,
        clock: int | None = None,
        since: datetime | None = None,
    ) -> Sought:
        """Moves a subscriber to either end, behind the message of a clock, or back to a time."""
        name = require_name(subscriber, field="subscriber")
        time_ms = None if since is None else int(since.timestamp() * 1000)
        wishes = {"to": to, "clock": clock, "time_ms": time_ms}
        body = {key: value for key, value in wishes.items() if value is not None}
        path = f"{_control(channel)}/subscribers/{name}/seek"
        return decode_answer(await self._caller.call("POST", path, body=encode_json(body)), Sought)

    async def channels(self) -> AsyncIterator[Channel]:
        """Yields all channels of the project, each once, in no order."""
        seen: set[str] = set()
        cursor = ""
        while True:
            answer = await self._caller.call("GET", f"/v1/channels?limit=1000&cursor={cursor}")
            page = decode_answer(answer, ChannelPage)
            for each in page.channels:
                if each.name not in seen:
                    seen.add(each.name)
                    yield each
            cursor = page.cursor
            if not cursor:
                return

    async def subscribers(self, channel: str) -> AsyncIterator[Subscriber]:
        """Yields all subscribers of a channel with their lag, each once, in no order."""
        path = f"{_control(channel)}/subscribers?limit=1000&cursor="
        seen: set[str] = set()
        cursor = ""
        while True:
            page = decode_answer(await self._caller.call("GET", path + cursor), SubscriberPage)
            for each in page.subscribers:
                if each.name not in seen:
                    seen.add(each.name)
                    yield each
            cursor = page.cursor
            if not cursor:
                return

    def new_id(self) -> str:
        """A name that nobody else has, for a message or a subscriber."""
        return self._identity.token(16)


def _channel(channel: str) -> str:
    return f"/channel/{require_name(channel, field='channel')}"


def _control(channel: str) -> str:
    return f"/v1/channels/{require_name(channel, field='channel')}"


def _subscription(channel: str, subscriber: str) -> str:
    name = require_name(subscriber, field="subscriber")
    return f"{_channel(channel)}/subscription/polling/{name}"
