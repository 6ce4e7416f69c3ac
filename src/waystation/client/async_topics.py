"""The verbs of topics for the asynchronous client.

To look, and to produce, is tried again when the station is away for a moment. What is produced has
an id before it is sent: a repetition is known as one where the topic has deduplication, and may be
there twice where it has not. Verbs that change a topic are not repeated: their outcome is unknown
when the station is lost meanwhile, and a look tells.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from datetime import datetime
from typing import Any, Unpack
from urllib.parse import urlencode

from waystation.client.async_caller import AsyncCaller
from waystation.client.async_producer import AsyncProducer, send_once
from waystation.client.async_transport import AsyncTransport
from waystation.client.codec import Codec
from waystation.client.messages import decode_answer
from waystation.client.parcels import (
    BATCH_BYTES_MAX,
    BATCH_MESSAGES_MAX,
    MessageOptions,
    NewMessage,
    batches,
    pack,
)
from waystation.client.shipment import Shipment
from waystation.client.topics import (
    MessagePage,
    ReceivedTopic,
    ReceivedTopicPage,
    Results,
    TopicMessage,
    TopicOptionArgs,
    VersionedOptions,
    topic_message,
)
from waystation.errors import ConflictError, WaystationError
from waystation.runtime.clock import Clock
from waystation.runtime.ids import IdSource, RandomIds, require_name
from waystation.runtime.json_values import encode_json
from waystation.types.message import Receipt
from waystation.types.topic import GroupLocation, StoredMessagePage, Topic, TopicPartitions

_PATH = "/v1/topics"


class AsyncTopics:
    """Create topics and let them grow; produce; look into them."""

    def __init__(self, transport: AsyncTransport, *, identity: IdSource | None = None) -> None:
        self._transport = transport
        self._caller = AsyncCaller(transport)
        self._identity = identity or RandomIds()
        self._producers: set[AsyncProducer] = set()

    async def aclose(self) -> None:
        """Closes the producers that are still open."""
        while self._producers:
            await self._producers.pop().aclose()

    # -- Topics ------------------------------------------------------------------------------

    async def create(
        self, topic: str, *, partitions: int | None = None, **options: Unpack[TopicOptionArgs]
    ) -> Topic:
        """Creates a topic; ConflictError when there is one, also a deleted one."""
        body: dict[str, Any] = {"name": require_name(topic, field="topic"), "options": options}
        if partitions is not None:
            body["partitions"] = partitions
        return await self._change("POST", _PATH, body)

    async def get(self, topic: str) -> Topic:
        """The topic as it is."""
        return decode_answer(await self._caller.call("GET", _path(topic)), ReceivedTopic)

    async def list(self, *, deleted: bool = False) -> AsyncIterator[Topic]:
        """Yields the topics of the project by name; deleted ones too, if asked for."""
        cursor = ""
        while True:
            query = urlencode({"limit": 1000, "cursor": cursor, "deleted": str(deleted).lower()})
            answer = await self._caller.call("GET", f"{_PATH}?{query}")
            page = decode_answer(answer, ReceivedTopicPage)
            for each in page.topics:
                yield each
            cursor = page.cursor
            if not cursor:
                return

    async def change(
        self, topic: str, *, version: int | None = None, **options: Unpack[TopicOptionArgs]
    ) -> Topic:
        """Changes the options that are named; the others stay.

        ConflictError if another changes the topic meanwhile, or has changed it since `version`.
        """
        answer = await self._caller.call("GET", _path(topic))
        now = decode_answer(answer, VersionedOptions)
        if version is not None and now.version != version:
            raise ConflictError(f"Topic {topic} has version {now.version}, not {version}.")
        # The version that the other options were read from, so that none of them is undone.
        body = {"version": now.version, "options": {**now.options, **options}}
        return await self._change("PUT", f"{_path(topic)}/options", body)

    async def add_storage_topic(
        self, topic: str, partitions: int, *, version: int | None = None, force: bool = False
    ) -> Topic:
        """Append a storage topic. Messages go to the one before it until a switch.

        With the version that it is to be added to, the call can be repeated without harm. Raise
        GrowthStopsSubscriptionsError if subscriptions could not follow, unless `force` is set.
        """
        body: dict[str, Any] = {"partitions": partitions}
        if version is not None:
            body["version"] = version
        if force:
            body["force"] = True
        return await self._change("POST", f"{_path(topic)}/storage-topics", body)

    async def switch_produce(
        self, topic: str, *, version: int | None = None, force: bool = False
    ) -> Topic:
        """Produce to the next storage topic from now on; at the last one it stays.

        With the version that is to be switched, the call can be repeated: ConflictError, and no
        storage topic is skipped. Raise GrowthStopsSubscriptionsError if subscriptions could not
        follow, unless `force` is set.
        """
        wish: dict[str, Any] = {} if version is None else {"version": version}
        if force:
            wish["force"] = "true"
        query = f"?{urlencode(wish)}" if wish else ""
        return await self._change("POST", f"{_path(topic)}/switch{query}")

    async def block(self, topic: str) -> Topic:
        """Refuses what is produced from now on; what is there stays readable."""
        return await self._change("POST", f"{_path(topic)}/block")

    async def unblock(self, topic: str) -> Topic:
        """Takes messages again."""
        return await self._change("POST", f"{_path(topic)}/unblock")

    async def delete(self, topic: str) -> None:
        """Deletes a topic; its messages stay until it is purged, and it can be restored."""
        await self._caller.call("DELETE", _path(topic), repeatable=False)

    async def restore(self, topic: str) -> Topic:
        """Brings a deleted topic back."""
        return await self._change("POST", f"{_path(topic)}/restore")

    async def purge(self, topic: str) -> None:
        """Deletes the messages of a deleted topic for good; then its name is free again."""
        await self._caller.call("POST", f"{_path(topic)}/purge", repeatable=False)

    # -- Producing ---------------------------------------------------------------------------

    async def produce(
        self,
        topic: str,
        data: Any,
        *,
        codec: Codec | None = None,
        patience: float = 10.0,
        **options: Unpack[MessageOptions],
    ) -> Receipt:
        """Produces a message: bytes as they are, text as text, anything else as JSON.

        A station that is away, busy or over its limit is waited for, `patience` seconds long.
        """
        message = NewMessage(data, **options)
        (result,) = await self.produce_many(topic, [message], codec=codec, patience=patience)
        if isinstance(result, WaystationError):
            raise result
        return result

    async def produce_many(
        self,
        topic: str,
        messages: Iterable[NewMessage],
        *,
        codec: Codec | None = None,
        patience: float = 10.0,
    ) -> Results:
        """Produces messages in their order; returns a receipt or an error for each of them.

        Large batches take several requests, each with its own patience. When one is given up,
        nothing is sent any more: what comes later must not be there without it.
        """
        path = f"{_path(topic)}/messages"
        parcels = [pack(each, codec=codec, identity=self._identity) for each in messages]
        lost: WaystationError | None = None
        for batch in batches(parcels):
            shipment = Shipment(batch, patience=patience, clock=Clock())
            while shipment.left and lost is None:
                await send_once(self._transport, path, shipment)
                if shipment.left:
                    await self._transport.sleep(shipment.pause)
            lost = lost or shipment.lost
            if lost is not None:
                shipment.give_up(lost)
        return [parcel.result for parcel in parcels if parcel.result is not None]

    def producer(
        self,
        topic: str,
        *,
        linger: float = 0.005,
        batch: int = BATCH_MESSAGES_MAX,
        batch_bytes: int = BATCH_BYTES_MAX,
        waiting: int = 10_000,
        waiting_bytes: int = 32 * 1_048_576,
        patience: float = 60.0,
        codec: Codec | None = None,
    ) -> AsyncProducer:
        """A producer that gathers messages, `linger` seconds or a batch long. Close it at the end.

        `waiting` and `waiting_bytes` bound what was taken and has no receipt yet.
        """
        producer = AsyncProducer(
            self._transport,
            f"{_path(topic)}/messages",
            linger=linger,
            batch=batch,
            batch_bytes=batch_bytes,
            waiting=waiting,
            waiting_bytes=waiting_bytes,
            patience=patience,
            codec=codec,
            on_closed=self._producers.discard,
        )
        self._producers.add(producer)
        return producer

    # -- Looking -----------------------------------------------------------------------------

    async def page(
        self,
        topic: str,
        *,
        storage: int | None = None,
        partition: int | None = None,
        offset: int | None = None,
        since: datetime | None = None,
        group: str | None = None,
        id: str | None = None,  # noqa: A002
        cursor: str = "",
        limit: int = 100,
        codec: Codec | None = None,
    ) -> MessagePage:
        """Messages of a partition, of a group or with an id, as many as one page has.

        A partition is read from an offset or a time on. The page's cursor leads on.
        """
        wishes = {
            "storage": storage,
            "partition": partition,
            "offset": offset,
            "time_ms": None if since is None else int(since.timestamp() * 1000),
            "group": group,
            "id": id,
            "cursor": cursor or None,
            "limit": limit,
        }
        query = urlencode({name: value for name, value in wishes.items() if value is not None})
        answer = await self._caller.call("GET", f"{_path(topic)}/messages?{query}")
        page = decode_answer(answer, StoredMessagePage)
        messages = [topic_message(each, codec) for each in page.messages]
        return MessagePage(
            messages=messages, cursor=page.cursor, ended=page.ended, damaged=page.damaged
        )

    async def messages(
        self,
        topic: str,
        *,
        storage: int | None = None,
        partition: int | None = None,
        offset: int | None = None,
        since: datetime | None = None,
        group: str | None = None,
        id: str | None = None,  # noqa: A002
        codec: Codec | None = None,
    ) -> AsyncIterator[TopicMessage]:
        """Yields what `page` has, page after page, until all that is there now was seen."""
        wish: dict[str, Any] = {"storage": storage, "partition": partition, "group": group}
        start: dict[str, Any] = {"offset": offset, "since": since}
        while True:
            page = await self.page(topic, **wish, **start, id=id, limit=1000, codec=codec)
            for each in page.messages:
                yield each
            if page.ended:
                return
            start = {"cursor": page.cursor}

    async def where(self, topic: str, group: str, *, shards: int | None = None) -> GroupLocation:
        """The partition of a group in every storage topic, and its shard."""
        wishes = {"group": group} if shards is None else {"group": group, "shards": shards}
        answer = await self._caller.call("GET", f"{_path(topic)}/where?{urlencode(wishes)}")
        return decode_answer(answer, GroupLocation)

    async def state(self, topic: str) -> TopicPartitions:
        """What each partition holds."""
        return decode_answer(
            await self._caller.call("GET", f"{_path(topic)}/state"), TopicPartitions
        )

    async def _change(self, method: str, path: str, content: dict[str, Any] | None = None) -> Topic:
        body = None if content is None else encode_json(content)
        answer = await self._caller.call(method, path, body=body, repeatable=False)
        return decode_answer(answer, ReceivedTopic)


def _path(topic: str) -> str:
    return f"{_PATH}/{require_name(topic, field='topic')}"
