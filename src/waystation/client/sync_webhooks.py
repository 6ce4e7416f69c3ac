"""The verbs of replies for the ordinary client: what waits, and what was given up.

All of them may be repeated without harm, so they are, when the station is away for a moment.
"""

# Generated from async_webhooks.py by scripts/generate.py; change that one.

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlencode

from waystation.client.messages import decode_answer
from waystation.client.replies import ReplyCount, ReplyInfo, ReplyPage
from waystation.client.sync_caller import Caller
from waystation.client.sync_transport import Transport

_PATH = "/v1/webhooks"


class Webhooks:
    """Look at the replies of the project's transactions, and set them going again."""

    def __init__(self, transport: Transport) -> None:
        self._caller = Caller(transport)

    def failed(self) -> Iterator[ReplyInfo]:
        """Yields replies that were given up."""
        for each in self._pages("failed"):
            yield each

    def waiting(self) -> Iterator[ReplyInfo]:
        """Yields replies that are to be sent, or sent again."""
        for each in self._pages("waiting"):
            yield each

    def redrive(self) -> int:
        """Sends everything again that was given up; returns how many."""
        answer = self._caller.call("POST", f"{_PATH}/redrive")
        return decode_answer(answer, ReplyCount).count

    def _pages(self, state: str) -> Iterator[ReplyInfo]:
        query = {"state": state, "limit": "1000"}
        while True:
            answer = self._caller.call("GET", f"{_PATH}?{urlencode(query)}")
            page = decode_answer(answer, ReplyPage)
            for each in page.replies:
                yield each
            if not page.cursor:
                return
            query["cursor"] = page.cursor
