"""Plan of a micro-batch: the ranges of logs that it ingests, and the gaps that it records."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

import msgspec

from waystation.config import WhenFull
from waystation.history.decoders.partitions import shard_place, topic_place
from waystation.history.decoders.registry import decoder_for
from waystation.history.lake.table import TableOffset
from waystation.history.log_reader import LogReader
from waystation.history.offsets import (
    TASK_ROWS,
    TASKS_PER_CORE,
    Gap,
    OffsetRange,
    limit_batch,
    pack_ranges,
    parse_key,
)
from waystation.logs.protocol import LogState
from waystation.messages.redaction import FULL, RedactionPolicy, redaction_policy
from waystation.runtime.logging import logger
from waystation.topics.keys import definition_key
from waystation.types.common import Pointers, Record

_log = logger("history")


class IngestOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of an ingest."""

    #: Behaviour of a full log that has entries which history has not read.
    full: WhenFull = "drop_and_count"
    #: Entries of a micro-batch. A crash repeats at most these.
    batch_rows: int = 4_000_000
    #: Entries of a task.
    task_rows: int = TASK_ROWS
    #: Tasks of a micro-batch. If they do not suffice, each task reads more entries.
    tasks_max: int = TASKS_PER_CORE * (os.cpu_count() or 1)
    #: Hours for which files without a table are kept.
    vacuum_hours: int = 168
    #: Days for which the lake keeps rows; 0 keeps them forever.
    keep_days: int = 0


class BatchPlan(msgspec.Struct, frozen=True):
    """Work of a micro-batch."""

    #: Ranges and known gaps of each task.
    tasks: list[list[OffsetRange | Gap]]
    #: Entries of the tasks, with those of gaps.
    entries: int
    #: Entries that later micro-batches read.
    left: int


def plan_batch(
    committed: Mapping[str, TableOffset],
    states: Mapping[str, LogState],
    ends: Mapping[str, int],
    policies: Mapping[str, RedactionPolicy],
    options: IngestOptions,
) -> BatchPlan:
    """Plan a micro-batch from the committed offsets of partitions towards their ends.

    Entries that retention has trimmed are a gap, and so are entries of topics with `record` none.
    A task records these gaps without reading.
    """
    gaps: list[Gap] = []
    starts: dict[str, int] = {}
    stops: dict[str, int] = {}
    for key, state in states.items():
        log, partition = parse_key(key)
        offset, stops[key] = committed[key].offset, min(ends[key], state.end)
        starts[key] = max(offset, min(state.first, stops[key]))
        if starts[key] > offset:
            gaps.append(Gap(log, partition, offset, starts[key]))
    reached = _limit(starts, stops, options.batch_rows)
    ranges: list[OffsetRange] = []
    for key, start in starts.items():
        log, partition = parse_key(key)
        if start >= reached[key]:
            continue
        if policies[log].record == "none":
            gaps.append(Gap(log, partition, start, reached[key], cause="policy"))
        else:
            ranges.append(OffsetRange(log, partition, start, reached[key]))
    packed = pack_ranges(ranges, rows=options.task_rows, tasks_max=options.tasks_max)
    tasks: list[list[OffsetRange | Gap]] = [list(each) for each in packed]
    if gaps:
        # One task records all gaps, because it reads nothing for them.
        tasks[:1] = [[*gaps, *(tasks[0] if tasks else ())]]
    return BatchPlan(
        tasks,
        entries=sum(each.rows for each in (*gaps, *ranges)),
        left=sum(max(0, stops[key] - reached[key]) for key in starts),
    )


def _limit(starts: Mapping[str, int], stops: Mapping[str, int], rows: int) -> dict[str, int]:
    """Return the offset that each partition reaches in a micro-batch of some rows.

    Record logs of subscriptions stay at their starts until the topics fit into one micro-batch,
    because rollups look for the message of each delivery.
    """
    reached = limit_batch(starts, stops, rows)
    places = {key: parse_key(key) for key in starts}
    if all(
        reached[key] >= stops[key]
        for key, place in places.items()
        if topic_place(*place) is not None
    ):
        return reached
    others = {key for key, place in places.items() if shard_place(*place) is None}
    return {
        **starts,
        **limit_batch(
            {key: starts[key] for key in others}, {key: stops[key] for key in others}, rows
        ),
    }


def ingested_states(logs: LogReader) -> dict[str, LogState]:
    """Return the state of each partition of all logs that history ingests.

    Read topics last, so that their states include the message of each delivery that the states of
    record logs include.
    """
    found: dict[str, LogState] = {}
    for is_topic in (False, True):
        # List the logs again, because a topic may have been created in the meantime.
        partitions = [
            (log, partition)
            for log, count in logs.names().items()
            if decoder_for(log) is not None and (topic_place(log, 0) is not None) == is_topic
            for partition in range(count)
        ]
        states = logs.states(partitions)
        found |= {f"{log}/{partition}": state for (log, partition), state in states.items()}
    return found


class _Options(msgspec.Struct):
    """The options of a topic that history needs. Other releases may have further ones."""

    record: Record = "full"
    redact: Pointers = ()


class _Definition(msgspec.Struct):
    options: _Options


_decode = msgspec.json.Decoder(_Definition).decode


def recording_policies(reader: LogReader, logs: Iterable[str]) -> dict[str, RedactionPolicy]:
    """Return the recording policy of each log.

    Leave out a log whose topic has options that this release does not understand. The policy of a
    record log is `FULL`, because the writer of an entry has applied the policy. A topic without a
    definition has no messages, because a topic is defined before it accepts any.
    """
    places = {log: topic_place(log, 0) for log in logs}
    topics = {log: place for log, place in places.items() if place is not None}
    policies = {log: FULL for log, place in places.items() if place is None}
    keys = [definition_key(place.project, place.topic) for place in topics.values()]
    for log, body in zip(topics, reader.fields(keys, "body"), strict=True):
        try:
            options = _decode(body).options if body is not None else _Options()
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            _log.warning("log skipped", log=log, reason="unknown topic options", error=str(error))
            continue
        policies[log] = redaction_policy(options.record, options.redact)
    return policies
