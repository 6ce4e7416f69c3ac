"""Starts transactions: checks orders, resolves pipelines, picks cells, shares script calls.

Each order of a batch is started whole or, with its reason, not at all; one whose replies could not
be sent is not. An order whose external id
is taken is no error if its content is the same: the receipt then has what is there. A start that
fails leaves nothing behind, so the external id is free for the next try.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections.abc import Sequence

import msgspec

from waystation.errors import (
    AlreadyQueuedError,
    BusyError,
    ConflictError,
    DuplicateTransactionError,
    IllegalTransitionError,
    InvalidInputError,
    NotATypeError,
    PipelineUnknownError,
    ReplyInvalidError,
    WaystationError,
)
from waystation.runtime.clock import Clock
from waystation.runtime.ids import IdSource
from waystation.transactions import names
from waystation.transactions.cells import BATCH_MAX
from waystation.transactions.entry import Entry, NewTransaction, Started
from waystation.transactions.order import Order
from waystation.transactions.pipelines import Pipelines
from waystation.transactions.services import Services
from waystation.transactions.signals import Signals
from waystation.transactions.start import Receipt, Start, StepPlace
from waystation.transactions.start_lane import Batch, StartLane
from waystation.transactions.states import State
from waystation.transactions.store_time import StoreTime
from waystation.transactions.summary import summary_of
from waystation.transactions.wanted import Wanted

#: How often a start is tried again because the active version has changed meanwhile.
_STALE_MAX = 5
#: How long a comparison with the store's clock is good for.
_COMPARED_SECONDS = 60.0

#: Differing parts that an error names.
_DIFFERENCES_MAX = 10

Result = Receipt | WaystationError


class Starter:
    """Starts transactions of all projects."""

    def __init__(
        self,
        entry: Entry,
        signals: Signals,
        pipelines: Pipelines,
        time: StoreTime,
        *,
        cells: int,
        clock: Clock,
        identity: IdSource,
        state_bytes_max: int,
        services: Services | None = None,
    ) -> None:
        self._signals = signals
        self._services = services
        self._pipelines = pipelines
        self._time = time
        self._cells = cells
        self._clock = clock
        self._compared_at = -math.inf
        self._identity = identity
        self._state_bytes_max = state_bytes_max
        self._lanes = [StartLane(entry, cell) for cell in range(cells)]
        #: Starts without an external id, counted from a random cell, so that nodes differ.
        self._anonymous = itertools.count(random.randrange(cells) * BATCH_MAX)

    async def start(self, project: str, order: Order) -> Receipt:
        """Starts one, or raises why not."""
        (result,) = await self.start_many(project, [order])
        return _raised(result)

    async def start_many(self, project: str, orders: Sequence[Order]) -> list[Result]:
        """Starts transactions in their order; each has a receipt or an error of its own."""
        return await self._run([Start(project, order, None) for order in orders])

    async def start_at(self, project: str, order: Order, place: StepPlace) -> Receipt:
        """Starts one at a step, with that step's input; from inside, so of any pipeline."""
        (result,) = await self._run([Start(project, order, place)])
        return _raised(result)

    async def close(self) -> None:
        """Lets what was taken over be started."""
        await asyncio.gather(*(lane.close() for lane in self._lanes))

    async def _now_ms(self) -> int:
        now = self._clock.uptime_s()
        if now - self._compared_at > _COMPARED_SECONDS:
            self._time.tell((await self._signals.look(0)).now_ms)
            self._compared_at = now
        return self._time.now_ms()

    # -- In rounds: another one only for those whose pipeline has changed meanwhile ------------

    async def _run(self, starts: list[Start]) -> list[Result]:
        now_ms = await self._now_ms()
        left = starts
        for _ in range(_STALE_MAX):
            left = await self._round(left, now_ms)
            if not left:
                break
        for each in left:
            each.result = ConflictError(f"Pipeline {each.order.type} changes all the time.")
        return [each.result for each in starts if each.result is not None]

    async def _round(self, starts: list[Start], now_ms: int) -> list[Start]:
        """Starts them; returns those whose pipeline has another active version by now."""
        sent: list[tuple[Start, NewTransaction]] = []
        for each in starts:
            try:
                await self._resolve(each)
                item = self._item(each, now_ms)
                if each.is_given and (known := await self._known(each.id)):
                    each.result = self._settled(each, known, now_ms)
                else:
                    sent.append((each, item))
            except WaystationError as error:
                each.result = error
        if not sent:
            return []
        batch = Batch(len(sent))
        try:
            self._submit(sent, batch)
        except BusyError as error:
            for each, _ in sent:
                each.result = error
            return []
        await batch.done
        stale, duplicates = [], []
        for (each, _), result in zip(sent, batch.results, strict=True):
            assert result is not None, "the batch is done"
            if isinstance(result, WaystationError):
                each.result = result
            elif result.outcome == "stale":
                self._pipelines.forget(each.project, each.order.type)
                stale.append(each)
            elif result.outcome == "duplicate":
                duplicates.append(self._duplicate(each, result.detail))
            else:
                each.result = self._settled(each, result, now_ms)
        await asyncio.gather(*duplicates)
        return stale

    def _submit(self, sent: list[tuple[Start, NewTransaction]], batch: Batch) -> None:
        sizes = [len(item.state) + len(item.detail) for _, item in sent]
        if len(sent) > 1:
            # Of one request, all or nothing is taken over.
            for lane in self._lanes:
                lane.require_room(len(sent), sum(sizes))
        for position, ((_, item), size) in enumerate(zip(sent, sizes, strict=True)):
            lane = self._lanes[names.cell_of(item.id)]
            if len(sent) == 1:
                lane.require_room(1, size)
            lane.add(item, size, batch, position)

    # -- One order ---------------------------------------------------------------------------

    async def _resolve(self, start: Start) -> None:
        project, name = start.project, start.order.type
        if start.place is not None and start.place.version:
            start.pipeline = await self._pipelines.version(project, name, start.place.version)
        else:
            known = self._pipelines.known(project, name)
            start.pipeline = known or await self._pipelines.active(project, name)
        if start.place is None and not start.pipeline.startable:
            raise _not_a_type(name)
        if start.place is not None and not 1 <= start.place.step <= len(start.pipeline.steps):
            raise InvalidInputError(
                f"Pipeline {name} has {len(start.pipeline.steps)} steps, and no step"
                f" {start.place.step}.",
                field="step",
            )
        if start.order.wanted is not None:
            await self._check(project, start.order.wanted)

    async def _check(self, project: str, wanted: Wanted) -> None:
        """Whether all who are to hear of it can be told."""
        if self._services is None:
            raise ReplyInvalidError("Nothing sends replies here.", field="metadata")
        try:
            await self._services.check(msgspec.structs.replace(wanted, project=project))
        except InvalidInputError as error:
            raise ReplyInvalidError(
                error.message, field=f"metadata.{error.field}", hint=error.hint
            ) from error

    def _item(self, start: Start, now_ms: int) -> NewTransaction:
        if not start.id:
            cell = self._cell(start.project, start.order.external_id)
            start.id = names.new_id(cell, self._identity)
        elif not self._is_at_home(start):
            raise InvalidInputError(f"{start.id} cannot be an id of this start.", field="id")
        return start.item(now_ms, state_bytes_max=self._state_bytes_max)

    def _cell(self, project: str, external_id: str) -> int:
        if external_id:
            return names.cell_for(project, external_id, self._cells)
        # A cell takes a whole script call before the next cell has its turn: calls of a few
        # transactions each would cost the store half as much again.
        return next(self._anonymous) // BATCH_MAX % self._cells

    def _is_at_home(self, start: Start) -> bool:
        """Whether an id that was given lies where it would have been made."""
        cell, external_id = names.cell_of(start.id), start.order.external_id
        if external_id:
            return cell == names.cell_for(start.project, external_id, self._cells)
        return cell < self._cells

    async def _known(self, transaction_id: str) -> Started | None:
        """What has an id that was given already, in the archive, too, where no script looks."""
        (found,) = await self._signals.get("", [transaction_id])
        return None if found is None else Started("known", found.head.state)

    def _settled(self, start: Start, started: Started, now_ms: int) -> Result:
        match started.outcome:
            case "started":
                return start.receipt(now_ms)
            case "known" if not start.is_given:
                # Nobody else has made this id: the call was sent twice, since its reply was lost.
                return start.receipt(now_ms)
            case "known" if started.detail == State.QUEUED:
                return AlreadyQueuedError(f"{start.id} is queued already.")
            case "known":
                return IllegalTransitionError(from_state=started.detail, to_state=State.QUEUED)
            case "not-a-type":
                return _not_a_type(start.order.type)
            case _:
                self._pipelines.forget(start.project, start.order.type)
                return PipelineUnknownError(f"There is no pipeline {start.order.type}.")

    async def _duplicate(self, start: Start, existing: str) -> None:
        """The external id is taken: by what was asked for, or by something else."""
        try:
            (found,) = await self._signals.get(start.project, [existing])
        except WaystationError as error:
            start.result = error
            return
        differences = start.differences(found) if found is not None else []
        if found is not None and not differences:
            summary = summary_of(found, duplicate=True)
            start.result = Receipt(id=existing, summary=summary, duplicate=True)
        else:
            # Without a state nothing can be compared: it is being archived, or was lost.
            parts = ", ".join(differences[:_DIFFERENCES_MAX]) or "nothing is known of it"
            start.result = DuplicateTransactionError(
                f"The external id belongs to {existing}, which was started with other content:"
                f" {parts}.",
                existing_id=existing,
            )


def _raised(result: Result) -> Receipt:
    if isinstance(result, WaystationError):
        raise result
    return result


def _not_a_type(name: str) -> NotATypeError:
    return NotATypeError(
        f"Pipeline {name} is for other pipelines; it cannot be started from outside.", field="type"
    )
