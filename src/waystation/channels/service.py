"""Channels: publish, subscribe, fetch, acknowledge, seek and unsubscribe.

All state is in the store. Each verb is one script call, and each script is repeatable, so that the
store client can repeat a call after a lost connection. See `docs/internals/channels.md`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from functools import lru_cache
from typing import Literal

from waystation.channels.model import (
    Fetched,
    Published,
    ResolvedChannel,
    decode_handle,
    encode_message,
)
from waystation.channels.reader import ChannelReader, ChannelStream, Disconnect, no_subscriber
from waystation.channels.rules import ChannelRules, ChannelTerms
from waystation.channels.webhooks import checked_queues
from waystation.config import ChannelConfig
from waystation.delivery.addresses import AddressGuard
from waystation.delivery.outbox import WAITING_MAX, Outbox
from waystation.errors import ChannelFullError, InvalidChannelError, InvalidInputError
from waystation.logs.records import RecordLogs
from waystation.runtime.clock import Clock
from waystation.runtime.metrics import count_family
from waystation.store.client import Store
from waystation.store.pubsub import PubSub
from waystation.store.scripts import script
from waystation.types.channel import Sought

_PUBLISH = script(__package__, "publish")
_PUBLISH_WITH_ITEM = script(__package__, "publish_with_item")
_PUBLISH_MANY = script(__package__, "publish_many")
_SUBSCRIBE = script(__package__, "subscribe")
_UNSUBSCRIBE = script(__package__, "unsubscribe")
_SEEK = script(__package__, "seek")

#: Maximum number of cached resolved channels.
_CACHED_CHANNELS_MAX = 20_000

#: Kind of target of a seek: an end of the channel, a clock, or a time in ms since the epoch.
SeekTo = Literal["beginning", "end", "clock", "time"]


class ChannelService:
    """The channels of all projects. The only state is a cache of resolved channels."""

    def __init__(
        self,
        store: Store,
        pubsub: PubSub,
        *,
        clock: Clock,
        settings: ChannelConfig,
        guard: AddressGuard | None = None,
        waiting_max: int = WAITING_MAX,
        records: RecordLogs | None = None,
    ) -> None:
        self.rules = ChannelRules(settings.rules, expire_seconds=settings.expire_seconds)
        self._store = store
        self._reader = ChannelReader(
            store, pubsub, clock=clock, fetch_bytes_max=settings.fetch_bytes_max
        )
        self._outbox = Outbox(store)
        self._guard = guard or AddressGuard()
        self._waiting_max = waiting_max
        self._records = records
        self._resolve = lru_cache(_CACHED_CHANNELS_MAX)(self._resolve_uncached)
        # Wake all polls when the time machine moves the clock: messages and waits can have expired.
        self._remove_jump_listener = clock.on_jump(pubsub.wake_all)

    def close(self) -> None:
        """End all polls, and no longer wake them when the time machine moves the clock."""
        self.end_polls()
        self._remove_jump_listener()

    def terms_of(self, channel: str) -> ChannelTerms:
        """Return what the rules set for a channel: expiry, backlog, tokens and webhooks.

        Raise InvalidChannelError if no rule allows its name.
        """
        terms = self.rules.terms_of(channel)
        if terms is None:
            raise InvalidChannelError(f"No channel rule allows the name '{channel}'.")
        return terms

    def _resolve_uncached(self, project: str, channel: str) -> ResolvedChannel:
        return ResolvedChannel(project, channel, self.terms_of(channel), self._records)

    # -- Publishing --------------------------------------------------------------------------

    async def publish(
        self, project: str, channel: str, message_id: str, content: bytes
    ) -> Published:
        """Publish one message. `content` must be JSON.

        While a message is stored, a second one with its id is a duplicate, and its content is
        ignored. Raise ChannelFullError if the backlog is full.
        """
        resolved = self._resolve(project, channel)
        if self._records and self._records.needs_log(resolved.record_log):
            await self._records.create_log(resolved.record_log)
        if resolved.terms.backlog_max:
            (published,) = await self.publish_many(project, channel, [(message_id, content)])
            return published
        keys = (resolved.clock_key, resolved.dedup_prefix + message_id)
        body = encode_message(message_id, content)
        if not resolved.terms.webhooks:
            outcome, clock = await self._store.run(
                _PUBLISH,
                keys,
                (
                    resolved.message_prefix,
                    body,
                    resolved.ttl_s,
                    resolved.pubsub_topic,
                    resolved.record_key,
                    resolved.record_argument,
                ),
            )
            return _published(outcome, clock)
        queues = self._webhook_queues(resolved)
        arguments: list[str | bytes | int] = [
            resolved.message_prefix,
            body,
            resolved.ttl_s,
            resolved.pubsub_topic,
            resolved.record_key,
            resolved.record_argument,
            resolved.item_prefix + message_id,
            self._waiting_max,
            *queues,
        ]
        reply = await self._store.run(_PUBLISH_WITH_ITEM, keys, arguments)
        if reply[0] == b"closed":
            reply = await self._outbox.through_gates(
                queues, lambda: self._store.run(_PUBLISH_WITH_ITEM, keys, arguments)
            )
        return _published(*reply)

    async def publish_many(
        self, project: str, channel: str, messages: Sequence[tuple[str, bytes]]
    ) -> list[Published]:
        """Publish messages, as pairs of id and content, atomically and in order.

        Return one result per message. The result of a message above the backlog limit has `full`.
        Raise ChannelFullError if all messages are above the limit.
        """
        resolved = self._resolve(project, channel)
        if self._records and self._records.needs_log(resolved.record_log):
            await self._records.create_log(resolved.record_log)
        terms = resolved.terms
        queues = self._webhook_queues(resolved)
        arguments: list[str | bytes | int] = [
            resolved.message_prefix,
            resolved.dedup_prefix,
            resolved.ttl_s,
            resolved.pubsub_topic,
            terms.backlog_max or 0,
            terms.backlog_policy,
            self._waiting_max,
            resolved.item_prefix,
            resolved.record_key,
            resolved.record_argument,
            len(queues),
            *queues,
        ]
        for message_id, content in messages:
            arguments += [message_id, encode_message(message_id, content)]
        reply = await self._outbox.through_gates(
            queues, lambda: self._store.run(_PUBLISH_MANY, [resolved.clock_key], arguments)
        )
        published = [_published(*reply[i : i + 2]) for i in range(0, len(reply), 2)]
        if published and all(each.full for each in published):
            raise ChannelFullError(
                f"Channel '{channel}' is full: it stores at most {terms.backlog_max} messages."
            )
        return published

    def _webhook_queues(self, channel: ResolvedChannel) -> list[str]:
        """Return the outbox queues of a channel.

        Raise ForbiddenAddressError if the URL of a webhook has a forbidden address.
        """
        if channel.webhook_queues is None:
            channel.webhook_queues = checked_queues(channel, self._guard)
        return channel.webhook_queues

    # -- Subscribers -------------------------------------------------------------------------

    async def subscribe(
        self, project: str, channel: str, subscriber: str, *, after: int | None = None
    ) -> bool:
        """Create a subscriber. If it exists, restart its expiry and return False.

        A new subscriber reads messages after the clock `after`, or after the present clock.
        """
        resolved = self._resolve(project, channel)
        reply = await self._store.run(
            _SUBSCRIBE,
            (resolved.clock_key, resolved.cursor_prefix + subscriber),
            (resolved.ttl_s, "" if after is None else str(after)),
        )
        return bool(reply == b"created")

    async def unsubscribe(self, project: str, channel: str, subscriber: str) -> bool:
        """Delete a subscriber. Return False if it did not exist."""
        resolved = self._resolve(project, channel)
        reply = await self._store.run(
            _UNSUBSCRIBE, (resolved.cursor_prefix + subscriber,), (resolved.pubsub_topic,)
        )
        return bool(reply)

    async def seek(
        self, project: str, channel: str, subscriber: str, to: SeekTo, target: int = 0
    ) -> Sought:
        """Move the cursor of a subscriber forwards or backwards.

        Raise InvalidInputError if `target` is a clock that was not published yet, or if the message
        after this clock has expired or was deleted.
        """
        resolved = self._resolve(project, channel)
        reply = await self._store.run(
            _SEEK,
            (resolved.clock_key, resolved.cursor_prefix + subscriber),
            (
                resolved.message_prefix,
                resolved.ttl_s,
                to,
                target,
                resolved.pubsub_topic,
                resolved.subscriber_record_key,
                resolved.record_argument,
                subscriber,
            ),
        )
        if not reply:
            raise no_subscriber(resolved, subscriber)
        if reply[0] == b"range":
            raise InvalidInputError(
                f"Subscriber '{subscriber}' of channel '{channel}' cannot seek to clock {target}."
                " The message after this clock has expired or was deleted, or the channel has not"
                " reached this clock yet.",
                field="clock",
                hint=f"Use a clock from {int(reply[1])} to {int(reply[2])}.",
            )
        return Sought(cursor=int(reply[0]), unread=int(reply[1]))

    async def ack(self, project: str, channel: str, subscriber: str, handle: str) -> bool:
        """Acknowledge all messages up to the clock of a handle.

        Return False if they were acknowledged before.
        """
        clock = decode_handle(channel, subscriber, handle)
        if clock is None:
            return False
        return await self._reader.acknowledge(self._resolve(project, channel), subscriber, clock)

    # -- Reading -----------------------------------------------------------------------------

    def fetch(
        self,
        project: str,
        channel: str,
        subscriber: str,
        *,
        limit: int,
        wait_s: float = 0.0,
        disconnected: Disconnect | None = None,
    ) -> Awaitable[Fetched]:
        """Return up to `limit` unread messages. Wait up to `wait_s` seconds for the first one.

        Each fetch returns the messages again until the subscriber acknowledges them.
        """
        return self._reader.fetch(
            self._resolve(project, channel),
            subscriber,
            limit=limit,
            wait_s=wait_s,
            disconnected=disconnected,
        )

    def stream(
        self, project: str, channel: str, subscriber: str, *, after: int | None = None
    ) -> ChannelStream:
        """Return a stream that starts after the cursor or after the clock `after`.

        The later of the two applies.
        """
        return self._reader.stream(self._resolve(project, channel), subscriber, after=after)

    def end_polls(self) -> None:
        """End all waiting polls with an empty result. Call this when the server stops."""
        self._reader.end_polls()


_messages = count_family(
    "waystation_channel_messages",
    "Messages published, by outcome (accepted, duplicate, refused).",
    label="outcome",
)
# Stored, because the lookup of a counter by its label costs more than its increment.
_accepted = _messages.of("accepted")
_duplicates = _messages.of("duplicate")
_refused = _messages.of("refused")


def _published(outcome: bytes, clock: bytes) -> Published:
    """Add the outcome of one message to the metrics, and return it."""
    duplicate, full = outcome == b"duplicate", outcome == b"full"
    (_duplicates if duplicate else _refused if full else _accepted).value += 1
    return Published(clock=int(clock or 0), duplicate=duplicate, full=full)
