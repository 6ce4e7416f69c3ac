"""Rows of deliveries and of operations, from the record log of a shard of a subscription.

An entry has all that one script call did: `[1, data set, [[facts, detail], …]]`. Every fact becomes
a row of `deliveries`: a hop of a message from where it was (`m0.3.17`: storage topic, partition and
offset; `r5`: in retry; `d2`: a dead letter) to where it is from then on, `-` when it is settled.
The first hop tells the offset, so the way of a message is a chain of hops. A request has the whole
`position` of its message, as `messages` has it, wherever it was made from. What was done to a
range, or by an operation, is a row of `operations` too. What cannot be read is a row all the same:
marked as malformed, with its bytes in `excerpt`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa

from waystation.history.decoders.facts import Row, moment, own_columns
from waystation.history.decoders.partitions import ShardPlace, shard_place
from waystation.history.lake.schema import DELIVERIES, OPERATIONS
from waystation.history.offsets import OffsetRange
from waystation.logs.protocol import LogBatch
from waystation.subscriptions.log_entry import (
    Fact,
    unpack,
    unpack_attempt,
    unpack_operation,
    unpack_start,
)

#: Facts about a range: both ends are offsets, the second is not of the range.
RANGES = frozenset({"start", "passed", "trimmed", "damaged", "reset"})
#: Facts about a message that an operation did; the detail is its id.
_BY_OPERATION = frozenset({"redriven", "skipped", "purged"})


def shard_rows(span: OffsetRange, block: LogBatch) -> dict[str, pa.RecordBatch]:
    """The rows of a block, by table."""
    place = shard_place(span.log, span.partition)
    assert place is not None, "the feed of shards has their logs alone"
    whose = {
        "project": place.project,
        "subscription": place.subscription,
        "generation": place.generation,
        "shard": place.shard,
    }
    deliveries: list[Row] = []
    operations: list[Row] = []
    for number, (ms, payload) in enumerate(zip(block.times_ms, block.payloads, strict=True)):
        at = {"log_offset": block.offset + number, "time": moment(ms)}
        for item, fact in enumerate(_facts(place, payload)):
            deliveries.append({**at, "item": item, **whose, **fact})
            if fact.get("kind") in RANGES | _BY_OPERATION:
                operations.append({**at, "item": item, **_operation(place, fact)})
    return {
        DELIVERIES.name: pa.RecordBatch.from_pylist(deliveries, schema=own_columns(DELIVERIES)),
        OPERATIONS.name: pa.RecordBatch.from_pylist(operations, schema=own_columns(OPERATIONS)),
    }


def _facts(place: ShardPlace, payload: bytes) -> Iterator[Row]:
    """Each fact of an entry as a row; one of an entry that is none, or of a newer release."""
    try:
        rows = [(_hop(fact), fact.detail) for fact in unpack(payload).facts]
    except ValueError:
        yield {"malformed": True, "excerpt": payload}
        return
    for row, detail in rows:
        if detail is None:
            yield row
            continue
        try:
            yield row | _detail(place, row["kind"], detail)
        except msgspec.DecodeError:
            yield row | {"malformed": True, "excerpt": detail}


def _hop(fact: Fact) -> Row:
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
    if kind in _BY_OPERATION:
        return {"operation": unpack_operation(packed).operation}
    told = unpack_attempt(packed)
    by_status = told.failure.isdigit()
    return {
        "position": f"{place.project}/{told.position}" if told.position else None,
        "message_id": told.id or None,
        "group": told.group or None,
        "status": int(told.failure) if by_status else None,
        "failure": None if by_status else told.failure or None,
        "cause": told.cause or None,
        "excerpt": told.excerpt or None,
        "started_at": moment(told.begun_ms) if told.begun_ms else None,
        "ended_at": moment(told.ended_ms) if told.ended_ms else None,
        "begun_after": told.begun_after if told.begun_ms else None,
        "node": told.node or None,
        "endpoint": told.endpoint or None,
    }


def _operation(place: ShardPlace, fact: Row) -> Row:
    told: dict[str, Any] = {
        name: fact[name]
        for name in ("operation", "topic", "incarnation", "epoch")
        if fact.get(name) is not None
    }
    return {
        "project": place.project,
        "kind": fact["kind"],
        "subject": place.subscription,
        "generation": place.generation,
        "shard": place.shard,
        "from_position": fact["from_place"],
        "to_position": fact["to_place"],
        "detail": json.dumps(told),
    }
