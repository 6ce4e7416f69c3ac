"""The verbs of archiving for the asynchronous client: for operators, with an admin key.

All of them may be repeated without harm, so they are, when the station is away for a moment.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import urlencode

import msgspec

from waystation.client.archive import ArchiveStatus, Retried, SetAside, SetAsidePage
from waystation.client.async_caller import AsyncCaller
from waystation.client.async_transport import AsyncTransport
from waystation.client.messages import decode_answer

_PATH = "/v1/archive"


class AsyncArchive:
    """See who archives, what waits for it, and what was refused."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._caller = AsyncCaller(transport)

    async def status(self) -> ArchiveStatus:
        """How archiving stands, in all cells."""
        found = await self._page("")
        while found.cursor:
            page = await self._page(found.cursor)
            cells = [*found.cells, *page.cells]
            found = msgspec.structs.replace(page, cells=cells)
        return found

    async def set_aside(self) -> AsyncIterator[SetAside]:
        """Yields what the archive has refused, with the cause."""
        query = {"limit": "1000"}
        while True:
            answer = await self._caller.call("GET", f"{_PATH}/set-aside?{urlencode(query)}")
            page = decode_answer(answer, SetAsidePage)
            for each in page.set_aside:
                yield each
            if not page.cursor:
                return
            query["cursor"] = page.cursor

    async def retry(self) -> int:
        """Has all that was set aside archived at once; returns how many were not due."""
        answer = await self._caller.call("POST", f"{_PATH}/retry")
        return decode_answer(answer, Retried).count

    async def _page(self, cursor: str) -> ArchiveStatus:
        query = urlencode({"cursor": cursor})
        return decode_answer(await self._caller.call("GET", f"{_PATH}?{query}"), ArchiveStatus)
