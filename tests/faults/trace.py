"""Reads what strace saw: how much of a file was written, and how much of that was synced."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: Which calls to trace, and how: with threads, paths, times, and without any content.
STRACE = (
    *("-f", "--seccomp-bpf", "-y", "-ttt", "-T", "-s", "0", "-qq"),
    *("-e", "trace=write,fsync,fdatasync,unlink,execve", "-e", "signal=none"),
)

_LINE = re.compile(r"(\d+) +(\d+\.\d+) (.*)")
# A call that its process did not live to see the end of has no result, or a question mark.
_CALL = re.compile(r"(\w+)\((.*?)(?: <unfinished \.\.\.>|\) += (?:\?.*|(-?\d+).*<([\d.]+)>))$")
_RESUMED = re.compile(r"<\.\.\. (\w+) resumed>.* = (-?\d+).*<([\d.]+)>$")


@dataclass(frozen=True)
class Call:
    """One system call that has returned."""

    name: str
    arguments: str
    result: int
    began: float
    ended: float


#: The result of a call that had not returned when its process was killed.
UNFINISHED = -1000


def calls_in(trace: Path) -> Iterator[Call]:
    """Calls in the order of their ends; last those that never ended."""
    pending: dict[str, tuple[str, str, float]] = {}
    for line in trace.read_text(errors="replace").splitlines():
        found = _LINE.match(line)
        if found is None:
            continue
        thread, at, text = found.group(1), float(found.group(2)), found.group(3)
        if resumed := _RESUMED.match(text):
            name, arguments, began = pending.pop(thread)
            assert name == resumed.group(1), line
            seconds = float(resumed.group(3))
            yield Call(name, arguments, int(resumed.group(2)), began, began + seconds)
        elif call := _CALL.match(text):
            name, arguments, result, seconds = call.groups()
            if result is None:
                pending[thread] = (name, arguments, at)
            else:
                yield Call(name, arguments, int(result), at, at + float(seconds))
    for name, arguments, began in pending.values():
        yield Call(name, arguments, UNFINISHED, began, float("inf"))


@dataclass(frozen=True, kw_only=True)
class Synced:
    """What a power cut would leave of a file."""

    #: Bytes that reached the operating system, and those that were on their way to it at the end.
    written: int
    unfinished: int
    #: Bytes that surely reached the disk.
    synced: int
    #: When the last sync that came back had begun, how many there were, how long the longest took.
    last_began: float
    syncs: int
    longest_seconds: float
    #: The most that a power cut at any moment could have cost: from one sync to the next one's end.
    widest_seconds: float


def synced_part(trace: Path, file: Path, *, size_before: int) -> Synced:
    """Follows the writes and syncs of one file.

    A sync covers what was written before it began, so a write that ended while it ran does not
    count: the strictest reading of what the disk has.
    """
    writes: list[tuple[float, int]] = []
    syncs: list[tuple[float, float]] = []
    synced, unfinished = size_before, 0
    for call in calls_in(trace):
        if f"<{file}>" not in call.arguments:
            continue
        if call.result == UNFINISHED:
            size = call.arguments.rpartition(" ")[2]
            unfinished += int(size) if call.name == "write" else 0
        elif call.name == "write":
            writes.append((call.ended, call.result))
        else:
            assert call.result == 0
            syncs.append((call.began, call.ended))
            covered = sum(size for ended, size in writes if ended <= call.began)
            synced = max(synced, size_before + covered)
    written = size_before + sum(size for _, size in writes)
    return Synced(
        written=written,
        unfinished=unfinished,
        synced=synced,
        last_began=max((began for began, _ in syncs), default=0.0),
        syncs=len(syncs),
        longest_seconds=max((ended - began for began, ended in syncs), default=0.0),
        widest_seconds=max(
            (later[1] - earlier[0] for earlier, later in itertools.pairwise(syncs)), default=0.0
        ),
    )
