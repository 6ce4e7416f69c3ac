"""Spans: ranges of offsets of logs, and how they are cut for tasks and micro-batches.

Offsets are dense, so all of this is arithmetic. A task of Spark costs about 50 ms however little it
reads: many small logs go into one, and only large ones are split.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

#: Why offsets are not in the lake. `trimmed`: retention removed them before they were read.
#: `damaged`: they are missing from the log, and retention did not remove them. `policy`: their
#: topic is not recorded. `lost`: they are in the lake, marked as lost, and the store gave their
#: offsets to other entries. `store-lost`: the store lost a whole data set, which the column `log`
#: names, and an operator accepted that.
GapCause = Literal["trimmed", "damaged", "policy", "lost", "store-lost"]

#: Rows of a task.
TASK_ROWS = 65_536
#: Tasks for each core: more would only wait.
TASKS_PER_CORE = 4


class OffsetRange(msgspec.Struct, frozen=True, gc=False):
    """The messages of a partition from `start` up to, but not with, `end`."""

    log: str
    partition: int
    start: int
    end: int

    @property
    def rows(self) -> int:
        """How many messages it has."""
        return self.end - self.start

    @property
    def key(self) -> str:
        """The partition, in one word."""
        return f"{self.log}/{self.partition}"


class Gap(OffsetRange, frozen=True, gc=False):
    """Offsets of a partition that a reader did not find."""

    cause: GapCause = "trimmed"


def parse_key(key: str) -> tuple[str, int]:
    """Log and partition of `OffsetRange.key`."""
    log, _, partition = key.rpartition("/")
    return log, int(partition)


def pack_ranges(spans: Iterable[OffsetRange], *, rows: int, most: int) -> list[list[OffsetRange]]:
    """Spans for each task: as if all stood in one line that is cut after every so many rows.

    A task has `rows` of them, or more where there would be more than `most` tasks.
    """
    spans = [span for span in spans if span.rows > 0]
    total = sum(span.rows for span in spans)
    rows = max(rows, -(-total // most))
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
    """How far a micro-batch goes in each partition: to its end, or `rows_max` rows together.

    The same share for each partition, and what some do not need for the others: a small one never
    waits for a large one.
    """
    reached = {**start, **{key: start.get(key, 0) for key in ends}}
    waiting = {key: end - reached[key] for key, end in ends.items() if end > reached[key]}
    if rows_max is None:
        return {**reached, **{key: ends[key] for key in waiting}}
    left = rows_max
    # The shortest first, so that what it leaves is shared by the rest.
    for place, (key, rows) in enumerate(sorted(waiting.items(), key=lambda each: each[1])):
        # Rounded up: the last rows are not left over for ever.
        share = min(rows, -(-left // (len(waiting) - place)), left)
        reached[key] += share
        left -= share
    return reached
