"""The embedded server: a real Valkey in the data directory, shared by all who name it.

    with EmbeddedServer(folder, durability="memory") as server:
        Store(server.address)

It starts in a fraction of a second and keeps its data with an append-only file. It stops when the
last process that uses it is gone, however that one died, and survives the death of the one that
started it; `supervisor.py` tells how. Its socket lies in a short path outside the data directory,
since the operating system cuts socket paths at 107 bytes.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import threading
import time
from pathlib import Path
from types import TracebackType

from waystation.errors import (
    StoreFileDamagedError,
    StoreRefusedError,
    StoreUnavailableError,
)
from waystation.runtime.data_files import create_private, make_private, open_private, tighten_tree
from waystation.runtime.logging import logger
from waystation.store.address import Address
from waystation.store.embedded import supervisor
from waystation.store.plan import server_plan
from waystation.types.message import Durability

_log = logger("embedded")

#: How long a start waits for a stop that is under way, or for another's start.
_WAIT_SECONDS_MAX = 90.0
#: Pause after a failed attempt to replace the supervisor.
_RETRY_SECONDS = 1.0
#: The C library of the server keeps more freed pieces at hand than the seven of a size that it
#: would: where values come and go in batches, that saves about a twentieth of its time.
_TUNABLES = "glibc.malloc.tcache_count=1000"
#: Better still, where it is on the machine, is the allocator that Valkey is made for, and the wheel
#: is built without: it saves a quarter of the server's time.
_ALLOCATOR = "libjemalloc.so.2"
_LIBRARIES = (f"/usr/lib/{sysconfig.get_config_var('MULTIARCH')}", "/usr/lib64", "/usr/lib")

#: Texts of the server, and of the supervisor, about data that it cannot load.
_DAMAGE = re.compile(
    r"Bad file format|Unexpected end of file|not the last file|error: unknown command|\bRDB\b"
    r"|loading DB|AOF manifest|AOF file \S+ length|append-only file is (?:empty|missing)",
    re.IGNORECASE,
)
#: Remedy in the server's own text. Its checker must not run on the manifest: see repair.py.
_ADVICE = re.compile(r": make a backup of your AOF file, then use \S+ --fix \S+")

NOTES = {
    "unclean": "The store did not stop in order; at durability 'memory' up to two seconds of "
    "acknowledged writes may be missing.",
    "torn": "The store's append-only file had a torn tail; its incomplete end was cut off.",
}


class EmbeddedServer:
    """A handle on the server of one folder. Holding it keeps the server alive."""

    def __init__(
        self,
        folder: Path,
        *,
        durability: Durability = "memory",
        cluster: bool = False,
        port: int = 0,
    ) -> None:
        self.folder = folder
        self.durability = durability
        #: Wishes for the start; where somebody has started it already, it stays as it is.
        self._cluster = cluster
        self._port = port
        self._users_lock = -1
        self._closed = threading.Event()

    def __enter__(self) -> EmbeddedServer:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> None:
        """Makes sure that the server runs; returns when it answers."""
        assert self._users_lock < 0, "a handle is started once"
        make_private(self.folder)
        tighten_tree(self.folder)
        self._users_lock = self._open("users.lock")
        try:
            # A shared lock waits only while a supervisor stops the server under its own lock.
            self._lock(self._users_lock, fcntl.LOCK_SH, waiting_for="the store to stop")
            self._ensure_running()
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._replace_dead_keepers, daemon=True).start()

    def close(self) -> None:
        """Lets go. The server stops if this was the last handle anywhere."""
        self._closed.set()
        if self._users_lock >= 0:
            os.close(self._users_lock)
            self._users_lock = -1

    @property
    def address(self) -> Address:
        """Where the server listens."""
        known = self._known()
        address = Address(path=str(known["socket"]))
        return address.clustered() if known.get("cluster") else address

    @property
    def process_id(self) -> int:
        """The server's process."""
        return int(str(self._known()["process"]))

    @property
    def notes(self) -> list[str]:
        """What was odd about the server's last start, in sentences; empty when nothing was."""
        try:
            noted = self._known()["notes"]
        except StoreUnavailableError:
            return []
        assert isinstance(noted, list)
        return [NOTES[note] for note in noted]

    def refusal(self) -> str:
        """Why the server does not come up, in its own words; empty when it does."""
        try:
            return (self.folder / "refused").read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    @property
    def disk_full(self) -> bool:
        """Whether the server ended because its disk is full, and starts again when it has room."""
        return (self.folder / "full").exists()

    def start_error(self) -> StoreRefusedError | None:
        """Return why the server does not start; None if it was not refused."""
        reason = self.refusal()
        if not reason:
            return None
        message = f"The embedded store does not start: {_ADVICE.sub('', reason)}"
        if not _DAMAGE.search(reason):
            return StoreRefusedError(message)
        folder = shlex.quote(str(self.folder.parent))
        return StoreFileDamagedError(
            message,
            hint=f"Run `waystation store check --fix --data {folder}`. It keeps a copy of the"
            " damaged file.",
        )

    # -- Starting ----------------------------------------------------------------------------

    def _ensure_running(self) -> None:
        starting = self._open("start.lock")
        try:
            self._lock(starting, fcntl.LOCK_EX, waiting_for="another process to start the store")
            if self.durability == "disk":
                # The stricter wish of all users wins, also when the server is started again.
                create_private(self.folder / "always")
            self._wait_until_reachable()
            if self.durability == "disk":
                supervisor.ask(str(self._known()["socket"]), b"CONFIG SET appendfsync always")
        finally:
            os.close(starting)

    def _wait_until_reachable(self) -> None:
        until = time.monotonic() + _WAIT_SECONDS_MAX
        process: subprocess.Popen[bytes] | None = None
        while not (self._keeper_lives() and self._reachable()):
            if time.monotonic() > until or self._closed.is_set():
                raise StoreUnavailableError("The embedded store did not start in time.")
            if self._loading():
                # However long that takes: the data is coming.
                until = time.monotonic() + _WAIT_SECONDS_MAX
            if process is not None and process.poll() == 1:
                raise self.start_error() or StoreRefusedError(
                    f"The embedded store does not start: see {self.folder / 'keeper.log'}."
                )
            if (process is None or process.poll() is not None) and not self._keeper_lives():
                process = self._start_keeper()
            time.sleep(0.005)

    def _keeper_lives(self) -> bool:
        lock = self._open("keeper.lock")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    def _start_keeper(self) -> subprocess.Popen[bytes]:
        (self.folder / "refused").unlink(missing_ok=True)
        wishes = server_plan(self.folder, self.durability, cluster=self._cluster, port=self._port)
        plan = json.dumps(wishes)
        with open_private(self.folder / "keeper.log", "ab") as log:
            process = subprocess.Popen(  # noqa: S603 (our own interpreter and script)
                [sys.executable, "-I", "-S", supervisor.__file__, plan],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
                env=_environment(),
            )
        # The keeper outlives us; a thread collects it if it should end before we do.
        threading.Thread(target=process.wait, daemon=True).start()
        return process

    def _reachable(self) -> bool:
        try:
            known = self._known()
        except StoreUnavailableError:
            return False
        return bool(known["loaded"]) and supervisor.answers(str(known["socket"]))

    def _loading(self) -> bool:
        try:
            told = supervisor.ask(str(self._known()["socket"]), b"PING")
        except StoreUnavailableError:
            return False
        return told.startswith(b"-LOADING")

    def _replace_dead_keepers(self) -> None:
        """Waits for the keeper's lock; to get it means that the keeper died under us."""
        while not self._closed.is_set():
            lock = self._open("keeper.lock")
            try:
                fcntl.flock(lock, fcntl.LOCK_SH)
            finally:
                os.close(lock)
            if self._closed.is_set() or self.refusal():
                return
            _log.warning("the keeper of the embedded store is gone, starting another")
            try:
                self._ensure_running()
            except StoreRefusedError as error:
                _log.error("the embedded store cannot be kept", problem=str(error))
                return
            except (StoreUnavailableError, OSError) as error:
                # The disk may be full. The store starts as soon as it has room.
                _log.warning("the embedded store cannot be kept", problem=str(error))
                self._closed.wait(_RETRY_SECONDS)

    def _known(self) -> dict[str, object]:
        # Read anew each time: a server that died comes back as another process.
        try:
            known = json.loads((self.folder / "server.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise StoreUnavailableError("The embedded store is not running.") from error
        assert isinstance(known, dict)
        return known

    def _lock(self, lock: int, kind: int, *, waiting_for: str) -> None:
        until = time.monotonic() + _WAIT_SECONDS_MAX
        while not self._closed.is_set():
            try:
                fcntl.flock(lock, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
                    raise StoreUnavailableError(f"Waited in vain for {waiting_for}.") from None
                time.sleep(0.01)
            else:
                return
        raise StoreUnavailableError("The start of the store was given up.")

    def _open(self, name: str) -> int:
        return os.open(self.folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _environment() -> dict[str, str]:
    """Of the server; what ours says has precedence."""
    environment = {"GLIBC_TUNABLES": _TUNABLES, **os.environ}
    for folder in _LIBRARIES:
        if (library := Path(folder, _ALLOCATOR)).exists():
            environment.setdefault("LD_PRELOAD", str(library))
    return environment
