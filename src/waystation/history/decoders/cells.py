"""Rows of transactions and of steps, from the record log of a cell.

An entry has all that one script call did. A fact becomes a row of `transactions`, its attempts rows
of `steps`. What cannot be read is a row too: marked as malformed, with its bytes in `snapshot`.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pyarrow as pa

from waystation.history.decoders.facts import Row, moment, own_columns
from waystation.history.lake.schema import STEPS, TRANSACTIONS
from waystation.history.offsets import OffsetRange
from waystation.logs.protocol import LogBatch
from waystation.messages.redaction import FULL
from waystation.transactions.log_entry import Fact, StartedDetail, StepDetail, unpack

_decode_started = msgspec.msgpack.Decoder(StartedDetail).decode
_decode_step = msgspec.msgpack.Decoder(StepDetail).decode


def cell_rows(span: OffsetRange, block: LogBatch) -> dict[str, pa.RecordBatch]:
    """The rows of a block, by table."""
    changes: list[Row] = []
    steps: list[Row] = []
    for number, (ms, payload) in enumerate(zip(block.times_ms, block.payloads, strict=True)):
        at = {"log_offset": block.offset + number, "time": moment(ms)}
        for item, (change, attempts) in enumerate(_facts(payload)):
            changes.append({**at, "item": item, "recorded": FULL.label, **change})
            # Counted over the whole entry, so that no two rows of it have the same place.
            same = bool(steps) and steps[-1]["log_offset"] == at["log_offset"]
            first = steps[-1]["item"] + 1 if same else 0
            steps += [{**at, "item": first + n, **each} for n, each in enumerate(attempts)]
    return {
        TRANSACTIONS.name: pa.RecordBatch.from_pylist(changes, schema=own_columns(TRANSACTIONS)),
        STEPS.name: pa.RecordBatch.from_pylist(steps, schema=own_columns(STEPS)),
    }


def _facts(payload: bytes) -> Iterator[tuple[Row, list[Row]]]:
    """Each fact of an entry as a row, with the rows of its attempts."""
    try:
        facts = unpack(payload).facts
    except (ValueError, TypeError):
        yield {"malformed": True, "snapshot": payload}, []
        return
    for fact in facts:
        row: Row = {
            "transaction_id": fact.id,
            "kind": fact.kind,
            "version": fact.version,
            "epoch": fact.epoch,
            "state": fact.state,
            "status": fact.status or None,
            "cause": fact.cause or None,
            "malformed": False,
        }
        attempts: list[Row] = []
        if fact.detail is not None:
            try:
                told, attempts = _detail(fact, fact.detail)
                row |= told
            except (msgspec.DecodeError, ValueError):
                row |= {"malformed": True, "snapshot": fact.detail}
        yield row, attempts


def _detail(fact: Fact, packed: bytes) -> tuple[Row, list[Row]]:
    if fact.kind == "started":
        return _started(_decode_started(packed)), []
    step = _decode_step(packed)
    told = {
        "output": _text(step.output),
        "delay_ms": step.delay_ms,
        "switch": step.switch or None,
        "snapshot": step.state,
        "recorded": step.recorded or FULL.label,
        "cause": fact.cause or step.cause or None,
    }
    attempts = [
        {
            "transaction_id": fact.id,
            "version": fact.version,
            "epoch": fact.epoch,
            "place": each.place,
            "step_type": each.step_type,
            "attempt": each.number,
            "outcome": each.outcome,
            "started_at": moment(each.begun_ms),
            "ended_at": moment(each.ended_ms),
            "begun_after": each.begun_after,
            "node": each.node,
            "note": each.note or None,
        }
        for each in step.attempts
    ]
    return told, attempts


def _started(detail: StartedDetail) -> Row:
    parent, round_, number = [*detail.parent.split(" "), "", ""][:3]
    return {
        "project": detail.project or None,
        "pipeline": detail.type,
        "pipeline_version": detail.version,
        "external_id": detail.external_id or None,
        "metadata": _text(detail.metadata),
        "data": _text(detail.data),
        "caused_by": detail.cause or None,
        "traceparent": detail.traceparent or None,
        "parent_id": parent or None,
        "parent_round": int(round_) if round_ else None,
        "parent_item": int(number) if number else None,
        "recorded": detail.recorded or FULL.label,
    }


def _text(json: bytes | None) -> str | None:
    """JSON of users, byte for byte; ValueError for what is no text."""
    return None if json is None else json.decode()
