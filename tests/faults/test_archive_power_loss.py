"""Power loss while the SQLite archive is written: a state that it confirmed is on the disk.

The store deletes a state once the archive has confirmed it, so a lost state is lost for good.
strace tells which bytes of the write-ahead log were synced. The test kills the writer and cuts the
log back to them.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers.server import require_tool
from tests.helpers.store_faults import calls_in
from waystation.archive import SqliteArchive

#: Few enough that SQLite makes no checkpoint (1,000 pages): it only appends to the log until then.
_STATES = 100
_STRACE = (
    *("-f", "--seccomp-bpf", "-y", "-ttt", "-T", "-s", "0", "-qq"),
    *("-e", "trace=pwrite64,fsync,fdatasync", "-e", "signal=none"),
)


def synced_bytes(trace: Path, file: Path) -> int:
    """Return how many bytes of an appended file the disk has: those written before a sync began."""
    written: list[tuple[float, int]] = []
    synced = 0
    for call in calls_in(trace):
        if f"<{file}>" not in call.arguments or call.result < 0:
            continue
        if call.name == "pwrite64":
            offset = int(call.arguments.rpartition(", ")[2])
            written.append((call.ended, offset + call.result))
        else:
            ends = [end for ended, end in written if ended <= call.began]
            synced = max(synced, *ends, 0)
    assert written, "the trace shows no write to the log"
    return synced


async def ids_in(file: Path, ids: list[str]) -> set[str]:
    archive = SqliteArchive(file)
    await archive.open()
    try:
        return set(await archive.get(ids))
    finally:
        await archive.close()


@pytest.mark.slow
def test_sqlite_archive_power_cut_loses_no_confirmed_state(tmp_path: Path) -> None:
    file, log, trace = tmp_path / "archive.db", tmp_path / "confirmed", tmp_path / "trace"
    asyncio.run(ids_in(file, []))
    size_before = file.stat().st_size
    log.touch()
    writing = (sys.executable, "-m", "tests.faults.archiving", str(file), str(log))
    process = subprocess.Popen(
        [require_tool("strace"), *_STRACE, "-o", str(trace), *writing], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    writer = int(process.stdout.readline())
    try:
        deadline = time.monotonic() + 60
        while log.read_bytes().count(b"\n") < _STATES:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        # Only the writer: the tracer must write the rest of its trace.
        os.kill(writer, signal.SIGKILL)
        process.communicate()
    confirmed = log.read_text().split()
    assert file.stat().st_size == size_before, "a checkpoint wrote the database"
    wal = Path(f"{file}-wal")
    os.truncate(wal, synced_bytes(trace, wal))
    # A power cut leaves no shared memory: SQLite builds it anew from the log.
    Path(f"{file}-shm").unlink(missing_ok=True)

    found = asyncio.run(ids_in(file, confirmed))

    assert set(confirmed) - found == set(), "confirmed and lost"
