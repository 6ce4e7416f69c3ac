"""Webhooks of channels: the outbox queues of a channel, and the endpoints in channel rules.

The publish script adds each accepted message to the outbox queue of every webhook. The queues are
in the slot of the channel, so that a message is queued if and only if it was accepted. A publish
never waits for a receiver. The outbox item is the stored message. The deliverer creates the request
body and chooses the URL by the rules at the time of the delivery.
"""

from __future__ import annotations

from waystation.channels import keys
from waystation.channels.model import ResolvedChannel, decode_message
from waystation.channels.rules import (
    ChannelRules,
    has_template_fields,
    rule_location,
    sample_texts,
)
from waystation.config import ChannelRule, WebhookRule
from waystation.delivery.addresses import AddressGuard
from waystation.delivery.endpoint import Destination, Endpoint
from waystation.delivery.headers import check_authorization, check_headers
from waystation.delivery.outbox import Item
from waystation.delivery.schedule import Schedule
from waystation.delivery.secret_file import read_lines, read_secrets
from waystation.errors import ForbiddenAddressError, InvalidInputError, SettingsError

_FORBIDDEN_HINT = (
    "Allow its network with `delivery.allowed_networks`; this machine with `delivery.loopback`."
)
#: Request body, equal to that of DSPS. Names need no escaping, and the content is JSON.
_BODY = b'{"type":"dsps.channel.outgoing-webhook","channelID":"%b","messageID":"%b","content":%b}'


def checked_queues(channel: ResolvedChannel, guard: AddressGuard) -> list[str]:
    """Return the outbox queues of a channel's webhooks.

    Raise ForbiddenAddressError if the URL of a webhook has a forbidden address.
    """
    for webhook in channel.terms.webhooks:
        guard.check_url(webhook.url)
    tag = keys.channel_tag(channel.project, channel.name)
    return [keys.outbox_lane(tag, webhook.name) for webhook in channel.terms.webhooks]


def webhook_endpoints(rules: tuple[ChannelRule, ...], guard: AddressGuard) -> dict[str, Endpoint]:
    """Return the endpoints of all webhooks by name. Raise SettingsError if one is invalid."""
    # Pass any expiry, because these rules are used only to find the webhooks of a channel.
    compiled = ChannelRules(rules, expire_seconds=1)
    endpoints: dict[str, Endpoint] = {}
    for rule in rules:
        for webhook in rule.webhooks:
            where = f"{rule_location(rule)}, webhook {webhook.name}"
            if webhook.name in endpoints:
                raise SettingsError(f"{where}: another webhook has the same name.")
            endpoints[webhook.name] = _endpoint(webhook, compiled, guard, where)
    return endpoints


def _endpoint(
    webhook: WebhookRule, rules: ChannelRules, guard: AddressGuard, where: str
) -> Endpoint:
    def locate(queue: str) -> Destination | None:
        found = keys.channel_of_lane(queue)
        terms = rules.terms_of(found[1]) if found else None
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
        hint = error.hint or (_FORBIDDEN_HINT if isinstance(error, ForbiddenAddressError) else "")
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
        read=_read_item,
        varies=has_template_fields(webhook.url),
    )


def _read_item(queue: str, stored: bytes) -> Item | None:
    """Return the request body for a stored message. Return None if it is not a channel message."""
    found, message = keys.channel_of_lane(queue), decode_message(stored)
    if found is None or message is None:
        return None
    return Item(body=_BODY % (found[1].encode(), message.id.encode(), message.content))


def _check_url(template: str, guard: AddressGuard) -> None:
    """Raise InvalidInputError if the URL of a webhook is invalid or has a forbidden address.

    Check a URL with fields twice: with `x` and with `1` in place of every field. One valid result
    is enough, because `checked_queues` checks the URL of each channel.
    """
    problem: InvalidInputError | None = None
    for text in sample_texts(template):
        try:
            guard.check_url(text)
        except InvalidInputError as error:
            problem = error
        else:
            return
    if problem is not None:
        raise problem
