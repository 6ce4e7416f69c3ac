"""The verbs of channels: publish, subscribe, fetch, ack, seek, unsubscribe.

All state is in the store, under the keys of DSPS (`keys.py`). Each verb is one script call,
and every script is repeatable, so a lost connection costs a second try and nothing else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from functools import lru_cache

from waystation.channels.handles import decode_handle
from waystation.channels.model import Fetched, Published, encode_message
from waystation.channels.place import Place
from waystation.channels.reader import Abandonment, Reader, no_subscriber
from waystation.channels.rules import ChannelRules, Terms
from waystation.channels.stream import ChannelStream
from waystation.channels.webhooks import lanes
from waystation.config import ChannelConfig
from waystation.delivery.addresses import AddressGuard
from waystation.delivery.outbox import WAITING_MAX, Outbox
from waystation.errors import ChannelFullError, InvalidChannelError, InvalidInputError
from waystation.runtime.clock import Clock
from waystation.store.client import Store
from waystation.store.pubsub import PubSub
from waystation.store.scripts import script
from waystation.telemetry import metrics

_PUBLISH = script(__package__, "publish")
_SUBSCRIBE = script(__package__, "subscribe")
_UNSUBSCRIBE = script(__package__, "unsubscribe")
_PUBLISH_MANY = script(__package__, "publish_many")
_PUBLISH_WITH_ITEM = script(__package__, "publish_with_item")
_SEEK = script(__package__, "seek")

#: Places that are kept at hand; others are put together again when they are used.
_PLACES_KEPT = 20_000


class Channels:
    """All channels of all projects."""

    def __init__(
        self,
        store: Store,
        wakeups: PubSub,
        *,
        clock: Clock,
        settings: ChannelConfig,
        guard: AddressGuard | None = None,
        waiting_max: int = WAITING_MAX,
    ) -> None:
        self._store = store
        self._wakeups = wakeups
        self._reader = Reader(store, wakeups, clock=clock, bytes_max=settings.fetch_bytes_max)
        self._outbox = Outbox(store)
        self._guard = guard or AddressGuard()
        self._waiting_max = waiting_max
        self._forget_jumps = clock.on_jump(wakeups.wake_all)
        self.rules = ChannelRules(settings.rules, expire_seconds=settings.expire_seconds)
        self._place = lru_cache(_PLACES_KEPT)(self._find_place)

    async def publish(
        self, project: str, channel: str, message_id: str, content: bytes
    ) -> Published:
        """Publishes JSON `content`; the first content under an id wins while it is kept."""
        place = self._place(project, channel)
        if place.terms.backlog_max:
            (published,) = await self.publish_many(project, channel, [(message_id, content)])
            return published
        body = encode_message(message_id, content)
        names = (place.clock, place.ids + message_id)
        if not place.terms.webhooks:
            outcome, clock = await self._store.run(
                _PUBLISH, names, (place.messages, body, place.ttl, place.topic)
            )
            return _published(outcome, clock)
        lanes = self._lanes(place)
        arguments: list[str | bytes | int] = [
            place.messages,
            body,
            place.ttl,
            place.topic,
            place.items + message_id,
            self._waiting_max,
            *lanes,
        ]
        reply = await self._store.run(_PUBLISH_WITH_ITEM, names, arguments)
        if reply[0] == b"closed":
            reply = await self._outbox.through_gates(
                lanes, lambda: self._store.run(_PUBLISH_WITH_ITEM, names, arguments)
            )
        return _published(*reply)

    async def publish_many(
        self, project: str, channel: str, messages: Sequence[tuple[str, bytes]]
    ) -> list[Published]:
        """Publishes messages in order; each is accepted, known already, or refused as too many.

        Raises ChannelFullError only when not one of them found room.
        """
        place = self._place(project, channel)
        terms = place.terms
        lanes = self._lanes(place)
        arguments: list[str | bytes | int] = [
            place.messages,
            place.ids,
            place.ttl,
            place.topic,
            terms.backlog_max or 0,
            terms.backlog_policy,
            self._waiting_max,
            place.items,
            len(lanes),
            *lanes,
        ]
        for message_id, content in messages:
            arguments += [message_id, encode_message(message_id, content)]
        reply = await self._outbox.through_gates(
            lanes, lambda: self._store.run(_PUBLISH_MANY, [place.clock], arguments)
        )
        published = [_published(*reply[i : i + 2]) for i in range(0, len(reply), 2)]
        if published and all(each.full for each in published):
            raise ChannelFullError(f"Channel {channel} keeps {terms.backlog_max} messages at most.")
        return published

    def _lanes(self, place: Place) -> list[str]:
        """Lanes of the channel's webhooks; raises when one leads to a forbidden address."""
        if place.lanes is None:
            place.lanes = lanes(place.tag, place.terms, self._guard)
        return place.lanes

    def terms(self, channel: str) -> Terms:
        """What the rules say about a channel; InvalidChannelError when none allows it."""
        terms = self.rules.terms(channel)
        if terms is None:
            raise InvalidChannelError(f"No rule allows a channel {channel}.")
        return terms

    async def subscribe(
        self, project: str, channel: str, subscriber: str, *, after: int | None = None
    ) -> bool:
        """Creates a subscriber; false when it was there and simply lives on.

        A new one reads from now on, or goes on `after` a clock that it had reached before.
        """
        place = self._place(project, channel)
        reply = await self._store.run(
            _SUBSCRIBE,
            (place.clock, place.cursors + subscriber),
            (place.ttl, "" if after is None else str(after)),
        )
        return bool(reply == b"created")

    async def unsubscribe(self, project: str, channel: str, subscriber: str) -> bool:
        """Deletes a subscriber; false when there was none."""
        place = self._place(project, channel)
        reply = await self._store.run(_UNSUBSCRIBE, (place.cursors + subscriber,), (place.topic,))
        return bool(reply)

    async def seek(
        self, project: str, channel: str, subscriber: str, how: str, target: int
    ) -> tuple[int, int]:
        """Moves a cursor to `beginning`, `end`, a `clock` or a `time` in ms: (cursor, unread)."""
        place = self._place(project, channel)
        reply = await self._store.run(
            _SEEK,
            (place.clock, place.cursors + subscriber),
            (place.messages, place.ttl, how, target, place.topic),
        )
        if not reply:
            raise no_subscriber(place, subscriber)
        if reply[0] == b"range":
            lowest, highest = int(reply[1]), int(reply[2])
            raise InvalidInputError(
                f"The clock {target} lies outside of what is kept.",
                field="clock",
                hint=f"The channel can be read from clock {lowest} to {highest}.",
            )
        return int(reply[0]), int(reply[1])

    async def ack(self, project: str, channel: str, subscriber: str, handle: str) -> bool:
        """Acknowledges everything up to the handle; false when that was done before."""
        clock = decode_handle(channel, subscriber, handle)
        if clock is None:
            return False
        return await self._reader.move(self._place(project, channel), subscriber, clock)

    def fetch(
        self,
        project: str,
        channel: str,
        subscriber: str,
        *,
        limit: int,
        seconds: float = 0.0,
        abandonment: Abandonment | None = None,
    ) -> Awaitable[Fetched]:
        """Returns unread messages, waiting up to `seconds` for the first one.

        Nothing is removed: the same messages come again until they are acknowledged.
        """
        return self._reader.fetch(
            self._place(project, channel),
            subscriber,
            limit=limit,
            seconds=seconds,
            abandonment=abandonment,
        )

    def stream(
        self, project: str, channel: str, subscriber: str, *, after: int | None = None
    ) -> ChannelStream:
        """Reads on and on, from the cursor, or `after` a clock that lies ahead of it."""
        place = self._place(project, channel)
        return ChannelStream(self._store, self._wakeups, place, subscriber, after=after)

    def end_polls(self) -> None:
        """Ends every waiting poll with an empty result; for shutdown."""
        self._reader.end_polls()

    def close(self) -> None:
        """Ends polls and lets go of the clock."""
        self.end_polls()
        self._forget_jumps()

    def _find_place(self, project: str, channel: str) -> Place:
        """Where a channel is; cached as `_place`."""
        return Place(project, channel, self.terms(channel))


# Looked up once: finding a labelled metric costs more than counting.
_accepted = metrics.channel_messages.of("accepted")
_duplicates = metrics.channel_messages.of("duplicate")
_refused = metrics.channel_messages.of("refused")


def _published(outcome: bytes, clock: bytes) -> Published:
    duplicate, full = outcome == b"duplicate", outcome == b"full"
    (_duplicates if duplicate else _refused if full else _accepted).value += 1
    return Published(clock=int(clock or 0), duplicate=duplicate, full=full)
