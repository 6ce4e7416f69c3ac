"""Power loss: what the disk had at the last sync is all that is left (F-07).

`kill -9` loses nothing that reached the operating system, so it proves nothing about durability.
Here strace tells which bytes of the append-only file were written and which of them were synced;
all processes are killed at once, and the file is cut back to its last sync.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.helpers.processes import ended, parent_of
from tests.helpers.server import require_tool
from tests.helpers.store_faults import STRACE, Synced, calls_in, newest_part, synced_part
from waystation.channels.model import encode_handle
from waystation.node import open_node
from waystation.store.embedded.server import EmbeddedServer
from waystation.testing.station import quick_settings
from waystation.types.message import Durability

pytestmark = pytest.mark.slow

_LOAD_SECONDS = 3.5
#: Level `memory` promises a second. On top of it come the server's timer, which looks ten times a
#: second whether one is over, and the length of the sync itself, which is taken from the trace.
_SECOND = 1.0
_TIMER_SECONDS = 0.1
#: For the two processors of a small machine, under a tracer that stops each thread at each call.
_SCHEDULING_SECONDS = 0.25


@dataclass(frozen=True)
class PowerCut:
    """What is known after the lights went out."""

    at: float
    #: Message → when its acknowledgement arrived.
    acknowledged: dict[str, float]
    file: Synced
    trace: Path


def used_before(folder: Path) -> None:
    """A first life that ends in order, so that there is a mark of it to be forgotten."""
    with EmbeddedServer(folder) as server:
        keeper_id = parent_of(server.process_id)
    assert ended(keeper_id)
    assert (folder / "clean").exists()


def cut_the_power(data: Path, durability: Durability) -> PowerCut:
    """Publishes under strace, kills everything at once, cuts the file back to its last sync."""
    folder = data / "store"
    used_before(folder)
    part = newest_part(folder)
    size_before = part.stat().st_size
    trace, log = data / "trace", data / "acknowledged"
    process = subprocess.Popen(
        [
            *(require_tool("strace"), *STRACE, "-o", str(trace)),
            *(sys.executable, "-m", "tests.faults.publisher", str(data), durability, str(log)),
        ],
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    publisher_id, server_id = (int(word) for word in process.stdout.readline().split())
    keeper_id = parent_of(server_id)
    time.sleep(_LOAD_SECONDS)
    wait_for_unsynced_bytes(trace, part, size_before, durability)

    # All at once: nobody may bring back to life what a power cut would not. First who would make
    # another keeper; then that one with its server, which are one group.
    assert os.getpgid(server_id) == os.getpgid(keeper_id) != os.getpgid(publisher_id)
    at = time.time()
    os.kill(publisher_id, signal.SIGKILL)
    os.killpg(os.getpgid(keeper_id), signal.SIGKILL)

    process.communicate()
    assert ended(server_id)
    assert ended(keeper_id)
    file = synced_part(trace, part, size_before=size_before)
    # The tracer saw every write but the one that the kill may have cut short.
    assert 0 <= part.stat().st_size - file.written <= file.unfinished
    os.truncate(part, file.synced)
    lines = (line.split() for line in log.read_text().splitlines())
    return PowerCut(at, {each: float(when) for each, when in lines}, file, trace)


def wait_for_unsynced_bytes(
    trace: Path, part: Path, size_before: int, durability: Durability
) -> None:
    """At level `memory`, the middle between two syncs: a cut right after one would show nothing."""
    while durability == "memory":
        age = time.time() - synced_part(trace, part, size_before=size_before).last_began
        if 0.3 < age < 0.7:
            return
        time.sleep(0.02)


async def left_after_restart(data: Path) -> tuple[set[str], list[str]]:
    """(messages that are there, notes) after everything was started again."""
    node = await open_node(quick_settings(str(data)))
    try:
        found: set[str] = set()
        while True:
            fetched = await node.channels.fetch("default", "orders", "me", limit=10_000)
            if fetched.last is None:
                return found, node.opened.notes
            found |= {message.id for message in fetched.messages}
            handle = encode_handle("orders", "me", fetched.last)
            await node.channels.ack("default", "orders", "me", handle)
    finally:
        await node.close()


def test_level_disk_loses_nothing_in_a_power_cut(tmp_path: Path) -> None:
    """F-07."""
    cut = cut_the_power(tmp_path, "disk")

    found, notes = asyncio.run(left_after_restart(tmp_path))

    assert len(cut.acknowledged) > 500
    assert cut.file.syncs > 50
    assert set(cut.acknowledged) - found == set(), "acknowledged and lost"
    assert "did not stop cleanly" in notes[0]


def test_level_memory_loses_at_most_its_last_second_and_says_so(tmp_path: Path) -> None:
    """F-07."""
    cut = cut_the_power(tmp_path, "memory")

    found, notes = asyncio.run(left_after_restart(tmp_path))

    lost = {cut.at - cut.acknowledged[each] for each in set(cut.acknowledged) - found}
    assert len(cut.acknowledged) > 500
    assert lost, "a cut that loses nothing at this level did not cut anything"
    tolerance = _TIMER_SECONDS + cut.file.longest_seconds + _SCHEDULING_SECONDS
    assert max(lost) <= _SECOND + tolerance
    # And at no other moment would it have been more
    assert cut.file.syncs >= 3
    assert cut.file.widest_seconds <= _SECOND + tolerance
    # And what was acknowledged before is all there, and the restart is reported
    assert "did not stop cleanly" in notes[0]
    assert "up to two seconds of acknowledged writes may be missing" in notes[0]


def test_the_mark_of_an_orderly_stop_is_forgotten_on_the_disk_before_the_server_starts(
    tmp_path: Path,
) -> None:
    """Else it could be there again after a power cut, and nothing would be reported (F-07)."""
    cut = cut_the_power(tmp_path, "memory")
    folder = tmp_path / "store"
    calls = [call for call in calls_in(cut.trace) if call.result == 0]

    def first(name: str, said: str) -> float:
        return next(call.ended for call in calls if call.name == name and said in call.arguments)

    forgotten, started = first("unlink", f"{folder}/clean"), first("execve", "valkey-server")
    syncs = [call for call in calls if call.name == "fsync" and f"<{folder}>" in call.arguments]
    assert [call for call in syncs if forgotten <= call.began and call.ended <= started]
