"""`/v1/history`: which data set a server has, and where its history is."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Controller, Request, get
from litestar.datastructures import State

from waystation.access import Access, Scope
from waystation.config import Config
from waystation.errors import NotFoundError
from waystation.store.keys import DEFAULT_PROJECT


class HistoryPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where the history of a server is. It never has the URL of the store, nor a password."""

    #: The id of the data set in the store.
    dataset: str
    #: Data folder on the machine of the server, an absolute path.
    data: str
    #: Folder or URL of the lake.
    lake: str
    #: Whether the store is the embedded one of the data folder.
    embedded: bool


class HistoryController(Controller):
    """History of the installation; for admin keys of project `default` alone."""

    path = "/history"
    tags = ("history",)

    @get(opt={"scope": Scope.ADMIN}, summary="See where history is")
    async def place(self, request: Request[Any, Any, Any], state: State) -> HistoryPlace:
        """Tells the data set, the data folder and the lake of this server."""
        access = request.scope["state"]["access"]
        assert isinstance(access, Access)
        if access.project != DEFAULT_PROJECT:
            raise NotFoundError("The place of history is shown to keys of project 'default'.")
        place: HistoryPlace = state["history_place"]
        return place


def history_place(settings: Config, dataset: str) -> HistoryPlace:
    """Return the place of the history of a server with these settings."""
    return HistoryPlace(
        dataset=dataset,
        data=str(settings.data_dir),
        lake=settings.public_lake,
        embedded=not settings.store.url,
    )
