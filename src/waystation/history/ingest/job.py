"""Ingest: logs into the lake, every entry once.

A round plans from the marks of the tables to the ends of the logs, lets Spark's tasks read and
write, and commits files with the new marks. The lake alone says how far it came: a process may die
at any line, and the next round plans from what was committed. The watermark in the store is a copy,
set afterwards; it only keeps retention from what is still to be read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa
from pyspark.sql import SparkSession

from waystation.config import WhenFull
from waystation.errors import LakeWriteError, StoreError
from waystation.history.decoders.registry import decoder_for
from waystation.history.ingest.gaps import GapBook
from waystation.history.ingest.recordings import recordings
from waystation.history.ingest.recovery import find_border, mark_lost
from waystation.history.ingest.retention import Watermarks, register
from waystation.history.ingest.round_tables import RoundTables
from waystation.history.ingest.task import (
    IngestPlan,
    TaskReport,
    decode_report,
    packed_report,
)
from waystation.history.jobs import IngestProgress
from waystation.history.lake.maintenance import maintain
from waystation.history.lake.schema import BASE
from waystation.history.lake.table import ROOM_HINT, Lake, TableOffset
from waystation.history.log_ends import ends_digest
from waystation.history.log_reader import LogReader
from waystation.history.offsets import (
    TASK_ROWS,
    TASKS_PER_CORE,
    OffsetRange,
    limit_batch,
    pack_ranges,
    parse_key,
)
from waystation.history.progress import task_watch
from waystation.history.sources.options import StorePlace
from waystation.history.spark_errors import spark_errors
from waystation.history.status import count_batch, finish_ingest, read_status
from waystation.logs.protocol import LogState
from waystation.runtime.clock import Clock
from waystation.runtime.logging import logger

_log = logger("history")

#: Rows of a round: what a crash costs at most, and what is in one commit.
ROUND_ROWS = 4_000_000
#: Rounds after which tables are tidied while it goes on.
_TIDY_ROUNDS = 20


class Ingest:
    """Brings the logs of a store into a lake."""

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        store: StorePlace,
        *,
        clock: Clock | None = None,
        full: WhenFull = "drop_and_count",
        round_rows: int = ROUND_ROWS,
        task_rows: int = TASK_ROWS,
        vacuum_hours: int = 168,
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._store = store
        self._clock = clock or Clock()
        self._round_rows = round_rows
        self._task_rows = task_rows
        self._vacuum_hours = vacuum_hours
        #: Data set and run of the store that the two below are about.
        self._about = ("", "")
        #: Partitions whose last entry was compared with the store's.
        self._compared: set[str] = set()
        #: What has one at the end of its log is not looked up again: a look costs about 2 ms.
        self._watermarks = Watermarks(full)
        self._on_reading: Callable[[int, int], None] = lambda read, total: None

    def run(
        self,
        on_progress: Callable[[IngestProgress], None] | None = None,
        *,
        on_reading: Callable[[int, int], None] = lambda read, total: None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> IngestProgress:
        """Reads all that is there now; returns when it is in the lake, or between two rounds.

        `on_progress` is called after each round, `on_reading` also while tasks run, with how many
        entries were read of how many. HistoryBusyError if another ingest commits at the same time,
        LakeWriteError if the lake takes nothing more, TaskFailedError and SparkGoneError.
        """
        self._on_reading = on_reading
        done = IngestProgress()
        with LogReader(self._store.url()) as logs:
            dataset, run_id = logs.dataset(), logs.run_id()
            if not dataset:
                return done  # No station has ever used this store.
            if (dataset, run_id) != self._about:
                # Another data set has other logs of the same names; a new run may have lost some.
                self._about = (dataset, run_id)
                self._compared.clear()
                self._watermarks.clear()
                if replaced := logs.replaced_datasets():
                    book = GapBook(self._lake, dataset)
                    book.commit_replaced(replaced, self._clock.now_ms())
                register(logs, self._watermarks.reader, _states(logs))
            # Read before the ends, so that these include what a client has waited for.
            asked = logs.use(read_status).asked
            ends = {key: state.end for key, state in _states(logs).items()}
            while not stopping():
                rows, begun_s = done.rows, self._clock.uptime_s()
                if not self._round(logs, dataset, ends, done):
                    _finish(logs, ends, asked)
                    break
                self._count(logs, done.rows - rows, self._clock.uptime_s() - begun_s)
                if on_progress is not None:
                    on_progress(done)
                if done.rounds % _TIDY_ROUNDS == 0:
                    self._tidy(done)
        if done.rounds % _TIDY_ROUNDS:
            self._tidy(done)
        return done

    def _count(self, logs: LogReader, rows: int, seconds: float) -> None:
        """Count a committed batch in the status of the store, which is information only."""
        try:
            logs.use(lambda store: count_batch(store, rows, seconds))
        except StoreError as error:
            _log.warning("ingest batch not counted", rows=rows, reason=str(error))

    def _tidy(self, done: IngestProgress) -> None:
        for spec in BASE:
            tidied = maintain(
                self._lake.folder(spec), self._clock.now_ms(), vacuum_hours=self._vacuum_hours
            )
            done.compacted_files += tidied.compacted
            done.deleted_files += tidied.deleted

    def _round(
        self, logs: LogReader, dataset: str, ends: dict[str, int], done: IngestProgress
    ) -> bool:
        """One round; false when there was nothing left to do."""
        # After the ends were taken: what was produced since a topic was changed is never in the
        # round of before.
        recorded = recordings(logs, {parse_key(key)[0] for key in ends})
        states = {
            key: state
            for key, state in _states(logs).items()
            if key in ends
            and parse_key(key)[0] in recorded
            and not self._watermarks.is_at(key, state.end, state)
        }
        now_ms = self._clock.now_ms()
        tables = self._compare(logs, dataset, states, now_ms, done)
        gaps = GapBook(self._lake, dataset)
        spans = self._plan(tables, gaps, states, ends, done)
        moved = [span for span in spans if tables.mark(span.key).offset < span.end]
        if not moved:
            # Also of what another process has committed, and died before it could say so.
            marks = {key: tables.mark(key).offset for key in states}
            self._watermarks.set(logs, marks, states)
            return False
        withheld = [span for span in moved if recorded[span.log].record == "none"]
        for span in withheld:
            gaps.add(span, "policy")
        partly = {log: each for log, each in recorded.items() if not each.keeps_all}
        plan = IngestPlan(
            self._lake.root, self._store, dataset, now_ms, tables.wanted(), recordings=partly
        )
        reports = self._run_tasks(plan, [span for span in moved if span not in withheld], done)
        fingerprints = {(span.key, span.end): logs.fingerprint_before(span) for span in withheld}
        for report in (each for task in reports for each in task.spans):
            fingerprints[report.span.key, report.span.end] = report.fingerprint
            done.rows += report.rows
            done.malformed += report.malformed
            done.withheld_rows += report.withheld
            for gap in report.gaps:
                gaps.add(gap, gap.cause)
        # Before the rows: when these are there, nobody looks for the gap again.
        counted = gaps.commit(now_ms)
        done.gap_rows += counted["trimmed"]
        done.damaged_rows += counted["damaged"]
        done.withheld_rows += counted["policy"]
        tables.commit(
            reports,
            {
                span.key: TableOffset(span.end, fingerprints.get((span.key, span.end), 0))
                for span in moved
            },
        )
        done.rounds += 1
        done.read += sum(span.rows for span in moved)
        self._on_reading(done.read, done.read + done.left)
        self._watermarks.set(logs, {span.key: span.end for span in moved}, states)
        return True

    def _compare(
        self,
        logs: LogReader,
        dataset: str,
        states: Mapping[str, LogState],
        now_ms: int,
        done: IngestProgress,
    ) -> RoundTables:
        """The tables, once they have nothing that the store has lost."""
        tables = RoundTables(self._lake, dataset, states)
        went_back = False
        for key, state in states.items():
            if key in self._compared and tables.reached(key) <= state.end:
                continue
            border = find_border(logs, dataset, tables, key, state)
            if border is not None:
                went_back = True
                fresh = RoundTables(self._lake, dataset, [key])
                done.lost_rows += mark_lost(self._lake, dataset, fresh, border, now_ms)
            self._compared.add(key)
        return RoundTables(self._lake, dataset, states) if went_back else tables

    def _plan(
        self,
        tables: RoundTables,
        gaps: GapBook,
        states: Mapping[str, LogState],
        ends: Mapping[str, int],
        done: IngestProgress,
    ) -> list[OffsetRange]:
        """What this round reads of each partition."""
        starts = {}
        for key, state in states.items():
            log, partition = parse_key(key)
            end, offset = min(ends[key], state.end), tables.mark(key).offset
            start = min(max(offset, state.first), end)
            if start > offset:
                gaps.add(OffsetRange(log, partition, offset, start), "trimmed")
            starts[key] = gaps.after(OffsetRange(log, partition, start, end))
        reached = limit_batch(starts, {key: ends[key] for key in starts}, self._round_rows)
        done.left = sum(max(0, ends[key] - reached[key]) for key in starts)
        return [OffsetRange(*parse_key(key), start, reached[key]) for key, start in starts.items()]

    def _run_tasks(
        self, plan: IngestPlan, spans: list[OffsetRange], done: IngestProgress
    ) -> list[TaskReport]:
        tasks = pack_ranges(spans, rows=self._task_rows, most=TASKS_PER_CORE * self._cores())
        if not tasks:
            return []

        def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    report = pa.array([packed_report(plan, tasks[number])], pa.binary())
                    yield pa.record_batch({"report": report})

        entries = sum(span.rows for span in spans)
        total = done.read + entries + done.left

        def tell(ended: int, _: int) -> None:
            self._on_reading(done.read + entries * ended // len(tasks), total)

        tell(0, 0)
        with spark_errors(), task_watch(self._spark, "ingest", tell):
            numbers = self._spark.range(0, len(tasks), 1, len(tasks))
            rows = numbers.mapInArrow(work, "report binary").collect()
        reports = [decode_report(bytes(row.report)) for row in rows]
        for report in reports:
            if report.problem:
                raise LakeWriteError(report.problem, hint=ROOM_HINT)
        return reports

    def _cores(self) -> int:
        try:
            return self._spark.sparkContext.defaultParallelism
        except Exception:
            return os.cpu_count() or 1


def _finish(logs: LogReader, ends: Mapping[str, int], asked: int) -> None:
    """Store that all logs were read to their ends, for clients that have asked."""
    digest = ends_digest(ends)
    logs.use(lambda store: finish_ingest(store, served=asked, ends=digest))


def _states(logs: LogReader) -> dict[str, LogState]:
    """All partitions of all logs that have a feed."""
    wanted = [
        (log, partition)
        for log, partitions in logs.names().items()
        if decoder_for(log) is not None
        for partition in range(partitions)
    ]
    found = logs.states(wanted)
    return {f"{log}/{partition}": state for (log, partition), state in found.items()}
