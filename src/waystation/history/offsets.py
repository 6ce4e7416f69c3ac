"""Offset ranges: split and packed for tasks, limited for micro-batches.

Offsets of a log partition are dense, so the number of entries is arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

#: Cause of a range without live rows in the lake.
#: `trimmed`: retention removed the entries before they were read.
#: `damaged`: the entries are missing from the log, and retention did not remove them.
#: `policy`: the topic, channel or pool withholds the entries.
#: `lost`: a restored store lost the entries after their ingest; their rows are marked as lost.
#: `store-lost`: the store lost a data set, as an operator confirmed. Its id is in the column `log`.
#: `expired`: the rows were older than `history.keep_days` and were deleted.
GapCause = Literal["trimmed", "damaged", "policy", "lost", "store-lost", "expired"]

#: Reaction of a reader to missing entries: raise an error, or return one row with their number.
OnGap = Literal["fail", "count"]

#: Entries of a task.
TASK_ROWS = 65_536
#: Tasks of a micro-batch per core. More tasks would only wait.
TASKS_PER_CORE = 4


class OffsetRange(msgspec.Struct, frozen=True, gc=False):
    """Entries of a log partition from `start` up to, but excluding, `end`."""

    log: str
    partition: int
    start: int
    end: int

    @property
    def rows(self) -> int:
        """Number of entries."""
        return self.end - self.start

    @property
    def key(self) -> str:
        """Name of the partition: `<log>/<number>`."""
        return f"{self.log}/{self.partition}"


class Gap(OffsetRange, frozen=True, gc=False):
    """Entries that a reader does not find, or does not keep."""

    cause: GapCause = "trimmed"


def parse_key(key: str) -> tuple[str, int]:
    """Return log and number of a partition, which `OffsetRange.key` names."""
    log, _, partition = key.rpartition("/")
    return log, int(partition)


def ranges_between(start: Mapping[str, int], end: Mapping[str, int]) -> list[OffsetRange]:
    """Return the range of each partition that has entries between two maps of offsets.

    A partition that `start` lacks starts at 0, because it was added later.
    """
    ranges = (OffsetRange(*parse_key(key), start.get(key, 0), until) for key, until in end.items())
    return [each for each in ranges if each.rows > 0]


def pack_ranges(
    spans: Iterable[OffsetRange], *, rows: int, tasks_max: int
) -> list[list[OffsetRange]]:
    """Return the ranges of each task: all ranges in one line, cut after every `rows` entries.

    Tasks get more entries if there would be more than `tasks_max` tasks. A Spark task costs about
    50 ms however little it reads, so one task reads many small partitions.
    """
    spans = [span for span in spans if span.rows > 0]
    total = sum(span.rows for span in spans)
    rows = max(rows, -(-total // tasks_max))
    tasks: list[list[OffsetRange]] = []
    room = 0
    for span in spans:
        start = span.start
        while start < span.end:
            if room == 0:
                tasks.append([])
                room = rows
            end = min(span.end, start + room)
            tasks[-1].append(OffsetRange(span.log, span.partition, start, end))
            room -= end - start
            start = end
    return tasks


def limit_batch(
    start: Mapping[str, int], ends: Mapping[str, int], rows_max: int | None
) -> dict[str, int]:
    """Return the offset that each partition reaches in a micro-batch of up to `rows_max` entries.

    Each partition gets the same share, and a partition that needs less leaves the rest to others.
    So a small partition never waits for a large one.
    """
    reached = {**start, **{key: start.get(key, 0) for key in ends}}
    waiting = {key: end - reached[key] for key, end in ends.items() if end > reached[key]}
    if rows_max is None:
        return {**reached, **{key: ends[key] for key in waiting}}
    left = rows_max
    # The shortest first, so that all others share the entries that it does not need.
    for place, (key, rows) in enumerate(sorted(waiting.items(), key=lambda each: each[1])):
        # Rounded up, or a share of less than one entry would never be read.
        share = min(rows, -(-left // (len(waiting) - place)), left)
        reached[key] += share
        left -= share
    return reached
