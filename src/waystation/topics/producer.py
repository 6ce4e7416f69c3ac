"""Producers: append messages to topics and keep the order of each group during a switch.

Each topic has a writer with one queue per partition (a `Batcher`), so that many small requests
share few appends. When a partition rejects an append because it is sealed or missing, the writer
takes these steps:

1. It stops sending and waits until no append is in flight.
2. It reads the topic.
3. It routes all queued messages to the current storage topic, then the messages that arrived
   meanwhile.

Therefore no message overtakes an earlier message of its group.

A cancelled call does not withdraw its messages. The writer appends them nevertheless.

Invariants of a writer, to check with each change:

1. All queued messages were routed by `_topic`.
2. Only `_change_topic` sets `_topic`, while the batcher is paused and no append is in flight.
3. While `_reroute_task` runs, `enqueue` only appends to `_arrivals`.
4. `_append` (after a rejection) and `_stop_sending` pause the batcher. Only the end of
   `_reroute` resumes it, even after an unexpected error.
5. Messages of one call and one group are adjacent in their queue, also after a new routing.
   Therefore `_append_each_call`, which appends the messages of each call alone, keeps their order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter

import msgspec

from waystation.errors import (
    BusyError,
    LogFullError,
    LogNotFoundError,
    LogSealedError,
    WaystationError,
)
from waystation.logs.protocol import Appended, Logs
from waystation.messages.envelope import (
    Envelope,
    Headers,
    check_header_name,
    check_header_value,
    check_message,
    pack,
)
from waystation.runtime.batcher import Batcher
from waystation.topics.dedup import Deduplicator
from waystation.topics.model import TopicDefinition, require_open
from waystation.topics.rate_limits import RateLimiter
from waystation.topics.router import hash_of
from waystation.topics.schemas import SchemaValidator
from waystation.topics.service import TopicService
from waystation.types.message import Durability, Receipt

ProduceResult = Receipt | WaystationError

#: Limits of one append, so that it blocks the store only briefly.
APPEND_MESSAGES_MAX = 500
APPEND_BYTES_MAX = 1_048_576
#: Limit of the pending messages of one topic in this process. A call above it is rejected.
PENDING_MESSAGES_MAX = 100_000
#: Limit of the bytes of pending messages of all topics in this process.
PENDING_BYTES_MAX = 256 * 1_048_576
_WRITERS_MAX = 10_000
#: Number of consecutive rejections after which messages fail instead of being routed again.
_REJECTIONS_MAX = 100


class ProduceCall:
    """The messages of one caller, and their results."""

    __slots__ = ("_done", "_missing", "_results", "_writer", "size")

    def __init__(self, writer: _TopicWriter, count: int) -> None:
        self._writer = writer
        self._results: list[ProduceResult | None] = [None] * count
        self._missing = count
        #: Size of all messages of the call, in bytes.
        self.size = 0
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait(self) -> list[ProduceResult]:
        """Wait until each message has a result. Return the results in the order of the messages."""
        await self._done
        return [result for result in self._results if result is not None]

    def settle(self, position: int, result: ProduceResult) -> None:
        """Record the result of one message."""
        self._results[position] = result
        self._missing -= 1
        if not self._missing:
            self._writer.release(len(self._results), self.size)
            # The future is done already if the caller was cancelled.
            if not self._done.done():
                self._done.set_result(None)

    def fail(self, error: BaseException) -> None:
        """End the call with an error. Its messages were not sent, or their outcome is unknown."""
        if self._missing > 0:
            # Results that arrive later make the count negative and have no effect.
            self._missing = 0
            self._writer.release(len(self._results), self.size)
        if not self._done.done():
            self._done.set_exception(error)
            # Read the exception here, because asyncio logs one that a cancelled caller never reads.
            self._done.exception()


class _Message(msgspec.Struct, frozen=True, gc=False):
    call: ProduceCall
    position: int
    id: str
    group: str | None
    headers: Headers
    hash: int
    packed: bytes
    #: Length of `packed` in bytes.
    size: int


class Producer:
    """Appends messages to topics. The state is one writer per topic in use."""

    def __init__(
        self,
        topics: TopicService,
        logs: Logs,
        dedup: Deduplicator,
        *,
        durability: Durability = "memory",
    ) -> None:
        self.topics = topics
        self.logs = logs
        self.dedup = dedup
        self.durability: Durability = durability
        self.pending_bytes = 0
        self._writers: dict[tuple[str, str], _TopicWriter] = {}

    async def produce(
        self, project: str, topic: str, envelopes: Sequence[Envelope]
    ) -> list[ProduceResult]:
        """Append messages in order. Return a receipt or an error for each message."""
        if not envelopes:
            return []
        return await self.enqueue(project, topic, envelopes).wait()

    def enqueue(self, project: str, topic: str, envelopes: Sequence[Envelope]) -> ProduceCall:
        """Queue one or more messages and return without waiting.

        The call holds packed copies, so the caller can drop the envelopes.
        """
        return self._writer(project, topic).enqueue(envelopes)

    def _writer(self, project: str, topic: str) -> _TopicWriter:
        writer = self._writers.get((project, topic))
        if writer is None:
            if len(self._writers) >= _WRITERS_MAX:
                self._writers = {key: each for key, each in self._writers.items() if each.busy}
            writer = self._writers[project, topic] = _TopicWriter(self, project, topic)
        return writer


class _TopicWriter:
    """Appends the messages of this process to one topic.

    The state has four parts:

    - `_topic`: the definition that routed the queued messages
    - `_batcher`: the queue of each partition
    - `_arrivals`: messages that arrived while the writer reads the topic
    - `_rejections`: errors of partitions that rejected an append
    """

    def __init__(self, producer: Producer, project: str, name: str) -> None:
        self._producer = producer
        self._name = (project, name)
        self._topic: TopicDefinition | None = None
        self._pending_messages = 0
        #: One list per call, in order. The messages are routed when the topic has been read.
        self._arrivals: deque[list[_Message]] = deque()
        self._rejections: list[LogSealedError | LogNotFoundError] = []
        self._rejections_in_a_row = 0
        self._reroute_task: asyncio.Task[None] | None = None
        self._batcher: Batcher[int, _Message, ProduceResult] = Batcher(
            self._append,
            _settle,
            _fail,
            items_max=APPEND_MESSAGES_MAX,
            bytes_max=APPEND_BYTES_MAX,
            size_of=attrgetter("size"),
        )

    @property
    def busy(self) -> bool:
        """True if the writer has queued messages or appends in flight."""
        return self._reroute_task is not None or self._batcher.busy

    def enqueue(self, envelopes: Sequence[Envelope]) -> ProduceCall:
        """Queue messages behind all messages of earlier calls."""
        call = ProduceCall(self, len(envelopes))
        messages = [
            _Message(
                call,
                position,
                each.id,
                each.group,
                each.headers,
                hash_of(each.id if each.group is None else each.group),
                packed := pack(each),
                len(packed),
            )
            for position, each in enumerate(envelopes)
        ]
        count, size, producer = len(messages), sum([each.size for each in messages]), self._producer
        if (self._pending_messages and self._pending_messages + count > PENDING_MESSAGES_MAX) or (
            producer.pending_bytes and producer.pending_bytes + size > PENDING_BYTES_MAX
        ):
            raise BusyError(
                f"Too many messages wait to be produced to topic '{self._name[1]}'.",
                hint="Repeat the request later.",
            )
        topic = producer.topics.get_recent(*self._name)
        if self._reroute_task is not None or topic is not self._topic:
            topic = None
        if topic is not None:
            require_open(topic)
        call.size = size
        self._pending_messages += count
        producer.pending_bytes += size
        if topic is not None:
            self._route(topic, messages)
        else:
            # Keep the messages in `_arrivals` while the topic is read, so that messages of later
            # calls do not overtake them.
            self._arrivals.append(messages)
            self._start_reroute()
        return call

    def release(self, count: int, size: int) -> None:
        """Subtract the messages of an ended call from the pending ones."""
        self._pending_messages -= count
        self._producer.pending_bytes -= size

    def _route(self, topic: TopicDefinition, messages: Sequence[_Message]) -> None:
        router, add = topic.target.router, self._batcher.add
        if router.partitions == 1:
            self._batcher.extend(0, messages)
            return
        partition_of = router.partition_of
        for message in messages:
            add(partition_of(message.hash), message)

    # -- Appending ---------------------------------------------------------------------------

    async def _append(self, partition: int, messages: list[_Message]) -> Sequence[ProduceResult]:
        """Append a batch. Return no results if the partition is sealed or missing.

        The batcher then keeps the batch, and `_reroute` routes it again.
        """
        topic = self._topic
        assert topic is not None, "routed without a topic"
        producer = self._producer
        try:
            if topic.options.dedup_seconds:
                receipts = await producer.dedup.append(topic, partition, messages)
            else:
                packed = [message.packed for message in messages]
                done = await producer.logs.append(topic.log(topic.target), partition, packed)
                receipts = _receipts(messages, topic, partition, done, producer.durability)
        except (LogSealedError, LogNotFoundError) as rejection:
            self._rejections.append(rejection)
            self._batcher.pause()
            self._start_reroute()
            return ()
        except WaystationError as error:
            calls = {message.call for message in messages}
            if isinstance(error, LogFullError) and len(calls) > 1:
                return await self._append_each_call(partition, messages)
            # Fail the queued messages of these calls too. Otherwise a caller that repeats the call
            # would append the failed messages after later ones.
            _fail(self._batcher.withdraw(partition, lambda message: message.call in calls), error)
            return [error] * len(messages)
        self._rejections_in_a_row = 0
        return receipts

    async def _append_each_call(
        self, partition: int, messages: list[_Message]
    ) -> Sequence[ProduceResult]:
        """Append the messages of each call alone, so that a large call does not fail small ones."""
        results: list[ProduceResult] = []
        for _, group in groupby(messages, key=lambda message: message.call):
            own = list(group)
            results += await self._append(partition, own)
            if self._rejections:
                break
        return results

    # -- Routing again ------------------------------------------------------------------------

    def _start_reroute(self) -> None:
        if self._reroute_task is None:
            self._reroute_task = asyncio.create_task(self._reroute())

    async def _reroute(self) -> None:
        """Route rejected messages again, then the arrivals, until neither list has messages."""
        try:
            while self._rejections or self._arrivals:
                if self._rejections:
                    await self._reroute_rejected()
                else:
                    await self._route_arrivals()
        except BaseException as error:
            # An unexpected error, or the process ends. Fail all calls, so that no caller waits
            # forever.
            self._fail_queued(error)
            self._fail_arrivals(error)
            raise
        finally:
            self._reroute_task = None
            self._batcher.resume()

    async def _route_arrivals(self) -> None:
        topics = self._producer.topics
        try:
            topic = topics.get_recent(*self._name) or await topics.get(*self._name)
            require_open(topic)
        except WaystationError as error:
            self._fail_arrivals(error)
            return
        # `get_recent` returns the same object while the topic is unchanged. Continue to send then,
        # because the topic is read every two seconds and a slow partition would delay all others.
        if topic is not self._topic:
            await self._stop_sending()
            if self._rejections:
                return
            self._change_topic(topic)
        while self._arrivals:
            self._route(topic, self._arrivals.popleft())

    async def _reroute_rejected(self) -> None:
        await self._stop_sending()
        rejections, self._rejections = self._rejections, []
        try:
            self._change_topic(await self._repair_topic(rejections))
        except WaystationError as error:
            self._fail_queued(error)

    async def _stop_sending(self) -> None:
        self._batcher.pause()
        await self._batcher.wait_until_idle()

    def _change_topic(self, topic: TopicDefinition) -> None:
        """Use a new definition and route all queued messages by it. No append may be in flight."""
        self._topic = topic
        # Limit batches to the size of a partition, because a larger batch would never fit.
        self._batcher.bytes_max = min(APPEND_BYTES_MAX, topic.options.max_bytes or APPEND_BYTES_MAX)
        self._route(topic, self._batcher.take_all())

    async def _repair_topic(
        self, rejections: list[LogSealedError | LogNotFoundError]
    ) -> TopicDefinition:
        """Create missing logs and finish an interrupted switch. Return the topic afterwards."""
        topics = self._producer.topics
        self._rejections_in_a_row += 1
        if self._rejections_in_a_row > _REJECTIONS_MAX:
            raise rejections[-1]
        topic = await topics.get(*self._name)
        if any(isinstance(each, LogNotFoundError) for each in rejections):
            await topics.create_logs(topic)
        sealed = [each for each in rejections if isinstance(each, LogSealedError)]
        if sealed and self._has_target_of(topic):
            # Finish the switch here, because the node that started it may have crashed.
            topic = await topics.finish_switch(topic)
            if self._has_target_of(topic):
                raise LogSealedError(
                    f"Topic '{topic.name}' is sealed and has no further storage topic.",
                    hint=f"Run `waystation topic add-storage {topic.name} PARTITIONS`, then"
                    f" `waystation topic switch {topic.name}`.",
                    next_index=sealed[-1].next_index,
                )
        require_open(topic)
        return topic

    def _has_target_of(self, topic: TopicDefinition) -> bool:
        # Compare numbers, not indexes: a topic that was purged and created again starts at index 0.
        return self._topic is not None and self._topic.target.number == topic.target.number

    def _fail_queued(self, error: BaseException) -> None:
        _fail(self._batcher.take_all(), error)

    def _fail_arrivals(self, error: BaseException) -> None:
        while self._arrivals:
            self._arrivals.popleft()[0].call.fail(error)


def _receipts(
    messages: Sequence[_Message],
    topic: TopicDefinition,
    partition: int,
    appended: Appended,
    durability: Durability,
) -> list[Receipt]:
    # Read both values once, because the loop below runs for every produced message.
    storage, time_ms = topic.produce_pointer, appended.ms
    return [
        Receipt(
            id=message.id,
            storage=storage,
            partition=partition,
            offset=offset,
            time_ms=time_ms,
            durability=durability,
        )
        for offset, message in zip(appended.offsets, messages, strict=True)
    ]


def _settle(messages: Sequence[_Message], results: Sequence[ProduceResult]) -> None:
    for message, result in zip(messages, results, strict=True):
        message.call.settle(message.position, result)


def _fail(messages: Iterable[_Message], error: BaseException) -> None:
    if isinstance(error, WaystationError):
        for message in messages:
            message.call.settle(message.position, error)
        return
    for message in messages:
        message.call.fail(error)


class CheckedProducer:
    """Produces messages with the same checks as requests of clients: limits, schema and rate."""

    def __init__(
        self,
        topics: TopicService,
        producer: Producer,
        schemas: SchemaValidator,
        limiter: RateLimiter,
        bytes_max: int,
    ) -> None:
        self.topics = topics
        self._producer = producer
        self._schemas = schemas
        self._limiter = limiter
        self._bytes_max = bytes_max

    async def produce(self, project: str, name: str, envelope: Envelope) -> Receipt:
        """Append one message. Raise the same errors that a client gets for a request."""
        topic = self.topics.get_recent(project, name) or await self.topics.get(project, name)
        require_open(topic)
        for header, value in envelope.headers:
            check_header_value(value, field=check_header_name(header))
        size = check_message(envelope, topic, bytes_max=self._bytes_max)
        await self._schemas.check(topic, [envelope], batch=False)
        admission = self._limiter.admit(topic, messages=1, size=size)
        if admission is not None:
            admission.require()
        (result,) = await self._producer.produce(project, name, [envelope])
        if not isinstance(result, Receipt):
            raise result
        return result
