"""The committer: sends moves to the store, many in one call, and tells what became of each.

There is one call under way for each cell and kind of move; what comes meanwhile goes with the next.
While the store is away a call is sent again and again: moves can be repeated. Only an answer ends
it, or the end of the process. A move that the store cannot read costs nobody but its own run.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from waystation.errors import BusyError, StoreError, StoreReplyError
from waystation.runtime.logging import logger
from waystation.transactions.cells import BATCH_MAX
from waystation.transactions.held import Verdict
from waystation.transactions.progress import (
    Commit,
    FanOpen,
    FanWait,
    Finish,
    Move,
    PassOn,
    Progress,
    Sleep,
)
from waystation.transactions.run import Run

_log = logger("committer")

#: What one call carries; a single move may have more.
_BYTES_MAX = 4 * 1_048_576
#: Fields to drop in one call; a single move may have more.
_DROPS_MAX = 4000
_PAUSE_SECONDS = 0.05
_PAUSE_SECONDS_MAX = 1.0

#: What became of a move; None: it cannot be applied, and nobody will try again.
OnVerdict = Callable[[Run, Move, Verdict | None], None]
_Pair = tuple[Run, Move]


class _Lane:
    """Moves of one kind in one cell."""

    def __init__(self, cell: int, send: Callable[[int, Any], Any]) -> None:
        self.cell = cell
        self.send = send
        self.waiting: deque[_Pair] = deque()
        self.busy = False


class Committer:
    """Gathers moves and sends them."""

    def __init__(self, progress: Progress, on_verdict: OnVerdict) -> None:
        self._verbs: dict[type[Any], Callable[[int, Any], Any]] = {
            Commit: progress.commit,
            Finish: progress.finish,
            PassOn: progress.pass_on,
            Sleep: progress.sleep,
            FanOpen: progress.fan_open,
            FanWait: progress.fan_wait,
        }
        self._on_verdict = on_verdict
        self._lanes: dict[tuple[int, type[Any]], _Lane] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<Committer [{sum(len(each.waiting) for each in self._lanes.values())} moves wait]>"

    def submit(self, run: Run, move: Move) -> None:
        """Sends a move; the verdict comes by itself."""
        key = (run.cell, type(move))
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane(run.cell, self._verbs[type(move)])
        lane.waiting.append((run, move))
        if not lane.busy:
            lane.busy = True
            # It begins in the next turn, and takes along what this one still brings.
            task = asyncio.get_running_loop().create_task(self._work(lane))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def stop(self, *, seconds: float) -> None:
        """Waits for the verdicts that are under way, but not longer than that."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, lane: _Lane) -> None:
        try:
            while lane.waiting:
                pairs = _batch(lane.waiting)
                verdicts = await self._send(lane, pairs)
                for (run, move), verdict in zip(pairs, verdicts, strict=True):
                    self._on_verdict(run, move, verdict)
        finally:
            lane.busy = False

    async def _send(self, lane: _Lane, pairs: Sequence[_Pair]) -> list[Verdict | None]:
        pause = _PAUSE_SECONDS
        moves = [move for _, move in pairs]
        while True:
            try:
                return list(await lane.send(lane.cell, moves))
            except StoreReplyError as error:
                if len(pairs) > 1:
                    return [(await self._send(lane, [each]))[0] for each in pairs]
                _log.error("a move cannot be applied", error=error, transaction=pairs[0][0].id)
                return [None]
            except (StoreError, BusyError) as error:
                _log.warning("moves wait for the store", problem=str(error), moves=len(pairs))
            await asyncio.sleep(pause)
            pause = min(pause * 2, _PAUSE_SECONDS_MAX)


def _batch(waiting: deque[_Pair]) -> list[_Pair]:
    pairs: list[_Pair] = []
    size = drops = 0
    while waiting and len(pairs) < BATCH_MAX:
        move = waiting[0][1]
        size += move.size
        drops += len(move.drop)
        if pairs and (size > _BYTES_MAX or drops > _DROPS_MAX):
            break
        pairs.append(waiting.popleft())
    return pairs
