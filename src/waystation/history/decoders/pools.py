"""Rows of the table `pools`, from the record logs of pools.

An entry has the events of one script call. Each event becomes a row. An entry of a pool with
`record` none names neither the pool nor the events; it becomes one row of kind `withheld`, so that
the table has a row for every offset of a log. An entry or envelope that cannot be decoded becomes a
malformed row with its bytes in `payload`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from waystation.history.decoders.facts import WITHHELD, Row, decode_entries
from waystation.history.lake.schema import POOLS
from waystation.history.offsets import OffsetRange
from waystation.logs.protocol import LogBatch
from waystation.logs.records import unpack_entry
from waystation.messages.envelope import unpack
from waystation.messages.redaction import FULL, RedactionPolicy

#: Columns of the numbers that follow the kind of an event.
_NUMBERS = {
    "enqueued": ("number",),
    "taken": ("number", "epoch", "attempts"),
    "acknowledged": ("number", "epoch"),
    "returned": ("number", "epoch", "attempts"),
    "dead": ("number", "epoch", "attempts"),
    "redriven": ("number", "new_number"),
    "purged": ("number",),
    "dropped": ("number",),
    "popped": ("number",),
    "moved": ("epoch",),
    "closed": ("number",),
}
#: Columns of the texts of an event. An enqueued or redriven message has its envelope behind them.
_TEXTS = {
    "enqueued": ("recipient_key", "message_id"),
    "redriven": ("recipient_key",),
    "dead": ("recipient_key", "worker", "reason"),
    "moved": ("recipient_key", "worker", "reason"),
}
_KEY_AND_WORKER = ("recipient_key", "worker")
_HEADERS = RedactionPolicy(record="headers")


def pool_rows(offsets: OffsetRange, block: LogBatch) -> pa.RecordBatch:
    """Return the rows of a block."""
    return decode_entries(POOLS, block, lambda payload, ms: _events(payload))


def _events(payload: bytes) -> Iterator[Row]:
    try:
        entry = unpack_entry(payload)
    except ValueError:
        yield {"malformed": True, "payload": payload}
        return
    if entry.is_withheld:
        yield WITHHELD
        return
    whose = {"project": entry.project, "pool": entry.name}
    for text, detail in entry.events:
        try:
            yield {**whose, "malformed": False, "recorded": FULL.label, **_event(text, detail)}
        except (ValueError, TypeError, KeyError):
            yield {**whose, "malformed": True, "payload": text.encode()}


def _event(text: str, detail: Any) -> Row:
    """Return the columns of an event. Raise ValueError, TypeError or KeyError if it is invalid."""
    kind, *words = text.split(" ")
    row: Row = {"kind": kind}
    row |= dict(zip(_NUMBERS[kind], map(int, words), strict=True))
    details: Sequence[Any] = detail or ()
    texts = _TEXTS.get(kind, _KEY_AND_WORKER) if details else ()
    row |= zip(texts, details, strict=False)
    if kind in ("enqueued", "redriven"):
        # The id of the event is the one that the pool remembers. A redriven event has none.
        row = _envelope(details[len(texts) :]) | row
    elif row.get("worker") == "-":
        row["worker"] = None
    return row


def _envelope(packed: Sequence[bytes]) -> Row:
    if not packed:
        return {"recorded": _HEADERS.label}
    try:
        envelope = unpack(packed[0], project="")
    except ValueError:
        return {"malformed": True, "payload": packed[0]}
    return {
        "message_id": envelope.id,
        "headers": [{"name": name, "value": value} for name, value in envelope.headers],
        "payload": envelope.data,
        "cause": envelope.cause,
        "traceparent": envelope.traceparent,
    }
