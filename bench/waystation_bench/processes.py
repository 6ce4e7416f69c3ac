"""What a process has used: CPU time to the nanosecond, and resident memory. Linux only.

CPU time decides most bars: on a machine that does other things as well, the rate of a round says
how much of a core was left to us, while the CPU time per operation says what the work costs.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

from waystation.errors import SettingsError

#: The kernel's name for "CPU time of all threads" in the low bits of a process's clock id.
_SCHEDULED = 2


def require_linux() -> None:
    """Raises where the CPU time of another process cannot be read this way."""
    if not sys.platform.startswith("linux"):
        raise SettingsError("Benchmarks run on Linux only: they read CPU times from its kernel.")


def cpu_seconds(process_id: int) -> float:
    """CPU time of a process, all threads, user and system; ProcessLookupError when it is gone."""
    try:
        # What clock_getcpuclockid(3) computes; /proc/<pid>/stat counts in steps of 10 ms only.
        return time.clock_gettime((~process_id << 3) | _SCHEDULED)
    except OSError as error:
        raise ProcessLookupError(f"There is no process {process_id}.") from error


def resident_bytes(process_id: int) -> int:
    """Memory of a process that is in RAM."""
    pages = Path(f"/proc/{process_id}/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def family_cpu_seconds(process_id: int) -> dict[int, float]:
    """CPU time of a process and of all below it, each by its id."""
    used: dict[int, float] = {}
    for each in _family(process_id):
        with contextlib.suppress(ProcessLookupError):
            used[each] = cpu_seconds(each)
    return used


def family_bytes(process_id: int) -> int:
    """Memory of a process and of all below it; what they share is counted for each."""
    total = 0
    for each in _family(process_id):
        with contextlib.suppress(OSError):
            total += resident_bytes(each)
    return total


def _family(process_id: int) -> list[int]:
    """A process and all below it that are alive."""
    children: dict[int, list[int]] = {}
    for place in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            # The name before it is in brackets, and may have blanks and brackets itself.
            parent = (place / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1]
            children.setdefault(int(parent), []).append(int(place.name))
    found = [process_id]
    for each in found:
        found += children.get(each, [])
    return found
