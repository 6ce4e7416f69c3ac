"""Upkeep of logs and topics: trims what retention lets go, warns, finishes what was left undone.

One node at a time does it, by a lease; that saves work, and is no condition of being right: every
step is a script that decides by itself what may go. A pass does, for each topic, what a process may
have died before: the working copy, the rest of a purge; and the same for other parts, by the chores
that it was given. Then it trims all logs that the register has, other parts' records too, in
bounded steps, each by the newest limits that it was given. What fails is told at the end, and stops
nothing else: a full store must not stop its own cleaning.

While the store is at its warning level, the node with the lease checks once a second and deletes
messages that all readers have passed, although they are within the limits.

A partition whose needed bytes come near its limit is told once in the log, stays noted in its head
(`warned_ms`), and counts in a metric, with the policy that will apply.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from waystation.errors import (
    BusyError,
    LogNotFoundError,
    StoreError,
    StoreUnavailableError,
    WaystationError,
)
from waystation.logs.protocol import Logs, Retention, Trimmed
from waystation.runtime.clock import Clock
from waystation.runtime.logging import logger
from waystation.runtime.tasks import for_each
from waystation.store.leases import Lease, Leases
from waystation.store.memory import StoreMemory
from waystation.telemetry import metrics
from waystation.topics.model import TopicDefinition
from waystation.topics.service import TopicService

_log = logger("upkeep")

LEASE_KEY = "{waystation.upkeep}:lease"
#: How often a pass is made.
PERIOD_SECONDS = 10.0
#: How often memory is checked between two passes.
_ROOM_SECONDS = 1.0
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
    #: What could not be done; the next pass tries again.
    undone: int = 0
    first_problem: Exception | None = None

    def count(self, removed: int, last: Trimmed) -> None:
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


class Upkeep:
    """Makes pass after pass, while it has the lease."""

    def __init__(
        self,
        topics: TopicService,
        logs: Logs,
        leases: Leases,
        room: StoreMemory,
        *,
        clock: Clock,
        chores: Sequence[Callable[[], Awaitable[None]]] = (),
        on_rest: Callable[[], None] = lambda: None,
        period_seconds: float = PERIOD_SECONDS,
    ) -> None:
        self._topics = topics
        self._logs = logs
        self._leases = leases
        self._room = room
        self._clock = clock
        self._chores = chores
        #: Called where another node makes the passes, or nobody.
        self._on_rest = on_rest
        self._period_seconds = period_seconds
        self._lease: Lease | None = None
        self._task: asyncio.Task[None] | None = None
        self._last = Tally()

    @property
    def notes(self) -> list[str]:
        """What a person should know after the last pass; only where it was made."""
        return [
            f"{count} partitions of logs are nearly full of what is needed (policy {policy})"
            for policy, count in self._last.warned.items()
            if count
        ]

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
            with contextlib.suppress(BusyError, StoreError, TimeoutError):
                async with asyncio.timeout(_RELEASE_SECONDS_MAX):
                    await self._lease.release()
            self._lease = None
        self._rest()

    async def pass_once(self) -> Tally:
        """One pass over all topics and logs, whoever has the lease."""
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
        for chore in self._chores:
            await tally.attempt(chore())
        await for_each(registered, trim, at_once=_AT_ONCE)
        if self._room.is_short:
            await tally.attempt(self._free_room(registered, tally))
        return tally

    async def _free_room(self, registered: dict[str, int], tally: Tally) -> None:
        """Delete messages that all readers have passed until the store is below its warning level.

        Each round takes one bounded step in every partition, so that all logs lose their oldest
        messages first.
        """
        places = [(log, each) for log, count in registered.items() for each in range(count)]
        unfinished: list[tuple[str, int]] = []
        deleted = 0

        async def step(place: tuple[str, int]) -> None:
            nonlocal deleted
            with contextlib.suppress(LogNotFoundError):
                trimmed = await self._logs.trim(*place, short=True)
                deleted += trimmed.removed
                if trimmed.more:
                    unfinished.append(place)

        for _ in range(_STEPS_MAX):
            await self._room.read()
            if not places or not self._room.is_short:
                break
            unfinished.clear()
            await for_each(places, step, at_once=_AT_ONCE)
            places = list(unfinished)
        tally.trimmed += deleted
        if deleted:
            usage = self._room.usage
            _log.info(
                "settled messages deleted because memory is short",
                count=deleted,
                used=usage.used_bytes,
                limit=usage.limit_bytes,
            )

    async def _trim_log(
        self, log: str, partitions: int, wanted: Retention | None, tally: Tally
    ) -> None:
        found: list[tuple[int, Trimmed]] = []
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
    ) -> tuple[int, Trimmed]:
        """Trims a partition; how many messages went, and how it stands.

        What is wanted may be old by now, or newer than what the partition has: the script knows.
        """
        step = await self._logs.trim(log, partition, wanted)
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
                if self._lease is None:
                    self._rest()
                else:
                    self._last = await self.pass_once()
                    _tell(self._last)
                if self._last.undone:
                    _tell_problem(self._last.first_problem, undone=self._last.undone)
            except Exception as error:
                # Whatever it is: who has the lease and does nothing keeps all others from it.
                _tell_problem(error)
            await self._pause()

    async def _pause(self) -> None:
        """Wait for the next pass; free memory meanwhile if the store is short of it."""
        remaining = self._period_seconds
        while remaining > 0:
            part = min(remaining, _ROOM_SECONDS)
            await self._clock.sleep(part)
            remaining -= part
            if self._lease is None or self._lease.lost or not self._room.is_short:
                continue
            tally = Tally()
            try:
                await self._free_room(await self._logs.names(), tally)
            except Exception as error:
                _tell_problem(error)
            metrics.log_trimmed.inc(tally.trimmed)
            if not tally.trimmed:
                # Readers have not passed anything. Leave the next check of all partitions to the
                # pass, because it costs the store one call for each.
                await self._clock.sleep(remaining)
                return

    def _rest(self) -> None:
        self._last = Tally()
        _tell(self._last)
        self._on_rest()


def _tell_problem(problem: Exception | None, **fields: int) -> None:
    if isinstance(problem, WaystationError):
        _log.warning("a pass left something undone", problem=str(problem), **fields)
    else:
        _log.error("a pass left something undone", error=problem, **fields)


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
