"""The chore of upkeep that is about subscriptions: finishes what died half-way, sweeps what ended.

It looks at every row of the catalogue. One that cannot be mended now is told at the end, and keeps
nobody from the others. Of one that was deleted a moment ago holds are released again, since a node
may have been late; its record log goes when it was kept for a while and nobody needs it any more.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict

from waystation.errors import LogNotFoundError, StoreUnavailableError
from waystation.logs.streams import StreamLogs
from waystation.runtime.clock import Clock
from waystation.runtime.tasks import for_each
from waystation.subscriptions.definition import Subscription
from waystation.subscriptions.operations import Operations
from waystation.subscriptions.subscriptions import Subscriptions

#: Subscriptions that are looked at together.
_AT_ONCE = 8
#: Nobody believes in a subscription for longer than this after it was deleted.
_LATE_MS_MAX = 10 * 60 * 1000

#: Generation → partitions.
_Logs = dict[int, int]


class SubscriptionUpkeep:
    """Mends all subscriptions, and sweeps what is left of those that were deleted."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        operations: Operations,
        logs: StreamLogs,
        *,
        clock: Clock,
        keep_ms: int,
    ) -> None:
        self._subscriptions = subscriptions
        self._operations = operations
        self._logs = logs
        self._clock = clock
        #: How long the record log of a deleted subscription is kept.
        self._keep_ms = keep_ms

    async def mend(self) -> None:
        """One pass; raises the first problem at its end."""
        # The register before the catalogue: a log's row is written first, so it is known here.
        logs = await self._record_logs()
        problems: list[Exception] = []

        async def tend(subscription: Subscription) -> None:
            try:
                await self._tend(subscription, logs[subscription.project, subscription.name])
            except StoreUnavailableError:
                raise
            except Exception as error:
                problems.append(error)

        async for page in self._subscriptions.everything():
            await for_each(page, tend, at_once=_AT_ONCE)
        if problems:
            raise problems[0]

    async def _tend(self, subscription: Subscription, logs: _Logs) -> None:
        await self._subscriptions.lifecycle.mend(subscription)
        if subscription.state == "active":
            await self._operations.tend(subscription)
        deleted = subscription.state == "deleted"
        if deleted and subscription.deleted_ms + _LATE_MS_MAX > self._clock.now_ms():
            await self._subscriptions.lifecycle.let_go(subscription)
        for generation, partitions in logs.items():
            if generation < subscription.generation + deleted:
                await self._sweep(subscription.record_log_of(generation), partitions, generation)

    async def _sweep(self, log: str, partitions: int, generation: int) -> None:
        """Deletes the record log of a generation that has ended, if its time has come."""
        over_ms = self._clock.now_ms() - self._keep_ms
        for partition in range(partitions):
            with contextlib.suppress(LogNotFoundError):
                # The first seal stays; a deletion may have died before it.
                sealed = await self._logs.seal(log, partition, generation + 1)
                if sealed.sealed_ms > over_ms:
                    return
                if (await self._logs.trim(log, partition)).needed_bytes:
                    return
        await self._logs.delete(log, partitions)

    async def _record_logs(self) -> defaultdict[tuple[str, str], _Logs]:
        found: defaultdict[tuple[str, str], _Logs] = defaultdict(dict)
        for log, partitions in (await self._logs.names()).items():
            match log.split("."):
                case ["s", project, name, generation]:
                    found[project, name][int(generation)] = partitions
        return found
