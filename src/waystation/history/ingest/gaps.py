"""The book of gaps: what is not in the lake, and why, each message counted once.

Gaps are committed before the rows around them. A round that died between the two finds here what
is written down already, and adds what is not. Of two at once, one is refused: each commit counts
on, from what it has read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

import pyarrow as pa

from waystation.history.lake.files import TableWriter
from waystation.history.lake.schema import GAPS
from waystation.history.lake.table import Lake, LakeTable, TableOffset
from waystation.history.offsets import GapCause, OffsetRange


class GapBook:
    """The table as it is at the beginning of a round, and what the round adds to it."""

    def __init__(self, lake: Lake, dataset: str) -> None:
        self._folder = lake.folder(GAPS)
        self._table = lake.open(GAPS)
        self._dataset = dataset
        self._found: list[tuple[OffsetRange, GapCause]] = []

    @property
    def table(self) -> LakeTable:
        """The table in this version."""
        return self._table

    def add(self, gap: OffsetRange, cause: GapCause) -> None:
        """Takes note of a gap."""
        self._found.append((gap, cause))

    def after(self, span: OffsetRange) -> int:
        """The first offset of a span that is not written down as a gap: that is not read again."""
        offset = span.start
        for start, end in self._written(span):
            if start <= offset < end:
                offset = end
        return min(offset, span.end)

    def commit(self, now_ms: int) -> Counter[GapCause]:
        """Writes down what is new; how many messages that are, by cause."""
        writer = TableWriter(self._folder, GAPS)
        marks: dict[str, TableOffset] = {}
        counted: Counter[GapCause] = Counter()
        for gap, cause in self._found:
            for part in self._missing(gap):
                writer.write(self._row(part, cause, now_ms))
                key = f"{self._dataset}/{gap.key}"
                before = self._table.offset(key)
                reached = max(before.offset, part.end, marks.get(key, before).offset)
                marks[key] = TableOffset(reached, before.fingerprint + 1)
                counted[cause] += part.rows
        if marks:
            self._table.commit(writer.close(), marks)
        return counted

    def commit_lost(self, gap: OffsetRange, version: int, now_ms: int) -> None:
        """Writes down what a store has lost, once for each version of the table that has it."""
        key = f"{self._dataset}/{gap.key}!"
        if self._table.offset(key).offset != version:
            writer = TableWriter(self._folder, GAPS)
            writer.write(self._row(gap, "lost", now_ms))
            self._table.commit(writer.close(), {key: TableOffset(version)})

    def commit_replaced(self, replaced: Iterable[str], now_ms: int) -> None:
        """Write down the data sets that the store lost before this one, each once."""
        new = {each: f"{self._dataset}/{each}!" for each in replaced}
        new = {each: key for each, key in new.items() if not self._table.offset(key).offset}
        if new:
            writer = TableWriter(self._folder, GAPS)
            for each in new:
                writer.write(self._row(OffsetRange(each, 0, 0, 0), "store-lost", now_ms))
            self._table.commit(writer.close(), {key: TableOffset(1) for key in new.values()})

    def _missing(self, gap: OffsetRange) -> Iterator[OffsetRange]:
        """What of a gap is not written down."""
        offset = gap.start
        for start, end in self._written(gap):
            if start > offset:
                yield OffsetRange(gap.log, gap.partition, offset, min(start, gap.end))
            offset = max(offset, end)
        if offset < gap.end:
            yield OffsetRange(gap.log, gap.partition, offset, gap.end)

    def _written(self, span: OffsetRange) -> list[tuple[int, int]]:
        """Gaps that are written down and reach into a span, in their order."""
        if self._table.offset(f"{self._dataset}/{span.key}").offset <= span.start:
            return []
        before = OffsetRange(span.log, span.partition, 0, span.end)
        columns = ["from_offset", "to_offset", "cause", "lost"]
        return sorted(
            (row["from_offset"], row["to_offset"])
            for row in self._table.rows(self._dataset, before, columns).to_pylist()
            if not row["lost"] and row["cause"] != "lost" and row["to_offset"] > span.start
        )

    def _row(self, gap: OffsetRange, cause: GapCause, now_ms: int) -> pa.RecordBatch:
        now = datetime.fromtimestamp(now_ms / 1000, UTC)
        row = {
            "dataset": self._dataset,
            "log": gap.log,
            "log_partition": gap.partition,
            "log_offset": gap.start,
            "item": 0,
            "time": now,
            "ingested": now,
            "lost": False,
            "from_offset": gap.start,
            "to_offset": gap.end,
            "rows": gap.rows,
            "cause": cause,
        }
        return pa.RecordBatch.from_pylist([row], schema=GAPS.file_schema)
