"""What operators get to see of history."""

from __future__ import annotations

import msgspec


class HistoryPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where the history of a server is."""

    #: The id of the data set in the store.
    dataset: str
    #: Data folder on the machine of the server.
    data: str
    #: Folder or URL of the lake.
    lake: str
    #: Whether the store is the embedded one of the data folder.
    embedded: bool
