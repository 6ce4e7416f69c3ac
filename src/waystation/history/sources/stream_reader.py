"""Topics as streams: micro-batches from offset to offset of every partition.

An offset is `{"<log>/<partition>": next}`. Logs are listed anew for each micro-batch, so partitions
and storage topics that are added while the stream runs are read from their beginning on. One that
was purged stays where it was.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from waystation.history.log_reader import LogReader, went_back
from waystation.history.offsets import OffsetRange, limit_batch, parse_key
from waystation.history.sources.batch_reader import Task, tasks_of
from waystation.history.sources.options import SourceOptions
from waystation.history.sources.topic_ranges import read_spans, topic_states
from waystation.logs.protocol import LogState

Offsets = dict[str, int]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what has come since the last micro-batch."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        #: Where a query that reads what is there now has to end.
        self._target: Offsets | None = None

    def initialOffset(self) -> Offsets:  # noqa: N802 (Spark's name)
        """Where a new query begins."""
        latest = self._options.from_latest
        return {key: state.end if latest else state.first for key, state in self._states().items()}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 (Spark's name)
        """What comes from now on is not for this query."""
        self._target = self._ends()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 (Spark's name)
        """As the option says."""
        rows_max = self._options.rows_max
        return ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        """How far the next micro-batch goes."""
        ends = self._ends() if self._target is None else self._target
        for key, end in ends.items():
            if end < start.get(key, 0):
                raise went_back(OffsetRange(*parse_key(key), end, start[key]), end)
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return limit_batch(start, ends, rows_max)

    def reportLatestOffset(self) -> Offsets:  # noqa: N802 (Spark's name)
        """What there is, for the progress that Spark shows."""
        return self._ends()

    def partitions(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        """The tasks of a micro-batch."""
        spans = [
            OffsetRange(*parse_key(key), start.get(key, 0), until) for key, until in end.items()
        ]
        return tasks_of(self._options, spans)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Task), "Spark gives back what it was given"
        return read_spans(self._options, partition.spans)

    def _ends(self) -> Offsets:
        return {key: state.end for key, state in self._states().items()}

    def _states(self) -> dict[str, LogState]:
        with LogReader(self._options.store.url()) as logs:
            found = topic_states(logs, self._options)
        return {f"{log}/{partition}": state for (log, partition), state in found.items()}
