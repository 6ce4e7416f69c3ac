"""Webhooks of channels: what a publish puts into the outbox, and the endpoints that it is sent to.

A message goes to every webhook of its channel's rules, through the outbox: the publish script adds
it in the channel's own slot, so it is there exactly if the message was accepted, and a publish
never waits for a receiver.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from waystation.channel_settings import ChannelRule, WebhookRule
from waystation.channels.rules import Terms
from waystation.clock import Clock
from waystation.delivery.endpoint import Endpoint
from waystation.delivery.headers import check_headers
from waystation.delivery.outbox import Item, Outbox, encode_item
from waystation.delivery.schedule import Schedule
from waystation.delivery.signing import Secret
from waystation.errors import SettingsError

#: A lane is registered again after this long; a registration is good for three times that.
_REGISTER_SECONDS = 20.0
_LANES_MAX = 100_000


class ChannelWebhooks:
    """Makes lanes and items, and keeps lanes registered."""

    def __init__(self, outbox: Outbox, clock: Clock) -> None:
        self._outbox = outbox
        self._clock = clock
        self._registered: dict[str, float] = {}

    async def lanes(self, tag: str, terms: Terms) -> list[str]:
        """The lanes of a channel, registered, so that deliverers will look at them."""
        lanes = [f"c.{tag}.out.{webhook.name}" for webhook in terms.webhooks]
        now = self._clock.monotonic()
        for lane in lanes:
            if now - self._registered.get(lane, float("-inf")) > _REGISTER_SECONDS:
                await self._outbox.register(lane)
                if len(self._registered) >= _LANES_MAX:
                    self._registered.clear()
                self._registered[lane] = now
        return lanes

    def items(self, channel: str, message_id: str, content: bytes, terms: Terms) -> list[bytes]:
        """What is to be sent for one message, one item per webhook."""
        body = (
            b'{"type":"dsps.channel.outgoing-webhook","channelID":"%b","messageID":"%b","content":%b}'
            % (channel.encode(), message_id.encode(), content)
        )
        return [
            encode_item(
                Item(
                    endpoint=webhook.name,
                    url=webhook.url,
                    method=webhook.method,
                    headers=(
                        ("content-type", "application/json"),
                        *webhook.headers.items(),
                    ),
                    body=body,
                    created_ms=self._clock.now_ms(),
                )
            )
            for webhook in terms.webhooks
        ]


def endpoints(rules: Iterable[ChannelRule]) -> dict[str, Endpoint]:
    """The endpoints that the rules name, checked; raises SettingsError at start."""
    found: dict[str, Endpoint] = {}
    for rule in rules:
        for webhook in rule.webhooks:
            where = f"channels.rules {rule.pattern!r}, webhook {webhook.name}"
            if webhook.name in found:
                raise SettingsError(f"{where}: the name is taken by another webhook.")
            found[webhook.name] = _endpoint(webhook, where)
    return found


def _endpoint(webhook: WebhookRule, where: str) -> Endpoint:
    check_headers(webhook.headers.items())
    secrets: tuple[Secret, ...] = ()
    if webhook.secret_file:
        try:
            lines = Path(webhook.secret_file).read_text(encoding="utf-8").split()
        except OSError as error:
            raise SettingsError(f"{where}: secret file: {error.strerror}.") from error
        # Several lines: the first is in force, the others are being replaced.
        secrets = tuple(Secret(line) for line in lines)
    return Endpoint(
        name=webhook.name,
        schedule=Schedule(attempts=webhook.attempts, first_seconds=webhook.first_wait_seconds),
        secrets=secrets,
        total_seconds_max=webhook.timeout_seconds,
    )
