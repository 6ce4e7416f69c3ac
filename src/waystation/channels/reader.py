"""Reading a channel: fetch, long poll and stream.

A fetch returns the messages after the cursor of a subscriber. A long poll is a fetch that waits for
the first message. A stream keeps its own position ahead of the cursor, so that it continues without
waiting for acknowledgements.

All three read with script calls of bounded size. They skip a gap of expired messages in several
calls, so that a long gap neither stops a subscriber nor blocks the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Self

import msgspec
from prometheus_client import Counter, Gauge

from waystation.channels.model import (
    Fetched,
    Message,
    ResolvedChannel,
    StreamRead,
    clock_before,
    decode_message,
)
from waystation.errors import SubscriberNotFoundError
from waystation.runtime.clock import Clock
from waystation.runtime.logging import logger
from waystation.runtime.metrics import count_family, registry
from waystation.runtime.service import Wakeup
from waystation.store.client import Store
from waystation.store.connection import Reply
from waystation.store.pubsub import RECHECK_S, PubSub
from waystation.store.scripts import script

_log = logger("channels")

channel_fetched = count_family(
    "waystation_channel_messages_fetched", "Messages returned to subscribers."
).of()
channel_lost = Counter(
    "waystation_channel_messages_lost",
    "Messages that a subscriber missed because they expired or were unreadable.",
    registry=registry,
)
channel_polls_waiting = Gauge(
    "waystation_channel_polls_waiting", "Long polls that wait for a message.", registry=registry
)

_FETCH = script(__package__, "fetch")
_FOLLOW = script(__package__, "follow")
_ACK = script(__package__, "ack")

#: Maximum number of clock values that one script call reads, so that it takes less than a
#: millisecond.
CLOCKS_PER_CALL_MAX = 250
#: Seconds after which a fetch that has found only expired messages returns none and sets `more`.
GAP_S_MAX = 5.0
#: Bytes at which a read of a stream ends. The server keeps them until the client has taken them.
STREAM_READ_BYTES_MAX = 65_536

#: Function that returns a future that ends when the client disconnects. Only waiting polls call it.
Disconnect = Callable[[], asyncio.Future[object]]


class ChannelReader:
    """Reads channels for all subscribers. Its only state is a flag, set when the server stops."""

    def __init__(self, store: Store, pubsub: PubSub, *, clock: Clock, fetch_bytes_max: int) -> None:
        self._store = store
        self._pubsub = pubsub
        self._clock = clock
        self._fetch_bytes_max = fetch_bytes_max
        self._stopping = False

    def fetch(
        self,
        channel: ResolvedChannel,
        subscriber: str,
        *,
        limit: int,
        wait_s: float,
        disconnected: Disconnect | None,
    ) -> Awaitable[Fetched]:
        """Return up to `limit` unread messages. Wait up to `wait_s` seconds for the first one."""
        if wait_s > 0 and limit > 0 and not self._stopping:
            return self._poll(channel, subscriber, limit, wait_s, disconnected)
        return self._fetch_now(channel, subscriber, limit, None)

    def stream(
        self, channel: ResolvedChannel, subscriber: str, *, after: int | None = None
    ) -> ChannelStream:
        """Return a stream that starts after the cursor or after the clock `after`.

        The later of the two applies.
        """
        return ChannelStream(self._store, self._pubsub, channel, subscriber, after=after)

    async def acknowledge(self, channel: ResolvedChannel, subscriber: str, clock: int) -> bool:
        """Move a cursor forward to `clock`. Return False if it is at this clock or after it."""
        reply = await self._store.run(
            _ACK,
            (channel.clock_key, channel.cursor_prefix + subscriber),
            (
                clock,
                channel.ttl_s,
                channel.subscriber_record_key,
                channel.record_argument,
                subscriber,
            ),
        )
        if reply == b"missing":
            raise no_subscriber(channel, subscriber)
        return bool(reply == b"moved")

    def end_polls(self) -> None:
        """End all waiting polls with an empty result. Later fetches do not wait."""
        self._stopping = True
        self._pubsub.wake_all()

    # -- Long poll ---------------------------------------------------------------------------

    async def _poll(
        self,
        channel: ResolvedChannel,
        subscriber: str,
        limit: int,
        wait_s: float,
        disconnected: Disconnect | None,
    ) -> Fetched:
        until = self._clock.monotonic() + wait_s
        expired = 0
        wait = _PollWait(disconnected)
        with self._pubsub.waiting(channel.pubsub_topic.encode()) as wakeup, wait:
            while True:
                # Clear the wake-up before the read. A message that is published during the read
                # sets it again and ends the wait.
                wakeup.clear()
                gap_until = max(until, self._clock.monotonic() + GAP_S_MAX)
                fetched = await self._fetch_now(channel, subscriber, limit, gap_until)
                left_s = until - self._clock.monotonic()
                done = fetched.messages or fetched.more or left_s <= 0
                if done or self._stopping or wait.disconnected:
                    return _with_expired(fetched, expired)
                # Add up the expired messages, because the cursor has passed them and no later read
                # counts them again.
                expired += fetched.expired
                wait.start(wakeup.set)
                await wakeup.wait(left_s)

    # -- Fetch -------------------------------------------------------------------------------

    async def _fetch_now(
        self, channel: ResolvedChannel, subscriber: str, limit: int, gap_until: float | None
    ) -> Fetched:
        """Fetch without waiting for messages.

        Skip expired messages until the monotonic time `gap_until`. None: for `GAP_S_MAX` seconds.
        """
        messages: list[Message] = []
        last = expired = size = 0
        while True:
            after = last if messages else None
            reply = await self._read(channel, subscriber, limit - len(messages), size, after)
            if not reply:
                raise no_subscriber(channel, subscriber)
            clock, position, gone = int(reply[0]), int(reply[1]), int(reply[2])
            bodies = reply[3:]
            if after is not None and not bodies:
                # A gap follows the messages. Leave it to the next fetch, because the cursor can
                # move into the gap only after these messages are acknowledged.
                break
            readable = _decode_messages(bodies, channel.name)
            messages += readable
            size += sum(map(len, bodies))
            last, expired = position, expired + gone + len(bodies) - len(readable)
            if bodies and not messages:
                # Acknowledge unreadable messages here, because clients do not receive them.
                await self.acknowledge(channel, subscriber, last)
            if last == clock or len(messages) >= limit or size >= self._fetch_bytes_max:
                break
            if not messages:
                now = self._clock.monotonic()
                gap_until = now + GAP_S_MAX if gap_until is None else gap_until
                if now >= gap_until:
                    break
        if expired:
            channel_lost.inc(expired)
        channel_fetched.value += len(messages)
        return Fetched(
            messages=messages, more=last != clock, expired=expired, last=last if messages else None
        )

    def _read(
        self, channel: ResolvedChannel, subscriber: str, limit: int, size: int, after: int | None
    ) -> asyncio.Future[Reply]:
        return self._store.run(
            _FETCH,
            (channel.clock_key, channel.cursor_prefix + subscriber),
            (
                channel.message_prefix,
                limit,
                self._fetch_bytes_max - size,
                channel.ttl_s,
                CLOCKS_PER_CALL_MAX,
                "" if after is None else after,
            ),
        )


class _PollWait:
    """The wait of one poll. It is counted in a metric and ends when the client disconnects."""

    def __init__(self, disconnected: Disconnect | None) -> None:
        self._on_disconnect = disconnected
        self._disconnection: asyncio.Future[object] | None = None
        self._started = False

    def start(self, wake: Callable[[], None]) -> None:
        """Count the poll as waiting, and call `wake` when its client disconnects.

        A second call does nothing.
        """
        if self._started:
            return
        self._started = True
        channel_polls_waiting.inc()
        if self._on_disconnect is not None:
            self._disconnection = self._on_disconnect()
            self._disconnection.add_done_callback(lambda _: wake())

    @property
    def disconnected(self) -> bool:
        """True if the client has disconnected during the wait."""
        return self._disconnection is not None and self._disconnection.done()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        if self._started:
            channel_polls_waiting.dec()
        if self._disconnection is not None:
            self._disconnection.cancel()


class ChannelStream:
    """Reads one channel continuously for one subscriber.

    The state is the position, which is ahead of the cursor, and the last known cursor. A stream
    returns each message once. The next stream returns unacknowledged messages again. After a seek
    of the subscriber, the stream continues at the new cursor.

    Use the stream as a context manager to wait for messages. `read` works without it.
    """

    def __init__(
        self,
        store: Store,
        pubsub: PubSub,
        channel: ResolvedChannel,
        subscriber: str,
        *,
        after: int | None = None,
    ) -> None:
        self._store = store
        self._pubsub = pubsub
        self._channel = channel
        self._subscriber = subscriber
        self._position = after
        self._cursor: int | None = None
        #: True if the last read returned the newest message, so that the next read waits.
        self._at_end = False
        self._wakeup = Wakeup(recheck_s=RECHECK_S)
        self._registration = ExitStack()

    def __enter__(self) -> Self:
        topic = self._channel.pubsub_topic.encode()
        self._wakeup = self._registration.enter_context(self._pubsub.waiting(topic))
        # Let `next` read before it waits, because messages published before the registration did
        # not set the wake-up.
        self._at_end = False
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._registration.close()

    async def next(self, limit: int, *, wait_s: float) -> StreamRead:
        """Return the next messages. Wait up to `wait_s` seconds if earlier calls returned all.

        The wait can end early, so the result can be empty.
        """
        if self._at_end:
            await self._wakeup.wait(wait_s)
        # Clear the wake-up before the read. A message that is published during the read sets it
        # again.
        self._wakeup.clear()
        return await self.read(limit)

    def wake(self) -> None:
        """End the wait of `next`, so that it reads again."""
        self._wakeup.set()

    async def read(self, limit: int) -> StreamRead:
        """Return the next messages without waiting.

        Raise SubscriberNotFoundError if the subscriber does not exist.
        """
        channel = self._channel
        # Reset the flag before the call, so that `next` does not wait if the call fails.
        self._at_end = False
        reply = await self._store.run(
            _FOLLOW,
            (channel.clock_key, channel.cursor_prefix + self._subscriber),
            (
                channel.message_prefix,
                limit,
                STREAM_READ_BYTES_MAX,
                channel.ttl_s,
                CLOCKS_PER_CALL_MAX,
                "" if self._position is None else self._position,
                "" if self._cursor is None else self._cursor,
            ),
        )
        if not reply:
            raise no_subscriber(channel, self._subscriber)
        clock, self._cursor, self._position, expired = map(int, reply[:4])
        self._at_end = self._position == clock
        return self._stream_read(reply[4:], self._position, expired)

    def acknowledged(self, clock: int) -> None:
        """Record that the client has acknowledged up to `clock`.

        Without this call, the stream would treat the moved cursor as a seek.
        """
        self._cursor = clock

    def _stream_read(self, bodies: list[bytes], last: int, lost: int) -> StreamRead:
        messages = []
        for steps, body in zip(range(len(bodies) - 1, -1, -1), bodies, strict=True):
            message = _decode_or_warn(body, self._channel.name)
            if message is None:
                lost += 1
            else:
                messages.append((clock_before(last, steps), message))
        if lost:
            channel_lost.inc(lost)
        channel_fetched.inc(len(messages))
        return StreamRead(messages=messages, lost=lost, more=not self._at_end)


def no_subscriber(channel: ResolvedChannel, subscriber: str) -> SubscriberNotFoundError:
    """Return the error for a subscriber that does not exist or has expired."""
    return SubscriberNotFoundError(f"Channel '{channel.name}' has no subscriber '{subscriber}'.")


def _with_expired(fetched: Fetched, expired: int) -> Fetched:
    """Add the expired messages that earlier reads of a poll have counted to its last result."""
    if not expired:
        return fetched
    return msgspec.structs.replace(fetched, expired=fetched.expired + expired)


def _decode_messages(bodies: list[bytes], channel: str) -> list[Message]:
    """Decode stored messages. Omit unreadable ones."""
    messages = []
    for body in bodies:
        message = _decode_or_warn(body, channel)
        if message is not None:
            messages.append(message)
    return messages


def _decode_or_warn(body: bytes, channel: str) -> Message | None:
    message = decode_message(body)
    if message is None:
        _log.warning("unreadable message skipped", channel=channel, reason="not_a_message")
    return message
