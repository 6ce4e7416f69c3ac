"""An endpoint: where deliveries go, how they are signed, and how patient we are with it."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable

import msgspec

from waystation.delivery.breaker import BreakerLimits
from waystation.delivery.items import Claimed, Item, decode_item
from waystation.delivery.request import Outcome, Outgoing
from waystation.delivery.schedule import Schedule
from waystation.delivery.settlement import Concluded
from waystation.delivery.signing import Secret, signed_headers

#: Makes an attempt: lane, item.
Deliver = Callable[[str, Claimed], Awaitable[Outcome]]


class Destination(msgspec.Struct, frozen=True, kw_only=True):
    """Where the items of a lane go."""

    url: str
    method: str = "POST"
    headers: tuple[tuple[str, str], ...] = ()


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """What all items of a lane have in common. It is looked up when they are sent.

    So a rotated secret, a corrected URL or a changed schedule holds for what waits already.
    """

    name: str
    schedule: Schedule = Schedule()
    #: Empty: requests are not signed.
    secrets: tuple[Secret, ...] = ()
    #: Value of the Authorization header; empty: none is sent.
    authorization: str = ""
    connect_seconds_max: float = 5.0
    total_seconds_max: float = 30.0
    #: The destination of a lane, None when it has none any more; without it, items have their own.
    locate: Callable[[str], Destination | None] | None = None
    #: Reads what waits in a lane; None when it is nothing that could be sent.
    read: Callable[[str, bytes], Item | None] = lambda _, packed: decode_item(packed)
    #: Whether lanes have different destinations, as with a template in the URL.
    varies: bool = False
    #: How an attempt is made, in the place of reading, requesting and sending.
    deliver: Deliver | None = None
    #: Hears what came of attempts before they are settled, again and again while the store is away.
    concluded: Concluded | None = None
    #: When its breaker opens; operators are notified of one that stays open. None: the defaults,
    #: and no notice.
    breaker: BreakerLimits | None = None

    def target(self, lane: str) -> str | None:
        """What is disabled, held back or left alone as one: the endpoint, or its one destination.

        None when the lane leads nowhere by the settings of now.
        """
        if self.locate is None:
            return self.name
        destination = self.locate(lane)
        if destination is None:
            return None
        if not self.varies:
            return self.name
        return f"{self.name}:{hashlib.sha256(destination.url.encode()).hexdigest()[:12]}"

    def request(self, lane: str, item_id: str, item: Item, *, now_ms: int) -> Outgoing:
        """One attempt for an item, signed as of now."""
        destination = self._destination(lane, item)
        headers = destination.headers
        if self.authorization:
            headers += (("authorization", self.authorization),)
        if self.secrets:
            headers += signed_headers(
                self.secrets, message_id=item_id, body=item.body, now_ms=now_ms
            )
        else:
            # Also unsigned: it is how a receiver knows a repetition.
            headers += (("webhook-id", item_id),)
        return Outgoing(
            url=destination.url,
            method=destination.method,
            headers=headers,
            body=item.body,
            connect_seconds_max=self.connect_seconds_max,
            total_seconds_max=self.total_seconds_max,
        )

    def _destination(self, lane: str, item: Item) -> Destination:
        if self.locate is None:
            return Destination(url=item.url, method=item.method, headers=item.headers)
        destination = self.locate(lane)
        assert destination is not None, "a lane without a destination is not worked on"
        return destination
