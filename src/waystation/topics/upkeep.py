"""Upkeep of logs and topics: trims what retention lets go, warns, finishes what was left undone.

One node at a time does it, by a lease; that saves work, and is no condition of being right: every
step is a script that decides by itself what may go. A pass does, for each topic, what a process may
have died before: the working copy, the rest of a purge, a change of retention; and the same for
other parts, by the chores that it was given. Then it trims all logs that the register has, other
parts' records too, in bounded steps.

A partition whose needed bytes come near its limit is told once in the log, stays noted in its head
(`warned_ms`), and counts in a metric, with the policy that will apply.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from waystation.clock import Clock
from waystation.errors import CatalogueError, LogNotFoundError, StoreError
from waystation.logs import Logs, Retention, Trimmed
from waystation.store.leases import Lease, Leases
from waystation.telemetry import metrics
from waystation.telemetry.logging import logger
from waystation.topics.topic import Topic
from waystation.topics.topics import Topics

_log = logger("upkeep")
_T = TypeVar("_T")

LEASE_KEY = "{waystation.upkeep}:lease"
#: How often a pass is made.
PERIOD_SECONDS = 10.0
_RELEASE_SECONDS_MAX = 1.0
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


class Upkeep:
    """Makes pass after pass, while it has the lease."""

    def __init__(
        self,
        topics: Topics,
        logs: Logs,
        leases: Leases,
        *,
        clock: Clock,
        chores: Sequence[Callable[[], Awaitable[None]]] = (),
        period_seconds: float = PERIOD_SECONDS,
    ) -> None:
        self._topics = topics
        self._logs = logs
        self._leases = leases
        self._clock = clock
        self._chores = chores
        self._period_seconds = period_seconds
        self._lease: Lease | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begins."""
        self._task = asyncio.get_running_loop().create_task(self._work())

    async def stop(self) -> None:
        """Ends after the step under way, and lets another node take over at once."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._lease is not None:
            # Not for long: a store that is away has nobody who could take over.
            with contextlib.suppress(StoreError, TimeoutError):
                async with asyncio.timeout(_RELEASE_SECONDS_MAX):
                    await self._lease.release()
            self._lease = None
        _tell(Tally())

    async def pass_once(self) -> Tally:
        """One pass over all topics and logs, whoever has the lease."""
        # The register before the catalogue: a log's topic is written first, so it is known here.
        registered = await self._logs.names()
        wanted: dict[str, Retention] = {}

        async def tend(topic: Topic) -> None:
            await self._topics.mend(topic)
            await self._topics.sweep(topic, registered)
            if topic.state != "purged":
                wanted.update((topic.log(each), topic.retention) for each in topic.storage)

        tally = Tally()

        async def trim(log: str) -> None:
            found = []
            for partition in range(registered[log]):
                with contextlib.suppress(LogNotFoundError):
                    found.append((partition, await self._trim(log, partition, wanted.get(log))))
            for _, (removed, last) in found:
                tally.trimmed += removed
                tally.bytes += last.bytes
                tally.dropped += last.dropped
                tally.warned[last.retention.policy] += last.warning in ("begins", "lasts")
            _warn(log, [(partition, last) for partition, (_, last) in found])

        await _for_each([topic async for topic in self._topics.everything()], tend)
        for chore in self._chores:
            await chore()
        await _for_each(registered, trim)
        return tally

    async def _trim(
        self, log: str, partition: int, wanted: Retention | None
    ) -> tuple[int, Trimmed]:
        """Trims a partition; how many messages went, and how it stands."""
        step = await self._logs.trim(log, partition)
        if wanted is not None and step.retention != wanted:
            await self._logs.retain(log, partition, wanted)
        removed, steps = step.removed, 1
        while step.more and steps < _STEPS_MAX:
            step = await self._logs.trim(log, partition)
            removed, steps = removed + step.removed, steps + 1
        return removed, step

    async def _work(self) -> None:
        while True:
            try:
                if self._lease is None or self._lease.lost:
                    self._lease = await self._leases.acquire(LEASE_KEY)
                _tell(await self.pass_once() if self._lease else Tally())
            except (StoreError, CatalogueError) as error:
                _log.warning("a pass ended early", problem=str(error))
            await self._clock.sleep(self._period_seconds)


async def _for_each(items: Iterable[_T], work: Callable[[_T], Awaitable[None]]) -> None:
    """Does work for all items, some at a time; the first error is raised when all have ended."""
    rest = iter(items)

    async def worker() -> None:
        for item in rest:
            await work(item)

    done = await asyncio.gather(*(worker() for _ in range(_AT_ONCE)), return_exceptions=True)
    for error in done:
        if error is not None:
            raise error


def _warn(log: str, partitions: list[tuple[int, Trimmed]]) -> None:
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
