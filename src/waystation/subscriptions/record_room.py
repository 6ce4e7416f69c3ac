"""Room in the record log of a shard, where nothing may be dropped before history has read it.

Its scripts record what has happened already, so they are never refused: it is the reading of the
topic that stops while the log is full, and goes on when history has caught up.
"""

from __future__ import annotations

import contextlib

from waystation.errors import LogNotFoundError
from waystation.logs.protocol import Logs, Retention
from waystation.subscriptions.tenure import Tenure


class RecordRoom:
    """Looks after it, for the owner of the shard."""

    def __init__(self, tenure: Tenure, logs: Logs, keeps: Retention) -> None:
        self._tenure = tenure
        self._logs = logs
        self._keeps = keeps.divided(tenure.subscription.shards)
        self._opened = False
        self._log = tenure.subscription.record_log, tenure.place.shard

    async def look(self) -> None:
        """Has the log keep what the settings say, and says whether it has room."""
        # One that was deleted under us is found out by the next script.
        with contextlib.suppress(LogNotFoundError):
            await self._tenure.tried(self._look)

    async def _look(self) -> None:
        if not self._opened:
            await self._logs.set_retention(*self._log, self._keeps)
            self._opened = True
        if bounds_reading(self._keeps):
            # It lets go of what history has read, if room is short.
            trimmed = await self._logs.trim(*self._log)
            self._tenure.records_full = is_full(self._keeps, trimmed.bytes)


def bounds_reading(keeps: Retention) -> bool:
    """Whether a full record log stops its shard; else it drops its oldest."""
    return keeps.max_bytes is not None and keeps.policy == "refuse"


def is_full(keeps: Retention, size: int) -> bool:
    """Whether a record log of so many bytes, which bounds reading, stops its shard."""
    return keeps.max_bytes is not None and size >= keeps.max_bytes
