"""Ingest: copy the logs of a store into the lake, every entry exactly once.

A micro-batch reads a range of each log partition and commits the rows of a table together with the
offsets that they reach, in one Delta commit. The tables are the only record of progress: a process
may crash at any line, and the next micro-batch plans from what was committed. Spark runs the tasks;
this process plans and commits.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date

import pyarrow as pa
from pyspark.sql import SparkSession

from waystation.config import HistoryConfig, public_place
from waystation.errors import LakeWriteError, OtherDataSetError, StoreError
from waystation.history.decoders.registry import decoder_for
from waystation.history.ingest.planner import (
    BatchPlan,
    IngestOptions,
    ingested_states,
    plan_batch,
    recording_policies,
)
from waystation.history.ingest.recovery import Recovery, mark_lost
from waystation.history.ingest.retention import RetentionHolds, register
from waystation.history.ingest.task import (
    IngestTask,
    RangeReceipt,
    TableWriters,
    TaskResult,
    decode_result,
    gap_row,
    run_encoded,
)
from waystation.history.jobs import IngestProgress
from waystation.history.lake.expiry import expire_group_load, expire_rows, first_kept_day
from waystation.history.lake.identity import read_lake_id
from waystation.history.lake.maintenance import maintain
from waystation.history.lake.schema import BASE, MESSAGES, OPERATIONS, STORE_LOST
from waystation.history.lake.table import ROOM_HINT, Lake, LakeTable, TableOffset
from waystation.history.log_ends import ends_digest
from waystation.history.log_reader import DamageReports, LogReader
from waystation.history.offsets import TASKS_PER_CORE, Gap, parse_key
from waystation.history.progress import task_watch
from waystation.history.sources.options import Location
from waystation.history.spark_errors import spark_errors
from waystation.history.status import count_batch, finish_ingest, read_status
from waystation.messages.redaction import RedactionPolicy
from waystation.runtime.clock import Clock
from waystation.runtime.logging import logger

_log = logger("history")

#: Micro-batches after which a long ingest maintains the tables.
_MAINTAIN_BATCHES = 20

#: Called with the number of tasks of a micro-batch that have ended.
OnEnded = Callable[[int], None]
#: Run the tasks of a micro-batch, anywhere, and return their results in any order.
RunTasks = Callable[[Sequence[IngestTask], OnEnded], Iterable[TaskResult]]


def ingest_job(
    spark: SparkSession, lake: Lake, store: Location, settings: HistoryConfig | None = None
) -> IngestJob:
    """Return an ingest whose tasks run on Spark."""
    settings = settings or HistoryConfig()
    options = IngestOptions(
        full=settings.full,
        batch_rows=settings.round_rows,
        tasks_max=TASKS_PER_CORE * _cores(spark),
        vacuum_hours=settings.vacuum_hours,
        keep_days=settings.keep_days,
    )
    return IngestJob(lake, store, spark_tasks(spark), options)


@dataclass
class IngestJob:
    """Ingest of one store into one lake.

    `run_tasks` is `spark_tasks(spark)`, or a function that runs the tasks in this process.
    """

    lake: Lake
    store: Location
    run_tasks: RunTasks
    options: IngestOptions = field(default_factory=IngestOptions)
    clock: Clock = field(default_factory=Clock)
    _recovery: Recovery = field(default_factory=Recovery, init=False)
    _holds: RetentionHolds = field(init=False)
    _damage: DamageReports = field(default_factory=DamageReports, init=False)
    #: First day of which the last expiry kept rows.
    _expired_before: date | None = field(default=None, init=False)
    #: Data set, run of the store process, and lake that holds and recovery know about.
    _seen: tuple[str, str, str] = field(default=("", "", ""), init=False)

    def __post_init__(self) -> None:
        self._holds = RetentionHolds(self.options.full)

    @property
    def lake_id(self) -> str:
        """Id of the lake after the last run that read all logs to their ends."""
        return self._seen[2]

    def run(
        self,
        on_progress: Callable[[IngestProgress], None] | None = None,
        *,
        on_reading: Callable[[int, int], None] = lambda read, total: None,
        stopping: Callable[[], bool] = lambda: False,
        expected: str = "",
    ) -> IngestProgress:
        """Ingest all entries that the logs contain now; if stopped, return between micro-batches.

        Call `on_progress` after each micro-batch, and `on_reading` while tasks run, with the
        entries that were read and their total. Raise HistoryBusyError if another ingest commits
        first, LakeWriteError if the lake cannot be written, StoreDataLostError if the store lost
        its data meanwhile, TaskFailedError and SparkGoneError. None of them leaves a partial
        commit. Raise OtherDataSetError before anything is read if the store does not have the data
        set `expected`; empty: any.
        """
        progress = IngestProgress()
        with LogReader(self.store.resolve()) as logs:
            dataset = logs.dataset()
        if expected and dataset != expected:
            raise OtherDataSetError(
                f"The store has the data set {dataset or 'of no server'}, and the server has"
                f" {expected}.",
                hint="Name the store of the server in its settings or with --store, and in no"
                " other way: see WAYSTATION_STORE_URL and WAYSTATION_STORE_URL_FILE.",
            )
        if not dataset:
            return progress  # No server has used this store yet.
        with LogReader(self.store.resolve(), dataset=dataset, damage=self._damage) as logs:
            self._notice_change(logs, dataset)
            # A clock that is years ahead must not delete rows, so the earlier one counts.
            behind_ms = min(0, store_time_ms(logs) - self.clock.now_ms())
            # Read before the ends, so that these include the entries that a client waits for.
            status, asked_s = logs.use(read_status), self.clock.uptime_s()
            # A client waits for the lake of the role, and not for another one.
            is_own = status.role_lake in ("", public_place(self.lake.root))
            asked = status.asked if is_own else 0
            ends = {key: state.end for key, state in ingested_states(logs).items()}
            while not stopping():
                rows, started_s = progress.rows, self.clock.uptime_s()
                if not self._run_batch(logs, dataset, ends, progress, on_reading):
                    logs.check_dataset()
                    self._finish(logs, ends, asked, age_s=self.clock.uptime_s() - asked_s)
                    break
                _count(logs, progress.rows - rows, self.clock.uptime_s() - started_s)
                if on_progress is not None:
                    on_progress(progress)
                if progress.rounds % _MAINTAIN_BATCHES == 0:
                    self._maintain(progress, behind_ms)
        if progress.rounds % _MAINTAIN_BATCHES:
            self._maintain(progress, behind_ms)
        elif not progress.rounds:
            self._expire(progress, behind_ms)
        return progress

    def _notice_change(self, logs: LogReader, dataset: str) -> None:
        """Forget what is known of a store or lake that is another one than at the last run."""
        seen = dataset, logs.run_id(), read_lake_id(self.lake.root)
        if seen == self._seen:
            return
        # A restarted store may have lost its tail and assigned its offsets again, and a lake that
        # was moved away lacks entries that were read.
        self._holds.clear()
        self._recovery.clear()
        self._record_lost_datasets(dataset, logs.replaced_datasets())
        register(logs, self._holds.reader, ingested_states(logs))
        self._seen = seen

    def _finish(
        self, logs: LogReader, ends: Mapping[str, int], asked: int, *, age_s: float
    ) -> None:
        """Store that all logs were read to their ends, for clients that wait for it."""
        digest, age_ms = ends_digest(ends), round(age_s * 1000)
        # Read again, because the first rows of a table have created it.
        lake_id = read_lake_id(self.lake.root)
        self._seen = (*self._seen[:2], lake_id)
        logs.use(
            lambda store: finish_ingest(
                store, served=asked, ends=digest, lake_id=lake_id, age_ms=age_ms
            )
        )

    def _run_batch(
        self,
        logs: LogReader,
        dataset: str,
        ends: Mapping[str, int],
        progress: IngestProgress,
        on_reading: Callable[[int, int], None],
    ) -> bool:
        """Ingest one micro-batch. Return False if all partitions were read to their ends."""
        # Read after the ends, so that a micro-batch has no message that was produced after its
        # topic began to withhold.
        policies = recording_policies(logs, {parse_key(key)[0] for key in ends})
        states = {
            key: state
            for key, state in self._holds.unread(ingested_states(logs)).items()
            if key in ends and parse_key(key)[0] in policies
        }
        if not states:
            return False  # An idle run opens no table.
        # One version of each table for the whole micro-batch: Delta refuses the commit if another
        # ingest moves one of these offsets in the meantime.
        tables = self._open_tables(states)
        divergences = self._recovery.divergences(logs, dataset, tables, states)
        for divergence in divergences:
            progress.lost_rows += mark_lost(self.lake, dataset, divergence)
        if divergences:
            tables = self._open_tables(states)
        committed = {key: tables[key].offset(f"{dataset}/{key}") for key in states}
        plan = plan_batch(committed, states, ends, policies, self.options)
        progress.left = plan.left
        receipts, reached = list[RangeReceipt](), dict[str, TableOffset]()
        if plan.tasks:
            tasks = self._tasks(dataset, plan, policies)
            results = self._run_tasks(tasks, plan, progress, on_reading)
            receipts = [receipt for result in results for receipt in result.receipts]
            reached = reached_offsets(receipts)
            logs.check_dataset()
            _commit(dataset, tables, results, reached)
        offsets = {key: offset.offset for key, offset in (committed | reached).items()}
        # A copy of the committed offsets: if the process crashes here, the next run repeats it.
        self._holds.hold(logs, offsets, states)
        if plan.tasks:
            _add(progress, receipts)
            on_reading(progress.read, progress.read + progress.left)
        return bool(plan.tasks)

    def _open_tables(self, keys: Iterable[str]) -> dict[str, LakeTable]:
        """Return the table of each partition. Partitions of one table share its version."""
        tables: dict[str, LakeTable] = {}
        found: dict[str, LakeTable] = {}
        for key in keys:
            decoder = decoder_for(parse_key(key)[0])
            assert decoder is not None, "only logs with a decoder have a state"
            if decoder.table.name not in tables:
                tables[decoder.table.name] = self.lake.open(decoder.table)
            found[key] = tables[decoder.table.name]
        return found

    def _tasks(
        self, dataset: str, plan: BatchPlan, policies: Mapping[str, RedactionPolicy]
    ) -> list[IngestTask]:
        now_ms = self.clock.now_ms()
        partial_policies = {log: each for log, each in policies.items() if not each.keeps_all}
        return [
            IngestTask(self.store, self.lake.root, dataset, now_ms, ranges, partial_policies)
            for ranges in plan.tasks
        ]

    def _run_tasks(
        self,
        tasks: Sequence[IngestTask],
        plan: BatchPlan,
        progress: IngestProgress,
        on_reading: Callable[[int, int], None],
    ) -> list[TaskResult]:
        total = progress.read + plan.entries + plan.left

        def on_ended(ended: int) -> None:
            on_reading(progress.read + plan.entries * ended // len(tasks), total)

        on_ended(0)
        results = list(self.run_tasks(tasks, on_ended))
        for result in results:
            if result.error:
                raise LakeWriteError(result.error, hint=ROOM_HINT)
        return results

    def _record_lost_datasets(self, dataset: str, lost: Iterable[str]) -> None:
        """Record the data sets that the store lost before this one, each once."""
        new = {each: f"{dataset}/replaced/{each}" for each in lost}
        if not new:
            return
        table = self.lake.open(OPERATIONS)
        new = {each: key for each, key in new.items() if not table.offset(key).offset}
        if new:
            task = IngestTask(self.store, self.lake.root, dataset, self.clock.now_ms(), [], {})
            with TableWriters(self.lake.root) as writers:
                for each in new:
                    row = gap_row(task, OPERATIONS, Gap(each, 0, 0, 0, cause=STORE_LOST))
                    writers.write(OPERATIONS, row, "gap")
                files = writers.close()[OPERATIONS.name]
            table.commit(files, {key: TableOffset(1) for key in new.values()})

    def _expire(self, progress: IngestProgress, behind_ms: int) -> None:
        """Delete rows that are too old; without new rows, only once a day.

        `behind_ms` is the time by which the clock of the store is behind; 0 if it is not.
        """
        now_ms = self.clock.now_ms() + behind_ms
        first_day = first_kept_day(now_ms, self.options.keep_days)
        is_done = first_day == self._expired_before and not progress.rounds
        if is_done or not self.options.keep_days:
            return
        counts = [expire_rows(self.lake, schema, first_day, now_ms) for schema in BASE]
        progress.expired_rows += sum(count or 0 for count in counts)
        if None not in counts and expire_group_load(self.lake, first_day):
            # After a failure, the next run tries again.
            self._expired_before = first_day

    def _maintain(self, progress: IngestProgress, behind_ms: int) -> None:
        self._expire(progress, behind_ms)
        for schema in BASE:
            result = maintain(
                self.lake.folder(schema),
                self.clock.now_ms(),
                vacuum_hours=self.options.vacuum_hours,
            )
            progress.compacted_files += result.compacted
            progress.deleted_files += result.deleted


def store_time_ms(logs: LogReader) -> int:
    """Return the time of the store, which a time machine does not move."""
    ((seconds, microseconds),) = logs.replies([("TIME",)])
    return int(seconds) * 1000 + int(microseconds) // 1000


def reached_offsets(receipts: Iterable[RangeReceipt]) -> dict[str, TableOffset]:
    """Return the offset that each partition reaches. Several tasks may share a partition."""
    in_order = sorted(receipts, key=lambda receipt: receipt.range.end)
    return {each.range.key: TableOffset(each.range.end, each.fingerprint) for each in in_order}


def spark_tasks(spark: SparkSession) -> RunTasks:
    """Return a runner that executes tasks on Spark, which repeats a task whose process crashes."""

    def run(tasks: Sequence[IngestTask], on_ended: OnEnded) -> list[TaskResult]:
        def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for index in batch.column("id").to_pylist():
                    result = pa.array([run_encoded(tasks[index])], pa.binary())
                    yield pa.record_batch({"result": result})

        watch = task_watch(spark, "ingest", lambda ended, _: on_ended(ended))
        with spark_errors(), watch:
            indexes = spark.range(0, len(tasks), 1, len(tasks))
            rows = indexes.mapInArrow(work, "result binary").collect()
        return [decode_result(bytes(row.result)) for row in rows]

    return run


def _cores(spark: SparkSession) -> int:
    try:
        return spark.sparkContext.defaultParallelism
    except Exception:
        return os.cpu_count() or 1  # A session of Spark Connect does not report its cores.


def _commit(
    dataset: str,
    tables: Mapping[str, LakeTable],
    results: Sequence[TaskResult],
    reached: Mapping[str, TableOffset],
) -> None:
    """Commit the files and offsets of each table.

    Commit messages first, because readers of the lake look for the message of each delivery.
    """
    by_table: dict[str, dict[str, TableOffset]] = {}
    for key, offset in reached.items():
        by_table.setdefault(tables[key].schema.name, {})[key] = offset
    for name, offsets in sorted(by_table.items(), key=lambda each: each[0] != MESSAGES.name):
        files = [file for result in results for file in result.files.get(name, ())]
        table = tables[next(iter(offsets))]
        table.commit(files, {f"{dataset}/{key}": offset for key, offset in offsets.items()})


def _add(progress: IngestProgress, receipts: Iterable[RangeReceipt]) -> None:
    """Add the counts of a micro-batch."""
    progress.rounds += 1
    for receipt in receipts:
        progress.read += receipt.range.rows
        progress.rows += receipt.rows
        progress.malformed += receipt.malformed_rows
        progress.gap_rows += receipt.trimmed
        progress.damaged_rows += receipt.damaged
        progress.withheld_rows += receipt.withheld


def _count(logs: LogReader, rows: int, seconds: float) -> None:
    """Count a micro-batch in the status of the store, which is information only."""
    try:
        logs.use(lambda store: count_batch(store, rows, seconds))
    except StoreError as error:
        _log.warning("ingest batch not counted", rows=rows, reason=str(error))
