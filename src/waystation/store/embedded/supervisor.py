"""Supervisor of the embedded store: starts the server, restarts it after a crash, and stops it.

`server.py` starts the supervisor as a script of the standard library only, so that it starts in a
few milliseconds. The supervisor outlives the process that started it. It runs until no process
uses the store. File locks coordinate all processes, because the kernel releases them in a crash:

- `users.lock`: each process that uses the store has a shared lock. The supervisor stops the server
  only under an exclusive lock, so a process that arrives during the stop waits and then starts a
  new server.
- `keeper.lock`: the supervisor has an exclusive lock. A thread of each user waits for this lock. A
  user that gets it starts another supervisor, which adopts the running server. The file keeps its
  name, because processes of other releases use it.
- The folder: the server inherits a lock on the folder, so two servers never write to one folder. A
  folder cannot be replaced while it has files, but a lock file can be deleted.

If a lock file was deleted, the supervisor creates it again. If another supervisor has locked the
new `keeper.lock`, this supervisor exits and leaves the server to the other one.

The supervisor reports by files:

- `server.json`: socket and process of the server, and whether the server has loaded its data.
- `clean`: exists only after a clean stop.
- `refused`: why the server does not start.
- `full`: exists while the disk is full and the server is stopped.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_TICK_SECONDS = 0.1
_TICK_SECONDS_STARTING = 0.005
_LOCK_SECONDS_MAX = 1.0
_ADOPT_SECONDS_MAX = 60.0
_STOP_SECONDS_MAX = 20.0
#: Maximum time between the moment a server releases its lock and its exit.
_EXIT_SECONDS_MAX = 1.0
#: The supervisor pauses before it restarts a server that exited within this time of its start.
_QUICK_SECONDS = 5.0
_QUICK_PAUSE_SECONDS = 0.5

#: Period of the checks of a full disk, and the free bytes that a restart needs.
_DISK_CHECK_SECONDS = 0.5
_FREE_BYTES_MIN = 1 << 20
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

#: The snapshot of an empty store has about 100 bytes, that of a used store more than 1,000.
_EMPTY_SNAPSHOT_BYTES_MAX = 300

#: Text in the server's log after it cut an incomplete end off its append-only file.
_TORN = "!!! Truncating the AOF"


def main() -> int:
    """Run until no process uses the store. Return 1 if the server does not start, else 0."""
    plan = json.loads(sys.argv[1])
    folder = Path(plan["folder"])
    # Only the owner may read the files in the folder. The server inherits the umask.
    os.umask(0o077)
    supervisor_lock = os.open(folder / "keeper.lock", os.O_RDWR | os.O_CREAT, 0o600)
    if not _wait_for_lock(supervisor_lock):
        return 0  # Another supervisor runs.
    for stop_signal in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        # Only the users' locks may end the supervisor, because the server needs it until then.
        signal.signal(stop_signal, signal.SIG_IGN)
    return _Supervisor(folder, plan, supervisor_lock).run()


def _wait_for_lock(supervisor_lock: int) -> bool:
    """Lock the file. Retry for a second, because a user that probes the lock has it briefly."""
    until = time.monotonic() + _LOCK_SECONDS_MAX
    while time.monotonic() < until:
        if try_lock(supervisor_lock):
            return True
        time.sleep(0.005)
    return False


class _Supervisor:
    """The supervisor of one folder.

    The state is the open lock files, the server's process and the content of `server.json`.
    """

    def __init__(self, folder: Path, plan: dict[str, Any], supervisor_lock: int) -> None:
        self.folder = folder
        self.plan = plan
        #: All files that had the name `keeper.lock` or `users.lock` since the start, newest last.
        self.supervisor_locks = [supervisor_lock]
        self.users_locks = [self._open_lock("users.lock")]
        # Open all the time, so that the lock can be probed after the folder was deleted.
        self.server_lock = self._open_server_lock()
        self.child: subprocess.Popen[bytes] | None = None
        self.started_at = 0.0
        #: Content of `server.json`.
        self.state: dict[str, Any] = {}
        self._state_is_written = True

    def run(self) -> int:
        try:
            return self._supervise()
        except FileNotFoundError:
            # The folder was deleted, so no other process can connect to the server.
            self._end_server(signal.SIGKILL)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.plan["socket"])
            if self.folder.exists():
                raise
            return 0

    def _supervise(self) -> int:
        if not self._adopt() and not self._start():
            return 1
        while not self._is_unused():
            if not self._has_supervisor_lock():
                return 0
            time.sleep(_TICK_SECONDS if self.state["loaded"] else _TICK_SECONDS_STARTING)
            if not self._state_is_written:
                self._write_state(self.state)
            if self._server_runs():
                self._check_loaded()
                self._end_unreachable_server()
            elif not self._may_restart():
                return 1
            elif self._is_unused():
                break
            elif not self._start():
                return 1
        self._stop()
        return 0

    def _may_restart(self) -> bool:
        """Wait until a server that exited can restart. Return False if it cannot load its data."""
        if self._exit_code() > 0 and not self._has_disk_space():
            # With `appendfsync always` a server exits when the disk is full, and cannot log the
            # reason. A restarted server would load all data and then exit again.
            self._wait_for_disk_space()
        elif self._failed_to_load():
            self._refuse(exit_reason(self._output()))
            return False
        elif time.monotonic() - self.started_at < _QUICK_SECONDS:
            time.sleep(_QUICK_PAUSE_SECONDS)
        return True

    def _failed_to_load(self) -> bool:
        """Return True if the server exited because it cannot load its data."""
        loaded = self.state["loaded"] or "Ready to accept" in self._output()
        return self._exit_code() > 0 and not loaded

    def _exit_code(self) -> int:
        """Return the exit code of the server, negative for a signal; 0 if it is unknown."""
        return (self.child and self.child.returncode) or 0

    def _wait_for_disk_space(self) -> None:
        """Wait until the disk has free space or no process uses the store."""
        with contextlib.suppress(OSError):
            (self.folder / "full").touch(0o600)
        while not self._has_disk_space() and not self._is_unused():
            time.sleep(_DISK_CHECK_SECONDS)

    def _has_disk_space(self) -> bool:
        """Return True if a file can be written. Free space does not show quotas and limits."""
        scratch = self.folder / "room.new"
        try:
            scratch.write_bytes(bytes(_FREE_BYTES_MIN))
        except OSError as error:
            return error.errno not in _DISK_FULL
        finally:
            with contextlib.suppress(OSError):
                scratch.unlink()
        return True

    def _is_unused(self) -> bool:
        """Return True if no process uses the store.

        The users' locks are then exclusive, so that new users wait.
        """
        self._reopen_if_replaced(self.users_locks, "users.lock")
        acquired = [lock for lock in self.users_locks if try_lock(lock)]
        if len(acquired) == len(self.users_locks):
            return True
        for lock in acquired:
            # A process still uses a deleted lock file. New users must not wait for it to end.
            fcntl.flock(lock, fcntl.LOCK_UN)
        return False

    def _has_supervisor_lock(self) -> bool:
        """Return True if no other supervisor runs. Lock the file if it was created again."""
        return not self._reopen_if_replaced(self.supervisor_locks, "keeper.lock") or _wait_for_lock(
            self.supervisor_locks[-1]
        )

    def _reopen_if_replaced(self, locks: list[int], name: str) -> bool:
        """Open a lock file if it was replaced since it was last opened. Return True if it was."""
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(self.folder / name), os.fstat(locks[-1])):
                return False
        locks.append(self._open_lock(name))
        return True

    # -- Starting ----------------------------------------------------------------------------

    def _adopt(self) -> bool:
        """Supervise a running server whose supervisor crashed. Return False if none answers."""
        self.started_at = time.monotonic()
        until = self.started_at + _ADOPT_SECONDS_MAX
        while self._server_runs() and time.monotonic() < until:
            with contextlib.suppress(OSError, ValueError):
                self.state = json.loads((self.folder / "server.json").read_text())
                return True
            # The other supervisor crashed before it wrote the file, so query the server.
            if process := server_process_id(self.plan["socket"]):
                self._record_start(process)
                return True
            time.sleep(_TICK_SECONDS_STARTING)
        return False

    def _start(self) -> bool:
        """Start the server. Return False if it cannot start."""
        os.close(self.server_lock)
        self.server_lock, server_lock = self._open_server_lock(), self._open_server_lock()
        if not try_lock(server_lock):
            os.close(server_lock)
            self._refuse("Another server uses this folder and does not answer.")
            return False
        if problem := lost_file(self.folder):
            os.close(server_lock)
            self._refuse(problem)
            return False
        is_clean = self._delete("clean") or self._exited_cleanly()
        unclean = not is_clean and any(self.folder.glob("appendonlydir/*"))
        for name in ("refused", "full", "server.json"):
            self._delete(name)
        os.makedirs(os.path.dirname(self.plan["socket"]), mode=0o700, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.plan["socket"])
        log = self.folder / "server.log"
        log_start = log.stat().st_size if log.exists() else 0
        command = list(self.plan["command"])
        if (self.folder / "always").exists():
            # A user requires an fsync before every reply; see `server.py`.
            command += ["--appendfsync", "always"]
        with open(self.folder / "server.out", "wb") as output:
            self.child = subprocess.Popen(  # noqa: S603 (the command is ours)
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(server_lock,),
            )
        # Only the server has the lock now, so the kernel releases it when the server ends.
        os.close(server_lock)
        self.started_at = time.monotonic()
        self._record_start(self.child.pid, *(["unclean"] if unclean else []), since=log_start)
        return True

    def _record_start(self, process: int, *notes: str, since: int = 0) -> None:
        state = {"process": process, "notes": notes, "loaded": False, "log_start": since}
        self._write_state(state | {name: self.plan[name] for name in ("socket", "cluster")})

    def _check_loaded(self) -> None:
        is_loaded = is_cluster_ready if self.state.get("cluster") else is_ready
        if not self.state["loaded"] and is_loaded(self.state["socket"]):
            torn = ["torn"] if _TORN in self._output() else []
            self._write_state(
                {**self.state, "loaded": True, "notes": [*self.state["notes"], *torn]}
            )

    def _end_unreachable_server(self) -> None:
        """End a server whose socket file was deleted, because no new process can connect to it."""
        if self.state["loaded"] and not os.path.exists(self.state["socket"]):
            self._end_server(signal.SIGTERM)

    def _server_runs(self) -> bool:
        is_running = not try_lock(self.server_lock)
        if not is_running:
            fcntl.flock(self.server_lock, fcntl.LOCK_UN)
        if not is_running and self.child is not None:
            # The server releases its lock before it exits. Wait for its exit code.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.child.wait(_EXIT_SECONDS_MAX)
        return is_running

    def _open_lock(self, name: str) -> int:
        return os.open(self.folder / name, os.O_RDWR | os.O_CREAT, 0o600)

    def _open_server_lock(self) -> int:
        return os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)

    # -- Stopping ----------------------------------------------------------------------------

    def _stop(self) -> None:
        """Stop the server. On SIGTERM it syncs its append-only file before it exits."""
        if not self._end_server(signal.SIGTERM):
            self._end_server(signal.SIGKILL)
        if self._exited_cleanly() and self.state["loaded"]:
            # Only after loading, because a server that was still loading may have cut off an
            # incomplete end that no note reports yet.
            self._write("clean", "")
        self._delete("always")
        self._delete("server.json")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.state["socket"])

    def _exited_cleanly(self) -> bool:
        """Return True if the server exited cleanly. Only then it syncs and removes its socket."""
        crashed = self.child is not None and self.child.returncode != 0
        return bool(self.state) and not crashed and not os.path.exists(self.state["socket"])

    def _end_server(self, stop_signal: signal.Signals) -> bool:
        until = time.monotonic() + _STOP_SECONDS_MAX
        signalled_at = 0.0
        while self._server_runs():
            now = time.monotonic()
            if now > until:
                return False
            if now - signalled_at > _TICK_SECONDS:
                # Repeat the signal, because a server that just started does not handle it yet.
                signalled_at = now
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.state["process"], stop_signal)
            time.sleep(0.005)
        return True

    # -- Reports -----------------------------------------------------------------------------

    def _output(self) -> str:
        """Return the log and the output of the server since its start."""
        log = self.folder / "server.log"
        logged = log.read_bytes()[self.state["log_start"] :] if log.exists() else b""
        return (logged + (self.folder / "server.out").read_bytes()).decode(errors="replace")

    def _refuse(self, reason: str) -> None:
        self._write("refused", reason)
        self._delete("server.json")

    def _write_state(self, state: dict[str, Any]) -> None:
        self.state = state
        self._state_is_written = self._write("server.json", json.dumps(state))

    def _write(self, name: str, text: str) -> bool:
        """Replace a file. Return False if the disk is full."""
        scratch = self.folder / f"{name}.new"
        try:
            scratch.write_text(text)
        except OSError as error:
            if error.errno not in _DISK_FULL:
                raise
            with contextlib.suppress(OSError):
                scratch.unlink()
            return False
        scratch.replace(self.folder / name)
        return True

    def _delete(self, name: str) -> bool:
        """Delete a file durably: sync the folder too. Return False if there was no such file."""
        try:
            (self.folder / name).unlink()
        except FileNotFoundError:
            return False
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return True


def try_lock(lock: int) -> bool:
    """Lock an open file exclusively. Return False if another process has a lock on it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def ask(path: str, command: bytes) -> bytes:
    """Send an inline command to a server. Return the reply; empty if the server does not answer."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(2)
        try:
            client.connect(path)
            client.sendall(command + b"\r\n")
            return client.recv(4096)
        except OSError:
            return b""


def is_ready(path: str) -> bool:
    """Return True if the server at this socket has loaded its data."""
    return ask(path, b"PING").startswith((b"+PONG", b"-BUSY", b"-MISCONF"))


def is_cluster_ready(path: str) -> bool:
    """Return True if a cluster of one node serves all slots. Assign slots that it does not have."""
    info = ask(path, b"CLUSTER INFO")
    if b"_slots_assigned:" in info and b"_slots_assigned:16384\r" not in info:
        _assign_slots(path, 0, 16_383)
    return b"cluster_state:ok" in info


def _assign_slots(path: str, first: int, last: int) -> None:
    """Assign a range of slots to the server.

    The server refuses a range in which it has a slot, such as one of a key that it loaded.
    """
    if b"busy" in ask(path, b"CLUSTER ADDSLOTSRANGE %d %d" % (first, last)) and first < last:
        middle = (first + last) // 2
        _assign_slots(path, first, middle)
        _assign_slots(path, middle + 1, last)


def server_process_id(path: str) -> int:
    """Return the process id of the server at this socket; 0 if the server does not answer."""
    found = re.search(rb"^process_id:(\d+)", ask(path, b"INFO server"), re.MULTILINE)
    return int(found.group(1)) if found else 0


def lost_file(folder: Path) -> str:
    """Return the problem if a data file is missing or empty; an empty text if the server may start.

    The server reports neither. It starts empty without its manifest, and without the base file's
    content if that file is empty, and then overwrites the files that are left.
    """
    directory = folder / "appendonlydir"
    manifest = directory / "appendonly.aof.manifest"
    bases = [*directory.glob("appendonly.aof.*.base.rdb")]
    if manifest.exists():
        listed = manifest.read_text(errors="replace")
        empty = [base.name for base in bases if not base.stat().st_size and base.name in listed]
        return f"The base file {empty[0]} of the append-only file is empty." if empty else ""
    logs = directory.glob("appendonly.aof.*.incr.aof")
    # A crash during the first start leaves an empty snapshot without a manifest.
    if any(log.stat().st_size for log in logs) or any(
        base.stat().st_size > _EMPTY_SNAPSHOT_BYTES_MAX for base in bases
    ):
        return f"The manifest {manifest.name} of the append-only file is missing."
    return ""


def exit_reason(log: str) -> str:
    """Return the lines of a server's log that give the reason for its exit, as one text."""
    lines = [line for line in log.splitlines() if line.strip() and " # WARNING " not in line]
    reasons = [line for line in lines if " # " in line or "FATAL" in line or "rror" in line]
    return " ".join(line.rpartition(" # ")[2].strip() for line in (reasons or lines)[-4:])


if __name__ == "__main__":
    sys.exit(main())
