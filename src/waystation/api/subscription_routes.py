"""The routes of subscriptions that a client can wait at: a group's state, an operation's end."""

from __future__ import annotations

from waystation.access import Scope
from waystation.api import subscription_schemas as schemas
from waystation.api.polls import Polls, wait_seconds
from waystation.api.reply import Reply, json_reply
from waystation.api.request import Request
from waystation.api.routes import Handler, Route
from waystation.api.shown_subscriptions import shown_operation
from waystation.api.transaction_schemas import Told
from waystation.errors import InvalidInputError
from waystation.messages.envelope import check_key
from waystation.subscriptions.desk import Desk
from waystation.subscriptions.operation import ENDED
from waystation.subscriptions.operations import Operations
from waystation.subscriptions.states import GroupState


class SubscriptionRoutes:
    """Handlers of `/v1/subscriptions/{subscription}/group` and `…/operations/{operation}`."""

    def __init__(self, desk: Desk, operations: Operations, *, wait_seconds_max: float) -> None:
        self._desk = desk
        self._operations = operations
        self._wait_seconds_max = wait_seconds_max
        self.polls = Polls()

    async def group(self, request: Request) -> Reply:
        """GET /v1/subscriptions/{subscription}/group?group=&state=parked&wait=30s"""
        assert request.access is not None
        project, (name,) = request.access.project, request.params
        group = check_key(request.query("group") or "", field="group")
        state, seconds = _state(request.query("state")), self._wait(request)
        if seconds and state is None:
            raise InvalidInputError("Say which state to wait for.", field="state")
        standing = await self.polls.until(
            lambda: self._desk.listing.group(project, name, group),
            lambda found: found.state is state,
            seconds=seconds,
            abandonment=request.abandonment,
        )
        return json_reply(standing)

    async def operation(self, request: Request) -> Reply:
        """GET /v1/subscriptions/{subscription}/operations/{operation}?wait=30s"""
        assert request.access is not None
        project, (name, operation) = request.access.project, request.params
        found = await self.polls.until(
            lambda: self._operations.get(project, name, operation),
            lambda seen: seen.state in ENDED,
            seconds=self._wait(request),
            abandonment=request.abandonment,
        )
        return json_reply(shown_operation(found, project))

    def _wait(self, request: Request) -> float:
        return wait_seconds(request.query("wait"), most=self._wait_seconds_max) or 0.0

    def routes(self) -> list[Route]:
        """The two rows of the route table."""
        path = "/v1/subscriptions/{subscription}"
        return [
            _row(f"{path}/group", self.group, schemas.GROUP),
            _row(f"{path}/operations/{{operation}}", self.operation, schemas.OPERATION),
        ]


def _row(path: str, handler: Handler, told: Told) -> Route:
    return Route(
        method="GET",
        path=path,
        handler=handler,
        scope=Scope.READ,
        manner="own",
        tag="subscriptions",
        summary=told.summary,
        description=told.description,
        parameters=told.parameters,
        responses=told.responses,
    )


def _state(text: str | None) -> GroupState | None:
    if not text:
        return None
    try:
        return GroupState(text)
    except ValueError as error:
        raise InvalidInputError(
            f"There is no state {text[:40]!r}.",
            field="state",
            hint=f"There are {', '.join(GroupState)}.",
        ) from error
