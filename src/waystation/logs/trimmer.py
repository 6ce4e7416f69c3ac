"""Log trimmer: applies retention to logs in bounded steps, and frees memory of the store.

`trim_log` deletes the messages that exceed the limits of a log. It also writes a log line when the
messages that readers need reach 70 % of the byte limit of a partition, and another one when they
fall below it. The head of the partition stores this state (`warned_ms`), so that only one node
writes the line.

`MemoryRelief` is a step of `store.leader.Leader`. While the store is above its warning level of
memory, it deletes messages that all readers have passed, even within the limits.
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

# The gauges are totals over all logs at the last maintenance pass. Only the leader sets them. Other
# nodes report 0, so that dashboards can sum over all nodes.
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
#: Maximum number of concurrent trims, so that other calls do not wait behind hundreds of scripts.
TRIMS_AT_ONCE = 16
#: Maximum number of steps for one partition in one pass. The next pass continues the trim.
_STEPS_MAX = 200
#: Number of partitions that a log line lists.
_LISTED_MAX = 10


@dataclass
class TrimReport:
    """Totals over the trimmed partitions."""

    #: Number of messages that this pass deleted.
    deleted: int = 0
    #: Size of the remaining messages, in bytes.
    bytes: int = 0
    #: Number of messages that all passes so far deleted although a reader needed them.
    dropped: int = 0
    #: Number of partitions whose needed messages fill at least 70 % of the byte limit.
    nearly_full: Counter[FullPolicy] = field(default_factory=Counter)

    def add(self, deleted: int, last: TrimResult) -> None:
        """Add one partition to the totals.

        `deleted` counts the messages that all its steps deleted. `last` is the result of the last
        step.
        """
        self.deleted += deleted
        self.bytes += last.bytes
        self.dropped += last.dropped
        self.nearly_full[last.retention.policy] += last.warning in ("begins", "lasts")

    def set_metrics(self) -> None:
        """Set the metrics to the totals. An empty report sets the gauges to 0."""
        log_bytes.set(self.bytes)
        log_dropped.set(self.dropped)
        log_trimmed.inc(self.deleted)
        for policy in get_args(FullPolicy):
            log_warned.labels(policy).set(self.nearly_full[policy])


async def trim_log(
    logs: Logs, log: str, partitions: int, retention: Retention | None, report: TrimReport
) -> None:
    """Trim all partitions of a log and add the results to `report`.

    First set the limits of the log to `retention`, unless it has limits of a higher version. None
    keeps the limits of the log. If an error is raised, `report` has the partitions trimmed before.
    """
    trimmed: list[tuple[int, TrimResult]] = []
    try:
        for partition in range(partitions):
            # Ignore a missing partition, because another node can delete the log at the same time.
            with contextlib.suppress(LogNotFoundError):
                deleted, last = await _trim_partition(logs, log, partition, retention)
                trimmed.append((partition, last))
                report.add(deleted, last)
    finally:
        # Log the warnings even after an error, because no later step returns them again.
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
    """Write one log line for all partitions whose warning began, and one for those that ended."""
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
    """Deletes messages that all readers have passed, while the store is short of memory."""

    def __init__(self, logs: Logs, memory: StoreMemory) -> None:
        self._logs = logs
        self._memory = memory

    async def run(self) -> float | None:
        """Free memory if the store is above its warning level.

        Return the seconds until the next run. None stands for the default period of the leader.
        Return None if the store is short of memory and no message could be deleted, because runs at
        a shorter period would cost the store many calls without effect.
        """
        if not self._memory.is_short:
            return MEMORY_CHECK_S
        return MEMORY_CHECK_S if await self.free() else None

    def stand_down(self) -> None:
        """Do nothing: this step has no gauges that must be reset when the node stops leading."""

    async def free(self) -> int:
        """Delete messages until the store is below its warning level. Return their number.

        Each round makes one bounded step in every partition, so that all partitions lose messages
        evenly.
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
                "messages deleted that all readers had read",
                reason="memory is short",
                count=deleted,
                used=usage.used_bytes,
                limit=usage.limit_bytes,
            )
        return deleted
