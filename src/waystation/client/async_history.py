"""The verbs of history for the asynchronous client: for operators, with an admin key."""

from __future__ import annotations

from waystation.client.async_caller import AsyncCaller
from waystation.client.async_transport import AsyncTransport
from waystation.client.history import HistoryPlace
from waystation.client.messages import decode_answer

_PATH = "/v1/history"


class AsyncHistory:
    """See which data set the server has, and where its history is."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._caller = AsyncCaller(transport)

    async def place(self) -> HistoryPlace:
        """Return the data set, the data folder and the lake of the server."""
        return decode_answer(await self._caller.call("GET", _PATH), HistoryPlace)
