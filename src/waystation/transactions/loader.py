"""The loader: reads the archive and brings states back, for one who asks or for all that wake.

Concurrent callers who ask for one id share its load, and none of them ends it by going away. What
is due to wake is loaded in the background, in bulk; what cannot be loaded in time is forgotten
here: its time in the store comes again, see `wake_due`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from waystation.archive import Archive, ArchivedState, join_hash
from waystation.errors import ArchiveError, BusyError, StoreError, StoreFullError
from waystation.runtime.clock import Clock
from waystation.runtime.logging import logger
from waystation.runtime.service import Wakeup
from waystation.store.pubsub import RECHECK_S
from waystation.telemetry import metrics
from waystation.transactions import names
from waystation.transactions.restoring import (
    Loaded,
    LoadMode,
    Missing,
    Restoration,
    Restoring,
)

_log = logger("loader")

#: Ids of one read of the archive, and of one write to the store; fewer where states are large.
CHUNK = 1_000
_CHUNK_BYTES = 16 * 1_048_576
#: Ids that wait to be woken.
WAITING_MAX = 20_000
#: While one chunk is being written, another is read.
_AT_ONCE = 2

#: One load: of whom, which, why.
_Key = tuple[str, str, LoadMode]


class Loader:
    """Brings back what is missing."""

    def __init__(
        self, restoring: Restoring, archive: Archive, *, load_ms: int, clock: Clock
    ) -> None:
        self._restoring = restoring
        self._archive = archive
        self._load_seconds = load_ms / 1000
        self._clock = clock
        self._loads: dict[_Key, asyncio.Task[dict[str, Loaded]]] = {}
        #: By cell, ids and since when they are ours.
        self._due: deque[tuple[int, list[Missing], float]] = deque()
        self._waiting = 0
        self._chunk = CHUNK
        self._waiters = [Wakeup(recheck_s=RECHECK_S) for _ in range(_AT_ONCE)]
        self._wakers: list[asyncio.Task[None]] = []

    def __repr__(self) -> str:
        return f"<Loader [{len(self._loads)} loads, {self._waiting} to wake]>"

    @property
    def room(self) -> int:
        """How many more it can take to be woken."""
        return WAITING_MAX - self._waiting

    async def bring(
        self, owner: str, missing: Sequence[Missing], *, mode: LoadMode = ""
    ) -> dict[str, Loaded]:
        """What came of each id; an archive that is away raises.

        Of another owner's transactions nothing is told or brought back; '' is any owner.
        """
        if not missing:
            return {}
        new = {each.id: each for each in missing if (owner, each.id, mode) not in self._loads}
        if new:
            load = asyncio.get_running_loop().create_task(
                self._load(owner, list(new.values()), mode)
            )
            keys: list[_Key] = [(owner, each, mode) for each in new]
            self._loads |= dict.fromkeys(keys, load)
            load.add_done_callback(lambda done: self._loaded(keys, done))
        loads = {each.id: self._loads[owner, each.id, mode] for each in missing}
        # Waited for, not awaited: who is cancelled leaves it to the others.
        await asyncio.wait(set(loads.values()))
        return {key: load.result()[key] for key, load in loads.items()}

    def wake(self, cell: int, missing: Sequence[Missing]) -> None:
        """Has them loaded and queued, some time soon; `room` of them at most."""
        taken = missing[: self.room]
        if not taken:
            return
        self._due.append((cell, list(taken), self._clock.monotonic()))
        self._waiting += len(taken)
        if not self._wakers:
            loop = asyncio.get_running_loop()
            self._wakers = [loop.create_task(self._keep_waking(each)) for each in self._waiters]
        for waiter in self._waiters:
            waiter.set()

    async def stop(self) -> None:
        """Forgets what is not loaded yet; another process loads it when its time comes again."""
        doing = [*self._wakers, *self._loads.values()]
        for task in doing:
            task.cancel()
        await asyncio.gather(*doing, return_exceptions=True)

    # -- One who asks ------------------------------------------------------------------------

    def _loaded(self, keys: Iterable[_Key], load: asyncio.Task[dict[str, Loaded]]) -> None:
        for key in keys:
            del self._loads[key]
        if not load.cancelled():
            load.exception()  # Those who asked may all be gone: then nobody minds.

    async def _load(
        self, owner: str, missing: Sequence[Missing], mode: LoadMode
    ) -> dict[str, Loaded]:
        begun = self._clock.uptime_s()
        rows = await self._rows(missing)
        loaded, cells = dict[str, Loaded](), dict[int, list[Missing]]()
        for each in missing:
            row = rows.get(each.id)
            if owner and row is not None and row.owner != owner:
                # Its nonce runs out: to take it away would hinder the owner who loads just now.
                loaded[each.id] = Loaded("foreign")
            else:
                cells.setdefault(names.cell_of(each.id), []).append(each)
        for cell, some in cells.items():
            loaded |= await self._restored(cell, some, rows, mode)
        metrics.load_seconds.note(self._clock.uptime_s() - begun)
        for done in loaded.values():
            metrics.loads.of(done.outcome).inc()
        return loaded

    async def _restored(
        self,
        cell: int,
        missing: Sequence[Missing],
        rows: Mapping[str, ArchivedState],
        mode: LoadMode,
    ) -> dict[str, Loaded]:
        found = {each.id: rows.get(each.id) for each in missing}
        try:
            outcomes = await self._restoring.restore(cell, _restorations(missing, rows), mode=mode)
        except StoreFullError:
            return {
                key: Loaded("unknown") if row is None else Loaded("no-room", row)
                for key, row in found.items()
            }
        pairs = zip(missing, outcomes, strict=True)
        return {each.id: Loaded(outcome, found[each.id]) for each, outcome in pairs}

    async def _rows(self, missing: Sequence[Missing]) -> dict[str, ArchivedState]:
        rows: dict[str, ArchivedState] = {}
        for first in range(0, len(missing), CHUNK):
            some = missing[first : first + CHUNK]
            rows |= await self._archive.get([each.id for each in some])
        return rows

    # -- All that wake -----------------------------------------------------------------------

    async def _keep_waking(self, waiter: Wakeup) -> None:
        while True:
            waiter.clear()
            while chunk := self._next_chunk():
                await self._wake(*chunk)
            await waiter.wait(RECHECK_S)

    def _next_chunk(self) -> tuple[int, list[Missing]] | None:
        """What waits longest, of one cell; those whose time here is over are dropped."""
        now = self._clock.monotonic()
        while self._due and now - self._due[0][2] > self._load_seconds:
            # By now they are anybody's, perhaps under another nonce.
            self._waiting -= len(self._due.popleft()[1])
        if not self._due:
            return None
        cell, chunk, _ = self._due.popleft()
        while self._due and self._due[0][0] == cell and len(chunk) < self._chunk:
            chunk += self._due.popleft()[1]
        self._waiting -= len(chunk)
        return cell, chunk

    async def _wake(self, cell: int, missing: list[Missing]) -> None:
        begun = self._clock.uptime_s()
        try:
            rows = await self._rows(missing)
            self._chunk = _chunk_after(rows.values())
            items = _restorations(missing, rows)
            outcomes = await self._restoring.restore(cell, items, mode="wake")
        except (ArchiveError, StoreError, BusyError) as error:
            _log.warning(
                "what was to wake could not be loaded", count=len(missing), problem=str(error)
            )
            return
        except Exception as error:
            _log.error("what was to wake could not be loaded", error=error, count=len(missing))
            return
        metrics.load_seconds.note(self._clock.uptime_s() - begun)
        for outcome in outcomes:
            metrics.loads.of(outcome).inc()


def _chunk_after(rows: Iterable[ArchivedState]) -> int:
    """How many to take next, as if they were as large as these."""
    sizes = [len(row.packed) + len(row.fields) for row in rows]
    return max(1, min(CHUNK, _CHUNK_BYTES * len(sizes) // (sum(sizes) + 1))) if sizes else CHUNK


def _restorations(
    missing: Sequence[Missing], rows: Mapping[str, ArchivedState]
) -> list[Restoration]:
    return [Restoration(each, _hash_of(rows.get(each.id))) for each in missing]


def _hash_of(row: ArchivedState | None) -> dict[bytes, bytes] | None:
    if row is None:
        return None
    try:
        return join_hash(row.packed, row.fields)
    except ValueError:
        return None  # Not what was once written; as good as lost, and told so.
