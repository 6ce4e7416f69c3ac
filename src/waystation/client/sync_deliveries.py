"""The verbs of deliveries for the ordinary client: for operators, with an admin key."""

# Generated from async_deliveries.py by scripts/generate.py; change that one.

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar
from urllib.parse import urlencode

from waystation.client.deliveries import (
    DeliveryAttempt,
    DeliveryCount,
    DeliveryEndpoint,
    FailedDelivery,
    FailedPage,
)
from waystation.client.messages import decode_answer, raise_for
from waystation.client.sync_transport import Transport
from waystation.runtime.json_values import encode_json

_T = TypeVar("_T")
_PATH = "/v1/deliveries"


class Deliveries:
    """Look at what waits and what failed, and set it going again."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def endpoints(self) -> list[DeliveryEndpoint]:
        """All endpoints with their state and how much waits and failed."""
        return self._get("", {}, list[DeliveryEndpoint])

    def failed(self, *, endpoint: str = "", channel: str = "") -> Iterator[FailedDelivery]:
        """Failed deliveries, page after page."""
        cursor = ""
        while True:
            query = {"endpoint": endpoint, "channel": channel, "cursor": cursor}
            page = self._get("/failed", query, FailedPage)
            for each in page.failed:
                yield each
            cursor = page.cursor
            if not cursor:
                return

    def attempts(self, endpoint: str, channel: str, *, item_id: str = "") -> list[DeliveryAttempt]:
        """The newest attempts of a channel to an endpoint, or of one delivery."""
        query = {"endpoint": endpoint, "channel": channel, "id": item_id}
        return self._get("/attempts", query, list[DeliveryAttempt])

    def redrive(self, endpoint: str, *, channel: str = "", item_id: str = "") -> int:
        """Puts failed deliveries back, to be sent at once; returns how many."""
        return self._move("/redrive", endpoint, channel, item_id)

    def discard(
        self, endpoint: str, *, channel: str = "", item_id: str = "", waiting: bool = False
    ) -> int:
        """Forgets failed, or waiting, deliveries for good; returns how many."""
        return self._move("/discard", endpoint, channel, item_id, waiting=waiting)

    def enable(self, endpoint: str) -> DeliveryEndpoint:
        """Sends to a disabled endpoint again; returns how it stands now."""
        return self._post("/enable", {"endpoint": endpoint}, DeliveryEndpoint)

    def _move(self, verb: str, endpoint: str, channel: str, item_id: str, **options: bool) -> int:
        chosen: dict[str, Any] = {"endpoint": endpoint, **options}
        if channel:
            chosen["channel"] = channel
        if item_id:
            chosen["id"] = item_id
        return (self._post(verb, chosen, DeliveryCount)).count

    def _get(self, path: str, query: dict[str, str], kind: type[_T]) -> _T:
        told = urlencode({name: value for name, value in query.items() if value})
        answer = self._transport.request("GET", f"{_PATH}{path}?{told}")
        raise_for(answer)
        return decode_answer(answer, kind)

    def _post(self, path: str, content: dict[str, Any], kind: type[_T]) -> _T:
        body = encode_json(content)
        answer = self._transport.request("POST", f"{_PATH}{path}", body=body)
        raise_for(answer)
        return decode_answer(answer, kind)
