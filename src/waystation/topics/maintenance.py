"""Maintenance of topics and logs: repairs half-done changes, trims logs, frees memory.

`TopicMaintenance` and `MemoryRelief` are steps of `store.leader.Leader`. Every change that they
make is one script that decides by itself, so two nodes may run them at the same time.

A pass of `TopicMaintenance` finishes, for each topic, changes and purges that a crash interrupted.
Then it trims all logs in the register, including the record logs of other parts, in bounded steps.
A piece that fails is counted and logged, and the pass continues: a full store must not prevent its
own cleaning. The next pass repeats the failed pieces.

While the store is at its warning level, `MemoryRelief` deletes messages that all readers have
passed, once a second, although they are within the retention limits.

The log reports a partition whose needed bytes approach its limit once. The head of the partition
stores the warning (`warned_ms`), and a metric counts such partitions by policy.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass, field

from waystation.errors import (
    LogNotFoundError,
    StoreUnavailableError,
    WaystationError,
)
from waystation.logs.protocol import Logs, Retention, TrimResult
from waystation.runtime.logging import logger
from waystation.runtime.tasks import for_each
from waystation.store.memory import StoreMemory
from waystation.telemetry import metrics
from waystation.topics.model import TopicDefinition
from waystation.topics.service import TopicService

_log = logger("maintenance")

#: Seconds between two checks of the memory.
MEMORY_CHECK_S = 1.0
#: Partitions that are looked at together; more would make other callers of the store wait.
_AT_ONCE = 16
#: Steps for one partition in one pass; a long one goes on in the next pass.
_STEPS_MAX = 200
#: Partitions that a line of the log names.
_NAMED_MAX = 10
_POLICIES = ("refuse", "drop_and_count")


@dataclass
class Tally:
    """What a pass found and did."""

    bytes: int = 0
    trimmed: int = 0
    #: Messages that were dropped although somebody needed them, since ever.
    dropped: int = 0
    #: Partitions whose needed bytes are near their limit, by policy.
    warned: Counter[str] = field(default_factory=Counter)
    #: What could not be done; the next pass tries again.
    undone: int = 0
    first_problem: Exception | None = None

    def count(self, removed: int, last: TrimResult) -> None:
        """Adds what was removed from a partition, and how that stands now."""
        self.trimmed += removed
        self.bytes += last.bytes
        self.dropped += last.dropped
        self.warned[last.retention.policy] += last.warning in ("begins", "lasts")

    async def attempt(self, work: Awaitable[None]) -> None:
        """Waits for a piece of the pass; an error is noted, and no reason to leave out the rest."""
        try:
            await work
        except StoreUnavailableError:
            # So it is for all the rest, which would wait for it in vain one after the other.
            raise
        except Exception as error:
            self.undone += 1
            self.first_problem = self.first_problem or error


class TopicMaintenance:
    """Repairs topics and trims all logs. The state is the report of the last pass as leader."""

    def __init__(self, topics: TopicService, logs: Logs) -> None:
        self._topics = topics
        self._logs = logs
        self._last = Tally()

    @property
    def notes(self) -> list[str]:
        """Warnings of the last pass for the operator; empty on nodes that do not lead."""
        return [
            f"{count} partitions of logs are nearly full of what is needed (policy {policy})"
            for policy, count in self._last.warned.items()
            if count
        ]

    async def run(self) -> None:
        """Run one pass, report it in the metrics, and log the first of its errors."""
        self._last = await self.pass_once()
        _tell(self._last)
        if self._last.undone:
            _tell_problem(self._last.first_problem, undone=self._last.undone)

    def stand_down(self) -> None:
        """Reset the gauges, because another node reports them."""
        self._last = Tally()
        _tell(self._last)

    async def pass_once(self) -> Tally:
        """Run one pass over all topics and logs, whether or not this node leads."""
        # The register before the catalogue: a log's topic is written first, so it is known here.
        registered = await self._logs.names()
        wanted: dict[str, Retention] = {}
        tally = Tally()

        async def tend(topic: TopicDefinition) -> None:
            if topic.state != "purged":
                wanted.update((topic.log(each), topic.retention) for each in topic.storage)
            await tally.attempt(self._topics.reconcile(topic))
            await tally.attempt(self._topics.delete_purged_logs(topic, registered))

        async def tend_all() -> None:
            async for page in self._topics.everything():
                await for_each(page, tend, at_once=_AT_ONCE)

        async def trim(log: str) -> None:
            await tally.attempt(self._trim_log(log, registered[log], wanted.get(log), tally))

        await tally.attempt(tend_all())
        await for_each(registered, trim, at_once=_AT_ONCE)
        return tally

    async def _trim_log(
        self, log: str, partitions: int, wanted: Retention | None, tally: Tally
    ) -> None:
        found: list[tuple[int, TrimResult]] = []
        try:
            for partition in range(partitions):
                with contextlib.suppress(LogNotFoundError):
                    removed, last = await self._trim(log, partition, wanted)
                    found.append((partition, last))
                    tally.count(removed, last)
        finally:
            # A warning is told when it begins, whatever became of the partitions behind it.
            _warn(log, found)

    async def _trim(
        self, log: str, partition: int, wanted: Retention | None
    ) -> tuple[int, TrimResult]:
        """Trims a partition; how many messages went, and how it stands.

        What is wanted may be old by now, or newer than what the partition has: the script knows.
        """
        step = await self._logs.trim(log, partition, wanted)
        removed, steps = step.removed, 1
        while step.more and steps < _STEPS_MAX:
            step = await self._logs.trim(log, partition)
            removed, steps = removed + step.removed, steps + 1
        return removed, step


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
                await for_each(partitions, step, at_once=_AT_ONCE)
                partitions = list(unfinished)
        finally:
            metrics.log_trimmed.inc(deleted)
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


def _tell_problem(problem: Exception | None, **fields: int) -> None:
    if isinstance(problem, WaystationError):
        _log.warning("a pass left something undone", problem=str(problem), **fields)
    else:
        _log.error("a pass left something undone", error=problem, **fields)


def _warn(log: str, partitions: list[tuple[int, TrimResult]]) -> None:
    """One line for a log, however many of its partitions are concerned."""
    near = [(partition, last) for partition, last in partitions if last.warning == "begins"]
    if near:
        fullest = max((last for _, last in near), key=lambda last: last.needed_bytes)
        _log.warning(
            "partitions are nearly full of what is needed",
            log=log,
            partitions=[partition for partition, _ in near[:_NAMED_MAX]],
            count=len(near),
            policy=fullest.retention.policy,
            needed_by=fullest.slowest.removeprefix("~"),
            needed_bytes=fullest.needed_bytes,
            max_bytes=fullest.retention.max_bytes,
        )
    if ended := [partition for partition, last in partitions if last.warning == "ends"]:
        _log.info(
            "partitions have room again", log=log, partitions=ended[:_NAMED_MAX], count=len(ended)
        )


def _tell(tally: Tally) -> None:
    """To be summed over all nodes: those without the lease tell zero."""
    metrics.log_bytes.set(tally.bytes)
    metrics.log_dropped.set(tally.dropped)
    metrics.log_trimmed.inc(tally.trimmed)
    for policy in _POLICIES:
        metrics.log_warned.labels(policy).set(tally.warned[policy])
