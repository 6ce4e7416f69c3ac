"""Webhooks of channels: what a publish puts into the outbox, and the endpoints that it is sent to.

A message goes to every webhook of its channel's rules, through the outbox: the publish script adds
it in the channel's own slot, so it is there exactly if the message was accepted, and a publish
never waits for a receiver. What waits there is the message as the channel keeps it: the body that
a webhook gets is made when it is sent, and where it goes is decided then, by the rules of that
moment. A publisher pays for neither.
"""

from __future__ import annotations

from waystation.channels import keys
from waystation.channels.model import decode_message
from waystation.channels.rules import ChannelRules, Terms
from waystation.channels.templates import has_fields, sample_fills
from waystation.config import ChannelRule, WebhookRule
from waystation.delivery.addresses import AddressGuard
from waystation.delivery.endpoint import Destination, Endpoint
from waystation.delivery.headers import check_authorization, check_headers
from waystation.delivery.outbox import Item
from waystation.delivery.schedule import Schedule
from waystation.delivery.secret_file import read_lines, read_secrets
from waystation.errors import ForbiddenAddressError, InvalidInputError, SettingsError

_OPENING = "Open its network with delivery.allowed_networks; this machine, with delivery.loopback."
#: As DSPS sends it. Names need no escape, and the content is JSON already.
_BODY = b'{"type":"dsps.channel.outgoing-webhook","channelID":"%b","messageID":"%b","content":%b}'


def lanes(tag: str, terms: Terms, guard: AddressGuard) -> list[str]:
    """The lanes of a channel; raises when one of them leads to a forbidden address."""
    for webhook in terms.webhooks:
        guard.check_url(webhook.url)
    return [keys.outbox_lane(tag, webhook.name) for webhook in terms.webhooks]


def endpoints(rules: tuple[ChannelRule, ...], guard: AddressGuard) -> dict[str, Endpoint]:
    """The endpoints that the rules name, checked; raises SettingsError at start."""
    book = ChannelRules(rules, expire_seconds=1)
    found: dict[str, Endpoint] = {}
    for rule in rules:
        for webhook in rule.webhooks:
            where = f"channels.rules {rule.pattern!r}, webhook {webhook.name}"
            if webhook.name in found:
                raise SettingsError(f"{where}: the name is taken by another webhook.")
            found[webhook.name] = _endpoint(webhook, book, guard, where)
    return found


def _endpoint(
    webhook: WebhookRule, book: ChannelRules, guard: AddressGuard, where: str
) -> Endpoint:
    def locate(lane: str) -> Destination | None:
        place = keys.channel_of_lane(lane)
        terms = book.terms(place[1]) if place else None
        for each in terms.webhooks if terms else ():
            if each.name == webhook.name:
                headers = (("content-type", "application/json"), *each.headers.items())
                return Destination(url=each.url, method=each.method, headers=headers)
        return None

    try:
        _check_url(webhook.url, guard)
        check_headers(webhook.headers.items())
        authorization = check_authorization(read_lines(webhook.authorization_file, where))
        secrets = read_secrets(webhook.secret_file, where)
    except InvalidInputError as error:
        hint = error.hint or (_OPENING if isinstance(error, ForbiddenAddressError) else "")
        raise SettingsError(f"{where}: {error.message}", hint=hint) from error
    return Endpoint(
        name=webhook.name,
        schedule=Schedule(
            attempts=webhook.attempts,
            first_seconds=webhook.first_wait_seconds,
            growth=webhook.growth,
            multiplier=webhook.multiplier,
            minimum_seconds=webhook.wait_seconds_min,
            maximum_seconds=webhook.wait_seconds_max,
            jitter=webhook.jitter,
            fatal_codes=webhook.fatal_codes,
            retry_codes=webhook.retry_codes,
        ),
        secrets=secrets,
        authorization=authorization,
        connect_seconds_max=min(webhook.connect_timeout_seconds, webhook.timeout_seconds),
        total_seconds_max=webhook.timeout_seconds,
        locate=locate,
        read=_read,
        varies=has_fields(webhook.url),
    )


def _read(lane: str, kept: bytes) -> Item | None:
    place, message = keys.channel_of_lane(lane), decode_message(kept)
    if place is None or message is None:
        return None
    body = _BODY % (place[1].encode(), message.id.encode(), message.content)
    return Item(body=body)


def _check_url(template: str, guard: AddressGuard) -> None:
    """Refuses what can be refused without a channel: any fill that passes will do."""
    problem: InvalidInputError | None = None
    for filled in sample_fills(template):
        try:
            guard.check_url(filled)
        except InvalidInputError as error:
            problem = error
        else:
            return
    if problem is not None:
        raise problem
