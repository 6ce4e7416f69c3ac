"""The committer: writes down what came of messages, one call at a time, many messages a call.

What ends while a call is under way goes with the next. A call that got no reply is sent again as it
is, under its number, until there is one: the script knows repetitions. When it is refused, nothing
more is written by this owner.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from waystation.errors import ShardFrozenError, ShardLostError
from waystation.runtime.logging import logger
from waystation.runtime.service import Wakeup
from waystation.store.pubsub import RECHECK_S
from waystation.subscriptions.commits import ITEMS_MAX, Commits
from waystation.subscriptions.held import Settled, Settlement
from waystation.subscriptions.tenure import Tenure

_log = logger("subscriptions")

#: Bytes of one call, but for one item at least.
_BYTES_MAX = 1_048_576

OnSettled = Callable[[Settled], None]


class Committer:
    """Commits for one owner of a shard."""

    def __init__(
        self, commits: Commits, tenure: Tenure, *, on_committed: Callable[[], None]
    ) -> None:
        self._commits = commits
        self._tenure = tenure
        #: Called after each reply, when all of its items were told.
        self._on_committed = on_committed
        self._waiting: deque[tuple[Settlement, OnSettled]] = deque()
        self._wake = Wakeup(recheck_s=RECHECK_S)
        self._empty = asyncio.Event()
        self._empty.set()
        self._task: asyncio.Task[None] | None = None
        #: Whether the next head of a group is wanted with the reply.
        self.wants_heads = True

    def __repr__(self) -> str:
        return f"<Committer [{len(self._waiting)} waiting]>"

    def start(self) -> None:
        """Begins to commit what is submitted."""
        self._task = asyncio.get_running_loop().create_task(self._work())

    def submit(self, item: Settlement, on_settled: OnSettled) -> None:
        """Has it written down; `on_settled` hears what became of it, unless the shard is lost."""
        self._waiting.append((item, on_settled))
        if len(self._waiting) == 1:
            self._empty.clear()
            self._wake.set()

    async def stop(self, *, seconds: float) -> None:
        """Writes down what was submitted, if that can be done in time; then ends."""
        if self._task is None:
            return
        if not self._tenure.lost:
            self._wake.set()
            waiting = asyncio.ensure_future(self._empty.wait())
            await asyncio.wait(
                {waiting, self._task}, timeout=seconds, return_when="FIRST_COMPLETED"
            )
            waiting.cancel()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._waiting and not self._tenure.lost:
            _log.warning("results were not written down", count=len(self._waiting))

    async def _work(self) -> None:
        while not self._tenure.lost:
            if not self._waiting:
                self._empty.set()
                self._wake.clear()
                await self._wake.wait(float("inf"))
                continue
            batch = self._batch()
            try:
                settled = await self._commit([item for item, _ in batch])
            except (ShardLostError, ShardFrozenError) as refusal:
                self._tenure.lose(refusal.code)
                return
            for _ in batch:
                self._waiting.popleft()
            for (_, on_settled), each in zip(batch, settled, strict=True):
                on_settled(each)
            self._on_committed()

    def _batch(self) -> list[tuple[Settlement, OnSettled]]:
        """The next items. They stay in line until there is a reply."""
        batch: list[tuple[Settlement, OnSettled]] = []
        size = 0
        for each in self._waiting:
            size += len(each[0].record) + len(each[0].detail)
            if len(batch) == ITEMS_MAX or (batch and size > _BYTES_MAX):
                break
            batch.append(each)
        return batch

    async def _commit(self, items: list[Settlement]) -> list[Settled]:
        tenure = self._tenure
        call = tenure.next_call() if self.wants_heads else 0
        # Again with the terms of then: it is the items and the number that make it a repetition.
        committed = await tenure.patiently(
            lambda: self._commits.commit(tenure.place, tenure.terms, items, call=call)
        )
        tenure.committed(committed)
        return committed.items
