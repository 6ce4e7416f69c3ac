"""Log trimmer: applies retention to logs in bounded steps, and frees memory of the store.

`trim_log` deletes the messages that the limits of a log do not keep. It logs a partition once when
the messages that readers still need fill 70 % of its byte limit, and once when they no longer do.
The head of the partition stores that state (`warned_ms`), so several nodes log it only once.

`MemoryRelief` is a step of `store.leader.Leader`. While the store is at its warning level, it
deletes messages within the limits that all readers have passed.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass, field
from typing import get_args

from prometheus_client import Counter as MetricCounter
from prometheus_client import Gauge

from waystation.errors import LogNotFoundError
from waystation.logs.protocol import Logs, Retention, TrimResult
from waystation.runtime.logging import logger
from waystation.runtime.metrics import registry
from waystation.runtime.tasks import for_each
from waystation.store.memory import StoreMemory
from waystation.types.common import FullPolicy

_log = logger("maintenance")

# The gauges are totals of all logs, as the last pass of maintenance found them. Nodes that do not
# lead report 0, so that dashboards can sum all nodes.
log_bytes = Gauge("waystation_log_bytes", "Bytes of messages in all logs.", registry=registry)
log_dropped = Gauge(
    "waystation_log_dropped_messages",
    "Messages that all logs deleted although a reader needed them.",
    registry=registry,
)
log_trimmed = MetricCounter(
    "waystation_log_trimmed_messages", "Messages that maintenance deleted.", registry=registry
)
log_warned = Gauge(
    "waystation_log_partitions_warned",
    "Partitions whose needed messages fill at least 70 % of the byte limit, by policy.",
    labelnames=("policy",),
    registry=registry,
)

#: Seconds between two checks of the memory.
MEMORY_CHECK_S = 1.0
#: Number of partitions or logs that are trimmed concurrently, so that other callers of the store do
#: not wait behind hundreds of scripts.
TRIMS_AT_ONCE = 16
#: Number of steps for one partition in one pass. The next pass continues a longer trim.
_STEPS_MAX = 200
#: Number of partitions that a log line lists.
_LISTED_MAX = 10


@dataclass
class TrimReport:
    """Totals over the trimmed partitions."""

    #: Number of messages that were deleted.
    deleted: int = 0
    #: Size of the messages that are left.
    bytes: int = 0
    #: Number of messages that were ever deleted although a reader needed them.
    dropped: int = 0
    #: Number of partitions whose needed messages fill at least 70 % of the byte limit.
    nearly_full: Counter[FullPolicy] = field(default_factory=Counter)

    def add(self, deleted: int, last: TrimResult) -> None:
        """Add the result of the last step in a partition, and the messages of all its steps."""
        self.deleted += deleted
        self.bytes += last.bytes
        self.dropped += last.dropped
        self.nearly_full[last.retention.policy] += last.warning in ("begins", "lasts")

    def set_metrics(self) -> None:
        """Report the totals of a pass over all logs; those of an empty report are 0."""
        log_bytes.set(self.bytes)
        log_dropped.set(self.dropped)
        log_trimmed.inc(self.deleted)
        for policy in get_args(FullPolicy):
            log_warned.labels(policy).set(self.nearly_full[policy])


async def trim_log(
    logs: Logs, log: str, partitions: int, retention: Retention | None, report: TrimReport
) -> None:
    """Trim all partitions of a log and add the results to `report`.

    `retention` are the limits that the caller has read. They apply unless the log has newer ones;
    None: the log keeps its own. After an error, `report` has the partitions before it.
    """
    trimmed: list[tuple[int, TrimResult]] = []
    try:
        for partition in range(partitions):
            # Another node may delete the log meanwhile.
            with contextlib.suppress(LogNotFoundError):
                deleted, last = await _trim_partition(logs, log, partition, retention)
                trimmed.append((partition, last))
                report.add(deleted, last)
    finally:
        # Log them also after an error, because no later step returns `begins` or `ends` again.
        _log_warnings(log, trimmed)


async def _trim_partition(
    logs: Logs, log: str, partition: int, retention: Retention | None
) -> tuple[int, TrimResult]:
    """Trim a partition. Return the number of deleted messages and the result of the last step."""
    step = await logs.trim(log, partition, retention)
    deleted, steps = step.removed, 1
    while step.more and steps < _STEPS_MAX:
        step = await logs.trim(log, partition)
        deleted, steps = deleted + step.removed, steps + 1
    return deleted, step


def _log_warnings(log: str, trimmed: list[tuple[int, TrimResult]]) -> None:
    """Log warnings that began or ended, in one line for all partitions of the log."""
    began = [(partition, last) for partition, last in trimmed if last.warning == "begins"]
    if began:
        fullest = max((last for _, last in began), key=lambda last: last.needed_bytes)
        _log.warning(
            "partitions nearly full",
            log=log,
            partitions=[partition for partition, _ in began[:_LISTED_MAX]],
            count=len(began),
            policy=fullest.retention.policy,
            needed_by=fullest.slowest.removeprefix("~"),
            needed_bytes=fullest.needed_bytes,
            max_bytes=fullest.retention.max_bytes,
        )
    if ended := [partition for partition, last in trimmed if last.warning == "ends"]:
        _log.info(
            "partitions no longer nearly full",
            log=log,
            partitions=ended[:_LISTED_MAX],
            count=len(ended),
        )


class MemoryRelief:
    """Deletes messages that all readers have passed while the store is short of memory."""

    def __init__(self, logs: Logs, memory: StoreMemory) -> None:
        self._logs = logs
        self._memory = memory

    async def run(self) -> float | None:
        """Free memory if the store is at its warning level. Return the seconds until the next pass.

        If readers have passed no message, the next pass follows after the usual period, because it
        costs the store one call per partition.
        """
        if not self._memory.is_short:
            return MEMORY_CHECK_S
        return MEMORY_CHECK_S if await self.free() else None

    def stand_down(self) -> None:
        """Do nothing: this step reports no gauges."""

    async def free(self) -> int:
        """Delete messages until the store is below its warning level. Return their number.

        Each round takes one bounded step in every partition, so that all logs lose their oldest
        messages first.
        """
        registered = await self._logs.names()
        partitions = [(log, each) for log, count in registered.items() for each in range(count)]
        unfinished: list[tuple[str, int]] = []
        deleted = 0

        async def step(partition: tuple[str, int]) -> None:
            nonlocal deleted
            with contextlib.suppress(LogNotFoundError):
                trimmed = await self._logs.trim(*partition, short=True)
                deleted += trimmed.removed
                if trimmed.more:
                    unfinished.append(partition)

        try:
            for _ in range(_STEPS_MAX):
                await self._memory.read()
                if not partitions or not self._memory.is_short:
                    break
                unfinished.clear()
                await for_each(partitions, step, at_once=TRIMS_AT_ONCE)
                partitions = list(unfinished)
        finally:
            log_trimmed.inc(deleted)
        if deleted:
            usage = self._memory.usage
            _log.info(
                "settled messages deleted",
                reason="memory is short",
                count=deleted,
                used=usage.used_bytes,
                limit=usage.limit_bytes,
            )
        return deleted
