"""What one process produces to one topic: a lane for each partition, and one who mends.

The state: the topic that is sent to, the lanes with what they have to send, those who wait for a
look at the topic, and what refused. Only the mender changes the topic, and only when all lanes have
stopped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from waystation.config import Durability
from waystation.errors import (
    BusyError,
    LogFullError,
    LogNotFoundError,
    LogSealedError,
    TopicBlockedError,
    WaystationError,
)
from waystation.logs.protocol import Logs
from waystation.topics.dedup import Deduplication
from waystation.topics.definitions import not_found
from waystation.topics.lane import Lane, Receipt, Routed, callers_of
from waystation.topics.model import Topic
from waystation.topics.service import Topics

#: Messages that may wait in one flow; a caller beyond that is refused.
_WAITING_MESSAGES_MAX = 100_000
#: Bytes that may wait in all flows of a process.
_WAITING_BYTES_MAX = 256 * 1_048_576
#: Refusals in a row, without a single success, after which nothing is hoped for.
_REFUSALS_MAX = 100


class Backlog:
    """What waits in all flows of a process."""

    def __init__(self) -> None:
        self.bytes = 0


class Flow:
    """See the module."""

    def __init__(
        self,
        topics: Topics,
        logs: Logs,
        deduplication: Deduplication,
        project: str,
        name: str,
        *,
        durability: Durability,
        backlog: Backlog,
    ) -> None:
        self._topics = topics
        self._logs = logs
        self._deduplication = deduplication
        self._name = (project, name)
        self._durability: Durability = durability
        self._topic: Topic | None = None
        #: By partition; a lane that is here has a task, or something to send, or both.
        self._lanes: dict[int, Lane] = {}
        self._lane_tasks: set[asyncio.Task[None]] = set()
        self._waiting: deque[list[Routed]] = deque()
        self._mender: asyncio.Task[None] | None = None
        self._refusals: list[WaystationError] = []
        self._refused_in_a_row = 0
        self._messages = 0
        self._backlog = backlog

    @property
    def busy(self) -> bool:
        """Whether anything is on its way or waits."""
        return bool(self._lanes or self._mender)

    def take(self, messages: list[Routed]) -> None:
        """Takes a batch over; it is sent behind everything that was taken before."""
        size = sum([len(message.packed) for message in messages])
        waiting, backlog = self._messages, self._backlog
        if (waiting and waiting + len(messages) > _WAITING_MESSAGES_MAX) or (
            backlog.bytes and backlog.bytes + size > _WAITING_BYTES_MAX
        ):
            raise BusyError("Too many messages wait to be produced.")
        topic = self._topics.known(*self._name)
        if self._mender is None and topic is not None and topic is self._topic:
            require_open(topic)
            self._route(topic, messages)
        else:
            # To look at the topic takes a while, and nobody may go by meanwhile.
            self._waiting.append(messages)
            self._mend()
        count = len(messages)
        self._messages += count
        backlog.bytes += size
        messages[0].batch.on_settled = lambda: self._forget(count, size)

    def _forget(self, messages: int, size: int) -> None:
        self._messages -= messages
        self._backlog.bytes -= size

    # -- Lanes -------------------------------------------------------------------------------

    def _route(self, topic: Topic, messages: Iterable[Routed]) -> None:
        partition_of = topic.target.spread.partition_of
        for message in messages:
            partition = partition_of(message.hashed)
            lane = self._lanes.get(partition)
            if lane is None:
                lane = self._lanes[partition] = Lane(bytes_max=topic.options.max_bytes)
                # It begins in the next turn, with all that this turn brings.
                task = asyncio.get_running_loop().create_task(self._send(topic, partition, lane))
                self._lane_tasks.add(task)
                task.add_done_callback(self._lane_tasks.discard)
            lane.add(message)

    async def _send(self, topic: Topic, partition: int, lane: Lane) -> None:
        """Sends what a lane has, one call after the other, until it is empty or refused."""
        try:
            while lane and not self._refusals:
                messages = lane.next_call()
                try:
                    await self._append(topic, partition, messages)
                    self._refused_in_a_row = 0
                except (LogSealedError, LogNotFoundError) as refusal:
                    lane.put_back(messages)
                    self._refusals.append(refusal)
                except LogFullError as error:
                    if len(callers_of(messages)) > 1:
                        # Nobody is refused for what another brought: each apart, in order.
                        lane.put_back(messages, apart=True)
                    else:
                        _fail([*messages, *lane.rest_of(callers_of(messages))], error)
                except WaystationError as error:
                    _fail([*messages, *lane.rest_of(callers_of(messages))], error)
                except BaseException as error:
                    _abandon([*messages, *lane.empty()], error)
                    raise
        finally:
            if not lane:
                del self._lanes[partition]
            if self._refusals:
                self._mend()

    async def _append(self, topic: Topic, partition: int, messages: list[Routed]) -> None:
        if topic.options.dedup_seconds:
            places = await self._deduplication.append(topic, partition, messages)
            for message, place in zip(messages, places, strict=True):
                message.settle(
                    Receipt(
                        id=message.id,
                        storage=place.storage,
                        partition=place.partition,
                        offset=place.offset,
                        ms=place.ms,
                        duplicate=place.duplicate,
                        durability=self._durability,
                    )
                )
            return
        packed = [message.packed for message in messages]
        done = await self._logs.append(topic.log(topic.target), partition, packed)
        storage, ms, durability = topic.produce_pointer, done.ms, self._durability
        for offset, message in enumerate(messages, done.offset):
            message.batch.set(
                message.position,
                Receipt(
                    id=message.id,
                    storage=storage,
                    partition=partition,
                    offset=offset,
                    ms=ms,
                    durability=durability,
                ),
            )

    # -- Mending -----------------------------------------------------------------------------

    def _mend(self) -> None:
        if self._mender is None:
            self._mender = asyncio.get_running_loop().create_task(self._look_and_mend())

    async def _look_and_mend(self) -> None:
        """Looks at the topic, sends again what was refused, and then lets in who waits."""
        try:
            while self._waiting or self._refusals:
                if self._refusals:
                    await self._send_refused()
                else:
                    await self._let_in()
        except BaseException as error:
            # A bug, or the end of the process: nobody may wait for ever because of it.
            while self._waiting:
                _abandon(self._waiting.popleft(), error)
            raise
        finally:
            self._mender = None

    async def _let_in(self) -> None:
        try:
            topic = self._topics.known(*self._name) or await self._topics.get(*self._name)
            require_open(topic)
        except WaystationError as error:
            while self._waiting:
                _abandon(self._waiting.popleft(), error)
            return
        if topic is not self._topic:
            await self._stop_lanes()
            if self._refusals:
                return
            self._topic = topic
        while self._waiting:
            self._route(topic, self._waiting.popleft())

    async def _send_refused(self) -> None:
        await self._stop_lanes()
        refusals, self._refusals = self._refusals, []
        # A group has one lane, so lane by lane keeps its order.
        messages = [message for lane in self._lanes.values() for message in lane.empty()]
        self._lanes = {}
        self._refused_in_a_row += 1
        try:
            if self._refused_in_a_row > _REFUSALS_MAX:
                raise refusals[-1]
            topic = self._topic = await self._present_topic(refusals)
            require_open(topic)
        except WaystationError as error:
            _fail(messages, error)
            return
        except BaseException as error:
            _abandon(messages, error)
            raise
        self._route(topic, messages)

    async def _stop_lanes(self) -> None:
        """Waits until nothing is on its way."""
        while self._lane_tasks:
            await asyncio.wait(self._lane_tasks)

    async def _present_topic(self, refusals: list[WaystationError]) -> Topic:
        """The topic as it is, its logs there, and a switch that somebody began finished."""
        topic = await self._topics.get(*self._name)
        if any(isinstance(refusal, LogNotFoundError) for refusal in refusals):
            await self._topics.provide(topic)
        sealed = [each for each in refusals if isinstance(each, LogSealedError)]
        if sealed and self._has_sent_to(topic):
            topic = await self._topics.finish_switch(topic)
            if self._has_sent_to(topic):
                raise LogSealedError(
                    f"Topic {topic.name} is sealed, and no storage topic follows.",
                    following=sealed[-1].following,
                )
        return topic

    def _has_sent_to(self, topic: Topic) -> bool:
        """Whether it is the storage topic of now that refused, and not one before it.

        By its number: the topic may have been purged and created anew.
        """
        return self._topic is not None and self._topic.target.number == topic.target.number


def _fail(messages: Iterable[Routed], error: WaystationError) -> None:
    for message in messages:
        message.settle(error)


def _abandon(messages: Iterable[Routed], error: BaseException) -> None:
    """Ends whole batches: nothing of them was sent, or nobody foresaw what happened."""
    for batch in callers_of(messages):
        batch.end(error)


def require_open(topic: Topic) -> None:
    """Raises what is said to a producer of a topic that takes no messages."""
    if topic.state == "blocked":
        raise TopicBlockedError(f"Topic {topic.name} is blocked.")
    if topic.state != "active":
        raise not_found(topic.name)
