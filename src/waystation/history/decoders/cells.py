"""Rows of the table `transactions`, from the record logs of cells.

An entry has the facts of one script call. Each fact becomes a row, with the attempts of its step in
the column `attempts`; the view `steps` has a row for each attempt. An entry or a detail that cannot
be decoded becomes a malformed row with its bytes in `snapshot`.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pyarrow as pa

from waystation.history.decoders.facts import Row, decode_entries, moment
from waystation.history.lake.schema import TRANSACTIONS
from waystation.history.offsets import OffsetRange
from waystation.logs.protocol import LogBatch
from waystation.messages.redaction import FULL
from waystation.transactions.log_entry import Fact, StartedDetail, StepDetail, unpack

_decode_started = msgspec.msgpack.Decoder(StartedDetail).decode
_decode_step = msgspec.msgpack.Decoder(StepDetail).decode


def cell_rows(offsets: OffsetRange, block: LogBatch) -> pa.RecordBatch:
    """Return the rows of a block."""
    return decode_entries(TRANSACTIONS, block, lambda payload, ms: _facts(payload))


def _facts(payload: bytes) -> Iterator[Row]:
    try:
        facts = unpack(payload).facts
    except (ValueError, TypeError):
        yield {"malformed": True, "snapshot": payload, "recorded": FULL.label}
        return
    attempts = 0
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
            "recorded": FULL.label,
        }
        if fact.detail is not None:
            try:
                row |= _detail(fact, fact.detail, attempts)
            except (msgspec.DecodeError, ValueError, RecursionError):
                row |= {"malformed": True, "snapshot": fact.detail}
        attempts += len(row.get("attempts") or ())
        yield row


def _detail(fact: Fact, packed: bytes, attempts_before: int) -> Row:
    if fact.kind == "started":
        return _started(_decode_started(packed))
    step = _decode_step(packed)
    return {
        "output": _text(step.output),
        "delay_ms": step.delay_ms,
        "switch": step.switch or None,
        "snapshot": step.state,
        "recorded": step.recorded or FULL.label,
        "cause": fact.cause or step.cause or None,
        "attempts": [
            {
                "item": item,
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
            for item, each in enumerate(step.attempts, attempts_before)
        ]
        or None,
    }


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
    """Return JSON of a user byte for byte. Raise ValueError if it is not UTF-8."""
    return None if json is None else json.decode()
