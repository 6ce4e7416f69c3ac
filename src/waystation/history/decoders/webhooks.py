"""Rows of the table `webhook_attempts`, from the record log of webhook attempts.

An entry has the attempts that one call settled, of all outbox queues. Each attempt becomes a row.
An entry that cannot be decoded becomes a malformed row with its bytes in `excerpt`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from waystation.delivery.attempt_log import unpack
from waystation.delivery.keys import channel_of_lane
from waystation.delivery.outbox import endpoint_of
from waystation.history.decoders.facts import Row, decode_entries, moment
from waystation.history.lake.schema import WEBHOOK_ATTEMPTS
from waystation.history.offsets import OffsetRange
from waystation.logs.protocol import LogBatch
from waystation.transactions.reply_lanes import parse_receiver, receiver_of_lane


def webhook_rows(offsets: OffsetRange, block: LogBatch) -> pa.RecordBatch:
    """Return the rows of a block."""
    return decode_entries(WEBHOOK_ATTEMPTS, block, lambda payload, ms: _attempts(payload))


def _attempts(payload: bytes) -> Iterator[Row]:
    try:
        attempts = unpack(payload)
    except ValueError:
        yield {"malformed": True, "excerpt": payload}
        return
    for lane, attempt in attempts:
        yield {
            **_endpoint(lane),
            "lane": lane,
            "delivery_id": attempt.id,
            "attempt": attempt.attempt,
            "verdict": attempt.verdict,
            "status": attempt.status or None,
            "failure": attempt.failure or None,
            "ended_at": moment(attempt.at_ms),
            "seconds": attempt.seconds,
            "excerpt": attempt.excerpt or None,
            "malformed": False,
        }


def _endpoint(lane: str) -> Row:
    """Return the endpoint of an outbox queue: a webhook of a channel, or a receiver of replies."""
    if found := channel_of_lane(lane):
        return {"project": found[0], "channel": found[1], "endpoint": endpoint_of(lane)}
    name = receiver_of_lane(lane)
    receiver = parse_receiver(name)
    return {"project": receiver.project if receiver else None, "endpoint": name or None}
