"""The herald: makes known what an endpoint asks for, to this process at once, to all by the store.

One that answered 410 wants nothing more: it is disabled until somebody enables it. One that said
429 with `Retry-After` is left alone until then, for half a minute at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from waystation.delivery.notices import Notice
from waystation.delivery.standing import Standing
from waystation.subscriptions.means import ShardMeans
from waystation.subscriptions.tenure import Tenure
from waystation.subscriptions.verdicts import Decided


class Herald:
    """Tells for one owner of a shard."""

    def __init__(self, tenure: Tenure, means: ShardMeans) -> None:
        self._tenure = tenure
        self._means = means
        self._tasks: set[asyncio.Task[None]] = set()

    def tell(self, decided: Decided, standing: Standing) -> None:
        """What an endpoint asked for with its reply."""
        if decided.disable:
            if not standing.disabled:
                standing.disable(known=False)
                self._begin(self._disable(standing, decided.cause))
            return
        standing.hold(self._means.clock.monotonic() + decided.hold_seconds)
        self._begin(self._hold(standing.target, decided.hold_seconds))

    def tell_hold(self, standing: Standing, seconds: float) -> None:
        """Tell all processes that the endpoint told us to wait; this one knows it."""
        self._begin(self._hold(standing.target, seconds))

    async def stop(self, *, seconds: float) -> None:
        """Lets the store be told what it was not yet, if that can be done in time."""
        tasks = set(self._tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _disable(self, standing: Standing, cause: str) -> None:
        notice = Notice(
            kind="disabled",
            endpoint=standing.target,
            lane=self._tenure.place.tag,
            cause=cause,
            at_ms=self._means.clock.now_ms(),
        )
        states = self._means.states
        if await self._tenure.patiently(lambda: states.disable(standing.target, notice)):
            self._means.announce(notice)
        standing.disable(known=True)

    async def _hold(self, target: str, seconds: float) -> None:
        await self._tenure.patiently(lambda: self._means.states.hold(target, seconds))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
