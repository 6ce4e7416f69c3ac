"""The archivist of a process: who takes states to the archive, and who brings them back."""

from __future__ import annotations

from waystation.archive import Archive
from waystation.config import TransactionConfig
from waystation.logs.operations import OperationLog, OperationRecord
from waystation.runtime.clock import Clock
from waystation.store.opening import OpenStore
from waystation.transactions.archiver import ArchivePace, Archiver
from waystation.transactions.archiving import Archiving
from waystation.transactions.cells import Terms
from waystation.transactions.group_settings import Following
from waystation.transactions.loader import Loader
from waystation.transactions.nodes import Nodes
from waystation.transactions.restoring import Restoring

_DAY_MS = 86_400_000
#: Rows that are deleted at once, and how often that is done in one pass of upkeep.
_DELETED_MOST = 1_000
_STEPS_MAX = 100


class Archivist:
    """Opened with the engine; it archives from `start` to `stop`, and loads until `close`."""

    def __init__(
        self,
        settings: TransactionConfig,
        opened: OpenStore,
        archive: Archive,
        nodes: Nodes,
        *,
        terms: Terms,
        operations: OperationLog,
        node_id: str,
        claims: bool,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._operations = operations
        self.archive = archive
        self.loader = Loader(
            Restoring(opened.store, terms), archive, load_ms=terms.load_ms, clock=clock
        )
        self.archiving = Archiving(
            opened.store,
            terms,
            role_ms=round(settings.archive_role_seconds * 1000),
            grace_ms=round(settings.archive_grace_seconds * 1000),
        )
        #: What the node group was told; also for others of this process.
        self.following = Following(nodes, opened.wakeups, settings.group, claims=claims)
        nodes.archives = lambda: self.pace().batch > 0
        self.archiver = Archiver(
            self.archiving,
            archive,
            node=node_id,
            cells=settings.cells,
            pace=self.pace,
            clock=clock,
        )
        self.following.on_change(self.archiver.look)

    def pace(self) -> ArchivePace:
        """What the settings say, unless the node group was told something else."""
        settings, told = self._settings, self.following.value
        return ArchivePace(
            batch=_first(told.archive_batch, settings.archive_batch),
            pause_ms=_first(told.archive_pause_ms, round(settings.archive_pause_seconds * 1000)),
            idle_ms=_first(
                told.archive_pause_idle_ms, round(settings.archive_pause_idle_seconds * 1000)
            ),
        )

    async def start(self) -> None:
        """Begins to archive."""
        await self.following.start()
        self.archiver.start()

    async def stop(self) -> None:
        """Archives nothing more; what is being written is confirmed."""
        await self.archiver.stop(grace_seconds=self._settings.grace_seconds)
        await self.following.stop()

    async def close(self) -> None:
        """Brings nothing back any more."""
        await self.loader.stop()

    async def forget(self, now_ms: int, days: float) -> None:
        """Deletes what has ended so many days ago; a part of upkeep."""
        before_ms = now_ms - round(days * _DAY_MS)
        if not 0 < await self.archive.oldest_completed() < before_ms:
            return
        # Before: history has to know why it is not there any more.
        await self._operations.write(OperationRecord(kind="prune", detail={"before_ms": before_ms}))
        for _ in range(_STEPS_MAX):
            if not await self.archive.delete_completed(before_ms=before_ms, most=_DELETED_MOST):
                return


def _first(told: int | None, given: int) -> int:
    return given if told is None else told
