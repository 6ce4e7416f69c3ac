"""What waits to be started in one cell: orders of many callers, shared script calls.

One call is under way, and what comes meanwhile goes with the next. A caller that has gone does not
take its orders along: what was taken over is started.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from waystation.errors import BusyError, WaystationError
from waystation.transactions.cells import BATCH_MAX
from waystation.transactions.entry import Entry, NewTransaction, Started

#: Bytes of one script call; a single transaction may have more.
CALL_BYTES_MAX = 1_048_576
#: What may wait in one lane; a caller beyond that is refused.
_WAITING_MAX = 100_000
_WAITING_BYTES_MAX = 256 * 1_048_576

Result = Started | WaystationError


class Batch:
    """Orders that one caller waits for together."""

    __slots__ = ("_missing", "done", "results")

    def __init__(self, size: int) -> None:
        self.results: list[Result | None] = [None] * size
        self._missing = size
        #: Done when each has its result.
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle(self, position: int, result: Result) -> None:
        """Says what became of one."""
        self.results[position] = result
        self._missing -= 1
        # A caller that gave up has cancelled it.
        if not self._missing and not self.done.done():
            self.done.set_result(None)

    def fail(self, error: BaseException) -> None:
        """Says that nobody can tell what became of the rest."""
        if not self.done.done():
            self.done.set_exception(error)
            # Nobody may ask for it: that is no reason for a warning.
            self.done.exception()


class StartLane:
    """The orders of one cell."""

    def __init__(self, entry: Entry, cell: int) -> None:
        self._entry = entry
        self._cell = cell
        self._waiting: deque[tuple[NewTransaction, int, Batch, int]] = deque()
        self._bytes = 0
        self._task: asyncio.Task[None] | None = None

    def require_room(self, items: int, size: int) -> None:
        """Raises BusyError for more than may wait here."""
        if self._waiting and (
            len(self._waiting) + items > _WAITING_MAX or self._bytes + size > _WAITING_BYTES_MAX
        ):
            raise BusyError("Too many transactions wait to be started.")

    def add(self, item: NewTransaction, size: int, batch: Batch, position: int) -> None:
        """Takes an order over; it is started behind everything that was taken before."""
        self._waiting.append((item, size, batch, position))
        self._bytes += size
        if self._task is None:
            # It begins in the next turn, with all that this turn brings.
            self._task = asyncio.get_running_loop().create_task(self._work())

    async def _work(self) -> None:
        try:
            while self._waiting:
                call = self._next_call()
                try:
                    started: Sequence[Result] = await self._entry.start(
                        self._cell, [item for item, *_ in call]
                    )
                except WaystationError as error:
                    started = [error] * len(call)
                except BaseException as error:
                    for *_, batch, _ in (*call, *self._waiting):
                        batch.fail(error)
                    self._waiting.clear()
                    self._bytes = 0
                    raise
                for (_, _, batch, position), result in zip(call, started, strict=True):
                    batch.settle(position, result)
        finally:
            self._task = None

    def _next_call(self) -> list[tuple[NewTransaction, int, Batch, int]]:
        waiting = self._waiting
        call = [waiting.popleft()]
        size = call[0][1]
        while waiting and len(call) < BATCH_MAX and size + waiting[0][1] <= CALL_BYTES_MAX:
            call.append(waiting.popleft())
            size += call[-1][1]
        self._bytes -= size
        return call

    async def close(self) -> None:
        """Lets what was taken over be started."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
