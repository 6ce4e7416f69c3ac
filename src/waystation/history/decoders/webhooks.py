"""Rows of webhook attempts, from the log that those who deliver write them down in."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from waystation.delivery.attempt_log import unpack
from waystation.delivery.keys import channel_of_lane
from waystation.delivery.outbox import endpoint_of
from waystation.history.decoders.facts import Row, moment, own_columns
from waystation.history.lake.schema import WEBHOOK_ATTEMPTS
from waystation.history.offsets import OffsetRange
from waystation.logs.protocol import LogBatch
from waystation.transactions.reply_lanes import parse_receiver, receiver_of_lane


def webhook_rows(span: OffsetRange, block: LogBatch) -> dict[str, pa.RecordBatch]:
    """The rows of a block; an entry that cannot be read is one, with its bytes in `excerpt`."""
    rows: list[Row] = []
    for number, (ms, payload) in enumerate(zip(block.times_ms, block.payloads, strict=True)):
        at = {"log_offset": block.offset + number, "time": moment(ms)}
        rows += [{**at, "item": item, **told} for item, told in enumerate(_attempts(payload))]
    schema = own_columns(WEBHOOK_ATTEMPTS)
    return {WEBHOOK_ATTEMPTS.name: pa.RecordBatch.from_pylist(rows, schema=schema)}


def _attempts(payload: bytes) -> Iterator[Row]:
    try:
        attempts = unpack(payload)
    except ValueError:
        yield {"malformed": True, "excerpt": payload}
        return
    for lane, told in attempts:
        yield {
            **_place(lane),
            "lane": lane,
            "delivery_id": told.id,
            "attempt": told.attempt,
            "verdict": told.verdict,
            "status": told.status or None,
            "failure": told.failure or None,
            "ended_at": moment(told.at_ms),
            "seconds": told.seconds,
            "excerpt": told.excerpt or None,
            "malformed": False,
        }


def _place(lane: str) -> Row:
    """Whose a lane is: a receiver's of a project, or a webhook's of a channel."""
    if found := channel_of_lane(lane):
        return {"project": found[0], "channel": found[1], "endpoint": endpoint_of(lane)}
    name = receiver_of_lane(lane)
    receiver = parse_receiver(name)
    return {"project": receiver.project if receiver else None, "endpoint": name or None}
