"""The route that producers send messages of a pool through."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from waystation.access import Scope
from waystation.api import pool_schemas as schemas
from waystation.api.pool_messages import PoolMessages, Received, shown_answer
from waystation.api.reply import Reply, json_reply
from waystation.api.request import ClientGoneError, Request
from waystation.api.routes import Handler, Route
from waystation.api.transaction_schemas import Told
from waystation.errors import PoolFullError
from waystation.pools import Pool, Pools
from waystation.pools.answers import Answer
from waystation.pools.definition import require_answers
from waystation.pools.held import Enqueued
from waystation.runtime.ids import IdSource


class PoolRoutes:
    """Handler of `/v1/pools/{pool}/messages`."""

    def __init__(self, pools: Pools, *, identity: IdSource, wait_seconds_max: float) -> None:
        self._pools = pools
        self._messages = PoolMessages(identity)
        self._wait_seconds_max = wait_seconds_max

    async def send(self, request: Request) -> Reply:
        """POST /v1/pools/{pool}/messages?key="""
        assert request.access is not None
        project, (name,) = request.access.project, request.params
        pool = await self._pools.use(project, name)
        received = self._messages.read(project, name, request, await request.body())
        if received.wait_seconds is not None:
            require_answers(pool)
        items = await self._pools.enqueue(project, name, received.letters)
        told = [
            _enqueued(each.id, item) for each, item in zip(received.letters, items, strict=True)
        ]
        if all(item.outcome == "full" for item in items):
            raise PoolFullError(f"Pool {name} has no room.")
        if received.wait_seconds is not None:
            answer = await self._answer(request, pool, received)
            told[0]["answer"] = shown_answer(answer, project)
        return json_reply({"results": told} if received.batch else told[0])

    async def _answer(self, request: Request, pool: Pool, received: Received) -> Answer | None:
        """The answer; a client that hangs up is not waited for."""
        seconds = min(received.wait_seconds or 0.0, self._wait_seconds_max)
        coming = self._pools.answers.wait(
            pool.place, received.answer_to, seconds=seconds, keep=True
        )
        answer, gone = asyncio.ensure_future(coming), request.abandonment()
        try:
            await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise ClientGoneError
            return answer.result()
        finally:
            answer.cancel()
            gone.cancel()
            await asyncio.gather(answer, gone, return_exceptions=True)

    def routes(self) -> list[Route]:
        """The one row of the route table."""
        return [row("POST", "/v1/pools/{pool}/messages", self.send, schemas.SEND)]


def row(method: str, path: str, handler: Handler, told: Told) -> Route:
    """A row of the route table."""
    return Route(
        method=method,
        path=path,
        handler=handler,
        scope=Scope.WRITE,
        manner="own",
        tag="pools",
        summary=told.summary,
        description=told.description,
        parameters=told.parameters,
        request_body=told.request_body,
        responses=told.responses,
    )


def _enqueued(message_id: str, item: Enqueued) -> dict[str, Any]:
    return {"id": message_id, **msgspec.structs.asdict(item)}
