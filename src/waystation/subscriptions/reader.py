"""The reader: what comes next in a shard's partitions, ahead of what is delivered, and bounded.

It reads one storage topic of the topic at a time, and goes on to the next when that one takes
nothing more and all of it is acknowledged; not over a barrier, behind which a group could have
another shard. Nothing is written but what the topic must keep for us (`hold`): at or below our
position, moved up after commits.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable

from waystation.errors import LogDamagedError, LogNotFoundError, OffsetOutOfRangeError
from waystation.logs.protocol import LogBatch, Logs
from waystation.messages.envelope import Envelope, unpack
from waystation.runtime.logging import logger
from waystation.subscriptions import names
from waystation.subscriptions.definition import Subscription
from waystation.subscriptions.held import Opened
from waystation.subscriptions.positions import at_of
from waystation.subscriptions.shards import readable
from waystation.subscriptions.window import Waiting, Window
from waystation.topics.model import StorageTopicDefinition, TopicDefinition
from waystation.topics.router import partitions_of

_log = logger("subscriptions")

#: Messages of one read.
BATCH_MAX = 500
#: Messages, and their bytes, of one read while the store is full; at least one of a partition.
_SPARING_MAX = 16
_SPARING_BYTES_MAX = 65_536
#: Positions that are kept of what was read and is not acknowledged.
POSITIONS_MAX = 10_000
#: Messages whose bodies are read again together.
_BODIES_MAX = 100
#: Partitions that are read at a time.
_AT_ONCE = 16

#: Acknowledges a range that is not there any more: partition, from, to, and the kind of the record
#: (`trimmed`, `damaged`). Repeatable.
PassOver = Callable[[str, int, int, str], Awaitable[object]]
OnEnter = Callable[[str, Iterable[int]], None]


class Reader:
    """Reads what a shard has of its topic."""

    def __init__(
        self,
        logs: Logs,
        subscription: Subscription,
        shard: int,
        opened: Opened,
        *,
        topic: Callable[[str, str], Awaitable[TopicDefinition]],
        pass_over: PassOver,
    ) -> None:
        self._logs = logs
        self._subscription = subscription
        self._shard = shard
        self._opened = opened
        self._find_topic = topic
        self._pass_over = pass_over
        self._topic: TopicDefinition | None = None
        #: Number of the storage topic that is read, and its partitions that are ours.
        self._number = -1
        self._windows: list[Window] = []
        #: Of storage topics that were left: until all is told to the topic.
        self._left: list[Window] = []
        #: Storage topics whose messages are kept for us.
        self._holding: set[int] = set()
        #: What was read and is not acknowledged: messages, those whose bodies are here, bytes.
        self.outstanding = 0
        self._bodies = 0
        self._bytes = 0
        self._turn = 0
        #: Acknowledged since holds were moved.
        self.acknowledged = 0
        #: Whether the next storage topic cannot be read by this number of shards.
        self.at_barrier = False
        #: Hears which log is read from now on, and which partitions of it.
        self.on_enter: OnEnter = lambda log, partitions: None

    def __repr__(self) -> str:
        return f"<Reader of {self._subscription.name} {self._windows}>"

    def use(self, subscription: Subscription) -> None:
        """A newer version: its bounds hold from the next read on."""
        self._subscription = subscription

    @property
    def has_room(self) -> bool:
        """Whether it makes sense to read: there is room for a good part of a batch."""
        options = self._subscription.options
        most = options.in_flight_messages
        return (
            self._bodies <= most - min(BATCH_MAX, (most + 1) // 2)
            and self._bytes < options.in_flight_bytes
            and self.outstanding < POSITIONS_MAX
        )

    # -- Reading -----------------------------------------------------------------------------

    async def read(self, *, sparingly: bool = False) -> list[Waiting]:
        """Return the next messages, of one partition in their order; none at the end of all.

        `sparingly`: a few, which may all fail without filling a store that is full already.
        """
        await self._settle_in()
        windows = self._next_windows()
        options = self._subscription.options
        room = min(options.in_flight_messages - self._bodies, POSITIONS_MAX - self.outstanding)
        if not windows or room <= 0:
            return []
        bytes_room = options.in_flight_bytes - self._bytes
        if sparingly:
            room, bytes_room = min(room, _SPARING_MAX), min(bytes_room, _SPARING_BYTES_MAX)
        limit = max(1, min(BATCH_MAX, room // len(windows)))
        bytes_max = max(1, bytes_room // len(windows))
        found = await asyncio.gather(
            *(self._next_batch(window, limit, bytes_max) for window in windows),
            return_exceptions=True,
        )
        read: list[Waiting] = []
        problem: BaseException | None = None
        for window, batch in zip(windows, found, strict=True):
            if isinstance(batch, BaseException):
                problem = problem or batch
            elif batch is not None:
                read += self._received(window, batch)
        # What was read is handed out whatever became of others: it is not read again.
        if problem is not None and not read:
            raise problem
        return read

    async def _settle_in(self) -> None:
        """Finds the storage topic that is to be read; goes on from one that is finished."""
        subscription = self._subscription
        topic = await self._find_topic(subscription.project, subscription.topic)
        was_at_barrier = self.at_barrier
        self._topic, self.at_barrier = topic, False
        current = next((each for each in topic.storage if each.number == self._number), None)
        if current is None:
            # The first time, or it was purged under us.
            first = max(self._number + 1, subscription.first_storage)
            later = [each for each in topic.storage if each.number >= first]
            if later:
                self._enter(topic, later[0])
            return
        index = topic.storage.index(current)
        # Where we have no partition of it, the switch itself has to be known.
        done = all(each.is_finished for each in self._windows)
        if not done or (not self._windows and topic.produce_pointer <= index):
            return
        if index + 1 == len(topic.storage):
            return
        spreads = [each.router for each in topic.storage]
        if readable(spreads, index, subscription.shards) == index + 1:
            if not was_at_barrier:
                name, log = subscription.name, topic.log(topic.storage[index + 1])
                _log.warning(
                    "shard stopped at barrier", subscription=name, shard=self._shard, log=log
                )
            self.at_barrier = True
            return
        self._enter(topic, topic.storage[index + 1])

    def _enter(self, topic: TopicDefinition, storage: StorageTopicDefinition) -> None:
        self._left += self._windows
        self._number, self._turn = storage.number, 0
        self._windows = [
            self._window(storage, partition) for partition in self._partitions(storage)
        ]
        name, log = self._subscription.name, topic.log(storage)
        self.on_enter(log, self._partitions(storage))
        _log.info("a shard reads a storage topic", subscription=name, shard=self._shard, log=log)

    def _window(self, storage: StorageTopicDefinition, partition: int) -> Window:
        at = at_of(storage.number, partition)
        acks = self._opened.acks.get(at, ())
        return Window(storage.number, partition, self._opened.low.get(at, 0), acks)

    def _partitions(self, storage: StorageTopicDefinition) -> range:
        return partitions_of(self._shard, storage.partitions, self._subscription.shards)

    def _next_windows(self) -> list[Window]:
        """Some partitions in turn; all come to it."""
        count = len(self._windows)
        if count <= _AT_ONCE:
            return self._windows
        some = [self._windows[(self._turn + i) % count] for i in range(_AT_ONCE)]
        self._turn = (self._turn + _AT_ONCE) % count
        return some

    async def _next_batch(self, window: Window, limit: int, bytes_max: int) -> LogBatch | None:
        """Read the next messages of a partition; None if there are none now."""
        window.skip()
        await self._pass_hole(window)
        if window.behind and (batch := await self._read_batch(window, limit, bytes_max)):
            return batch
        # Before anybody waits: all that an idle partition can tell, and the next append is told.
        state = await self._logs.watch(self._log_of(window), window.partition)
        window.sealed_end = None if state.sealed is None else state.end
        window.trimmed_to = max(window.trimmed_to, state.first)
        if window.trimmed_to > window.low:
            await self._pass_trimmed(window)
        if state.end <= window.next or state.first > window.next:
            return None
        return await self._read_batch(window, limit, bytes_max)

    async def _read_batch(self, window: Window, limit: int, bytes_max: int) -> LogBatch | None:
        log = self._log_of(window)
        try:
            batch = await self._logs.read(
                log, window.partition, window.next, limit=limit, bytes_max=bytes_max
            )
        except OffsetOutOfRangeError:
            window.behind = False
            return None  # The next call of `watch` returns the first stored offset.
        except LogDamagedError as hole:
            self._note_hole(window, hole)
            return await self._read_batch(window, limit, bytes_max)
        window.behind = bool(batch)
        return batch if window.behind else None

    def _received(self, window: Window, batch: LogBatch) -> list[Waiting]:
        assert self._topic is not None
        grouped = self._subscription.options.grouped
        if grouped is None:
            grouped = self._topic.options.grouped
        project, acked, waiting = self._subscription.project, window.acked, window.waiting
        read, size = [], 0
        for offset, payload in enumerate(batch.payloads, batch.offset):
            # Below low, too: what a former owner acknowledged may have joined it meanwhile.
            if offset < window.low or offset in acked:
                continue
            try:
                envelope = unpack(payload, project=project)
            except ValueError as error:
                each = Waiting(window, offset, "", None, len(payload), payload, str(error))
            else:
                group = envelope.group or "" if grouped else ""
                each = Waiting(window, offset, group, envelope, len(payload))
            waiting[offset] = each
            read.append(each)
            size += each.size
        window.next = max(window.next, batch.next_offset)
        self.outstanding += len(read)
        self._bodies += len(read)
        self._bytes += size
        return read

    def _log_of(self, window: Window) -> str:
        assert self._topic is not None
        return self._topic.log_of(window.storage)

    # -- Acknowledging -----------------------------------------------------------------------

    def acknowledge(self, waiting: Waiting) -> None:
        """A message was settled, or is in retry or among dead letters: frees its room."""
        self.outstanding -= 1
        self.acknowledged += 1
        if waiting.envelope is not None or waiting.cause:
            self._bodies -= 1
            self._bytes -= waiting.size
        waiting.window.acknowledge(waiting.offset)

    def vanish(self, waiting: Waiting) -> None:
        """A message is gone without us; its range is passed over once nothing else is open."""
        assert not waiting.is_here
        self.outstanding -= 1
        waiting.window.waiting.pop(waiting.offset, None)

    async def _pass_trimmed(self, window: Window) -> None:
        """Passes over what is gone, once nothing of it is on its way any more."""
        to = window.trimmed_to
        if any(offset < to for offset in window.waiting):
            return
        low = window.low
        await self._pass_over(window.at, low, to, "trimmed")
        _log.warning(
            "messages were trimmed before they were delivered",
            subscription=self._subscription.name,
            partition=window.at,
            first=low,
            end=to,
        )
        window.pass_to(to)

    def _note_hole(self, window: Window, hole: LogDamagedError) -> None:
        """Report messages that are missing from the log, and read on behind them."""
        if window.note_hole(hole.start, hole.end):
            _log.error(
                "log damaged",
                code=hole.code,
                subscription=self._subscription.name,
                partition=window.at,
                from_offset=hole.start,
                to_offset=hole.end,
            )

    async def _pass_hole(self, window: Window) -> None:
        """Acknowledge a missing range once everything before it is acknowledged."""
        while (end := window.hole_at_low()) is not None:
            await self._pass_over(window.at, window.low, end, "damaged")
            window.pass_to(end)

    # -- Bodies ------------------------------------------------------------------------------

    def strip(self, waiting: Iterable[Waiting]) -> None:
        """Lets go of bodies while the window is full; they are read again in their turn."""
        options = self._subscription.options
        count, size = options.in_flight_messages // 2, options.in_flight_bytes // 2
        for each in waiting:
            if self._bodies <= count and self._bytes <= size:
                return
            if each.envelope is not None:
                each.envelope = None
                self._bodies -= 1
                self._bytes -= each.size

    async def body(self, waiting: Waiting) -> Envelope | None:
        """The message, read again if it has to be, with others that need it; None: it is gone."""
        if waiting.is_here:
            return waiting.envelope
        window = waiting.window
        try:
            batch = await self._logs.read(
                self._log_of(window), window.partition, waiting.offset, limit=_BODIES_MAX
            )
        except LogDamagedError as hole:
            self._note_hole(window, hole)
            return None
        except (OffsetOutOfRangeError, LogNotFoundError):
            window.behind = False
            return None
        for offset, payload in enumerate(batch.payloads, batch.offset):
            each = window.waiting.get(offset)
            if each is not None and not each.is_here:
                # What was read once can be read again.
                each.envelope = unpack(payload, project=self._subscription.project)
                self._bodies += 1
                self._bytes += each.size
        return waiting.envelope

    # -- Holds -------------------------------------------------------------------------------

    async def hold(self) -> None:
        """Tells the topic what we still need of it: all from our positions on."""
        self.acknowledged = 0
        if self._topic is None:
            return
        for storage in self._topic.storage:
            if storage.number not in self._holding and storage.number > self._number:
                for partition in self._partitions(storage):
                    await self._hold(self._window(storage, partition))
                self._holding.add(storage.number)
        for window in (*self._left, *self._windows):
            if window.held != window.low:
                await self._hold(window)
        self._left = [each for each in self._left if each.held != each.low]

    async def _hold(self, window: Window) -> None:
        # With the incarnation: one that comes late, after a reset, moves nothing.
        low = window.low
        place = self._log_of(window), window.partition, names.reader(self._subscription.name)
        # What is gone already cannot be kept.
        with contextlib.suppress(OffsetOutOfRangeError, LogNotFoundError):
            await self._logs.hold(*place, low, incarnation=self._subscription.incarnation)
        window.held = low
