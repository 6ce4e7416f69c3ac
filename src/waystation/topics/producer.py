"""Producing: routes messages to partitions, and keeps their order over a switch.

Batches of one partition are sent one after the other without waiting for replies, so a seal
refuses the first of them and all that follow. Then nothing more is sent to the topic until every
answer is in; what was refused goes to the next storage topic, in its order; and only then whatever
came later. Otherwise a later message of a group could land before an earlier one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Sequence
from typing import TypeVar

import msgspec

from waystation.envelope import Envelope, pack
from waystation.errors import (
    LogNotFoundError,
    LogSealedError,
    TopicBlockedError,
    TopicNotFoundError,
    WaystationError,
)
from waystation.logs import Logs
from waystation.topics.deduplication import Deduplication, Place, Routed
from waystation.topics.routing import hash_of
from waystation.topics.topic import Topic
from waystation.topics.topics import Topics

#: A script call gets at most so much, so that it holds the store up for a moment only.
_CALL_MESSAGES_MAX = 500
_CALL_BYTES_MAX = 1_048_576
#: Switches that may come one upon the other while one batch is on its way.
_SWITCHES_MAX = 100
_FLOWS_MAX = 10_000


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """Where a message is."""

    id: str
    #: Index of the storage topic.
    storage: int
    partition: int
    offset: int
    ms: int
    #: Its id was known: this is where the first one is, and nothing was written.
    duplicate: bool = False


Result = Receipt | WaystationError
_T = TypeVar("_T")


class Producer:
    """Produces to all topics."""

    def __init__(self, topics: Topics, logs: Logs, deduplication: Deduplication) -> None:
        self._topics = topics
        self._logs = logs
        self._deduplication = deduplication
        self._flows: dict[tuple[str, str], _Flow] = {}

    async def produce(self, project: str, name: str, envelopes: Sequence[Envelope]) -> list[Result]:
        """Produces messages in their order; each has a receipt or an error of its own."""
        if not envelopes:
            return []
        messages = [_message(position, each) for position, each in enumerate(envelopes)]
        results: list[Result | None] = [None] * len(messages)
        await self._flow(project, name).send(messages, results)
        return [result for result in results if result is not None]

    def _flow(self, project: str, name: str) -> _Flow:
        flow = self._flows.get((project, name))
        if flow is None:
            if len(self._flows) >= _FLOWS_MAX:
                self._flows = {key: each for key, each in self._flows.items() if each.busy}
            flow = _Flow(self._topics, self._logs, self._deduplication, project, name)
            self._flows[project, name] = flow
        return flow


class _Flow:
    """What one process produces to one topic, in order."""

    def __init__(
        self,
        topics: Topics,
        logs: Logs,
        deduplication: Deduplication,
        project: str,
        name: str,
    ) -> None:
        self._topics = topics
        self._logs = logs
        self._deduplication = deduplication
        self._name = (project, name)
        #: What is sent to. Changed only while nothing is on its way.
        self._topic: Topic | None = None
        #: Held by whoever may not be disturbed by others. Fair: first come, first served.
        self._turn = asyncio.Lock()
        self._in_turn = 0
        self._under_way: set[asyncio.Task[None]] = set()
        #: Refused by a seal, in the order in which they were sent.
        self._refused: list[tuple[int, list[Routed], list[Result | None]]] = []
        self._sent = 0
        self._asking: dict[int, asyncio.Lock] = {}

    @property
    def busy(self) -> bool:
        """Whether anything is on its way or waits."""
        return bool(self._under_way) or self._in_turn > 0

    async def send(self, messages: list[Routed], results: list[Result | None]) -> None:
        """Sends messages and waits for all their results.

        A caller that gives up breaks nothing: what others wait for goes on without it.
        """
        topic = self._topics.known(*self._name)
        if self._in_turn == 0 and topic is not None and topic is self._topic:
            tasks = self._begin(topic, messages, results)
        else:
            # To look at the topic takes a while, and nobody may go by meanwhile.
            tasks = await self._take_turn(self._begin_later(messages, results))
        await asyncio.wait(tasks)
        if any(result is None for result in results):
            # Whoever comes first sends again what was refused of everyone.
            await self._take_turn(self._send_refused())

    def _take_turn(self, work: Coroutine[object, object, _T]) -> Awaitable[_T]:
        """Does work when all who came before are done; nobody sends meanwhile."""

        async def turn() -> _T:
            try:
                async with self._turn:
                    return await work
            finally:
                self._in_turn -= 1

        # Counted now: who comes later than this must not be sooner.
        self._in_turn += 1
        return asyncio.shield(asyncio.ensure_future(turn()))

    async def _begin_later(
        self, messages: list[Routed], results: list[Result | None]
    ) -> list[asyncio.Task[None]]:
        topic = self._topics.known(*self._name) or await self._topics.get(*self._name)
        if topic is not self._topic:
            await self._come_back()
            self._topic = topic
            await self._send_refused()
        return self._begin(self._topic, messages, results)

    async def _come_back(self) -> None:
        """Waits until nothing is on its way."""
        while self._under_way:
            await asyncio.wait(self._under_way)

    def _begin(
        self, topic: Topic, messages: list[Routed], results: list[Result | None]
    ) -> list[asyncio.Task[None]]:
        """Sends each partition its part. Tasks begin in the order in which they are made."""
        if topic.state == "deleted":
            raise TopicNotFoundError(f"There is no topic {topic.name}.")
        if topic.state == "blocked":
            raise TopicBlockedError(f"Topic {topic.name} is blocked.")
        spread = topic.target.spread
        parts: dict[int, list[Routed]] = {}
        for message in messages:
            parts.setdefault(spread.partition_of(message.hashed), []).append(message)
        tasks = []
        for partition, part in parts.items():
            for call in _calls(part):
                self._sent += 1
                task = asyncio.ensure_future(
                    self._append(topic, partition, call, results, self._sent)
                )
                self._under_way.add(task)
                task.add_done_callback(self._under_way.discard)
                tasks.append(task)
        return tasks

    async def _append(
        self,
        topic: Topic,
        partition: int,
        messages: list[Routed],
        results: list[Result | None],
        number: int,
    ) -> None:
        try:
            if topic.options.dedup_seconds:
                # It asks before it appends: one at a time, or a later one could be first.
                async with self._asking.setdefault(partition, asyncio.Lock()):
                    places = await self._deduplication.append(topic, partition, messages)
            else:
                packed = [each.packed for each in messages]
                done = await self._logs.append(topic.log(topic.target), partition, packed)
                places = [
                    Place(topic.produce_pointer, partition, done.offset + index, done.ms)
                    for index in range(len(messages))
                ]
        except (LogSealedError, LogNotFoundError):
            # The rest of its way is decided when everything has come back.
            self._refused.append((number, messages, results))
            return
        except WaystationError as error:
            for message in messages:
                results[message.position] = error
            return
        for message, place in zip(messages, places, strict=True):
            results[message.position] = Receipt(
                id=message.id,
                storage=place.storage,
                partition=place.partition,
                offset=place.offset,
                ms=place.ms,
                duplicate=place.duplicate,
            )

    async def _send_refused(self) -> None:
        """Sends what was refused to where it belongs now. Nobody else sends meanwhile."""
        for _ in range(_SWITCHES_MAX):
            await self._come_back()
            if not self._refused:
                return
            refused, self._refused = sorted(self._refused, key=lambda each: each[0]), []
            try:
                self._topic = topic = await self._present_topic()
                for _, messages, results in refused:
                    self._begin(topic, messages, results)
            except WaystationError as error:
                _fail(refused, error)
        _fail(self._refused, LogNotFoundError("The topic's logs cannot be found."))
        self._refused = []

    async def _present_topic(self) -> Topic:
        """The topic as it is, its logs there, and a switch that somebody began finished."""
        topic = await self._topics.get(*self._name)
        await self._topics.provide(topic)
        log = topic.log(topic.target)
        for partition in range(topic.target.partitions):
            state = await self._logs.state(log, partition)
            if state.sealed is not None:
                return await self._topics.finish_switch(topic)
        return topic


def _message(position: int, envelope: Envelope) -> Routed:
    key = envelope.group if envelope.group is not None else envelope.id
    # Lengths first, so that no group and id can be read as another pair.
    scoped = envelope.id if envelope.group is None else f"{len(key)}:{key}:{envelope.id}"
    return Routed(position, envelope.id, scoped, hash_of(key), pack(envelope))


def _calls(messages: list[Routed]) -> list[list[Routed]]:
    """Parts that one script call may have."""
    calls: list[list[Routed]] = [[]]
    size = 0
    for message in messages:
        size += len(message.packed)
        if calls[-1] and (size > _CALL_BYTES_MAX or len(calls[-1]) >= _CALL_MESSAGES_MAX):
            calls.append([])
            size = len(message.packed)
        calls[-1].append(message)
    return calls


def _fail(
    refused: Sequence[tuple[int, list[Routed], list[Result | None]]], error: WaystationError
) -> None:
    for _, messages, results in refused:
        for message in messages:
            results[message.position] = error
