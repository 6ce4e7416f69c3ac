"""`/v1/subscriptions/{subscription}/…`: redrive, skip, purge and reset, and what became of them.

To redrive and to skip is for who writes; what is not delivered any more by a purge, or delivered
again by a reset, is for admin keys.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Controller, Request, get, post
from litestar.datastructures import State
from litestar.params import FromPath, FromQuery, JSONBody
from msgspec import Meta

from waystation.access import Scope
from waystation.api.exact_body import ExactBody
from waystation.api.shown_subscriptions import ShownOperation, shown_operation
from waystation.api.wide_subscriptions import check_limit, dispatch, project_of
from waystation.messages.envelope import KEY_CHARACTERS_MAX
from waystation.subscriptions.definition import StartAt
from waystation.subscriptions.operation import Asked

Key = Annotated[str, Meta(min_length=1, max_length=KEY_CHARACTERS_MAX)]
Ms = Annotated[int, Meta(ge=0, le=2**53 - 1)]


class Selection(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which dead letters: of a group, up to a message of one, of a time, or all."""

    group: Key | None = None
    message: Key | None = None
    #: When the head failed; before is exclusive. 0: whenever.
    failed_after: Ms = 0
    failed_before: Ms = 0
    #: Messages in a second, of all shards; None: as fast as it goes.
    rate: Annotated[float, Meta(gt=0, le=1_000_000)] | None = None
    #: Counts, and does nothing.
    dry_run: bool = False


class Skip(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Whose head is not to be delivered any more."""

    group: Key


class Reset(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Where it is to begin anew: `beginning`, `end`, or a time in ms."""

    to: StartAt


class OperationPage(msgspec.Struct, kw_only=True):
    """A page of operations, the newest first; `cursor` is empty on the last."""

    operations: list[ShownOperation]
    cursor: str


class SubscriptionOperationController(Controller):
    """Operations of the caller's own project."""

    path = "/subscriptions/{subscription:str}"
    tags = ("subscriptions",)

    @post(
        "/redrive",
        opt={"scope": Scope.WRITE},
        summary="Redrive dead letters",
        status_code=202,
        dto=ExactBody[Selection],
        return_dto=None,
    )
    async def redrive(
        self,
        request: Request[Any, Any, Any],
        state: State,
        subscription: FromPath[str],
        data: JSONBody[Selection],
    ) -> ShownOperation:
        """Delivers dead letters again, in the order of their groups."""
        return await _begin(request, state, subscription, _selected("redrive", data))

    @post(
        "/purge",
        opt={"scope": Scope.ADMIN},
        summary="Purge dead letters",
        status_code=202,
        dto=ExactBody[Selection],
        return_dto=None,
    )
    async def purge(
        self,
        request: Request[Any, Any, Any],
        state: State,
        subscription: FromPath[str],
        data: JSONBody[Selection],
    ) -> ShownOperation:
        """Settles dead letters for good; of a named group also what waits in retry."""
        return await _begin(request, state, subscription, _selected("purge", data))

    @post(
        "/skip",
        opt={"scope": Scope.WRITE},
        summary="Skip the head of a group",
        status_code=202,
        dto=ExactBody[Skip],
        return_dto=None,
    )
    async def skip(
        self,
        request: Request[Any, Any, Any],
        state: State,
        subscription: FromPath[str],
        data: JSONBody[Skip],
    ) -> ShownOperation:
        """Settles it without delivering it; the others of its group are delivered then."""
        asked = Asked(kind="skip", group=data.group)
        return await _begin(request, state, subscription, asked)

    @post(
        "/reset",
        opt={"scope": Scope.ADMIN},
        summary="Begin anew",
        status_code=202,
        dto=ExactBody[Reset],
        return_dto=None,
    )
    async def reset(
        self,
        request: Request[Any, Any, Any],
        state: State,
        subscription: FromPath[str],
        data: JSONBody[Reset],
    ) -> ShownOperation:
        """Delivers the topic anew from somewhere; what is in retry comes first."""
        asked = Asked(kind="reset", to=data.to)
        return await _begin(request, state, subscription, asked)

    @get("/operations", opt={"scope": Scope.READ}, summary="List operations")
    async def list_operations(
        self,
        request: Request[Any, Any, Any],
        state: State,
        subscription: FromPath[str],
        cursor: FromQuery[str] = "",
        limit: FromQuery[int] = 100,
    ) -> OperationPage:
        """Lists operations that are remembered, the newest first."""
        check_limit(limit)
        project = project_of(request)
        found = await dispatch(state).operations.list(
            project, subscription, after=cursor, limit=limit + 1
        )
        rows = [shown_operation(each, project) for each in found[:limit]]
        return OperationPage(operations=rows, cursor=rows[-1].id if len(found) > limit else "")

    @post(
        "/operations/{operation:str}/pause",
        opt={"scope": Scope.WRITE},
        summary="Pause an operation",
        status_code=200,
    )
    async def pause(
        self,
        request: Request[Any, Any, Any],
        state: State,
        subscription: FromPath[str],
        operation: FromPath[str],
    ) -> ShownOperation:
        """Marks nothing more for now; what is marked goes on."""
        project, operations = project_of(request), dispatch(state).operations
        return shown_operation(await operations.pause(project, subscription, operation), project)

    @post(
        "/operations/{operation:str}/resume",
        opt={"scope": Scope.WRITE},
        summary="Resume an operation",
        status_code=200,
    )
    async def resume(
        self,
        request: Request[Any, Any, Any],
        state: State,
        subscription: FromPath[str],
        operation: FromPath[str],
    ) -> ShownOperation:
        """Goes on where it was."""
        project, operations = project_of(request), dispatch(state).operations
        return shown_operation(await operations.resume(project, subscription, operation), project)

    @post(
        "/operations/{operation:str}/cancel",
        opt={"scope": Scope.WRITE},
        summary="Cancel an operation",
        status_code=200,
    )
    async def cancel(
        self,
        request: Request[Any, Any, Any],
        state: State,
        subscription: FromPath[str],
        operation: FromPath[str],
    ) -> ShownOperation:
        """Marks nothing more; what is marked goes on."""
        project, operations = project_of(request), dispatch(state).operations
        return shown_operation(await operations.cancel(project, subscription, operation), project)


async def _begin(
    request: Request[Any, Any, Any], state: State, subscription: str, asked: Asked
) -> ShownOperation:
    project = project_of(request)
    begun = await dispatch(state).operations.begin(project, subscription, asked)
    return shown_operation(begun, project)


def _selected(kind: Any, selection: Selection) -> Asked:
    return Asked(
        kind=kind,
        group=selection.group or "",
        message=selection.message or "",
        failed_after_ms=selection.failed_after,
        failed_before_ms=selection.failed_before,
        rate=selection.rate,
        dry_run=selection.dry_run,
    )
