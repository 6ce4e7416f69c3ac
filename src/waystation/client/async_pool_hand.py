"""A hand of a pool's worker: calls the handler with one message, and tells what came of it."""

from __future__ import annotations

from typing import Any

from waystation.client.async_background import AsyncHandler
from waystation.client.async_pool_link import AsyncPoolLink
from waystation.client.pool_messages import (
    GiveUpError,
    PoolMessage,
    Taken,
    TryAgainError,
    answer_of,
)
from waystation.client.pool_workload import Finished
from waystation.errors import WaystationError
from waystation.runtime.logging import logger

_log = logger("client")

_CAUSE_MAX = 1000


class AsyncPoolHand:
    """Calls one handler."""

    def __init__(self, link: AsyncPoolLink, handler: AsyncHandler) -> None:
        self._link = link
        self._handler = handler

    async def handle(self, taken: Taken, message: PoolMessage) -> Finished:
        """Whatever the handler raises is told to the pool, and ends nothing here."""
        try:
            value = await self._handler(message)
            if taken.answer_to and value is not None:
                # Before it is settled: who waits gets an answer, or the message comes again.
                await self._answer(taken, value)
        except GiveUpError as error:
            return Finished(taken, "dead", _cause(error))
        except TryAgainError as error:
            return Finished(taken, "again", str(error)[:_CAUSE_MAX], error.after_seconds)
        except Exception as error:
            _log.warning("a handler failed", message=message.id, problem=_cause(error))
            return Finished(taken, "again", _cause(error))
        return Finished(taken, "done")

    async def _answer(self, taken: Taken, value: Any) -> None:
        try:
            await self._link.say("answer", dict, {"answer_to": taken.answer_to, **answer_of(value)})
        except WaystationError as error:
            # A step that was answered before, by a worker that died then, or has ended.
            if error.code not in ("callback.used", "callback.unknown"):
                raise


def _cause(error: Exception) -> str:
    text = str(error)
    return (f"{type(error).__name__}: {text}" if text else type(error).__name__)[:_CAUSE_MAX]
