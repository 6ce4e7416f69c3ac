"""The tables of an audit: one data set, in one version, with how far each log is in them."""

from __future__ import annotations

from collections.abc import Iterable, Set

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from waystation.history.lake.schema import (
    BASE,
    CHANNELS,
    DELIVERIES,
    GAPS,
    MESSAGES,
    OPERATIONS,
    POOLS,
    STEPS,
    TRANSACTIONS,
    WEBHOOK_ATTEMPTS,
    TableSchema,
)
from waystation.history.lake.table import Lake
from waystation.history.lake.views import attach, open_snapshot
from waystation.history.offsets import OffsetRange
from waystation.logs.operations import LOG as OPERATIONS_LOG

#: Those that have a row of every entry of their logs.
WHOLE = (MESSAGES, TRANSACTIONS, DELIVERIES, CHANNELS, POOLS, WEBHOOK_ATTEMPTS, OPERATIONS)
#: The cause of a gap that is none: its rows are in the lake, and the store has lost them.
LOST = "lost"
#: The cause of a gap that is a finding: entries are missing from their log.
DAMAGED = "damaged"
#: The cause of a gap that is a whole data set, which the store lost.
STORE_LOST = "store-lost"


class Gap(msgspec.Struct, frozen=True):
    """What is not in the lake."""

    span: OffsetRange
    cause: str


class AuditTables:
    """Frames of the tables as they were when this was made."""

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        dataset: str = "",
        *,
        unrecorded: Set[tuple[str, int]] = frozenset(),
    ) -> None:
        self.spark = spark
        # One version for rows and committed offsets, so that both agree while an ingest commits.
        self._snapshot = open_snapshot(lake.root)
        attach(spark, lake=self._snapshot)
        self._frames = {
            spec.name: spark.table(f"waystation.{spec.name}") for spec in (*BASE, STEPS)
        }
        # Without the rows of the view that are in `deliveries`.
        own = self._frames[OPERATIONS.name].where(f.col("log") == OPERATIONS_LOG)
        self._frames[OPERATIONS.name] = own
        self.dataset = dataset or self._newest()
        told = self._read_gaps()
        # What is in the lake as lost is not missing: the store has given these offsets anew.
        self.gaps = [gap for gap in told if gap.cause not in (LOST, STORE_LOST)]
        self.lost = [gap for gap in told if gap.cause == LOST]
        #: Ids of data sets that the store lost before it had this one.
        self.lost_datasets = [gap.span.log for gap in told if gap.cause == STORE_LOST]
        #: Partitions of record logs that do not tell all: what they are about cannot be checked.
        self.unrecorded = frozenset(unrecorded)
        self.broken = unrecorded | {(gap.span.log, gap.span.partition) for gap in self.gaps}
        self._ends: dict[str, dict[tuple[str, int], int]] = {}

    def has(self, spec: TableSchema) -> bool:
        """Whether a table has files."""
        return spec.name in self._snapshot and bool(self._snapshot[spec.name].files())

    def frame(self, spec: TableSchema) -> DataFrame:
        """The rows of a table."""
        return self._frames[spec.name].where(f.col("dataset") == self.dataset)

    def mark(self, spec: TableSchema, log: str, partition: int) -> int:
        """How far a table has come in a log."""
        if not self.has(spec):
            return 0
        return self._snapshot[spec.name].offset(f"{self.dataset}/{log}/{partition}").offset

    def ends(self, spec: TableSchema) -> dict[tuple[str, int], int]:
        """How far a table has come in each log that it has rows of."""
        if spec.name not in self._ends:
            logs = self.frame(spec).select("log", "log_partition").distinct().collect()
            self._ends[spec.name] = {
                (row.log, row.log_partition): self.mark(spec, row.log, row.log_partition)
                for row in logs
            }
        return self._ends[spec.name]

    def end_frame(self, spec: TableSchema) -> DataFrame:
        """The same, for a join."""
        rows = [(*key, end) for key, end in self.ends(spec).items()]
        return self.small(rows, "log string, log_partition int, end bigint")

    def gaps_of(self, log: str, partition: int) -> list[OffsetRange]:
        """What is missing of a partition, and written down as such, in its order."""
        return sorted(
            (
                gap.span
                for gap in self.gaps
                if (gap.span.log, gap.span.partition) == (log, partition)
            ),
            key=lambda span: span.start,
        )

    def gap_frame(self) -> DataFrame:
        """All gaps, for a join."""
        return self.small(
            ((gap.span.log, gap.span.partition, gap.span.start, gap.span.end) for gap in self.gaps),
            "gap_log string, gap_partition int, gap_from bigint, gap_to bigint",
        )

    def small(self, rows: Iterable[tuple[object, ...]], schema: str) -> DataFrame:
        """A few rows, for a join with many."""
        return f.broadcast(self.spark.createDataFrame(list(rows), schema))

    def withheld(self, spec: TableSchema) -> int:
        """Return how many calls of channels or pools the rows of a table withhold."""
        return self.frame(spec).where("kind = 'withheld'").count()

    def _read_gaps(self) -> list[Gap]:
        # Not the view `gaps`, because its ranges of withheld events have rows in their tables.
        gaps = self.spark.table(f"waystation.{GAPS.name}_all")
        rows = (
            gaps.where((f.col("dataset") == self.dataset) & ~f.col("lost")).collect()
            if self.has(GAPS)
            else []
        )
        return [
            Gap(OffsetRange(row.log, row.log_partition, row.from_offset, row.to_offset), row.cause)
            for row in rows
        ]

    def _newest(self) -> str:
        """The data set that something was ingested of last."""
        newest = [
            row
            for spec in WHOLE
            if self.has(spec)
            for row in self._frames[spec.name]
            .groupBy("dataset")
            .agg(f.max("ingested").alias("ingested"))
            .collect()
        ]
        return max(newest, key=lambda row: row.ingested).dataset if newest else ""
