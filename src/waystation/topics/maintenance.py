"""Topic maintenance: repairs half-done changes of topics and trims all logs.

`TopicMaintenance` is a step of `store.leader.Leader`. Every change that it makes is one script that
decides by itself, so two nodes may run a pass at the same time.

A pass finishes, for each topic, changes and purges that a crash interrupted. Then it trims all logs
in the register, including the record logs of other parts. A task of the pass that fails is counted,
and the pass continues: a full store must not prevent its own cleaning. The next pass repeats the
failed tasks.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, field

from waystation.errors import StoreUnavailableError, WaystationError
from waystation.logs.protocol import Logs, Retention
from waystation.logs.trimmer import TRIMS_AT_ONCE, TrimReport, trim_log
from waystation.runtime.logging import logger
from waystation.runtime.tasks import for_each
from waystation.topics.model import TopicDefinition
from waystation.topics.service import TopicService

_log = logger("maintenance")

#: Number of topics that are repaired concurrently.
_REPAIRS_AT_ONCE = 16


@dataclass
class MaintenanceReport:
    """Result of one maintenance pass: trimmed messages, and failed tasks."""

    trimmed: TrimReport = field(default_factory=TrimReport)
    #: Number of failed tasks.
    failures: int = 0
    #: Error of the first failed task.
    first_error: Exception | None = None

    async def attempt(self, task: Awaitable[None]) -> None:
        """Await a task of the pass. Record its error instead of raising it.

        Raise only StoreUnavailableError, because all other tasks would wait for the store too.
        """
        try:
            await task
        except StoreUnavailableError:
            raise
        except Exception as error:
            self.failures += 1
            self.first_error = self.first_error or error


class TopicMaintenance:
    """Repairs topics and trims all logs. The state is the report of the last pass as leader."""

    def __init__(self, topics: TopicService, logs: Logs) -> None:
        self._topics = topics
        self._logs = logs
        self._last = MaintenanceReport()

    @property
    def notes(self) -> list[str]:
        """Warnings of the last pass for the operator. They are empty on nodes that do not lead."""
        return [
            f"{count} partitions of logs are nearly full of messages that readers still need;"
            f" when full, the policy is {policy}."
            for policy, count in self._last.trimmed.nearly_full.items()
            if count
        ]

    async def run(self) -> None:
        """Run one pass, set the metrics to its result, and log the first error."""
        self._last = await self.run_pass()
        self._last.trimmed.set_metrics()
        if self._last.failures:
            _log_error(self._last)

    def stand_down(self) -> None:
        """Set the gauges to 0, because the new leader reports them."""
        self._last = MaintenanceReport()
        self._last.trimmed.set_metrics()

    async def run_pass(self) -> MaintenanceReport:
        """Repair all topics and trim all logs. The caller need not be the leader."""
        report = MaintenanceReport()
        # Read the register of logs before the database. A topic is written before its logs, so the
        # database then has the topic of every registered log.
        registered = await self._logs.names()
        limits: dict[str, Retention] = {}

        async def repair(topic: TopicDefinition) -> None:
            if topic.state != "purged":
                limits.update((topic.log(each), topic.retention) for each in topic.storage)
            await report.attempt(self._topics.reconcile(topic))
            await report.attempt(self._topics.delete_purged_logs(topic, registered))

        async def repair_all() -> None:
            async for page in self._topics.read_all():
                await for_each(page, repair, at_once=_REPAIRS_AT_ONCE)

        async def trim(log: str) -> None:
            await report.attempt(
                trim_log(self._logs, log, registered[log], limits.get(log), report.trimmed)
            )

        await report.attempt(repair_all())
        await for_each(registered, trim, at_once=TRIMS_AT_ONCE)
        return report


def _log_error(report: MaintenanceReport) -> None:
    if isinstance(report.first_error, WaystationError):
        _log.warning(
            "maintenance pass incomplete", failures=report.failures, error=str(report.first_error)
        )
    else:
        # Pass the exception itself, so that the log has the traceback of an unexpected error.
        _log.error(
            "maintenance pass incomplete", failures=report.failures, error=report.first_error
        )
