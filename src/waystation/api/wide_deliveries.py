"""`/v1/deliveries`: what waits and what failed, and the ways to set it going again."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Controller, Request, get, post
from litestar.datastructures import State
from litestar.params import FromQuery, JSONBody
from msgspec import Meta

from waystation.access import Access, Scope
from waystation.delivery.desk import AttemptRow, Desk, EndpointRow, FailedRow, Selection, owner_of
from waystation.delivery.notices import Notice
from waystation.errors import InvalidInputError, NotFoundError
from waystation.runtime.ids import NAME_PATTERN, require_name
from waystation.store.keys import DEFAULT_PROJECT

#: A name, and a digest behind it where the endpoint has several destinations.
_NAME = NAME_PATTERN.strip("^$")
#: Or a receiver of replies to transactions: its kind, its project, its name.
_RECEIVER = rf"[wct]\.{_NAME}\.{_NAME}"
_TARGET = rf"^({_NAME}(:[0-9a-f]{{12}})?|{_RECEIVER})$"
#: Or an address that subscriptions deliver to: its host, and a digest of the whole.
_ENABLED = rf"^({_NAME}|{_RECEIVER}|[0-9a-z._:-]{{1,253}}:[0-9a-f]{{12}})$"
Target = Annotated[str, Meta(pattern=_TARGET)]
Name = Annotated[str, Meta(pattern=NAME_PATTERN)]
ItemId = Annotated[str, Meta(min_length=1, max_length=300)]
_PAGE_MAX = 1000


class FailedPage(msgspec.Struct, kw_only=True):
    """A page of failed deliveries; `cursor` leads to the next and is empty on the last."""

    failed: list[FailedRow]
    cursor: str


class Chosen(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which failed deliveries: of an endpoint, or of one of its channels, or a single one."""

    endpoint: Target
    channel: Name | None = None
    id: ItemId | None = None


class Discarded(Chosen, kw_only=True, forbid_unknown_fields=True):
    """Which deliveries are to be forgotten: failed ones, or those that wait."""

    waiting: bool = False


class Enabled(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which endpoint."""

    endpoint: Annotated[str, Meta(pattern=_ENABLED)]


class Count(msgspec.Struct, kw_only=True):
    """How many deliveries it was about."""

    count: int


class DeliveryController(Controller):
    """Deliveries of the caller's own project."""

    path = "/deliveries"
    tags = ("deliveries",)

    @get(opt={"scope": Scope.ADMIN}, summary="List endpoints")
    async def list_endpoints(
        self, request: Request[Any, Any, Any], state: State
    ) -> list[EndpointRow]:
        """Lists endpoints with their state, and how much waits for them and has failed."""
        return await _desk(state).endpoints(_project(request))

    @get("/failed", opt={"scope": Scope.ADMIN}, summary="List failed deliveries")
    async def list_failed(
        self,
        request: Request[Any, Any, Any],
        state: State,
        endpoint: FromQuery[str] = "",
        channel: FromQuery[str] = "",
        cursor: FromQuery[str] = "",
        limit: FromQuery[int] = 100,
    ) -> FailedPage:
        """Lists failed deliveries page by page, the oldest of each channel first."""
        if not 1 <= limit <= _PAGE_MAX:
            raise InvalidInputError(f"limit must be between 1 and {_PAGE_MAX}.", field="limit")
        selection = Selection(_project(request), endpoint, channel)
        rows, following = await _desk(state).failed(selection, limit=limit, cursor=cursor)
        return FailedPage(failed=rows, cursor=following)

    @get("/attempts", opt={"scope": Scope.ADMIN}, summary="List attempts")
    async def list_attempts(
        self,
        request: Request[Any, Any, Any],
        state: State,
        endpoint: FromQuery[str],
        channel: FromQuery[str],
        id: FromQuery[str] = "",  # noqa: A002 (so it is called in the query)
    ) -> list[AttemptRow]:
        """Lists the newest attempts of a channel to an endpoint, or of one delivery."""
        name = require_name(endpoint.partition(":")[0], field="endpoint")
        selection = Selection(_project(request), name, require_name(channel, field="channel"))
        return await _desk(state).attempts(selection, id)

    @get("/notices", opt={"scope": Scope.ADMIN}, summary="List notices")
    async def list_notices(self, request: Request[Any, Any, Any], state: State) -> list[Notice]:
        """Lists the newest notices to the operator, newest first. For keys of `default` alone."""
        _require_operator(request)
        return await _desk(state).notices(most=_PAGE_MAX)

    @post("/redrive", opt={"scope": Scope.ADMIN}, summary="Redrive", status_code=200)
    async def redrive(
        self, request: Request[Any, Any, Any], state: State, data: JSONBody[Chosen]
    ) -> Count:
        """Puts failed deliveries back, to be sent at once, with all their attempts before them."""
        count = await _desk(state).redrive(_selection(request, data), item_id=data.id or "")
        if data.id and not count:
            raise NotFoundError("No failed delivery has this id.")
        return Count(count=count)

    @post("/discard", opt={"scope": Scope.ADMIN}, summary="Discard", status_code=200)
    async def discard(
        self, request: Request[Any, Any, Any], state: State, data: JSONBody[Discarded]
    ) -> Count:
        """Forgets deliveries for good: failed ones, or those that wait."""
        count = await _desk(state).discard(
            _selection(request, data), waiting=data.waiting, item_id=data.id or ""
        )
        if data.id and not count:
            raise NotFoundError("No such delivery has this id.")
        return Count(count=count)

    @post("/enable", opt={"scope": Scope.ADMIN}, summary="Enable an endpoint", status_code=200)
    async def enable(
        self, request: Request[Any, Any, Any], state: State, data: JSONBody[Enabled]
    ) -> EndpointRow:
        """Sends to a disabled endpoint again, what waits first.

        For keys of `default` alone, but for receivers of replies of the caller's own project.
        """
        if owner_of(data.endpoint) != _project(request):
            _require_operator(request)
        desk = _desk(state)
        changed = await desk.enable(data.endpoint)
        for row in await desk.endpoints(_project(request)):
            if row.endpoint == data.endpoint:
                return row
        if not changed:
            raise NotFoundError(f"There is no endpoint {data.endpoint}.")
        return EndpointRow(endpoint=data.endpoint, state="enabled")


def _selection(request: Request[Any, Any, Any], chosen: Chosen) -> Selection:
    if chosen.id and not chosen.channel:
        raise InvalidInputError("An id needs its channel.", field="channel")
    return Selection(_project(request), chosen.endpoint, chosen.channel or "")


def _require_operator(request: Request[Any, Any, Any]) -> None:
    if _project(request) != DEFAULT_PROJECT:
        raise NotFoundError("Endpoints are managed with keys of project 'default'.")


def _project(request: Request[Any, Any, Any]) -> str:
    access = request.scope["state"]["access"]
    assert isinstance(access, Access)
    return access.project


def _desk(state: State) -> Desk:
    desk: Desk = state["desk"]
    return desk
