"""Public types of history for operators."""

from __future__ import annotations

import msgspec


class HistoryPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Data set, data folder and lake of a server."""

    #: The id of the data set in the store.
    dataset: str
    #: Data folder on the machine of the server.
    data: str
    #: Folder or URL of the lake.
    lake: str
    #: Whether the store is the embedded one of the data folder.
    embedded: bool
