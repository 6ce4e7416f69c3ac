"""The claimer: free slots become claims, in all cells in one turn of the event loop, one batch
ahead.

Each cell is asked for its share of what can be held, 100 at most, from another one first every
time; those that gave all they were asked for get the rest. A cell without work is left alone until
its hint comes; hints get lost, so now and then all are asked. That is also how a process knows that
it is not deaf.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from waystation.errors import BusyError, OutcomeUnknownError, StoreDataLostError, StoreError
from waystation.runtime.clock import Clock
from waystation.runtime.logging import logger
from waystation.runtime.service import Wakeup
from waystation.store.pubsub import RECHECK_S, PubSub
from waystation.telemetry import metrics
from waystation.transactions import names
from waystation.transactions.cells import BATCH_MAX
from waystation.transactions.holding import Claim, Claimed, Holding
from waystation.transactions.run import Run
from waystation.transactions.store_time import StoreTime

_log = logger("claimer")

_PAUSE_SECONDS = 0.2
#: Time after which a claimer that leaves transactions in a full store's queues asks again.
_FULL_RECHECK_S = 1.0
_with_work, _empty, _failed = map(metrics.transaction_claims.of, ("work", "empty", "failed"))


class Claimer:
    """Claims for one node group, until it is stopped."""

    def __init__(
        self,
        holding: Holding,
        wakeups: PubSub,
        *,
        clock: Clock,
        time: StoreTime,
        group: str,
        node: str,
        cells: int,
        lease_ms: int,
        room: Callable[[], int],
        room_new: Callable[[], int],
        take: Callable[[Run], None],
        on_admin: Callable[[], None],
    ) -> None:
        self._holding = holding
        self._wakeups = wakeups
        self._clock = clock
        self._time = time
        self._group = group
        self._node = node
        self._cells = cells
        #: How many more could be held.
        self._room = room
        #: Maximum number of new transactions in a claim. It is lower while the store is full.
        self._room_new = room_new
        #: Whether the last turn left transactions in queues because the store is full.
        self._withholds = False
        self._take = take
        self._on_admin = on_admin
        self.lease_ms = lease_ms
        #: A paused node group is not claimed for; cell 0 is asked still, for its admin events.
        self.paused = False
        #: When the last claim was answered.
        self.answered_at = clock.uptime_s()
        self._number = itertools.count(1)
        self._turn = 0
        #: By cell: whether there may be work.
        self._maybe = [True] * cells
        self._asked_all_at = float("-inf")
        #: By cell: what the last claim left there; and when it was.
        self._left = [0] * cells
        self._since_ms = [0] * cells
        self._waiter = Wakeup(recheck_s=RECHECK_S)
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._unlisten: list[Callable[[], None]] = []

    def start(self) -> None:
        """Begins to claim."""
        for cell in range(self._cells):
            topic = names.work_topic(cell, self._group)
            self._unlisten.append(self._wakeups.listen(topic, self._listener(cell)))
        self._task = asyncio.get_running_loop().create_task(self._work())

    async def stop(self) -> None:
        """Claims nothing more; what is being claimed is still taken."""
        self._stopping = True
        for unlisten in self._unlisten:
            unlisten()
        self._waiter.set()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def freed(self) -> None:
        """There is more room."""
        if self._withholds:
            self.look()
        elif any(self._maybe):
            self._waiter.set()

    def look(self) -> None:
        """Asks all cells again."""
        self._maybe = [True] * self._cells
        self._waiter.set()

    def _listener(self, cell: int) -> Callable[[bytes | None], None]:
        def told(_: bytes | None) -> None:
            self._maybe[cell] = True
            self._waiter.set()

        return told

    # -- Claiming ----------------------------------------------------------------------------

    async def _work(self) -> None:
        while not self._stopping:
            self._waiter.clear()
            recheck = min(RECHECK_S, self.lease_ms / 1000)
            if self._withholds:
                recheck = min(recheck, _FULL_RECHECK_S)
            now = self._clock.uptime_s()
            if now - self._asked_all_at >= recheck:
                self._asked_all_at = now
                self._maybe = [True] * self._cells
                # Also with no room at all: it brings admin events, and shows that we are heard.
                await self._ask(self._shares(self._room()) or [(0, 0)])
            elif shares := self._shares(self._room()):
                await self._ask(shares)
            else:
                await self._waiter.wait(self._asked_all_at + recheck - now)

    def _shares(self, room: int) -> list[tuple[int, int]]:
        """How much to ask of which cell, in pieces of one call."""
        cells = [0] if self.paused else range(self._cells)
        asked = [cell for cell in cells if self._maybe[cell]]
        if room <= 0 or not asked:
            return []
        self._turn += 1
        first = self._turn % len(asked)
        asked = asked[first:] + asked[:first]
        share, more = divmod(room, len(asked))
        if share < BATCH_MAX:
            asked = self._full_calls(asked, room, share)
            share, more = divmod(room, len(asked))
        shares = []
        for place, cell in enumerate(asked):
            # Several calls at once only where so much was seen: the store works on the next
            # while we run what the one before has brought.
            size = min(share + (place < more), max(BATCH_MAX, self._left[cell]))
            shares += [(cell, min(BATCH_MAX, size - at)) for at in range(0, size, BATCH_MAX)]
        return shares

    def _full_calls(self, asked: list[int], room: int, share: int) -> list[int]:
        """Leave cells with a long queue to later turns where the room is for a few full calls.

        A call costs the store about as much for five transactions as for a hundred. Cells whose
        queues are short, or not known, are asked in every turn, so that none of them waits.
        """
        long = [cell for cell in asked if self._left[cell] >= BATCH_MAX]
        calls = max(1, (room - share * (len(asked) - len(long))) // BATCH_MAX)
        later = set(long[calls:])
        return [cell for cell in asked if cell not in later]

    async def _ask(self, shares: list[tuple[int, int]]) -> None:
        for cell, _ in shares:
            self._maybe[cell] = False
        # In one turn, so in one write. One alone needs no task: it goes with the moves of this very
        # turn, which have made room for it; at level `disk` the store then syncs once for both.
        left_new = self._room_new()
        self._withholds = left_new < sum(most for _, most in shares)
        asked = []
        for cell, most in shares:
            asked.append(self._claim(cell, most, min(most, left_new)))
            left_new -= min(most, left_new)
        answered = [await asked[0]] if len(asked) == 1 else await asyncio.gather(*asked)
        if not any(answered) and not self._stopping:
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _claim(self, cell: int, most: int, most_new: int) -> bool:
        number, since_ms = next(self._number), self._since_ms[cell]
        try:
            claim = await self._holding.claim(
                cell,
                self._group,
                node=self._node,
                number=number,
                most=most,
                lease_ms=self.lease_ms,
                most_new=most_new,
            )
        except OutcomeUnknownError:
            return await self._reclaim(cell, number, since_ms)
        except (StoreError, BusyError) as error:
            if isinstance(error, StoreDataLostError):
                # The store answers. The process must not end as one without a store does, because
                # it continues when the operator accepts the loss.
                self.answered_at = self._clock.uptime_s()
            _log.warning("a claim failed", cell=cell, problem=str(error))
            _failed.inc()
            self._maybe[cell] = True
            return False
        except Exception as error:
            # Something in the store that is not ours. What was claimed beside it is rescued.
            _log.error("a claim cannot be read", error=error, cell=cell)
            _failed.inc()
            self._maybe[cell] = True
            return False
        self._accept(cell, claim)
        self._left[cell] = claim.left
        if claim.left or len(claim.items) + claim.dropped >= most > 0:
            self._maybe[cell] = True
        if claim.admin:
            self._on_admin()
        return True

    async def _reclaim(self, cell: int, number: int, since_ms: int) -> bool:
        """The reply to a claim was lost: what it took is ours, and nobody would know."""
        self._maybe[cell] = True
        until = self._clock.uptime_s() + self.lease_ms / 1000
        while self._clock.uptime_s() < until:
            try:
                claim = await self._holding.reclaim(
                    cell, node=self._node, number=number, since_ms=since_ms
                )
            except (StoreError, BusyError) as error:
                _log.warning("a lost claim was not found", cell=cell, problem=str(error))
                if self._stopping:
                    break
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            self._accept(cell, claim)
            return True
        _failed.inc()
        return False  # When its leases are over, what it took is rescued.

    def _accept(self, cell: int, claim: Claim) -> None:
        self.answered_at = self._clock.uptime_s()
        (_with_work if claim.items else _empty).inc()
        metrics.transactions_claimed.inc(len(claim.items))
        self._time.tell(claim.now_ms)
        self._since_ms[cell] = claim.now_ms
        for claimed in claim.items:
            run = _run_of(claimed, claim.log_end)
            if run is not None:
                self._take(run)


def _run_of(claimed: Claimed, log_end: int) -> Run | None:
    try:
        return Run(claimed, log_end=log_end)
    except ValueError as error:
        # Of a newer release, or of none. It is not ours to end: its lease runs out, and perhaps
        # another can read it.
        _log.error("a state cannot be read", error=error, transaction=claimed.id)
        return None
