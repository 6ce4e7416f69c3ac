"""Starts transactions: checks orders, resolves pipelines, picks cells, shares script calls.

Each order of a batch is started whole or, with its reason, not at all. An order whose external id
is taken is no error if it asks for the same: the receipt then has what is there. A start that fails
leaves nothing behind, so the external id is free for the next try.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Sequence

import msgspec

from waystation.clock import Clock
from waystation.errors import (
    BusyError,
    ConflictError,
    InvalidInputError,
    TooLargeError,
    WaystationError,
)
from waystation.ids import Identity
from waystation.transaction_errors import (
    AlreadyQueuedError,
    DuplicateTransactionError,
    IllegalTransitionError,
    NotATypeError,
    PipelineUnknownError,
)
from waystation.transactions import names
from waystation.transactions.entry import Entry, NewTransaction, Started
from waystation.transactions.log_entry import StartedDetail
from waystation.transactions.order import Order
from waystation.transactions.pipeline import Pipeline
from waystation.transactions.pipelines import Pipelines
from waystation.transactions.record import Frame, TransactionState, decode, encode
from waystation.transactions.signals import Found, Signals
from waystation.transactions.start_lane import Batch, StartLane
from waystation.transactions.states import State
from waystation.transactions.store_time import StoreTime
from waystation.transactions.summary import Summary, SummaryMetadata, shown_status, summary_of

#: How often a start is tried again because the active version has changed meanwhile.
_STALE_MAX = 5
#: How long a comparison with the store's clock is good for.
_COMPARED_SECONDS = 60.0
_pack = msgspec.msgpack.Encoder().encode


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an order: a new transaction, or the one that has its external id."""

    id: str
    summary: Summary
    duplicate: bool = False


class StepPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a transaction of ours begins, if it is not at its first step."""

    #: From 1.
    step: int
    #: JSON.
    input: bytes
    #: Of the pipeline; empty: the active one.
    version: str = ""
    #: Id of what led to it.
    cause: str = ""
    #: Empty: a new one.
    transaction_id: str = ""


Result = Receipt | WaystationError


class _Start:
    """An order on its way."""

    __slots__ = ("id", "order", "pipeline", "place", "project", "result", "state")

    def __init__(self, project: str, order: Order, place: StepPlace | None) -> None:
        self.project = project
        self.order = order
        self.place = place
        self.id = place.transaction_id if place is not None else ""
        self.pipeline: Pipeline | None = None
        self.state = State.QUEUED
        self.result: Result | None = None


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
        identity: Identity,
        state_bytes_max: int,
    ) -> None:
        self._signals = signals
        self._pipelines = pipelines
        self._time = time
        self._cells = cells
        self._clock = clock
        self._compared_at = -math.inf
        self._identity = identity
        self._state_bytes_max = state_bytes_max
        self._lanes = [StartLane(entry, cell) for cell in range(cells)]
        self._turns = itertools.cycle(range(cells))

    async def start(self, project: str, order: Order) -> Receipt:
        """Starts one, or raises why not."""
        (result,) = await self.start_many(project, [order])
        return _raised(result)

    async def start_many(self, project: str, orders: Sequence[Order]) -> list[Result]:
        """Starts transactions in their order; each has a receipt or an error of its own."""
        return await self._run([_Start(project, order, None) for order in orders])

    async def start_at(self, project: str, order: Order, place: StepPlace) -> Receipt:
        """Starts one at a step, with that step's input; from inside, so of any pipeline."""
        (result,) = await self._run([_Start(project, order, place)])
        return _raised(result)

    async def close(self) -> None:
        """Lets what was taken over be started."""
        await asyncio.gather(*(lane.close() for lane in self._lanes))

    async def _now_ms(self) -> int:
        now = self._clock.real_seconds()
        if now - self._compared_at > _COMPARED_SECONDS:
            self._time.tell((await self._signals.look(0)).now_ms)
            self._compared_at = now
        return self._time.now_ms()

    # -- In rounds: another one only for those whose pipeline has changed meanwhile ------------

    async def _run(self, starts: list[_Start]) -> list[Result]:
        now_ms = await self._now_ms()
        left = starts
        for _ in range(_STALE_MAX):
            left = await self._round(left, now_ms)
            if not left:
                break
        for each in left:
            each.result = ConflictError(f"Pipeline {each.order.type} changes all the time.")
        return [each.result for each in starts if each.result is not None]

    async def _round(self, starts: list[_Start], now_ms: int) -> list[_Start]:
        """Starts them; returns those whose pipeline has another active version by now."""
        sent: list[tuple[_Start, NewTransaction]] = []
        for each in starts:
            try:
                await self._resolve(each)
                sent.append((each, self._item(each, now_ms)))
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

    def _submit(self, sent: list[tuple[_Start, NewTransaction]], batch: Batch) -> None:
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

    async def _resolve(self, start: _Start) -> None:
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

    def _item(self, start: _Start, now_ms: int) -> NewTransaction:
        order, pipeline, place = start.order, start.pipeline, start.place
        assert pipeline is not None
        if not start.id:
            start.id = names.new_id(self._cell(start.project, order.external_id), self._identity)
        delay_ms = order.start_at.in_ms(now_ms) if order.start_at is not None else 0
        deadline_in_ms = 0
        if order.deadline is not None:
            deadline_in_ms = max(1, order.deadline.in_ms(now_ms))
            if delay_ms >= deadline_in_ms:
                raise InvalidInputError(
                    "The deadline is not after the time of the start.", field="deadline"
                )
        start.state = State.SCHEDULED if delay_ms else State.QUEUED
        cause = place.cause if place is not None else ""
        packed = encode(
            TransactionState(
                type=order.type,
                external_id=order.external_id,
                metadata=order.metadata,
                data=order.data,
                started_ms=now_ms,
                deadline_ms=now_ms + deadline_in_ms if deadline_in_ms else 0,
                cause=cause,
                traceparent=order.traceparent,
                frames=[_frame(pipeline, order, place)],
            )
        )
        if len(packed) > self._state_bytes_max:
            raise TooLargeError(
                f"A transaction of {len(packed)} bytes is too large; it may have"
                f" {self._state_bytes_max}.",
                field="data",
            )
        detail = StartedDetail(
            type=order.type,
            version=pipeline.version,
            external_id=order.external_id,
            metadata=order.metadata,
            data=order.data,
            cause=cause,
            traceparent=order.traceparent,
        )
        return NewTransaction(
            id=start.id,
            owner=start.project,
            pipeline=order.type,
            version=pipeline.version,
            group=pipeline.group,
            state=packed,
            detail=_pack(detail),
            external_id=order.external_id,
            delay_ms=delay_ms,
            deadline_in_ms=deadline_in_ms,
            inside=place is not None,
        )

    def _cell(self, project: str, external_id: str) -> int:
        if external_id:
            return names.cell_for(project, external_id, self._cells)
        return next(self._turns)

    def _settled(self, start: _Start, started: Started, now_ms: int) -> Result:
        given = start.place is not None and bool(start.place.transaction_id)
        match started.outcome:
            case "started":
                return _receipt(start, now_ms)
            case "known" if not given:
                # Nobody else has made this id: the call was sent twice, since its reply was lost.
                return _receipt(start, now_ms)
            case "known" if started.detail == State.QUEUED:
                return AlreadyQueuedError(f"{start.id} is queued already.")
            case "known":
                return IllegalTransitionError(from_state=started.detail, to_state=State.QUEUED)
            case "not-a-type":
                return _not_a_type(start.order.type)
            case _:
                self._pipelines.forget(start.project, start.order.type)
                return PipelineUnknownError(f"There is no pipeline {start.order.type}.")

    async def _duplicate(self, start: _Start, existing: str) -> None:
        """The external id is taken: by what was asked for, or by something else."""
        try:
            (found,) = await self._signals.get(start.project, [existing])
        except WaystationError as error:
            start.result = error
            return
        if found is not None and _is_same(found, start.order):
            summary = summary_of(found, duplicate=True)
            start.result = Receipt(id=existing, summary=summary, duplicate=True)
        else:
            start.result = DuplicateTransactionError(
                f"The external id belongs to {existing}, which was started with another type or"
                " other data.",
                existing_id=existing,
            )


def _frame(pipeline: Pipeline, order: Order, place: StepPlace | None) -> Frame:
    step, given = (0, order.data) if place is None else (place.step - 1, place.input)
    return Frame(pipeline.name, pipeline.version, pipeline.group, step, given)


def _is_same(found: Found, order: Order) -> bool:
    kept = decode(found.state)
    return kept.type == order.type and kept.data == order.data


def _receipt(start: _Start, now_ms: int) -> Receipt:
    order = start.order
    metadata = SummaryMetadata(
        owner=start.project,
        tx_id=start.id,
        external_id=order.external_id or None,
        transaction_type=order.type,
        status=shown_status(start.state, None),
        completion_time=None,
        last_updated=now_ms,
    )
    return Receipt(id=start.id, summary=Summary(metadata=metadata))


def _raised(result: Result) -> Receipt:
    if isinstance(result, WaystationError):
        raise result
    return result


def _not_a_type(name: str) -> NotATypeError:
    return NotATypeError(
        f"Pipeline {name} is for other pipelines; it cannot be started from outside.", field="type"
    )
