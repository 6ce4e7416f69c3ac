"""The verbs of replies for the asynchronous client: what waits, and what was given up.

All of them may be repeated without harm, so they are, when the station is away for a moment.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import urlencode

from waystation.client.async_caller import AsyncCaller
from waystation.client.async_transport import AsyncTransport
from waystation.client.messages import decode_answer
from waystation.client.replies import ReplyCount, ReplyInfo, ReplyPage

_PATH = "/v1/webhooks"


class AsyncWebhooks:
    """Look at the replies of the project's transactions, and set them going again."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._caller = AsyncCaller(transport)

    async def failed(self) -> AsyncIterator[ReplyInfo]:
        """Yields replies that were given up."""
        async for each in self._pages("failed"):
            yield each

    async def waiting(self) -> AsyncIterator[ReplyInfo]:
        """Yields replies that are to be sent, or sent again."""
        async for each in self._pages("waiting"):
            yield each

    async def redrive(self) -> int:
        """Sends everything again that was given up; returns how many."""
        answer = await self._caller.call("POST", f"{_PATH}/redrive")
        return decode_answer(answer, ReplyCount).count

    async def _pages(self, state: str) -> AsyncIterator[ReplyInfo]:
        query = {"state": state, "limit": "1000"}
        while True:
            answer = await self._caller.call("GET", f"{_PATH}?{urlencode(query)}")
            page = decode_answer(answer, ReplyPage)
            for each in page.replies:
                yield each
            if not page.cursor:
                return
            query["cursor"] = page.cursor
