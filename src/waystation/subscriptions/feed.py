"""The feed of a shard: keeps its line filled from the topic, as far as the bounds allow.

With each batch the store is asked which of its groups are not clean. What was read is not read
again: so it is asked until it has answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from waystation.errors import LogNotFoundError, NotFoundError
from waystation.runtime.logging import logger
from waystation.runtime.service import Wakeup
from waystation.store.pubsub import RECHECK_S
from waystation.subscriptions.ears import Ears
from waystation.subscriptions.line import Line
from waystation.subscriptions.means import ShardMeans
from waystation.subscriptions.reader import Reader
from waystation.subscriptions.tenure import Tenure

_log = logger("subscriptions")

#: A topic without news is looked at again after this, heard of or not; sooner right after some.
_LOOK_SECONDS_MIN = 0.1
_LOOK_SECONDS_MAX = 0.5
#: When nothing was acknowledged for this long, what is here makes room for others.
_STUCK_SECONDS = 0.1
#: A topic that is not there may come back.
_MISSING_SECONDS = 2.0


class Feed:
    """Reads ahead for one owner of a shard."""

    def __init__(
        self,
        tenure: Tenure,
        means: ShardMeans,
        reader: Reader,
        line: Line,
        *,
        on_read: Callable[[], None],
    ) -> None:
        self._tenure = tenure
        self._store = means.store
        self._clock = means.clock
        self._reader = reader
        self._line = line
        self._on_read = on_read
        #: Wakes it: there may be room or news, or it may go on.
        self.waiter = Wakeup(recheck_s=RECHECK_S)
        self._ears = Ears(means.wakeups, self.waiter.set)
        reader.on_enter = self._ears.listen
        #: While there is neither room nor anybody's turn: since when, and how many were open then.
        self._stuck: tuple[float, int] | None = None
        #: Why nothing can be read; empty while it can.
        self.problem = ""

    async def run(self) -> None:
        """Reads until it is cancelled."""
        try:
            await self._run()
        finally:
            self._ears.close()

    async def _run(self) -> None:
        seconds = _LOOK_SECONDS_MIN
        while True:
            self.waiter.clear()
            if not self._may_read():
                await self.waiter.wait(_STUCK_SECONDS if self._stuck else _LOOK_SECONDS_MAX)
                continue
            if await self._tenure.tried(self._read):
                seconds = _LOOK_SECONDS_MIN
                self._on_read()
                # Others come first: reading alone delivers nothing.
                await asyncio.sleep(0)
            else:
                await self.waiter.wait(_MISSING_SECONDS if self.problem else seconds)
                seconds = min(2 * seconds, _LOOK_SECONDS_MAX)

    def _may_read(self) -> bool:
        reader = self._reader
        if self._tenure.is_paused or self._tenure.full:
            return False
        if self._tenure.store_is_full() and reader.outstanding:
            return False
        if reader.has_room or self._line.turns:
            self._stuck = None
            return reader.has_room
        # All that is here waits for others of its group. Where these wait for their commit, it is
        # soon over; else bodies make room, and are read again in their turn.
        now, open_ = self._clock.monotonic(), reader.outstanding
        if self._stuck is None or self._stuck[1] != open_:
            self._stuck = now, open_
        if now - self._stuck[0] < _STUCK_SECONDS:
            return False
        reader.strip(self._line.stuck())
        return reader.has_room

    async def _read(self) -> int:
        """One batch into the line; how many."""
        line = self._line
        line.begin_read()
        try:
            batch = await self._reader.read(sparingly=self._tenure.store_is_full())
            self.problem = ""
            groups = [*{each.group for each in batch if each.group}]
            unknown = [group for group in groups if not line.is_known(group)]
            unclean: set[str] = set()
            if unknown:
                unclean = await self._tenure.patiently(
                    lambda: self._store.unclean(self._tenure.place, unknown)
                )
            for each in batch:
                line.add(each, unclean=each.group in unclean)
        except (NotFoundError, LogNotFoundError) as error:
            if not self.problem:
                place = self._tenure.place.tag
                _log.warning("a topic cannot be read", place=place, problem=str(error))
            self.problem = str(error)
            return 0
        finally:
            line.end_read()
        return len(batch)
