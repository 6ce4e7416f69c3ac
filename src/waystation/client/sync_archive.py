"""The verbs of archiving for the ordinary client: for operators, with an admin key.

All of them may be repeated without harm, so they are, when the station is away for a moment.
"""

# Generated from async_archive.py by scripts/generate.py; change that one.

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlencode

import msgspec

from waystation.client.archive import ArchiveStatus, Retried, SetAside, SetAsidePage
from waystation.client.messages import decode_answer
from waystation.client.sync_caller import Caller
from waystation.client.sync_transport import Transport

_PATH = "/v1/archive"


class Archive:
    """See who archives, what waits for it, and what was refused."""

    def __init__(self, transport: Transport) -> None:
        self._caller = Caller(transport)

    def status(self) -> ArchiveStatus:
        """How archiving stands, in all cells."""
        found = self._page("")
        while found.cursor:
            page = self._page(found.cursor)
            cells = [*found.cells, *page.cells]
            found = msgspec.structs.replace(page, cells=cells)
        return found

    def set_aside(self) -> Iterator[SetAside]:
        """Yields what the archive has refused, with the cause."""
        query = {"limit": "1000"}
        while True:
            answer = self._caller.call("GET", f"{_PATH}/set-aside?{urlencode(query)}")
            page = decode_answer(answer, SetAsidePage)
            for each in page.set_aside:
                yield each
            if not page.cursor:
                return
            query["cursor"] = page.cursor

    def retry(self) -> int:
        """Has all that was set aside archived at once; returns how many were not due."""
        answer = self._caller.call("POST", f"{_PATH}/retry")
        return decode_answer(answer, Retried).count

    def _page(self, cursor: str) -> ArchiveStatus:
        query = urlencode({"cursor": cursor})
        return decode_answer(self._caller.call("GET", f"{_PATH}?{query}"), ArchiveStatus)
