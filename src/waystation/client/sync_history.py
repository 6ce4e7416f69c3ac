"""The verbs of history for the ordinary client: for operators, with an admin key."""

# Generated from async_history.py by scripts/generate.py; change that one.

from __future__ import annotations

from waystation.client.history import HistoryPlace
from waystation.client.messages import decode_answer
from waystation.client.sync_caller import Caller
from waystation.client.sync_transport import Transport

_PATH = "/v1/history"


class History:
    """See which data set the server has, and where its history is."""

    def __init__(self, transport: Transport) -> None:
        self._caller = Caller(transport)

    def place(self) -> HistoryPlace:
        """Return the data set, the data folder and the lake of the server."""
        return decode_answer(self._caller.call("GET", _PATH), HistoryPlace)
