"""A channel as an endpoint: messages are published to it, a hundred with one call.

A channel deduplicates by id, so a redelivery is published once. The id in the channel is
`<message id>-<20 hex digits>`. The digits are a hash of the delivery id (`identity.py`), so
different messages with the same id are different messages in the channel too. A message id that
leaves no room for them, or is not a name, becomes `h-` and 60 hex digits of the same hash.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Sequence

from waystation.channels.model import Published
from waystation.delivery.request import Failure, Outcome
from waystation.errors import (
    ForbiddenAddressError,
    InvalidChannelError,
    WaystationError,
)
from waystation.runtime.ids import is_name
from waystation.runtime.json_text import is_json
from waystation.subscriptions.definition import Subscription
from waystation.subscriptions.endpoints.identity import delivery_id
from waystation.subscriptions.endpoints.means import Means
from waystation.subscriptions.endpoints.protocol import Parcel, received

PREFIX = "channel:"
#: Digits behind a message id. Only messages with the same id could collide, so 80 bits are plenty.
_SUFFIX_DIGITS = 20
#: Digits in the place of a message id: a name has 63 characters at most, `h-` takes two of them.
_HASH_DIGITS = 60


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
        """Publish in order. A message that the channel already has counts as delivered."""
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
            return received(str(published.clock), duplicate=published.duplicate)
        return Outcome(failure=Failure.BUSY, detail=f"channel {self._channel} is full")


def id_in_channel(parcel: Parcel) -> str:
    """Return the id that a message has in a channel."""
    digits = hashlib.sha256(delivery_id(parcel).encode()).hexdigest()
    known = f"{parcel.message.id}-{digits[:_SUFFIX_DIGITS]}"
    return known if is_name(known) else f"h-{digits[:_HASH_DIGITS]}"


def content_of(data: bytes) -> bytes:
    """What is published: JSON as it is, anything else wrapped."""
    if is_json(data):
        return data
    return b'{"base64": "%b"}' % base64.b64encode(data)


def _failure(error: WaystationError) -> Failure:
    if isinstance(error, InvalidChannelError):
        return Failure.REFUSED
    return Failure.FORBIDDEN if isinstance(error, ForbiddenAddressError) else Failure.BUSY
