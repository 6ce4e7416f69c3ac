"""A channel as an endpoint: messages are published to it, a hundred with one call.

A channel knows a message by its id, so a redelivery is published once. An id that is no name
becomes `h-` and a hash of it; so does every id after a rewind, which is published anew. Two topics
that are delivered to one channel must not share ids: the first content under an id wins there.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Sequence

from waystation.channels.message import Published, is_json
from waystation.delivery.request import Failure, Outcome
from waystation.errors import (
    ForbiddenAddressError,
    InvalidChannelError,
    WaystationError,
)
from waystation.ids import is_name
from waystation.subscriptions.definition import Subscription
from waystation.subscriptions.endpoints.identity import known_as
from waystation.subscriptions.endpoints.means import Means
from waystation.subscriptions.endpoints.protocol import Parcel

PREFIX = "channel:"
#: A name has 63 characters at most; two of them say what the others are.
_HASH_DIGITS = 60

_PUBLISHED = Outcome(status=200)


class ChannelEndpoint:
    """Publishes to one channel."""

    batch_max = 100

    def __init__(self, subscription: Subscription, means: Means) -> None:
        self._project = subscription.project
        self._channel = subscription.endpoint.removeprefix(PREFIX)
        self._seconds_max = subscription.options.timeout_seconds
        self._publish_many = means.publish_many
        self.target = f"{PREFIX}{self._project}.{self._channel}"

    def __repr__(self) -> str:
        return f"<ChannelEndpoint {self.target}>"

    async def send(self, parcels: Sequence[Parcel]) -> list[Outcome]:
        """Publishes in order; what was published before is a success."""
        messages = [(id_in_channel(each), content_of(each.message.data)) for each in parcels]
        try:
            async with asyncio.timeout(self._seconds_max):
                published = await self._publish_many(self._project, self._channel, messages)
        except TimeoutError:
            slow = Outcome(failure=Failure.TIMEOUT, detail="the channel took too long")
            return [slow] * len(parcels)
        except WaystationError as error:
            return [Outcome(failure=_failure(error), detail=error.message)] * len(parcels)
        return [self._outcome(each) for each in published]

    def _outcome(self, published: Published) -> Outcome:
        if not published.full:
            return _PUBLISHED
        return Outcome(failure=Failure.BUSY, detail=f"channel {self._channel} is full")


def id_in_channel(parcel: Parcel) -> str:
    """The id that a message has in a channel."""
    known = known_as(parcel)
    if is_name(known):
        return known
    return f"h-{hashlib.sha256(known.encode()).hexdigest()[:_HASH_DIGITS]}"


def content_of(data: bytes) -> bytes:
    """What is published: JSON as it is, anything else wrapped."""
    if is_json(data):
        return data
    return b'{"base64": "%b"}' % base64.b64encode(data)


def _failure(error: WaystationError) -> Failure:
    if isinstance(error, InvalidChannelError):
        return Failure.REFUSED
    return Failure.FORBIDDEN if isinstance(error, ForbiddenAddressError) else Failure.BUSY
