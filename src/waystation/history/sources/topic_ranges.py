"""What there is to read of topics, or of record logs: listed from the register, at each asking."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from waystation.errors import TopicNotFoundError
from waystation.history.decoders.messages import gap_batch, message_batch, without_collections
from waystation.history.decoders.partitions import TopicPlace, topic_place
from waystation.history.log_reader import LogReader
from waystation.history.offsets import Gap, OffsetRange
from waystation.history.sources.filters import Narrowing
from waystation.history.sources.options import SourceOptions
from waystation.history.sources.record_table import has_rows_of, record_batch
from waystation.logs.protocol import LogBatch, LogState


def topic_states(logs: LogReader, options: SourceOptions) -> dict[tuple[str, int], LogState]:
    """All partitions that are asked for; TopicNotFoundError for a topic without any."""
    wanted: list[tuple[str, int]] = []
    seen: set[str] = set()
    for log, partitions in logs.names().items():
        if options.table:
            if has_rows_of(log, options.table):
                wanted += [(log, partition) for partition in range(partitions)]
            continue
        place = topic_place(log, 0)
        if place is None or place.project != options.project:
            continue
        if options.topics and place.topic not in options.topics:
            continue
        seen.add(place.topic)
        wanted += [(log, partition) for partition in range(partitions)]
    if missing := sorted(set(options.topics) - seen):
        raise TopicNotFoundError(
            f"There is no topic {missing[0]} in project {options.project}.",
            hint="Give names that `waystation topic list` shows, or * for all.",
        )
    return logs.states(wanted)


def topic_spans(logs: LogReader, options: SourceOptions, narrowing: Narrowing) -> list[OffsetRange]:
    """All that is kept of them right now, and passes a query's filters."""
    spans = []
    column = "log_offset" if options.table else "offset"
    for (log, partition), state in topic_states(logs, options).items():
        place = topic_place(log, partition)
        if narrowing.keeps(place) if place else narrowing.keeps_log(log, partition):
            start, end = narrowing.offsets(state.first, state.end, column=column)
            spans.append(OffsetRange(log, partition, start, end))
    spans = [span for span in spans if span.rows]
    since, until = narrowing.times_ms
    if since is not None:
        starts = logs.offsets_at([(span.log, span.partition, since) for span in spans])
        spans = [_from(span, start) for span, start in zip(spans, starts, strict=True)]
    if until is not None:
        ends = logs.offsets_at([(span.log, span.partition, until) for span in spans])
        spans = [_until(span, end) for span, end in zip(spans, ends, strict=True)]
    return [span for span in spans if span.rows]


def read_spans(options: SourceOptions, spans: tuple[OffsetRange, ...]) -> Iterator[pa.RecordBatch]:
    """The rows of spans, one after the other."""
    if not spans:
        return
    with LogReader(options.store.url()) as logs:
        yield from without_collections(_batches(logs, options, spans))


def _batches(
    logs: LogReader, options: SourceOptions, spans: tuple[OffsetRange, ...]
) -> Iterator[pa.RecordBatch]:
    for span in spans:
        place = topic_place(span.log, span.partition)
        for part in logs.blocks(span, on_gap=options.on_gap):
            yield _batch(place, part) if place else record_batch(options.table, span, part)


def _batch(place: TopicPlace, part: LogBatch | Gap) -> pa.RecordBatch:
    if isinstance(part, Gap):
        return gap_batch(place, part.start, part.end)
    return message_batch(place, part)


def _from(span: OffsetRange, start: int) -> OffsetRange:
    return OffsetRange(span.log, span.partition, min(max(span.start, start), span.end), span.end)


def _until(span: OffsetRange, end: int) -> OffsetRange:
    return OffsetRange(span.log, span.partition, span.start, max(span.start, min(span.end, end)))
