"""A process that archives one cell, until it is ended, or dies where it was told to.

    python -m tests.transactions.archiver_process ADDRESS FOLDER URL NODE BATCH MOMENT

ADDRESS is the path of the store's Unix socket; URL is empty for a file in FOLDER. MOMENT is one of
`MOMENTS`, or empty. It prints a line once it works, and one more when it is about to write.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.helpers.store_faults import address_of
from tests.transactions.helpers import ROLE_GRACE_MS, ROLE_MS, TERMS
from waystation.archive import Archive, ArchivedState, Upserted, archive_at
from waystation.runtime.clock import Clock
from waystation.store.address import Address
from waystation.store.client import Store
from waystation.transactions.archiver import ArchivePace, Archiver
from waystation.transactions.archiving import Archiving

#: Where it kills itself: after a batch was read, and after it was written, before its confirm.
MOMENTS = ("read", "written")


class Doomed:
    """An archive whose user dies at a moment."""

    def __init__(self, archive: Archive, moment: str) -> None:
        self._archive = archive
        self._moment = moment

    def __getattr__(self, name: str) -> Any:
        return getattr(self._archive, name)

    async def upsert(self, states: Sequence[ArchivedState]) -> Upserted:
        print("writing", len(states), flush=True)  # noqa: T201 (to the parent)
        self._die("read")
        kept = await self._archive.upsert(states)
        self._die("written")
        return kept

    def _die(self, moment: str) -> None:
        if moment == self._moment:
            os.kill(os.getpid(), signal.SIGKILL)


async def main(address: str, folder: str, url: str, node: str, batch: str, moment: str) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    store = Store(address_of(address), test_mode=True)
    archive, clock = archive_at(url, folder=Path(folder)), Clock()
    await archive.open()
    archiver = Archiver(
        Archiving(store, TERMS, role_ms=ROLE_MS, grace_ms=ROLE_GRACE_MS),
        Doomed(archive, moment),  # type: ignore[arg-type]
        node=node,
        cells=1,
        pace=lambda: ArchivePace(batch=int(batch), idle_ms=20),
        clock=clock,
    )
    archiver.start()
    print(os.getpid(), flush=True)  # noqa: T201 (to the parent)
    await ended.wait()
    await archiver.stop(grace_seconds=5.0)
    await archive.close()
    await store.close()


class ArchiverProcess:
    """Such a process, of a test."""

    def __init__(
        self,
        address: Address,
        folder: Path,
        url: str = "",
        *,
        node: str = "process-1",
        batch: int = 100,
        moment: str = "",
    ) -> None:
        command = [sys.executable, "-m", "tests.transactions.archiver_process"]
        self.process = subprocess.Popen(
            [*command, address.path, str(folder), url, node, str(batch), moment],
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        self._stdout = self.process.stdout

    def __enter__(self) -> ArchiverProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    async def told(self) -> str:
        """Waits for the next line that it prints; '' at its end."""
        return (await asyncio.to_thread(self._stdout.readline)).decode().strip()

    async def ended(self, seconds: float = 20.0) -> int:
        """Waits for its end; returns its exit code."""
        return await asyncio.to_thread(self.process.wait, seconds)

    def kill(self) -> None:
        """kill -9, and waits for the end."""
        self.process.kill()
        self.process.wait()
        self._stdout.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
