"""An archive that may be away when the process starts: it is opened and checked when it comes.

Starts, steps and cached reads need no archive, so nobody waits for it; what needs it is told that
it is away until then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from waystation.archive import (
    Archive,
    ArchivedFacts,
    ArchivedState,
    Mark,
    Upserted,
    archive_at,
)
from waystation.errors import ArchiveError, ArchiveRefusedError, ArchiveUnavailableError
from waystation.runtime.clock import Clock
from waystation.runtime.logging import logger

_log = logger("archive")

#: What a process that starts waits for it.
_START_SECONDS_MAX = 5.0
#: Between two tries; doubled with each, up to the most.
_PAUSE_SECONDS = 0.5
_PAUSE_SECONDS_MAX = 10.0


#: Told the name of an archive; raises ArchiveRefusedError if it is not the one that is wanted.
Admit = Callable[[str], Awaitable[None]]


async def open_archive(url: str, folder: Path, *, admit: Admit, clock: Clock) -> LateArchive:
    """The archive of a URL, or of a folder; one that is away is opened when it comes."""
    archive = LateArchive(archive_at(url, folder=folder), admit=admit, clock=clock)
    try:
        await archive.open()
    except BaseException:
        await archive.close()
        raise
    return archive


class LateArchive:
    """An `Archive` before another one."""

    def __init__(self, archive: Archive, *, admit: Admit, clock: Clock) -> None:
        self._archive = archive
        self._admit = admit
        self._clock = clock
        self._is_open = False
        self._problem = "it is being opened"
        self._opening: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Opens it, now or in the background; ArchiveRefusedError if it never can be."""
        try:
            async with asyncio.timeout(_START_SECONDS_MAX):
                await asyncio.shield(first := asyncio.ensure_future(self._try_to_open()))
        except TimeoutError:
            self._problem = "it does not answer"
        except ArchiveRefusedError:
            raise
        except ArchiveError as error:
            self._problem = str(error)
        else:
            self._is_open = True
            return
        _log.warning("the archive is away; it is opened when it comes", problem=self._problem)
        self._opening = asyncio.get_running_loop().create_task(self._keep_opening(first))

    async def close(self) -> None:
        """Lets go of it."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        self._is_open, self._problem = False, "it is closed"
        await self._archive.close()

    async def ping(self) -> None:
        await self._opened().ping()

    async def identity(self) -> str:
        return await self._opened().identity()

    async def upsert(self, states: Sequence[ArchivedState]) -> Upserted:
        return await self._opened().upsert(states)

    async def get(self, ids: Sequence[str]) -> dict[str, ArchivedState]:
        return await self._opened().get(ids)

    async def find(self, owner: str, external_id: str) -> ArchivedFacts | None:
        return await self._opened().find(owner, external_id)

    async def page(
        self,
        owner: str,
        statuses: Sequence[str],
        *,
        pipeline: str = "",
        since_ms: int = 0,
        before: Mark | None = None,
        limit: int,
    ) -> list[ArchivedFacts]:
        return await self._opened().page(
            owner, statuses, pipeline=pipeline, since_ms=since_ms, before=before, limit=limit
        )

    async def counts(self, owner: str | None = None) -> dict[str, int]:
        return await self._opened().counts(owner)

    async def oldest_completed(self) -> int:
        return await self._opened().oldest_completed()

    async def delete_completed(self, *, before_ms: int, most: int) -> int:
        return await self._opened().delete_completed(before_ms=before_ms, most=most)

    def _opened(self) -> Archive:
        if not self._is_open:
            raise ArchiveUnavailableError(f"The archive is away: {self._problem}")
        return self._archive

    async def _try_to_open(self) -> None:
        await self._archive.open()
        await self._admit(await self._archive.identity())

    async def _keep_opening(self, first: asyncio.Future[None]) -> None:
        attempt, pause = first, _PAUSE_SECONDS
        while True:
            try:
                await attempt
            except ArchiveError as error:
                if isinstance(error, ArchiveRefusedError) and self._problem != str(error):
                    _log.error("the archive must not be used", problem=str(error))
                self._problem = str(error)
            except Exception as error:
                # Not what an archive should raise; it must not be away for good.
                self._problem = f"{type(error).__name__}: {error}"
                _log.error("the archive could not be opened", error=error)
            else:
                self._is_open = True
                _log.info("the archive is open")
                return
            await self._clock.sleep(pause)
            pause = min(pause * 2, _PAUSE_SECONDS_MAX)
            attempt = asyncio.ensure_future(self._try_to_open())
