"""`/v1/subscriptions/{subscription}/…`: how one stands, what it could not deliver, and why."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from litestar import Controller, Request, get
from litestar.datastructures import State
from litestar.params import FromPath, FromQuery, QueryParameter

from waystation.access import Scope
from waystation.api.wide_subscriptions import check_limit, desk, project_of
from waystation.messages.envelope import check_key, check_time_ms
from waystation.subscriptions.explanation import Explanation
from waystation.subscriptions.listing import DeadLetters, Groups
from waystation.subscriptions.looks import DeadQuery
from waystation.subscriptions.overview import SubscriptionStanding
from waystation.subscriptions.states import GroupState

#: Groups in a list are not clean.
ListedState = Literal["", "retrying", "parked", "redriving"]


class SubscriptionLookController(Controller):
    """Looks; none of them changes anything."""

    path = "/subscriptions/{subscription:str}"
    tags = ("subscriptions",)

    @get("/shards", opt={"scope": Scope.READ}, summary="See how a subscription stands")
    async def shards(
        self, request: Request[Any, Any, Any], state: State, subscription: FromPath[str]
    ) -> SubscriptionStanding:
        """Shows state, lag, retries and dead letters, over all and by shard."""
        return await desk(state).overview.of(project_of(request), subscription)

    @get("/groups", opt={"scope": Scope.READ}, summary="List groups")
    async def groups(
        self,
        request: Request[Any, Any, Any],
        state: State,
        subscription: FromPath[str],
        group_state: Annotated[ListedState, QueryParameter(name="state")] = "",
        cursor: FromQuery[str] = "",
        limit: FromQuery[int] = 100,
    ) -> Groups:
        """Lists groups that are not clean, page by page; only one without a cursor is the last."""
        return await desk(state).listing.groups(
            project_of(request),
            subscription,
            state=GroupState(group_state) if group_state else None,
            cursor=cursor,
            limit=check_limit(limit),
        )

    @get("/dead-letters", opt={"scope": Scope.READ}, summary="List dead letters")
    async def dead_letters(
        self,
        request: Request[Any, Any, Any],
        state: State,
        subscription: FromPath[str],
        group: FromQuery[str] = "",
        failed_after: FromQuery[int] = 0,
        failed_before: FromQuery[int] = 0,
        cause: FromQuery[str] = "",
        payload: FromQuery[bool] = False,
        cursor: FromQuery[str] = "",
        limit: FromQuery[int] = 100,
    ) -> DeadLetters:
        """Lists dead letters, shard after shard, the oldest failure first.

        Of a group all that it has, in order; else the heads of groups, and what stands alone. Times
        are milliseconds since 1970. A page may be empty: only one without a cursor is the last.
        """
        query = DeadQuery(
            group=check_key(group, field="group") if group else "",
            failed_after_ms=check_time_ms(failed_after, field="failed_after"),
            failed_before_ms=check_time_ms(failed_before, field="failed_before"),
            cause=cause,
            cursor=cursor,
            limit=check_limit(limit),
        )
        return await desk(state).listing.dead_letters(
            project_of(request), subscription, query, payload=payload
        )

    @get("/why", opt={"scope": Scope.READ}, summary="Explain a subscription")
    async def why(
        self,
        request: Request[Any, Any, Any],
        state: State,
        subscription: FromPath[str],
        group: FromQuery[str] = "",
        message: FromQuery[str] = "",
        shard: FromQuery[int | None] = None,
    ) -> Explanation:
        """Tells why a message, a group, a shard, or all of it, does not get on: code and sentence.

        With its group a message is found faster.
        """
        return await desk(state).why.explain(
            project_of(request),
            subscription,
            group=check_key(group, field="group") if group else "",
            message=check_key(message, field="message") if message else "",
            shard=shard,
        )
