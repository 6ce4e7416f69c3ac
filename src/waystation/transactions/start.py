"""One start on its way: an order, the pipeline that it was resolved to, and what becomes of it."""

from __future__ import annotations

import msgspec

from waystation.errors import InvalidInputError, TooLargeError, WaystationError
from waystation.runtime.json_values import same_json
from waystation.transactions.entry import NewTransaction
from waystation.transactions.found import Found
from waystation.transactions.log_entry import StartedDetail
from waystation.transactions.order import Order, metadata_differences
from waystation.transactions.pipeline import Pipeline
from waystation.transactions.record import Frame, TransactionState, decode, encode
from waystation.transactions.reply_lanes import reply_word
from waystation.transactions.states import State
from waystation.transactions.summary import Summary, SummaryMetadata, shown_status

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


class Start:
    """An order on its way."""

    __slots__ = ("id", "order", "pipeline", "place", "project", "result", "state")

    def __init__(self, project: str, order: Order, place: StepPlace | None) -> None:
        self.project = project
        self.order = order
        self.place = place
        self.id = place.transaction_id if place is not None else ""
        self.pipeline: Pipeline | None = None
        self.state = State.QUEUED
        self.result: Receipt | WaystationError | None = None

    @property
    def is_given(self) -> bool:
        """Whether its id comes from outside: somebody may have it already."""
        return self.place is not None and bool(self.place.transaction_id)

    def item(self, now_ms: int, *, state_bytes_max: int) -> NewTransaction:
        """What the script gets; the id and the pipeline are known by now."""
        order, pipeline, place = self.order, self.pipeline, self.place
        assert pipeline is not None, "resolve it first"
        delay_ms, deadline_in_ms = self._times(now_ms)
        self.state = State.SCHEDULED if delay_ms else State.QUEUED
        cause = place.cause if place is not None else ""
        step, given = (0, order.data) if place is None else (place.step - 1, place.input)
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
                frames=[Frame(pipeline.name, pipeline.version, pipeline.group, step, given)],
                delay_ms=delay_ms,
            )
        )
        if len(packed) > state_bytes_max:
            raise TooLargeError(
                f"A transaction of {len(packed)} bytes is too large; it may have"
                f" {state_bytes_max}.",
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
            project=self.project,
        )
        return NewTransaction(
            id=self.id,
            owner=self.project,
            pipeline=order.type,
            version=pipeline.version,
            group=pipeline.group,
            state=packed,
            detail=_pack(detail.kept(pipeline.recording)),
            external_id=order.external_id,
            delay_ms=delay_ms,
            deadline_in_ms=deadline_in_ms,
            inside=place is not None,
            reply="" if order.wanted is None else reply_word(self.project, order.wanted),
        )

    def receipt(self, now_ms: int) -> Receipt:
        """What its client is told, once it is started."""
        metadata = SummaryMetadata(
            owner=self.project,
            tx_id=self.id,
            external_id=self.order.external_id or None,
            transaction_type=self.order.type,
            status=shown_status(self.state, None),
            completion_time=None,
            last_updated=now_ms,
            sequence_of_update=1,
        )
        return Receipt(id=self.id, summary=Summary(metadata=metadata))

    def differences(self, found: Found) -> list[str]:
        """Return the parts in which this start differs from the one that made a transaction.

        Content is compared, not bytes, and times as they were worked out at that start. `poll` and
        the trace context say how one request is answered and observed, so they make no difference.
        """
        kept, order = decode(found.state), self.order
        parts = []
        if kept.type != order.type:
            parts.append("type")
        if not same_json(kept.data, order.data):
            parts.append("data")
        parts += metadata_differences(kept.metadata, order.metadata)
        delay_ms = _delay_ms(order, kept.started_ms)
        if kept.delay_ms not in (-1, delay_ms):
            parts.append("metadata.startAt")
        deadline_in_ms = _deadline_in_ms(order, kept.started_ms)
        if kept.deadline_ms != (kept.started_ms + deadline_in_ms if deadline_in_ms else 0):
            parts.append("metadata.deadline")
        return parts

    def _times(self, now_ms: int) -> tuple[int, int]:
        """Ms to the start, and to the deadline; 0 for none."""
        delay_ms = _delay_ms(self.order, now_ms)
        deadline_in_ms = _deadline_in_ms(self.order, now_ms)
        if deadline_in_ms and delay_ms >= deadline_in_ms:
            raise InvalidInputError(
                "The deadline is not after the time of the start.", field="deadline"
            )
        return delay_ms, deadline_in_ms


def _delay_ms(order: Order, now_ms: int) -> int:
    return order.start_at.in_ms(now_ms) if order.start_at is not None else 0


def _deadline_in_ms(order: Order, now_ms: int) -> int:
    return max(1, order.deadline.in_ms(now_ms)) if order.deadline is not None else 0
