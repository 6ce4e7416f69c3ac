"""`/v1/archive`: who archives, what waits for it, and what the archive has refused."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Controller, Request, get, post
from litestar.datastructures import State
from litestar.params import FromQuery

from waystation.access import Access, Scope
from waystation.errors import InvalidInputError, NotFoundError
from waystation.store.keys import DEFAULT_PROJECT
from waystation.transactions.archive_standing import ArchivePage, ArchiveStanding
from waystation.transactions.archiving import SetAside

_PAGE_MAX = 1000


class SetAsidePage(msgspec.Struct, kw_only=True):
    """A page of what was set aside; `cursor` leads to the next and is empty on the last."""

    set_aside: list[SetAside]
    cursor: str


class Retried(msgspec.Struct, kw_only=True):
    """How many were not due before."""

    count: int


class ArchiveController(Controller):
    """Archiving of all projects; for keys of project `default` alone."""

    path = "/archive"
    tags = ("archive",)

    @get(opt={"scope": Scope.ADMIN}, summary="See how archiving stands")
    async def status(
        self, request: Request[Any, Any, Any], state: State, cursor: FromQuery[str] = ""
    ) -> ArchivePage:
        """Tells what waits in each cell and for how long, who archives, how much was set aside."""
        _require_operator(request)
        return await _standing(state).page(cursor)

    @get("/set-aside", opt={"scope": Scope.ADMIN}, summary="List what was set aside")
    async def set_aside(
        self,
        request: Request[Any, Any, Any],
        state: State,
        cursor: FromQuery[str] = "",
        limit: FromQuery[int] = 100,
    ) -> SetAsidePage:
        """Lists what the archive has refused, with the cause; a page may be empty."""
        _require_operator(request)
        if not 1 <= limit <= _PAGE_MAX:
            raise InvalidInputError(f"limit must be between 1 and {_PAGE_MAX}.", field="limit")
        rows, following = await _standing(state).set_aside(cursor, limit=limit)
        return SetAsidePage(set_aside=rows, cursor=following)

    @post("/retry", opt={"scope": Scope.ADMIN}, summary="Retry what was set aside", status_code=200)
    async def retry(self, request: Request[Any, Any, Any], state: State) -> Retried:
        """Has all that was set aside archived at once, instead of within the hour."""
        _require_operator(request)
        return Retried(count=await _standing(state).retry())


def _require_operator(request: Request[Any, Any, Any]) -> None:
    access = request.scope["state"]["access"]
    assert isinstance(access, Access)
    if access.project != DEFAULT_PROJECT:
        raise NotFoundError("Archiving is seen with keys of project 'default'.")


def _standing(state: State) -> ArchiveStanding:
    standing: ArchiveStanding = state["archiving"]
    return standing
