"""Tables of an audit: the rows of one data set in one lake snapshot, with committed offsets."""

from __future__ import annotations

from collections.abc import Iterable, Set
from datetime import date
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from waystation.history.lake.schema import (
    BASE,
    CHANNELS,
    DELIVERIES,
    EXPIRED,
    MESSAGES,
    OPERATIONS,
    POOLS,
    STEPS,
    STORE_LOST,
    TRANSACTIONS,
    WEBHOOK_ATTEMPTS,
    TableSchema,
)
from waystation.history.lake.table import Lake
from waystation.history.lake.views import attach, open_snapshot
from waystation.history.offsets import Gap, OffsetRange
from waystation.logs.operations import LOG as OPERATIONS_LOG

#: Tables that have rows of every entry of their logs.
WHOLE = (MESSAGES, TRANSACTIONS, DELIVERIES, CHANNELS, POOLS, WEBHOOK_ATTEMPTS, OPERATIONS)
#: Cause of ranges that the lake has and a restored store lost.
LOST: Final = "lost"
#: Cause of gaps that are findings: entries are missing from their log.
DAMAGED = "damaged"
#: Largest difference between the clocks of two primaries of a cluster, whose logs a message enters.
_SKEW_MS = 60_000
_EPOCH, _DAY_MS = date(1970, 1, 1), 86_400_000


class AuditTables:
    """Rows, gaps and committed offsets of one lake snapshot."""

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
        # The view also has rows of `deliveries`, which the checks of subscriptions cover.
        own = self._frames[OPERATIONS.name].where(f.col("log") == OPERATIONS_LOG)
        self._frames[OPERATIONS.name] = own
        self.dataset = dataset or self._newest()
        gaps = [
            gap
            for spec in BASE
            if spec.name in self._snapshot
            for gap in self._snapshot[spec.name].gaps(self.dataset)
        ]
        #: Ranges of which the lake has no rows.
        self.gaps = [gap for gap in gaps if gap.cause != STORE_LOST]
        #: Ids of data sets that the store lost before it had this one.
        self.lost_datasets = [gap.log for gap in gaps if gap.cause == STORE_LOST]
        #: Ranges that a restored store lost. It has assigned their offsets again.
        self.lost = self._read_lost()
        #: Partitions of record logs that lack events which settings withheld.
        self.unrecorded = frozenset(unrecorded)
        #: Partitions that lack their first rows, which were deleted because of their age. The other
        #: rows are consecutive, so that they can be checked.
        self.expired = {(gap.log, gap.partition) for gap in self.gaps if gap.cause == EXPIRED}
        #: Partitions that lack rows between others.
        self.broken = unrecorded | {
            (gap.log, gap.partition) for gap in self.gaps if gap.cause != EXPIRED
        }
        kept_from = self._snapshot.kept_from
        #: Time from which on no table lacks rows because of their age; 0 if none were deleted. The
        #: lake has all rows of messages and transactions that began later.
        self.kept_from_ms = (
            (kept_from - _EPOCH).days * _DAY_MS + _SKEW_MS if kept_from is not None else 0
        )
        self._ends: dict[str, dict[tuple[str, int], int]] = {}

    def has(self, spec: TableSchema) -> bool:
        """Return whether a table has live rows."""
        return spec.name in self._snapshot and bool(self._snapshot[spec.name].files())

    def frame(self, spec: TableSchema) -> DataFrame:
        """Return the live rows of a table or view."""
        return self._frames[spec.name].where(f.col("dataset") == self.dataset)

    def committed_offset(self, spec: TableSchema, log: str, partition: int) -> int:
        """Return the committed offset of a table in a partition."""
        if spec.name not in self._snapshot:
            return 0
        return self._snapshot[spec.name].offset(f"{self.dataset}/{log}/{partition}").offset

    def ends(self, spec: TableSchema) -> dict[tuple[str, int], int]:
        """Return the committed offset of each partition that has rows in a table."""
        if spec.name not in self._ends:
            logs = self.frame(spec).select("log", "log_partition").distinct().collect()
            self._ends[spec.name] = {
                (row.log, row.log_partition): self.committed_offset(
                    spec, row.log, row.log_partition
                )
                for row in logs
            }
        return self._ends[spec.name]

    def end_frame(self, spec: TableSchema) -> DataFrame:
        """Return the committed offsets of `ends` for a join."""
        rows = [(*key, end) for key, end in self.ends(spec).items()]
        return self.small(rows, "log string, log_partition int, end bigint")

    def gaps_of(self, log: str, partition: int) -> list[OffsetRange]:
        """Return the gaps of a partition in the order of their offsets."""
        return sorted(
            (gap for gap in self.gaps if (gap.log, gap.partition) == (log, partition)),
            key=lambda gap: gap.start,
        )

    def gap_frame(self) -> DataFrame:
        """Return all gaps for a join."""
        return self.small(
            ((gap.log, gap.partition, gap.start, gap.end) for gap in self.gaps),
            "gap_log string, gap_partition int, gap_from bigint, gap_to bigint",
        )

    def complete(self, rows: DataFrame) -> DataFrame:
        """Return the rows from which on no table lacks rows because of their age."""
        return rows.where(f.unix_millis("time") >= self.kept_from_ms) if self.expired else rows

    def small(self, rows: Iterable[tuple[object, ...]], schema: str) -> DataFrame:
        """Return a few rows for a join with many."""
        return f.broadcast(self.spark.createDataFrame(list(rows), schema))

    def withheld(self, spec: TableSchema) -> int:
        """Return how many calls of channels or pools the rows of a table withhold."""
        return self.frame(spec).where("kind = 'withheld'").count()

    def _read_lost(self) -> list[Gap]:
        lost = self.spark.table("waystation.gaps").where(f.col("cause") == LOST)
        return [
            Gap(row.log, row.log_partition, row.from_offset, row.to_offset, cause=LOST)
            for row in lost.where(f.col("dataset") == self.dataset).collect()
        ]

    def _newest(self) -> str:
        """Return the data set of the rows that were ingested last."""
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
