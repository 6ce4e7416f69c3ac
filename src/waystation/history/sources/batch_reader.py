"""Topics as tables: what a log has when the query is planned, in tasks of about the same size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from waystation.history.log_reader import LogReader
from waystation.history.offsets import OffsetRange, pack_ranges
from waystation.history.sources.filters import Narrowing
from waystation.history.sources.options import SourceOptions
from waystation.history.sources.topic_ranges import read_spans, topic_spans


class Task(InputPartition):
    """What one task of Spark reads."""

    def __init__(self, spans: Iterable[OffsetRange]) -> None:
        super().__init__(tuple(spans))

    @property
    def spans(self) -> tuple[OffsetRange, ...]:
        """One after the other."""
        spans: tuple[OffsetRange, ...] = self.value
        return spans


class BatchReader(DataSourceReader):
    """Reads everything; Spark filters."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._narrowing = Narrowing()

    def partitions(self) -> list[InputPartition]:
        """Ends are fixed here: what comes later is not in this query."""
        options = self._options
        with LogReader(options.store.url()) as logs:
            spans = topic_spans(logs, options, self._narrowing)
        # One at least: of none, Spark would make one that is not ours.
        return tasks_of(options, spans) or [Task(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Task), "Spark gives back what it was given"
        return read_spans(self._options, partition.spans)


class NarrowingBatchReader(BatchReader):
    """Leaves out what filters rule out. Spark refuses it where push-down is not switched on."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (Spark's name)
        """Takes note of all, and lets Spark check all of them too."""
        for condition in filters:
            self._narrowing.add(condition)
        return filters


def tasks_of(options: SourceOptions, spans: Iterable[OffsetRange]) -> list[InputPartition]:
    """Spans as tasks, large ones split, small ones together."""
    packed = pack_ranges(spans, rows=options.partition_rows, most=options.tasks_max)
    return [Task(part) for part in packed]
