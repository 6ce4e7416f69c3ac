"""Rows of the table `deliveries`, from the record logs of shards of subscriptions.

An entry has the facts of one script call. Each fact becomes a row. The fact of a message leads from
the place where the message was to the place where it is from then on: `m0.3.17` is its storage
topic, partition and offset, `r5` its number in retry, `d2` its number among dead letters, and `-`
means settled. Only a fact that begins in the topic has the offset, so the facts of a message form a
chain. The fact of a request has the whole `position` of its message. The view `operations` has the
facts of ranges and the facts that operators caused. An entry or a detail that cannot be decoded
becomes a malformed row with its bytes in `excerpt`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import msgspec
import pyarrow as pa

from waystation.history.decoders.facts import Row, decode_entries, moment
from waystation.history.decoders.partitions import ShardPlace, shard_place
from waystation.history.lake.projections import BY_OPERATION
from waystation.history.lake.schema import DELIVERIES
from waystation.history.offsets import OffsetRange
from waystation.logs.protocol import LogBatch
from waystation.subscriptions.log_entry import (
    Fact,
    unpack,
    unpack_attempt,
    unpack_operation,
    unpack_start,
)


def shard_rows(offsets: OffsetRange, block: LogBatch) -> pa.RecordBatch:
    """Return the rows of a block."""
    place = shard_place(offsets.log, offsets.partition)
    assert place is not None, "the registry decodes only logs of shards with this"
    return decode_entries(DELIVERIES, block, partial(_facts, place))


def _facts(place: ShardPlace, payload: bytes, ms: int) -> Iterator[Row]:
    shard: Row = {
        "project": place.project,
        "subscription": place.subscription,
        "generation": place.generation,
        "shard": place.shard,
    }
    try:
        facts = [(shard | _fact(fact), fact.detail) for fact in unpack(payload).facts]
    except ValueError:
        yield shard | {"malformed": True, "excerpt": payload}
        return
    for row, detail in facts:
        if detail is None:
            yield row
            continue
        try:
            yield row | _detail(place, row["kind"], detail)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            yield row | {"malformed": True, "excerpt": detail}


def _fact(fact: Fact) -> Row:
    row = {
        "kind": fact.kind,
        "from_place": fact.was,
        "to_place": fact.now,
        "epoch": fact.epoch,
        "incarnation": fact.incarnation,
        "attempt": fact.attempt,
        "outcome": fact.verdict,
        "policy": fact.policy,
        "malformed": False,
    }
    if fact.was.startswith("m"):
        storage, partition, offset = map(int, fact.was[1:].split("."))
        row |= {"storage": storage, "partition": partition, "offset": offset}
    return row


def _detail(place: ShardPlace, kind: str, packed: bytes) -> Row:
    if kind == "start":
        return {"topic": unpack_start(packed).topic}
    if kind in BY_OPERATION:
        return {"operation": unpack_operation(packed).operation}
    attempt = unpack_attempt(packed)
    is_status = attempt.failure.isdigit()
    return {
        "position": f"{place.project}/{attempt.position}" if attempt.position else None,
        "message_id": attempt.id or None,
        "group": attempt.group or None,
        "status": int(attempt.failure) if is_status else None,
        "failure": None if is_status else attempt.failure or None,
        "cause": attempt.cause or None,
        "excerpt": attempt.excerpt or None,
        "started_at": moment(attempt.begun_ms) if attempt.begun_ms else None,
        "ended_at": moment(attempt.ended_ms) if attempt.ended_ms else None,
        "begun_after": attempt.begun_after if attempt.begun_ms else None,
        "node": attempt.node or None,
        "endpoint": attempt.endpoint or None,
    }
