"""Other processes in tests: users of an embedded store, and waiting for the end of any process."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

_USER = """
import sys
from pathlib import Path
from waystation.store.embedded.server import EmbeddedServer
with EmbeddedServer(Path(sys.argv[1]), durability=sys.argv[2]) as server:
    print(server.process_id, flush=True)
    sys.stdin.read()
"""


class User:
    """A process that uses the embedded store of a folder until it leaves or is killed."""

    def __init__(self, folder: Path, *, durability: str = "memory") -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _USER, str(folder), durability],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._server_id = 0

    @property
    def server_id(self) -> int:
        """The server's process as this user sees it; waits until the user has started."""
        assert self._process.stdout is not None
        if not self._server_id:
            self._server_id = int(self._process.stdout.readline())
        return self._server_id

    def leave(self) -> None:
        """Lets go in order."""
        self._process.communicate()
        assert self._process.returncode == 0

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.communicate()


def ended(process_id: int, *, seconds: float = 15.0) -> bool:
    """Waits for the end of a process, which need not be ours; false when it still lives then."""
    try:
        descriptor = os.pidfd_open(process_id)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(seconds * 1000))
    finally:
        os.close(descriptor)


def parent_of(process_id: int) -> int:
    """The parent of a process; of the embedded server that is its keeper."""
    return int(Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[1])
