"""Notices to the operator: what was given up or dropped, who was disabled, what nobody does.

A notice is an event in a capped stream of the store, a line in the log, and, if there is one, a
request to the URL of the settings. That request goes through the same guarded sender as all others
while nobody waits for it; if it fails, that is logged and nothing else: a notice never causes
another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Literal

import msgspec

from waystation.delivery.request import Outgoing
from waystation.delivery.schedule import describe
from waystation.delivery.sender import Sender
from waystation.runtime.logging import logger
from waystation.store.client import Store

_log = logger("delivery")

NOTICES = "delivery.{endpoints}.notices"
NOTICES_MAX = 1000
#: Requests to the URL that are under way, and with those that wait; the rest of a flood of notices
#: is in the stream and in the log, not at the URL's door.
_REQUESTS_MAX = 16
_REQUESTS_WAITING_MAX = 1000
_REQUEST_SECONDS_MAX = 10.0

Kind = Literal["failed", "disabled", "dropped", "resting", "unarchived", "unsent", "set-aside"]
_SENTENCES: dict[Kind, str] = {
    "failed": "a delivery was given up",
    "disabled": "an endpoint was disabled",
    "dropped": "deliveries were dropped: too many wait",
    "resting": "an endpoint failed too often and is left alone for a while",
    "unarchived": "transactions wait to be archived, and nobody does it",
    "unsent": "webhooks wait to be sent, and nobody does it",
    "set-aside": "transactions cannot be archived and were set aside",
}


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that an operator should know."""

    kind: Kind
    #: The endpoint, with its destination where it has several.
    endpoint: str
    lane: str
    cause: str
    at_ms: int
    #: Of a delivery that was given up.
    id: str = ""
    attempts: int = 0


encode_notice = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Notice).decode


class Notices:
    """Tells the operator."""

    def __init__(
        self,
        store: Store,
        sender: Sender,
        *,
        begin: Callable[[Coroutine[Any, Any, None]], object],
        url: str = "",
    ) -> None:
        self._store = store
        self._begin = begin
        self._sender = sender
        self._url = url
        self._room = asyncio.Semaphore(_REQUESTS_MAX)
        self._waiting = 0

    async def tell(self, notice: Notice) -> None:
        """Writes the event, then announces it."""
        await self._store.call(
            "XADD", NOTICES, "MAXLEN", "~", NOTICES_MAX, "*", "n", encode_notice(notice),
            repeatable=True,
        )  # fmt: skip
        self.announce(notice)

    def announce(self, notice: Notice) -> None:
        """Tells of an event that is written: the log, and, while the caller goes on, the URL."""
        log = _log.warning if notice.kind == "dropped" else _log.error
        log(
            _SENTENCES[notice.kind],
            endpoint=notice.endpoint,
            lane=notice.lane,
            id=notice.id,
            attempts=notice.attempts,
            cause=notice.cause,
        )
        if not self._url:
            return
        if self._waiting >= _REQUESTS_WAITING_MAX:
            _log.warning("a notice is not sent to its URL: too many wait", id=notice.id)
            return
        self._waiting += 1
        self._begin(self._request(notice))

    async def _request(self, notice: Notice) -> None:
        content = {"type": f"waystation.delivery.{notice.kind}", **msgspec.to_builtins(notice)}
        request = Outgoing(
            url=self._url,
            headers=(("content-type", "application/json"),),
            body=msgspec.json.encode(content),
            total_seconds_max=_REQUEST_SECONDS_MAX,
        )
        try:
            async with self._room:
                outcome = await self._sender.send(request)
        finally:
            self._waiting -= 1
        if not outcome.succeeded:
            _log.warning("a notice could not be sent to its URL", problem=describe(outcome))


async def latest_notices(store: Store, *, most: int) -> list[Notice]:
    """The newest notices, newest first."""
    entries = await store.call("XREVRANGE", NOTICES, "+", "-", "COUNT", most, repeatable=True)
    return [_decode(fields[1]) for _, fields in entries]
