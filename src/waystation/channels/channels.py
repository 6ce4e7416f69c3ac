"""The verbs of channels: publish, subscribe, fetch, ack, unsubscribe.

All state is in the store (seed 002; `store/keys.py`), each verb is one script call, and every
script is repeatable, so a lost connection costs a second try and nothing else. What this module
adds is the wait of a long poll, and walking over a gap of expired messages in bounded steps.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence

import msgspec

from waystation.channels.handles import decode_handle
from waystation.channels.message import Fetched, Message, Published, decode_message, encode_message
from waystation.channels.rules import ChannelRules, Terms
from waystation.channels.webhooks import ChannelWebhooks
from waystation.clock import Clock
from waystation.delivery.outbox import Outbox
from waystation.errors import (
    ChannelFullError,
    InvalidChannelError,
    InvalidInputError,
    SubscriptionNotFoundError,
)
from waystation.settings import ChannelSettings
from waystation.store import Store, Wakeups, keys, script
from waystation.store.connection import Reply
from waystation.telemetry import metrics
from waystation.telemetry.logging import logger

_log = logger("channels")

_PUBLISH = script(__package__, "publish")
_SUBSCRIBE = script(__package__, "subscribe")
_UNSUBSCRIBE = script(__package__, "unsubscribe")
_PUBLISH_MANY = script(__package__, "publish_many")
_FETCH = script(__package__, "fetch")
_SEEK = script(__package__, "seek")
_ACK = script(__package__, "ack")

#: Kept beyond the expiry, so that what a slow client was just told of is still there (seed 002).
TTL_MARGIN_SECONDS = 15
#: Clocks that one script call looks at. A call stays below a millisecond; a gap takes many calls.
LOOK_MAX = 500
#: How long a fetch that need not wait walks over a gap before it answers that there is more.
GAP_SECONDS_MAX = 5.0

#: Tells that the client of a poll is gone; made only when a poll has to wait.
Abandonment = Callable[[], asyncio.Future[object]]


class Channels:
    """All channels of all projects."""

    def __init__(
        self, store: Store, wakeups: Wakeups, *, clock: Clock, settings: ChannelSettings
    ) -> None:
        self._store = store
        self._wakeups = wakeups
        self._clock = clock
        self._bytes_max = settings.fetch_bytes_max
        self.rules = ChannelRules(settings.rules, expire_seconds=settings.expire_seconds)
        self._webhooks = ChannelWebhooks(Outbox(store), clock)
        self._stopping = False
        self._forget_jumps = clock.on_jump(wakeups.wake_all)

    async def publish(
        self, project: str, channel: str, message_id: str, content: bytes
    ) -> Published:
        """Publishes JSON `content`; the first content under an id wins while it is kept."""
        terms = self.terms(channel)
        if terms.webhooks or terms.backlog_max:
            (published,) = await self.publish_many(project, channel, [(message_id, content)])
            return published
        tag = keys.channel_tag(project, channel)
        outcome, clock = await self._store.run(
            _PUBLISH,
            [keys.channel_clock(tag), keys.channel_message_id(tag, message_id)],
            [
                keys.channel_message_prefix(tag),
                encode_message(message_id, content),
                _ttl(terms),
                keys.channel_topic(tag),
            ],
        )
        return _published(outcome, clock)

    async def publish_many(
        self, project: str, channel: str, messages: Sequence[tuple[str, bytes]]
    ) -> list[Published]:
        """Publishes messages in order; each is accepted, known already, or refused as too many.

        Raises ChannelFullError only when not one of them found room.
        """
        terms = self.terms(channel)
        tag = keys.channel_tag(project, channel)
        lanes = await self._webhooks.lanes(tag, terms)
        arguments: list[str | bytes | int] = [
            keys.channel_message_prefix(tag),
            keys.channel_message_id(tag, ""),
            _ttl(terms),
            keys.channel_topic(tag),
            terms.backlog_max or 0,
            terms.backlog_policy,
            len(lanes),
            *lanes,
        ]
        for message_id, content in messages:
            arguments += [message_id, encode_message(message_id, content)]
            arguments += self._webhooks.items(channel, message_id, content, terms)
        reply = await self._store.run(_PUBLISH_MANY, [keys.channel_clock(tag)], arguments)
        published = [_published(*reply[i : i + 2]) for i in range(0, len(reply), 2)]
        if published and all(each.full for each in published):
            raise ChannelFullError(f"Channel {channel} keeps {terms.backlog_max} messages at most.")
        return published

    def terms(self, channel: str) -> Terms:
        """What the rules say about a channel; InvalidChannelError when none allows it."""
        terms = self.rules.terms(channel)
        if terms is None:
            raise InvalidChannelError(f"No rule allows a channel {channel}.")
        return terms

    async def subscribe(self, project: str, channel: str, subscriber: str) -> bool:
        """Creates a subscriber; false when it was there and simply lives on."""
        tag = keys.channel_tag(project, channel)
        reply = await self._store.run(
            _SUBSCRIBE,
            [keys.channel_clock(tag), keys.channel_cursor(tag, subscriber)],
            [_ttl(self.terms(channel))],
        )
        return bool(reply == b"created")

    async def unsubscribe(self, project: str, channel: str, subscriber: str) -> bool:
        """Deletes a subscriber; false when there was none."""
        tag = keys.channel_tag(project, channel)
        reply = await self._store.run(
            _UNSUBSCRIBE, [keys.channel_cursor(tag, subscriber)], [keys.channel_topic(tag)]
        )
        return bool(reply)

    async def seek(
        self, project: str, channel: str, subscriber: str, how: str, target: int
    ) -> tuple[int, int]:
        """Moves a cursor to `beginning`, `end`, a `clock` or a `time` in ms: (cursor, unread)."""
        tag = keys.channel_tag(project, channel)
        reply = await self._store.run(
            _SEEK,
            [keys.channel_clock(tag), keys.channel_cursor(tag, subscriber)],
            [keys.channel_message_prefix(tag), _ttl(self.terms(channel)), how, target],
        )
        if not reply:
            raise SubscriptionNotFoundError(f"Channel {channel} has no subscriber {subscriber}.")
        if reply[0] == b"range":
            raise InvalidInputError("The clock lies outside of what is kept.", field="clock")
        return int(reply[0]), int(reply[1])

    async def ack(self, project: str, channel: str, subscriber: str, handle: str) -> bool:
        """Acknowledges everything up to the handle; false when that was done before."""
        clock = decode_handle(channel, subscriber, handle)
        if clock is None:
            return False
        return await self._move(project, channel, subscriber, clock)

    async def fetch(
        self,
        project: str,
        channel: str,
        subscriber: str,
        *,
        limit: int,
        seconds: float = 0.0,
        abandonment: Abandonment | None = None,
    ) -> Fetched:
        """Returns unread messages, waiting up to `seconds` for the first one.

        Nothing is removed: the same messages come again until they are acknowledged.
        """
        if seconds > 0 and limit > 0 and not self._stopping:
            return await self._poll(project, channel, subscriber, limit, seconds, abandonment)
        until = self._clock.monotonic() + GAP_SECONDS_MAX
        return await self._look(project, channel, subscriber, limit, until)

    def end_polls(self) -> None:
        """Ends every waiting poll with an empty result; for shutdown."""
        self._stopping = True
        self._wakeups.wake_all()

    def close(self) -> None:
        """Ends polls and lets go of the clock."""
        self.end_polls()
        self._forget_jumps()

    # -- Waiting and looking -----------------------------------------------------------------

    async def _poll(
        self,
        project: str,
        channel: str,
        subscriber: str,
        limit: int,
        seconds: float,
        abandonment: Abandonment | None,
    ) -> Fetched:
        until = self._clock.monotonic() + seconds
        expired = 0
        poll = _Waiting(abandonment)
        topic = keys.channel_topic(keys.channel_tag(project, channel)).encode()
        with self._wakeups.waiting(topic) as waiter, poll:
            while True:
                # Clear, then look, then wait: what lands in between sets the flag again.
                waiter.clear()
                looks_until = max(until, self._clock.monotonic() + GAP_SECONDS_MAX)
                fetched = await self._look(project, channel, subscriber, limit, looks_until)
                left = until - self._clock.monotonic()
                done = fetched.messages or fetched.more or left <= 0
                if done or self._stopping or poll.abandoned:
                    return _with_expired(fetched, expired)
                # The look has moved the cursor over what expired: nobody will count it again.
                expired += fetched.expired
                poll.begin(waiter.wake)
                await waiter.wait(left)

    async def _look(
        self, project: str, channel: str, subscriber: str, limit: int, until: float
    ) -> Fetched:
        """One fetch without waiting, over any gap of expired messages that is passed in time."""
        messages: list[Message] = []
        clock = last = expired = size = 0
        while True:
            reads_on = last if messages else None
            reply = await self._read(
                project, channel, subscriber, limit - len(messages), size, reads_on
            )
            if not reply:
                raise _no_subscriber(channel, subscriber)
            clock, position, gone = int(reply[0]), int(reply[1]), int(reply[2])
            bodies = reply[3:]
            if reads_on is not None and not bodies:
                break  # What follows is a gap: the next fetch passes it, after the ack.
            readable = _decoded(bodies, channel)
            messages += readable
            size += sum(map(len, bodies))
            last, expired = position, expired + gone + len(bodies) - len(readable)
            if bodies and not messages:
                # Only bodies that no one can read: as good as expired, step over them.
                await self._move(project, channel, subscriber, last)
            if last == clock or len(messages) >= limit or size >= self._bytes_max:
                break
            if not messages and self._clock.monotonic() >= until:
                break
        if expired:
            metrics.channel_lost.inc(expired)
        metrics.channel_fetched.inc(len(messages))
        return Fetched(
            messages=messages, more=last != clock, expired=expired, last=last if messages else None
        )

    def _read(
        self, project: str, channel: str, subscriber: str, limit: int, size: int, after: int | None
    ) -> asyncio.Future[Reply]:
        tag = keys.channel_tag(project, channel)
        return self._store.run(
            _FETCH,
            [keys.channel_clock(tag), keys.channel_cursor(tag, subscriber)],
            [
                keys.channel_message_prefix(tag),
                limit,
                self._bytes_max - size,
                _ttl(self.terms(channel)),
                LOOK_MAX,
                "" if after is None else after,
            ],
        )

    async def _move(self, project: str, channel: str, subscriber: str, clock: int) -> bool:
        tag = keys.channel_tag(project, channel)
        reply = await self._store.run(
            _ACK,
            [keys.channel_clock(tag), keys.channel_cursor(tag, subscriber)],
            [clock, _ttl(self.terms(channel))],
        )
        if reply == b"missing":
            raise _no_subscriber(channel, subscriber)
        return bool(reply == b"moved")


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


# Looked up once: finding a labelled metric costs more than counting.
_accepted = metrics.channel_messages.labels("accepted")
_duplicates = metrics.channel_messages.labels("duplicate")
_refused = metrics.channel_messages.labels("refused")


def _with_expired(fetched: Fetched, expired: int) -> Fetched:
    """The same with messages that an earlier look of the same fetch found expired."""
    if not expired:
        return fetched
    return msgspec.structs.replace(fetched, expired=fetched.expired + expired)


def _no_subscriber(channel: str, subscriber: str) -> SubscriptionNotFoundError:
    return SubscriptionNotFoundError(f"Channel {channel} has no subscriber {subscriber}.")


def _ttl(terms: Terms) -> int:
    return math.ceil(terms.expire_seconds + TTL_MARGIN_SECONDS)


def _published(outcome: bytes, clock: bytes) -> Published:
    duplicate, full = outcome == b"duplicate", outcome == b"full"
    (_duplicates if duplicate else _refused if full else _accepted).inc()
    return Published(clock=int(clock or 0), duplicate=duplicate, full=full)


def _decoded(bodies: list[bytes], channel: str) -> list[Message]:
    messages = []
    for body in bodies:
        message = decode_message(body)
        if message is None:
            _log.warning("a stored message cannot be read and is passed over", channel=channel)
        else:
            messages.append(message)
    return messages
