"""Writes states into a SQLite archive, one after the other, until it is killed.

    python -m tests.faults.archiving <file of the archive> <log of what was confirmed>

It prints its process id. It appends the id of each state to the log once the archive has confirmed
the state.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from pathlib import Path

from tests.archive.conformance import archived
from waystation.archive import SqliteArchive


async def main(file: Path, log: Path) -> None:
    archive = SqliteArchive(file)
    await archive.open()
    sys.stdout.write(f"{os.getpid()}\n")
    sys.stdout.flush()
    with log.open("a") as confirmed:
        for number in itertools.count():
            await archive.upsert([archived(f"tx-{number:08}", version=1)])
            confirmed.write(f"tx-{number:08}\n")
            confirmed.flush()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
