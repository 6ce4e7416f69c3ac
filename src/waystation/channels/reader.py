"""Reading a channel: unread messages after a cursor, the wait of a long poll, gaps of expired ones.

Each look is one script call. A gap of expired messages is walked over in bounded steps, so that no
subscriber is stuck behind it and no call holds the store up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from waystation.channels.model import Fetched, Message, decode_message
from waystation.channels.place import Place
from waystation.errors import SubscriberNotFoundError
from waystation.runtime.clock import Clock
from waystation.runtime.logging import logger
from waystation.store.client import Store
from waystation.store.connection import Reply
from waystation.store.pubsub import PubSub
from waystation.store.scripts import script
from waystation.telemetry import metrics

_log = logger("channels")

_FETCH = script(__package__, "fetch")
_ACK = script(__package__, "ack")

#: Clocks that one script call looks at. A call stays below a millisecond; a gap takes many calls.
LOOK_MAX = 250
#: How long a fetch that need not wait walks over a gap before it answers that there is more.
GAP_SECONDS_MAX = 5.0

#: Tells that the client of a poll is gone; made only when a poll has to wait.
Abandonment = Callable[[], asyncio.Future[object]]


class Reader:
    """Fetches, waits, and moves cursors."""

    def __init__(self, store: Store, wakeups: PubSub, *, clock: Clock, bytes_max: int) -> None:
        self._store = store
        self._wakeups = wakeups
        self._clock = clock
        self._bytes_max = bytes_max
        self._stopping = False

    def fetch(
        self,
        place: Place,
        subscriber: str,
        *,
        limit: int,
        seconds: float,
        abandonment: Abandonment | None,
    ) -> Awaitable[Fetched]:
        """Unread messages, after a wait of up to `seconds` for the first one."""
        if seconds > 0 and limit > 0 and not self._stopping:
            return self._poll(place, subscriber, limit, seconds, abandonment)
        return self._look(place, subscriber, limit, None)

    async def move(self, place: Place, subscriber: str, clock: int) -> bool:
        """Moves a cursor on to `clock`; false when it was there or further already."""
        reply = await self._store.run(
            _ACK, (place.clock, place.cursors + subscriber), (clock, place.ttl)
        )
        if reply == b"missing":
            raise no_subscriber(place, subscriber)
        return bool(reply == b"moved")

    def end_polls(self) -> None:
        """Ends every waiting poll with an empty result, and lets none wait any more."""
        self._stopping = True
        self._wakeups.wake_all()

    # -- Waiting and looking -----------------------------------------------------------------

    async def _poll(
        self,
        place: Place,
        subscriber: str,
        limit: int,
        seconds: float,
        abandonment: Abandonment | None,
    ) -> Fetched:
        until = self._clock.monotonic() + seconds
        expired = 0
        poll = _Waiting(abandonment)
        with self._wakeups.waiting(place.topic.encode()) as waiter, poll:
            while True:
                # Clear, then look, then wait: what lands in between sets the flag again.
                waiter.clear()
                looks_until = max(until, self._clock.monotonic() + GAP_SECONDS_MAX)
                fetched = await self._look(place, subscriber, limit, looks_until)
                left = until - self._clock.monotonic()
                done = fetched.messages or fetched.more or left <= 0
                if done or self._stopping or poll.abandoned:
                    return _with_expired(fetched, expired)
                # The look has moved the cursor over what expired: nobody will count it again.
                expired += fetched.expired
                poll.begin(waiter.set)
                await waiter.wait(left)

    async def _look(
        self, place: Place, subscriber: str, limit: int, until: float | None
    ) -> Fetched:
        """One fetch without waiting, over any gap of expired messages that is passed in time."""
        messages: list[Message] = []
        last = expired = size = 0
        while True:
            reads_on = last if messages else None
            reply = await self._read(place, subscriber, limit - len(messages), size, reads_on)
            if not reply:
                raise no_subscriber(place, subscriber)
            clock, position, gone = int(reply[0]), int(reply[1]), int(reply[2])
            bodies = reply[3:]
            if reads_on is not None and not bodies:
                break  # What follows is a gap: the next fetch passes it, after the ack.
            readable = _decoded(bodies, place.channel)
            messages += readable
            size += sum(map(len, bodies))
            last, expired = position, expired + gone + len(bodies) - len(readable)
            if bodies and not messages:
                # Only bodies that no one can read: as good as expired, step over them.
                await self.move(place, subscriber, last)
            if last == clock or len(messages) >= limit or size >= self._bytes_max:
                break
            if not messages:
                now = self._clock.monotonic()
                until = now + GAP_SECONDS_MAX if until is None else until
                if now >= until:
                    break
        if expired:
            metrics.channel_lost.inc(expired)
        metrics.channel_fetched.value += len(messages)
        return Fetched(
            messages=messages, more=last != clock, expired=expired, last=last if messages else None
        )

    def _read(
        self, place: Place, subscriber: str, limit: int, size: int, after: int | None
    ) -> asyncio.Future[Reply]:
        return self._store.run(
            _FETCH,
            (place.clock, place.cursors + subscriber),
            (
                place.messages,
                limit,
                self._bytes_max - size,
                place.ttl,
                LOOK_MAX,
                "" if after is None else after,
            ),
        )


class _Waiting:
    """A poll that may have to wait: counted, and ended early when its client hangs up."""

    def __init__(self, abandonment: Abandonment | None) -> None:
        self._abandonment = abandonment
        self._gone: asyncio.Future[object] | None = None
        self._begun = False

    def begin(self, wake: Callable[[], None]) -> None:
        """The first time: from now on it waits. A client's hanging up calls `wake`."""
        if self._begun:
            return
        self._begun = True
        metrics.channel_polls_waiting.inc()
        if self._abandonment is not None:
            self._gone = self._abandonment()
            self._gone.add_done_callback(lambda _: wake())

    @property
    def abandoned(self) -> bool:
        """Whether nobody is there to be answered."""
        return self._gone is not None and self._gone.done()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        if self._begun:
            metrics.channel_polls_waiting.dec()
        if self._gone is not None:
            self._gone.cancel()


def no_subscriber(place: Place, subscriber: str) -> SubscriberNotFoundError:
    """The error of everything that needs a subscriber and finds none."""
    return SubscriberNotFoundError(f"Channel {place.channel} has no subscriber {subscriber}.")


def _with_expired(fetched: Fetched, expired: int) -> Fetched:
    """The same with messages that an earlier look of the same fetch found expired."""
    if not expired:
        return fetched
    return msgspec.structs.replace(fetched, expired=fetched.expired + expired)


def _decoded(bodies: list[bytes], channel: str) -> list[Message]:
    messages = []
    for body in bodies:
        message = decode_message(body)
        if message is None:
            _log.warning("a stored message cannot be read and is passed over", channel=channel)
        else:
            messages.append(message)
    return messages
