"""A producer of the asynchronous client: many messages, few requests, in their order.

Messages gather for `linger` seconds or until a batch is full. One request is under way at a time,
and what comes meanwhile goes with the next: so no message can overtake an earlier one, whatever
happens to a request. What was not accepted for now is sent again before anything else.

A message is produced at least once; where its topic has deduplication, exactly once, since every
message has an id from the beginning. `send` waits while too much is on its way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple, Self, Unpack

from waystation.client.async_background import (
    AsyncCondition,
    AsyncFuture,
    AsyncWorker,
    begin,
    new_future,
)
from waystation.client.async_transport import AsyncTransport
from waystation.client.codec import Codec
from waystation.client.parcels import MessageOptions, NewMessage, Parcel, pack
from waystation.client.shipment import Shipment
from waystation.client.topics import Produced
from waystation.errors import InvalidInputError, ProducerClosedError, WaystationError
from waystation.runtime.clock import Clock
from waystation.runtime.ids import RandomIds
from waystation.types.message import Receipt

BATCH_FORM = "application/vnd.waystation.batch+json"
#: What a station takes in one request; of bytes it takes more, but a message may come on top.
_BATCH_MAX = 1000
_BATCH_BYTES_MAX = 2 * 1_048_576


class _Waiting(NamedTuple):
    """A message that was not sent yet."""

    parcel: Parcel
    future: AsyncFuture[Receipt]
    #: When it goes, whether or not the batch is full.
    due: float


class AsyncProducer:
    """Sends messages to one topic; made by `topics.producer`."""

    def __init__(
        self,
        transport: AsyncTransport,
        path: str,
        *,
        linger: float,
        batch: int,
        batch_bytes: int,
        waiting: int,
        waiting_bytes: int,
        patience: float,
        codec: Codec | None,
        on_closed: Callable[[AsyncProducer], None],
    ) -> None:
        if not 1 <= batch <= _BATCH_MAX:
            raise InvalidInputError(f"A batch has 1 to {_BATCH_MAX} messages.", field="batch")
        if not 1 <= batch_bytes <= _BATCH_BYTES_MAX:
            told = f"A batch has 1 to {_BATCH_BYTES_MAX} bytes."
            raise InvalidInputError(told, field="batch_bytes")
        if min(waiting, waiting_bytes) < 1 or min(linger, patience) < 0:
            raise InvalidInputError("There must be room for a message, and times from 0 on.")
        self._transport = transport
        self._path = path
        self._linger = linger
        self._batch = batch
        self._batch_bytes = batch_bytes
        self._waiting_max = waiting
        self._waiting_bytes_max = waiting_bytes
        self._patience = patience
        self._codec = codec
        self._on_closed = on_closed
        self._clock = Clock()
        self._identity = RandomIds()
        self._worker: AsyncWorker | None = None
        # All that changes, under the lock of `_changed`.
        self._changed = AsyncCondition()
        #: Callers of `send`, first come first served.
        self._line: deque[object] = deque()
        self._queue: deque[_Waiting] = deque()
        self._queue_bytes = 0
        #: What is in the queue or under way.
        self._held = 0
        self._held_bytes = 0
        #: Messages that were ever taken, and those of them whose whole batch is done.
        self._taken = 0
        self._done = 0
        self._flushing = 0
        self._closing = False
        #: Why nothing more is sent.
        self._ended: WaystationError | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def send(self, data: Any, **options: Unpack[MessageOptions]) -> AsyncFuture[Receipt]:
        """Takes a message over, once there is room; its receipt or error comes in the future.

        A future that is cancelled before its message was sent takes the message back.
        """
        message = NewMessage(data, **options)
        parcel = pack(message, codec=self._codec, identity=self._identity)
        size = len(parcel.body)
        async with self._changed:
            me = object()
            self._line.append(me)
            try:
                await self._changed.wait_for(
                    lambda: self._closing or (self._line[0] is me and self._has_room(size))
                )
            except BaseException:
                # Whoever is next in line has not been told.
                self._changed.notify_all()
                raise
            finally:
                self._line.remove(me)
            if self._closing:
                raise self._ended or _closed()
            return self._take(parcel, size)

    async def flush(self) -> None:
        """Sends at once what was taken so far, and waits until all of it has a result."""
        async with self._changed:
            target = self._taken
            self._flushing += 1
            self._changed.notify_all()
            try:
                await self._changed.wait_for(lambda: self._done >= target or self._ended)
            finally:
                self._flushing -= 1

    async def aclose(self) -> None:
        """Takes nothing more, sends what was taken, ends. Interrupted, it gives the rest up."""
        async with self._changed:
            self._closing = True
            self._changed.notify_all()
        try:
            if self._worker is not None:
                await self._worker.join()
        finally:
            self._on_closed(self)
            async with self._changed:
                self._end(_closed())
            if self._worker is not None:
                self._worker.stop()

    # -- Under the lock ----------------------------------------------------------------------

    def _has_room(self, size: int) -> bool:
        # One message is always taken: it may be larger than all the room there is.
        return not self._held or (
            self._held < self._waiting_max and self._held_bytes + size <= self._waiting_bytes_max
        )

    def _take(self, parcel: Parcel, size: int) -> AsyncFuture[Receipt]:
        if self._worker is None:
            self._worker = AsyncWorker(self._work)
        future: AsyncFuture[Receipt] = new_future()
        parcel.on_settled = lambda result: _tell(future, result)
        due = self._clock.uptime_s() + self._linger
        self._queue.append(_Waiting(parcel, future, due))
        self._queue_bytes += size
        self._held += 1
        self._held_bytes += size
        self._taken += 1
        if len(self._queue) == 1 or self._must_go():
            self._changed.notify_all()
        return future

    def _must_go(self) -> bool:
        """Whether the queue is sent at once."""
        full = len(self._queue) >= self._batch or self._queue_bytes >= self._batch_bytes
        return full or self._flushing > 0 or self._closing

    def _next_batch(self) -> list[Parcel]:
        """Takes the next messages out of the queue; those that nobody wants any more are gone."""
        batch: list[Parcel] = []
        size = 0
        while self._queue and len(batch) < self._batch:
            parcel, future, _ = self._queue[0]
            if batch and size + len(parcel.body) > self._batch_bytes:
                break
            self._queue.popleft()
            self._queue_bytes -= len(parcel.body)
            if begin(future):
                batch.append(parcel)
                size += len(parcel.body)
            else:
                self._release(1, len(parcel.body))
                self._done += 1
        return batch

    def _release(self, count: int, size: int) -> None:
        self._held -= count
        self._held_bytes -= size
        self._changed.notify_all()

    def _end(self, error: WaystationError) -> None:
        """Nothing more is sent; what still waits is told so."""
        if self._ended is None:
            self._ended = error
        self._closing = True
        while self._queue:
            parcel, future, _ = self._queue.popleft()
            if begin(future):
                parcel.settle(error)
        self._changed.notify_all()

    # -- Beside its user ---------------------------------------------------------------------

    async def _work(self) -> None:
        shipment: Shipment | None = None
        error: WaystationError = _closed()
        try:
            while batch := await self._gather():
                shipment = Shipment(batch, patience=self._patience, clock=self._clock)
                await self._ship(shipment)
        except Exception as bug:
            error = WaystationError(f"The producer broke down: {bug!r}.")
            error.__cause__ = bug
        finally:
            # However it ends, nobody waits for ever.
            if shipment is not None:
                shipment.give_up(error)
            async with self._changed:
                self._end(error)

    async def _gather(self) -> list[Parcel]:
        """The next batch, when it is time for it; empty at the end."""
        async with self._changed:
            while not self._ended:
                await self._changed.wait_for(lambda: self._queue or self._closing)
                if not self._queue:
                    break
                seconds = max(0.0, self._queue[0].due - self._clock.uptime_s())
                await self._changed.wait_for(self._must_go, seconds=seconds)
                if batch := self._next_batch():
                    return batch
            return []

    async def _ship(self, shipment: Shipment) -> None:
        count = len(shipment.left)
        while shipment.left:
            before = shipment.left.copy()
            await send_once(self._transport, self._path, shipment)
            async with self._changed:
                size = _bytes(before) - _bytes(shipment.left)
                self._release(len(before) - len(shipment.left), size)
                if shipment.left:
                    await self._changed.wait_for(lambda: self._ended, seconds=shipment.pause)
                    if self._ended:
                        return
        async with self._changed:
            self._done += count
            self._changed.notify_all()


async def send_once(transport: AsyncTransport, path: str, shipment: Shipment) -> None:
    """One request with all that is left of a shipment."""
    try:
        answer = await transport.request(
            "POST", path, body=shipment.body(), content_type=BATCH_FORM
        )
    except WaystationError as error:
        shipment.failed(error)
    else:
        shipment.answered(answer)


def _tell(future: AsyncFuture[Receipt], result: Produced) -> None:
    if future.done():
        return
    if isinstance(result, WaystationError):
        future.set_exception(result)
    else:
        future.set_result(result)


def _bytes(parcels: list[Parcel]) -> int:
    return sum(len(parcel.body) for parcel in parcels)


def _closed() -> ProducerClosedError:
    return ProducerClosedError("The producer is closed.")
