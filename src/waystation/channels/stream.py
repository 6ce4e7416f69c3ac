"""A stream: reads a subscriber's messages on and on, each once, ahead of its acknowledgements.

A poll begins at the cursor each time. A stream remembers how far it has read, so that it need not
wait for an acknowledgement to go on; what was not acknowledged comes again in the next stream. When
somebody seeks while it runs, it goes where the subscriber is.

Streams share the one subscription connection of the process, and each wake-up costs one look.
"""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Self

import msgspec

from waystation.channels.model import Message, decode_message
from waystation.channels.place import Place
from waystation.channels.reader import LOOK_MAX, no_subscriber
from waystation.runtime.logging import logger
from waystation.runtime.service import Wakeup
from waystation.store.client import Store
from waystation.store.pubsub import RECHECK_S, PubSub
from waystation.store.scripts import script
from waystation.telemetry import metrics

_log = logger("channels")

_FOLLOW = script(__package__, "follow")

_CLOCK_MAX = 2**53 - 1
#: A read ends after about so much: what is held for a client that does not take it stays small.
READ_BYTES_MAX = 65_536


class StreamRead(msgspec.Struct, frozen=True, kw_only=True):
    """What one look found."""

    #: Each with its clock, in order.
    messages: list[tuple[int, Message]]
    #: Messages that expired unread, all before the first of these.
    lost: int
    #: There is more to read at once.
    more: bool


class ChannelStream:
    """One reader of one subscriber. Use it in a `with` block to wait for messages."""

    def __init__(
        self,
        store: Store,
        wakeups: PubSub,
        place: Place,
        subscriber: str,
        *,
        after: int | None = None,
    ) -> None:
        self._store = store
        self._wakeups = wakeups
        self._place = place
        self._subscriber = subscriber
        self._position = after
        self._cursor: int | None = None
        #: Whether there was nothing more at the last look.
        self._drained = False
        self._waiter = Wakeup(recheck_s=RECHECK_S)
        self._registered = ExitStack()

    def __enter__(self) -> Self:
        topic = self._place.topic.encode()
        self._waiter = self._registered.enter_context(self._wakeups.waiting(topic))
        # What came before we were registered woke nobody.
        self._drained = False
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._registered.close()

    async def next(self, limit: int, *, seconds: float) -> StreamRead:
        """What follows, after a wait of up to `seconds`; it may end early and find nothing."""
        if self._drained:
            await self._waiter.wait(seconds)
        # Clear, then look: what lands in between sets the flag again.
        self._waiter.clear()
        return await self.read(limit)

    def wake(self) -> None:
        """Ends a wait."""
        self._waiter.set()

    async def read(self, limit: int) -> StreamRead:
        """What follows, without a wait; SubscriptionNotFoundError when there is no subscriber."""
        place = self._place
        # Until we know better: a look that fails must be tried again, not waited out.
        self._drained = False
        reply = await self._store.run(
            _FOLLOW,
            (place.clock, place.cursors + self._subscriber),
            (
                place.messages,
                limit,
                READ_BYTES_MAX,
                place.ttl,
                LOOK_MAX,
                "" if self._position is None else self._position,
                "" if self._cursor is None else self._cursor,
            ),
        )
        if not reply:
            raise no_subscriber(place, self._subscriber)
        clock, self._cursor, self._position, expired = map(int, reply[:4])
        self._drained = self._position == clock
        return self._found(reply[4:], self._position, expired)

    def acknowledged(self, clock: int) -> None:
        """Tells that the subscriber's cursor was moved here, up to what this stream has read."""
        self._cursor = clock

    def _found(self, bodies: list[bytes], last: int, lost: int) -> StreamRead:
        messages = []
        for steps_back, body in zip(range(len(bodies) - 1, -1, -1), bodies, strict=True):
            message = decode_message(body)
            if message is None:
                lost += 1
                _log.warning("a stored message cannot be read", channel=self._place.channel)
            else:
                messages.append((_before(last, steps_back), message))
        if lost:
            metrics.channel_lost.inc(lost)
        metrics.channel_fetched.inc(len(messages))
        return StreamRead(messages=messages, lost=lost, more=not self._drained)


def _before(clock: int, steps: int) -> int:
    """The clock so many steps before another, around the end of the range if need be."""
    return clock - steps if clock - steps >= -_CLOCK_MAX else clock - steps + 2 * _CLOCK_MAX + 1
