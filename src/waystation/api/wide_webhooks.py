"""`/v1/webhooks` and `/v1/transactions/{id}/webhook`: replies that wait, and those given up.

A reply goes to a webhook, a channel or a topic; all of them are here. To ask twice does no harm.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from litestar import Controller, Request, delete, get, post
from litestar.datastructures import State
from litestar.params import FromPath, FromQuery, QueryParameter

from waystation.access import Access, Scope
from waystation.errors import InvalidInputError
from waystation.transactions.reply_desk import ReplyDesk, ReplyRow
from waystation.transactions.reply_standing import ReplyStanding

_PAGE_MAX = 1000


class ReplyPage(msgspec.Struct, kw_only=True):
    """A page of replies; `cursor` leads to the next and is empty on the last."""

    replies: list[ReplyRow]
    cursor: str


class ReplyCount(msgspec.Struct, kw_only=True):
    """How many replies it was about."""

    count: int


class WebhookController(Controller):
    """Replies to transactions of the caller's own project."""

    path = "/"
    tags = ("webhooks",)

    @get("/webhooks", opt={"scope": Scope.READ}, summary="List replies")
    async def list_replies(
        self,
        request: Request[Any, Any, Any],
        state: State,
        wanted: Annotated[
            Literal["failed", "waiting"],
            QueryParameter(name="state", description="Those given up, or those that wait."),
        ] = "failed",
        cursor: FromQuery[str] = "",
        limit: FromQuery[int] = 100,
    ) -> ReplyPage:
        """Lists replies that were given up, or those that wait."""
        if not 1 <= limit <= _PAGE_MAX:
            raise InvalidInputError(f"limit must be between 1 and {_PAGE_MAX}.", field="limit")
        rows, following = await _desk(state).page(
            _project(request), state=wanted, cursor=cursor, limit=limit
        )
        return ReplyPage(replies=rows, cursor=following)

    @post("/webhooks/redrive", opt={"scope": Scope.WRITE}, summary="Redrive all", status_code=200)
    async def redrive_all(self, request: Request[Any, Any, Any], state: State) -> ReplyCount:
        """Sends everything again that was given up, with all its attempts before it."""
        return ReplyCount(count=await _desk(state).redrive(_project(request)))

    @get("/transactions/{id:str}/webhook", opt={"scope": Scope.READ}, summary="See its replies")
    async def standing(
        self,
        request: Request[Any, Any, Any],
        state: State,
        id: FromPath[str],  # noqa: A002 (so it is called in the path)
    ) -> ReplyStanding:
        """Shows whether its client was told, what is on its way, and the newest attempts."""
        return await _desk(state).standing(_project(request), id)

    @post(
        "/transactions/{id:str}/webhook/redrive",
        opt={"scope": Scope.WRITE},
        summary="Redrive its replies",
        status_code=200,
    )
    async def redrive(
        self,
        request: Request[Any, Any, Any],
        state: State,
        id: FromPath[str],  # noqa: A002 (so it is called in the path)
    ) -> ReplyCount:
        """Sends again what was given up of its replies: the newest that has happened."""
        return ReplyCount(count=await _desk(state).redrive(_project(request), id))

    @delete(
        "/transactions/{id:str}/webhook",
        opt={"scope": Scope.WRITE},
        summary="Discard its replies",
        status_code=200,
    )
    async def discard(
        self,
        request: Request[Any, Any, Any],
        state: State,
        id: FromPath[str],  # noqa: A002 (so it is called in the path)
    ) -> ReplyCount:
        """Forgets what waits and what was given up of its replies; what happens next is sent."""
        return ReplyCount(count=await _desk(state).discard(_project(request), id))


def _project(request: Request[Any, Any, Any]) -> str:
    access = request.scope["state"]["access"]
    assert isinstance(access, Access)
    return access.project


def _desk(state: State) -> ReplyDesk:
    desk: ReplyDesk = state["replies"]
    return desk
