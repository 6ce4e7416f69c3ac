"""Carriers: they bring loads to the endpoint, and hand on what came of them.

Where an endpoint begins a request at once, nothing waits for it: when it ends, what came of it is
written down and the next load begins in the same breath, with all others that ended in that turn of
the event loop. Anything else is carried by tasks, one load after the other: there is no task per
message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from waystation.delivery.request import Failure, Outcome
from waystation.delivery.standing import Standing
from waystation.runtime.logging import logger
from waystation.subscriptions.ledger import Ledger
from waystation.subscriptions.load import Load
from waystation.subscriptions.means import ShardMeans
from waystation.subscriptions.tempo import Tempo
from waystation.subscriptions.tenure import Tenure
from waystation.subscriptions.turns import Turns
from waystation.subscriptions.verdicts import Decided

_log = logger("subscriptions")

#: Tasks that are kept without work, for the next.
_IDLE_MAX = 16
_CANCELLED = Outcome(failure=Failure.CANCELLED, detail="stopped")
_BROKEN = Outcome(failure=Failure.BROKEN, detail="the request could not be made")


class Carriers:
    """All that is under way for one shard."""

    def __init__(
        self,
        tenure: Tenure,
        means: ShardMeans,
        turns: Turns,
        ledger: Ledger,
        tempo: Tempo,
        *,
        begin: Callable[[], Load | None],
        end: Callable[[Load, Sequence[Outcome]], None],
        on_asked: Callable[[Decided, Standing], None],
    ) -> None:
        self._tenure = tenure
        self._clock = means.clock
        self._turns = turns
        self._ledger = ledger
        self._tempo = tempo
        #: Where the next load comes from, who gets its slot back, and who hears what an endpoint
        #: asks for besides: to be left alone, or never to be asked again.
        self._begin = begin
        self._give_back = end
        self._on_asked = on_asked
        self._closed = False
        self.loads: set[Load] = set()
        #: Tasks at work or at rest, and those at rest.
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle: list[asyncio.Future[Load]] = []
        self._quiet = asyncio.Event()
        self._quiet.set()

    def __repr__(self) -> str:
        return f"<Carriers [{len(self.loads)} under way, {len(self._idle)} idle]>"

    def carry(self, load: Load) -> None:
        """Brings it to its endpoint."""
        if not self.loads:
            self._quiet.clear()
        self.loads.add(load)
        if not self._carry_at_once(load):
            self._hand_over(load)

    # -- At once -----------------------------------------------------------------------------

    def _carry_at_once(self, load: Load) -> bool:
        endpoint, parcel = load.direct, load.errands[0].parcel
        # What failed may have to wait before its slot is free: that takes a task.
        if endpoint is None or parcel is None or self._tempo.throttle is not None:
            return False
        load.begun_ms, load.begun_after = self._clock.now_ms(), self._tenure.log_end
        try:
            load.give_up = endpoint.begin(parcel, partial(self._arrived, load))
        except Exception as error:
            self._log_broken(error)
            self._settle(load, [_BROKEN])
            self._end(load, [_BROKEN])
            return True
        return load.give_up is not None

    def _arrived(self, load: Load, outcome: Outcome) -> None:
        """A request has ended; called by who made it, whom no defect of ours may reach."""
        try:
            try:
                if not self._tenure.lost:
                    self._settle(load, [outcome])
            finally:
                self._end(load, [outcome])
            if (following := self._begin()) is not None:
                self.carry(following)
        except Exception as error:
            _log.error("a slot broke", error=error, place=self._tenure.place.tag)
            self._tenure.lose("broken")

    # -- By tasks ----------------------------------------------------------------------------

    def _hand_over(self, load: Load) -> None:
        while self._idle:
            rested = self._idle.pop()
            if not rested.done():
                rested.set_result(load)
                return
        task = asyncio.get_running_loop().create_task(self._work(load))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def _work(self, load: Load | None) -> None:
        while load is not None:
            await self._carry(load)
            load = self._next() or await self._rest()

    def _next(self) -> Load | None:
        """The next load that needs a task; others are on their way by then."""
        while (load := self._begin()) is not None:
            if not self.loads:
                self._quiet.clear()
            self.loads.add(load)
            if not self._carry_at_once(load):
                return load
        return None

    async def _rest(self) -> Load | None:
        if self._closed or len(self._idle) >= _IDLE_MAX:
            return None
        rest: asyncio.Future[Load] = asyncio.get_running_loop().create_future()
        self._idle.append(rest)
        return await rest

    async def _carry(self, load: Load) -> None:
        """One request, and what came of it."""
        outcomes = [_CANCELLED]
        try:
            if None in [errand.parcel for errand in load.errands]:
                load.errands = await self._turns.with_bodies(load.errands)
                if not load.errands:
                    return
            load.begun_ms, load.begun_after = self._clock.now_ms(), self._tenure.log_end
            received = await self._send(load)
            if self._tenure.lost:
                return
            outcomes = received
            self._settle(load, outcomes)
            if self._tempo.throttle is not None:
                await self._tempo.let_through(outcomes)
        finally:
            self._end(load, outcomes)

    async def _send(self, load: Load) -> list[Outcome]:
        parcels = [errand.parcel for errand in load.errands if errand.parcel]
        try:
            outcomes = await load.endpoint.send(parcels)
            assert len(outcomes) == len(parcels), "an outcome for each parcel"
        except Exception as error:
            self._log_broken(error)
            return [_BROKEN] * len(parcels)
        return outcomes

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._closed and not self._tasks:
            # Those that were handed over and never begun.
            for load in [each for each in self.loads if each.give_up is None]:
                self._end(load, [_CANCELLED])
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a slot broke", error=error, place=self._tenure.place.tag)
            self._tenure.lose("broken")

    # -- What came of it ---------------------------------------------------------------------

    def _settle(self, load: Load, outcomes: Sequence[Outcome]) -> None:
        for errand, outcome in zip(load.errands, outcomes, strict=True):
            decided = self._ledger.attempt(
                errand,
                outcome,
                begun_ms=load.begun_ms,
                begun_after=load.begun_after,
                endpoint=load.standing.target,
            )
            if decided.disable or decided.hold_seconds:
                self._on_asked(decided, load.standing)

    def _end(self, load: Load, outcomes: Sequence[Outcome]) -> None:
        self.loads.discard(load)
        if not self.loads:
            self._quiet.set()
        self._give_back(load, outcomes)

    def _log_broken(self, error: Exception) -> None:
        # A defect of ours, or a message that makes no request: it must not come for ever.
        _log.error("an attempt broke", error=error, place=self._tenure.place.tag)

    # -- Life --------------------------------------------------------------------------------

    def close(self) -> None:
        """Nothing more is taken over."""
        self._closed = True

    async def quiet(self) -> None:
        """Waits until nothing is under way."""
        await self._quiet.wait()

    def abort(self) -> None:
        """Breaks off all that is under way."""
        for load in [each for each in self.loads if each.give_up is not None]:
            assert load.give_up is not None
            load.give_up()
            self._end(load, [_CANCELLED])
        for task in list(self._tasks):
            task.cancel()

    async def ended(self) -> None:
        """Waits for the tasks that were broken off."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
