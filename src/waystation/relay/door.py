"""The HTTP door: `POST /` takes one envelope.

200 without a body says that the envelope is durable in its pool; a sender that wants the answer at
once gets it in the reply's body, if it comes in time. What is no envelope is 400, and says why; a
store that is away is 503: a sender never waits for longer than the deadlines say.
"""

from __future__ import annotations

import asyncio
from functools import lru_cache

from waystation.acapy.envelopes import WIRE
from waystation.acapy.recipients import recipient_key
from waystation.api.reply import TEXT, Reply
from waystation.api.request import ClientGoneError, Request
from waystation.errors import InvalidInputError
from waystation.pools.answers import Answer
from waystation.relay.http_app import no_such_method, no_such_path
from waystation.relay.relay import Accepted, Relay
from waystation.runtime.durations import parse_duration

#: What the plugin's relay says to a person who opens an invitation in a browser.
INVITATION = (
    b"You have received a connection invitation. To accept the invitation, paste it into your "
    b"agent application."
)
_WAIT = b"waystation-wait"
_TYPE = b"content-type"
_TYPE_MAX = 200


class HttpDoor:
    """Handles the requests of an HTTP door."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    async def handle(self, request: Request) -> Reply:
        """Every request."""
        if request.scope["path"] != "/":
            return no_such_path(request)
        match request.scope["method"]:
            case "POST":
                return await self._take(request)
            case "GET" | "HEAD":
                invited = request.query("c_i") is not None
                return Reply(200, INVITATION, (TEXT,)) if invited else Reply(200)
            case _:
                return no_such_method(request, "GET", "POST")

    async def _take(self, request: Request) -> Reply:
        headers: dict[bytes, bytes] = dict(request.scope["headers"])
        seconds = _wait_seconds(headers.get(_WAIT))
        body = await request.body()
        found = recipient_key(body)
        accepted = await self._relay.accept(
            body,
            found,
            "http",
            content_type=_content_type(headers.get(_TYPE)),
            wanted=seconds is not None,
        )
        if not accepted.answer_to:
            return Reply(200)
        answer = await self._answer(request, accepted, seconds)
        if answer is None or not answer.data:
            return Reply(200)
        return Reply(200, answer.data, ((_TYPE, answer.content_type.encode()),))

    async def _answer(
        self, request: Request, accepted: Accepted, seconds: float | None
    ) -> Answer | None:
        """The answer; a client that hangs up is not waited for."""
        answer = asyncio.ensure_future(self._relay.answer(accepted, seconds=seconds))
        gone = request.abandonment()
        try:
            await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise ClientGoneError
            return answer.result()
        finally:
            answer.cancel()
            gone.cancel()
            await asyncio.gather(answer, gone, return_exceptions=True)


def _wait_seconds(text: bytes | None) -> float | None:
    if text is None:
        return None
    seconds = parse_duration(text.decode("latin-1"))
    if seconds is None or seconds < 0:
        raise InvalidInputError("waystation-wait is no duration, such as 15s.", field="headers")
    return seconds


@lru_cache(maxsize=64)
def _content_type(text: bytes | None) -> str:
    # Kept: agents say the same few again and again.
    told = (text or b"").decode("latin-1")
    fits = told.isascii() and told.isprintable() and 0 < len(told) <= _TYPE_MAX
    return told if fits else WIRE
