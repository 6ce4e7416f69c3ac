"""An HTTP endpoint: every message is one request, signed, with the headers that it came with.

    POST /hook HTTP/1.1
    content-type: application/json          of the message, as all x-… and ce-… headers
    traceparent: 00-…                       of the message, where it has one
    waystation-subscription: billing
    waystation-topic: orders
    waystation-group: order-17              where it has one; UTF-8, as it was produced
    waystation-id: o17-0                    of the message, as its producer gave it
    waystation-position: 0.3.17             storage topic, partition, offset
    waystation-attempt: 1
    webhook-id: billing:1:0-3-17:o17-0      the delivery id: the same for every attempt, and another
                                            for every other message (`identity.py`)
    webhook-timestamp, webhook-signature    by the Standard Webhooks specification

A header of the subscription stands in the place of the message's own. The address is judged when
the subscription is created, and again on the socket that is opened.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from waystation.delivery.request import Outcome, Outgoing
from waystation.delivery.signing import Secret, signed_headers
from waystation.messages.envelope import Headers
from waystation.subscriptions.definition import Subscription
from waystation.subscriptions.endpoints.identity import delivery_id
from waystation.subscriptions.endpoints.means import Means
from waystation.subscriptions.endpoints.protocol import Parcel

_CONTENT_TYPE = "content-type"
#: Of a message that does not say what it is; libcurl would call it a form.
_BYTES = (_CONTENT_TYPE, "application/octet-stream")
#: Time to connect is a part of the whole.
_CONNECT_SECONDS_MAX = 5.0


class HttpEndpoint:
    """Sends messages to a URL."""

    #: A request is one message.
    batch_max = 1

    def __init__(
        self, subscription: Subscription, secrets: tuple[Secret, ...], means: Means
    ) -> None:
        options = subscription.options
        self.target = target_of(subscription.endpoint)
        self._url = subscription.endpoint
        self._method = options.method
        self._secrets = secrets
        self._means = means
        self._seconds_max = options.timeout_seconds
        self._connect_seconds_max = min(_CONNECT_SECONDS_MAX, self._seconds_max)
        self._overruled = frozenset(name.lower() for name, _ in options.headers)
        self._untyped = _CONTENT_TYPE not in self._overruled
        self._constant: Headers = (
            *options.headers,
            ("waystation-subscription", subscription.name),
            ("waystation-topic", subscription.topic),
        )

    def __repr__(self) -> str:
        return f"<HttpEndpoint {self.target}>"

    async def send(self, parcels: Sequence[Parcel]) -> list[Outcome]:
        """One request after the other; a shard gives one at a time."""
        return [await self._means.sender.send(self.request(parcel)) for parcel in parcels]

    def begin(self, parcel: Parcel, done: Callable[[Outcome], None]) -> Callable[[], None] | None:
        """Begins the request of one attempt, if the sender can begin it at once."""
        return self._means.sender.begin(self.request(parcel), done)

    def request(self, parcel: Parcel) -> Outgoing:
        """The request of one attempt, signed as of now."""
        return Outgoing(
            url=self._url,
            method=self._method,
            headers=self._headers(parcel),
            body=parcel.message.data,
            connect_seconds_max=self._connect_seconds_max,
            total_seconds_max=self._seconds_max,
        )

    def _headers(self, parcel: Parcel) -> Headers:
        message, at = parcel.message, parcel.position
        kept = [*message.headers]
        if self._overruled:
            kept = [each for each in kept if each[0] not in self._overruled]
        if self._untyped and _CONTENT_TYPE not in [each[0] for each in kept]:
            kept.append(_BYTES)
        if message.traceparent is not None:
            kept.append(("traceparent", message.traceparent))
        if message.group is not None:
            kept.append(("waystation-group", message.group))
        return (
            *kept,
            *self._constant,
            ("waystation-id", message.id),
            ("waystation-position", f"{at.storage}.{at.partition}.{at.offset}"),
            ("waystation-attempt", str(parcel.attempt)),
            *self._signed(delivery_id(parcel), message.data),
        )

    def _signed(self, webhook_id: str, body: bytes) -> Headers:
        if not self._secrets:
            # Also unsigned: it is how a receiver knows a repetition.
            return (("webhook-id", webhook_id),)
        now_ms = self._means.clock.now_ms()
        return signed_headers(self._secrets, message_id=webhook_id, body=body, now_ms=now_ms)


def target_of(url: str) -> str:
    """What a URL is called where endpoints have a standing; all who send to it share that."""
    host = urlsplit(url).hostname or ""
    return f"{host}:{hashlib.sha256(url.encode()).hexdigest()[:12]}"
