"""Reader of the lists that agents write direct responses to.

It takes a response under a lease and deletes it once the pool has it as an answer, so that a crash
loses none. A response that is read twice is the same answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from waystation.acapy.envelopes import read_direct_response
from waystation.acapy.outbound import OutboundQueue
from waystation.errors import InvalidInputError, TooLargeError, WaystationError
from waystation.pools.answers import Answers
from waystation.pools.names import Place
from waystation.runtime.logging import logger
from waystation.runtime.service import Wakeup
from waystation.store.client import Store
from waystation.store.pubsub import RECHECK_S

_log = logger("mirror")

_POLL_SECONDS = 0.2
_TAKE_MAX = 64
_LEASE_MS = 10_000


class DirectResponses:
    """Reads the lists of answers until it is stopped; any number may."""

    def __init__(
        self, store: Store, answers: Answers, place: Place, *, lists: Sequence[str]
    ) -> None:
        self._answers = answers
        self._place = place
        self._queues = [OutboundQueue(store, name) for name in lists]
        self._waiter = Wakeup(recheck_s=RECHECK_S)
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begins."""
        self._task = asyncio.get_running_loop().create_task(self._work())

    async def stop(self) -> None:
        """Finishes what it has taken."""
        self._stopping = True
        self._waiter.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=5.0)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def step(self) -> int:
        """Brings what there is; how many."""
        count = 0
        for queue in self._queues:
            for each in await queue.take(_TAKE_MAX, _LEASE_MS):
                count += 1
                await self._bring(each.raw)
                await queue.done(each.number)
        return count

    async def _bring(self, raw: bytes) -> None:
        try:
            found = read_direct_response(raw)
            await self._answers.put(self._place, found.answer_to, found.content_type, found.data)
        except (InvalidInputError, TooLargeError) as error:
            # Nobody can be waiting for it, whatever it is.
            _log.warning("a direct response is dropped", problem=str(error))

    async def _work(self) -> None:
        while not self._stopping:
            self._waiter.clear()
            count = 0
            try:
                count = await self.step()
            except WaystationError as error:
                _log.warning("direct responses cannot be read", problem=str(error))
            except Exception as error:
                _log.error("reading direct responses broke", error=error)
            if not count and not self._stopping:
                await self._waiter.wait(_POLL_SECONDS)
