"""`/v1/pools/{pool}/dead-letters`: what workers could not settle; sent again, or deleted."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Controller, Request, get, post
from litestar.datastructures import State
from litestar.params import FromPath, FromQuery, JSONBody
from msgspec import Meta

from waystation.access import Scope
from waystation.api.exact_body import ExactBody
from waystation.api.wide_pools import Done, check_limit, pools_of, project_of
from waystation.errors import InvalidInputError
from waystation.messages.envelope import unpack
from waystation.messages.formats import message_json
from waystation.pools.dead_letters import BATCH_MAX

Number = Annotated[int, Meta(ge=1, le=2**53 - 1)]


class ShownDeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter as the API shows it."""

    number: int
    key: str
    #: Why, as its last worker said.
    cause: str
    tries: int
    #: How often its worker ended meanwhile.
    crashes: int
    enqueued_ms: int
    failed_ms: int
    message: dict[str, Any]


class PoolDeadLetters(msgspec.Struct, frozen=True, kw_only=True):
    """A page of dead letters, the oldest failure first; an empty one is the last."""

    dead_letters: list[ShownDeadLetter]
    cursor: str


class Selection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which dead letters: these numbers, or all that there are now."""

    numbers: Annotated[list[Number], Meta(max_length=BATCH_MAX)] = []
    all: bool = False


class PoolDeadLetterController(Controller):
    """What workers could not settle."""

    path = "/pools/{pool:str}/dead-letters"
    tags = ("pools",)

    @get(opt={"scope": Scope.READ}, summary="List dead letters of a pool")
    async def dead_letters(
        self,
        request: Request[Any, Any, Any],
        state: State,
        pool: FromPath[str],
        cursor: FromQuery[str] = "",
        limit: FromQuery[int] = BATCH_MAX,
    ) -> PoolDeadLetters:
        """Lists dead letters, the oldest failure first; a page without any is the last."""
        pools, found = pools_of(state), await pools_of(state).get(project_of(request), pool)
        page = await pools.dead_letters.page(
            found.place, pools.terms(found), cursor=cursor, limit=check_limit(limit)
        )
        rows = [
            ShownDeadLetter(
                number=each.number,
                key=each.key,
                cause=each.cause,
                tries=each.tries,
                crashes=each.crashes,
                enqueued_ms=each.enqueued_ms,
                failed_ms=each.failed_ms,
                message=message_json(unpack(each.packed, project=found.project)),
            )
            for each in page.items
        ]
        return PoolDeadLetters(dead_letters=rows, cursor=page.cursor)

    @post(
        "/redrive",
        opt={"scope": Scope.ADMIN},
        summary="Send dead letters of a pool again",
        status_code=200,
        dto=ExactBody[Selection],
        return_dto=None,
    )
    async def redrive(
        self,
        request: Request[Any, Any, Any],
        state: State,
        pool: FromPath[str],
        data: JSONBody[Selection],
    ) -> Done:
        """Puts them to the ends of their keys' lists; 503 when there is no room for more."""
        pools, found = pools_of(state), await pools_of(state).get(project_of(request), pool)
        numbers = _numbers(data)
        return Done(
            count=await pools.dead_letters.redrive(found.place, pools.terms(found), numbers)
        )

    @post(
        "/purge",
        opt={"scope": Scope.ADMIN},
        summary="Delete dead letters of a pool",
        status_code=200,
        dto=ExactBody[Selection],
        return_dto=None,
    )
    async def purge(
        self,
        request: Request[Any, Any, Any],
        state: State,
        pool: FromPath[str],
        data: JSONBody[Selection],
    ) -> Done:
        """Deletes them for good."""
        pools, found = pools_of(state), await pools_of(state).get(project_of(request), pool)
        numbers = _numbers(data)
        return Done(count=await pools.dead_letters.purge(found.place, pools.terms(found), numbers))


def _numbers(selection: Selection) -> list[int]:
    if selection.all == bool(selection.numbers):
        raise InvalidInputError("Name numbers, or say all.", field="numbers")
    return selection.numbers
