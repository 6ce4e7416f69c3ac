"""The keeper: a small process that runs the embedded server for as long as anyone uses it.

It is started by `embedded.py` as a plain script (standard library alone, so that it starts in a
few milliseconds) and outlives whoever started it. The rules rest on file locks, which the kernel
frees however a process dies:

- `users.lock`: every user holds it shared. The keeper stops the server only while it holds it
  exclusively, so a user who comes during a stop waits for its end, and then starts afresh.
- `keeper.lock`: the keeper holds it exclusively. Users wait for it in a thread; whoever gets it
  knows that the keeper is dead and starts another, which adopts the running server.
- The folder itself: the server holds a lock on it, by inheritance, so that two servers never write
  to one folder, and nobody has to trust a process id. It is no file, which somebody could delete
  under the server while a second one is started.

A lock file that was deleted under the keeper is made anew by it; a keeper that finds another one in
its place leaves the server to that one.

`server.json` says where the server is and whether it has loaded its data; `clean` exists only
after an orderly stop; `refused` says why the server does not come up.
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
_TAKE_SECONDS_MAX = 1.0
_ADOPT_SECONDS_MAX = 60.0
_STOP_SECONDS_MAX = 20.0
#: From letting go of its lock to its end a server needs a moment, not more.
_COLLECT_SECONDS_MAX = 1.0
#: A server that dies so soon after its start is started again only after a pause.
_QUICK_SECONDS = 5.0
_QUICK_PAUSE_SECONDS = 0.5

#: How often a supervisor looks for room on a full disk, and how much it needs.
_ROOM_SECONDS = 0.5
_ROOM_BYTES = 1 << 20
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

#: The snapshot of an empty store has about 100 bytes, that of a used store more than 1,000.
_EMPTY_SNAPSHOT_BYTES_MAX = 300

#: What the server's log says when it cut a torn tail off its append-only file.
_TORN = "!!! Truncating the AOF"


def main() -> int:
    """Runs until the last user is gone. Exit 0: stopped; 1: the server will not start."""
    plan = json.loads(sys.argv[1])
    folder = Path(plan["folder"])
    # Everything in the folder, the server's files included, is its owner's alone.
    os.umask(0o077)
    keeper_lock = os.open(folder / "keeper.lock", os.O_RDWR | os.O_CREAT, 0o600)
    if not _take(keeper_lock):
        return 0  # Another keeper is at work.
    for stop_signal in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        # The keeper's end is decided by its users alone.
        signal.signal(stop_signal, signal.SIG_IGN)
    return _Keeper(folder, plan, keeper_lock).run()


def _take(keeper_lock: int) -> bool:
    """Tries for a moment: a user who looks whether a keeper lives holds the lock that long."""
    until = time.monotonic() + _TAKE_SECONDS_MAX
    while time.monotonic() < until:
        if try_lock(keeper_lock):
            return True
        time.sleep(0.005)
    return False


class _Keeper:
    def __init__(self, folder: Path, plan: dict[str, Any], keeper_lock: int) -> None:
        self.folder = folder
        self.plan = plan
        #: All files that were `keeper.lock` and `users.lock` since the start, the newest last.
        self.keeper_locks = [keeper_lock]
        self.users_locks = [self._open_lock("users.lock")]
        # Kept open to look whether the server has it, also when the folder is deleted meanwhile.
        self.server_lock = self._open_server_lock()
        self.child: subprocess.Popen[bytes] | None = None
        self.started_at = 0.0
        #: What `server.json` says.
        self.known: dict[str, Any] = {}
        self._known_is_written = True

    def run(self) -> int:
        try:
            return self._keep()
        except FileNotFoundError:
            # Somebody deletes the folder: nobody can come to this server any more.
            self._end_with(signal.SIGKILL)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.plan["socket"])
            if self.folder.exists():
                raise
            return 0

    def _keep(self) -> int:
        if not self._adopt() and not self._start():
            return 1
        while not self._nobody_is_left():
            if not self._holds_keeper_lock():
                return 0
            time.sleep(_TICK_SECONDS if self.known["loaded"] else _TICK_SECONDS_STARTING)
            if not self._known_is_written:
                self._tell(self.known)
            if self._server_lives():
                self._look_whether_loaded()
                self._replace_unreachable_server()
            elif not self._may_restart():
                return 1
            elif self._nobody_is_left():
                break
            elif not self._start():
                return 1
        self._stop()
        return 0

    def _may_restart(self) -> bool:
        """Wait until a server that ended can start again. Return False if its data prevents it."""
        if self._exit_code() > 0 and not self._has_room():
            # A server with appendfsync always exits when its disk is full, and its log has no room
            # for the reason. Another one would load all data and then exit again.
            self._wait_for_room()
        elif self._gave_up():
            self._refuse(last_words(self._said()))
            return False
        elif time.monotonic() - self.started_at < _QUICK_SECONDS:
            time.sleep(_QUICK_PAUSE_SECONDS)
        return True

    def _gave_up(self) -> bool:
        """Whether the server ended by itself over its own data, and so would do it again."""
        loaded = self.known["loaded"] or "Ready to accept" in self._said()
        return self._exit_code() > 0 and not loaded

    def _exit_code(self) -> int:
        """Return the exit code of the server, negative for a signal; 0 if it is not known."""
        return (self.child and self.child.returncode) or 0

    def _wait_for_room(self) -> None:
        """Return when the disk has room again, or when the last user has left."""
        with contextlib.suppress(OSError):
            (self.folder / "full").touch(0o600)
        while not self._has_room() and not self._nobody_is_left():
            time.sleep(_ROOM_SECONDS)

    def _has_room(self) -> bool:
        """Write a file, because free space says nothing about quotas and limits."""
        scratch = self.folder / "room.new"
        try:
            scratch.write_bytes(bytes(_ROOM_BYTES))
        except OSError as error:
            return error.errno not in _NO_ROOM
        finally:
            with contextlib.suppress(OSError):
                scratch.unlink()
        return True

    def _nobody_is_left(self) -> bool:
        self._follow(self.users_locks, "users.lock")
        held = [lock for lock in self.users_locks if try_lock(lock)]
        if len(held) == len(self.users_locks):
            return True
        for lock in held:
            # Those who come find the file free again, whoever still holds a deleted one.
            fcntl.flock(lock, fcntl.LOCK_UN)
        return False

    def _holds_keeper_lock(self) -> bool:
        """Return whether this is still the keeper; takes a lock file that was made anew."""
        return not self._follow(self.keeper_locks, "keeper.lock") or _take(self.keeper_locks[-1])

    def _follow(self, locks: list[int], name: str) -> bool:
        """Open a lock file that is not the one that was opened last; return whether it was so."""
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(self.folder / name), os.fstat(locks[-1])):
                return False
        locks.append(self._open_lock(name))
        return True

    # -- Starting ----------------------------------------------------------------------------

    def _adopt(self) -> bool:
        """Takes over a server whose keeper died."""
        self.started_at = time.monotonic()
        until = self.started_at + _ADOPT_SECONDS_MAX
        while self._server_lives() and time.monotonic() < until:
            with contextlib.suppress(OSError, ValueError):
                self.known = json.loads((self.folder / "server.json").read_text())
                return True
            # Its keeper died before it could tell of it: the server itself knows who it is.
            if process := process_at(self.plan["socket"]):
                self._tell_of_start(process)
                return True
            time.sleep(_TICK_SECONDS_STARTING)
        return False

    def _start(self) -> bool:
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
        orderly = self._forget("clean") or self._ended_in_order()
        unclean = not orderly and any(self.folder.glob("appendonlydir/*"))
        for name in ("refused", "full", "server.json"):
            self._forget(name)
        os.makedirs(os.path.dirname(self.plan["socket"]), mode=0o700, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.plan["socket"])
        log = self.folder / "server.log"
        log_start = log.stat().st_size if log.exists() else 0
        command = list(self.plan["command"])
        if (self.folder / "always").exists():
            # One of the users was promised an fsync before every reply; see embedded.py.
            command += ["--appendfsync", "always"]
        with open(self.folder / "server.out", "wb") as output:
            self.child = subprocess.Popen(  # noqa: S603 (the command is ours)
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(server_lock,),
            )
        # Ours is closed: from now on the lock lives and dies with the server.
        os.close(server_lock)
        self.started_at = time.monotonic()
        self._tell_of_start(self.child.pid, *(["unclean"] if unclean else []), since=log_start)
        return True

    def _tell_of_start(self, process: int, *notes: str, since: int = 0) -> None:
        known = {"process": process, "notes": notes, "loaded": False, "log_start": since}
        self._tell(known | {name: self.plan[name] for name in ("socket", "cluster")})

    def _look_whether_loaded(self) -> None:
        is_ready = serves_slots if self.known.get("cluster") else answers
        if not self.known["loaded"] and is_ready(self.known["socket"]):
            torn = ["torn"] if _TORN in self._said() else []
            self._tell({**self.known, "loaded": True, "notes": [*self.known["notes"], *torn]})

    def _replace_unreachable_server(self) -> None:
        """Ends a server whose socket was deleted under it: nobody new can come to it."""
        if self.known["loaded"] and not os.path.exists(self.known["socket"]):
            self._end_with(signal.SIGTERM)

    def _server_lives(self) -> bool:
        lives = not try_lock(self.server_lock)
        if not lives:
            fcntl.flock(self.server_lock, fcntl.LOCK_UN)
        if not lives and self.child is not None:
            # It lets go of its lock while it ends; how it ended is known once it is collected.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.child.wait(_COLLECT_SECONDS_MAX)
        return lives

    def _open_lock(self, name: str) -> int:
        return os.open(self.folder / name, os.O_RDWR | os.O_CREAT, 0o600)

    def _open_server_lock(self) -> int:
        return os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)

    # -- Stopping ----------------------------------------------------------------------------

    def _stop(self) -> None:
        """Orderly: the server syncs its append-only file on SIGTERM before it ends."""
        if not self._end_with(signal.SIGTERM):
            self._end_with(signal.SIGKILL)
        if self._ended_in_order() and self.known["loaded"]:
            # One that was stopped before it had loaded told nobody how it found its data.
            self._write("clean", "")
        self._forget("always")
        self._forget("server.json")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.known["socket"])

    def _ended_in_order(self) -> bool:
        """An orderly server removes its socket after it has synced its data; a dying one cannot."""
        died = self.child is not None and self.child.returncode != 0
        return bool(self.known) and not died and not os.path.exists(self.known["socket"])

    def _end_with(self, stop_signal: signal.Signals) -> bool:
        until = time.monotonic() + _STOP_SECONDS_MAX
        told_at = 0.0
        while self._server_lives():
            now = time.monotonic()
            if now > until:
                return False
            if now - told_at > _TICK_SECONDS:
                # Again and again: a server that has only just begun does not listen yet.
                told_at = now
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.known["process"], stop_signal)
            time.sleep(0.005)
        return True

    # -- What it tells -----------------------------------------------------------------------

    def _said(self) -> str:
        """The server's log since its start."""
        log = self.folder / "server.log"
        said = log.read_bytes()[self.known["log_start"] :] if log.exists() else b""
        return (said + (self.folder / "server.out").read_bytes()).decode(errors="replace")

    def _refuse(self, reason: str) -> None:
        self._write("refused", reason)
        self._forget("server.json")

    def _tell(self, known: dict[str, Any]) -> None:
        self.known = known
        self._known_is_written = self._write("server.json", json.dumps(known))

    def _write(self, name: str, text: str) -> bool:
        """Replace a file. Return False if the disk is full."""
        scratch = self.folder / f"{name}.new"
        try:
            scratch.write_text(text)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            with contextlib.suppress(OSError):
                scratch.unlink()
            return False
        scratch.replace(self.folder / name)
        return True

    def _forget(self, name: str) -> bool:
        """Deletes a file for good: after a power cut `clean` must not be there again."""
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
    """One inline command over the socket; empty when nobody answers."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(2)
        try:
            client.connect(path)
            client.sendall(command + b"\r\n")
            return client.recv(4096)
        except OSError:
            return b""


def answers(path: str) -> bool:
    """Whether a server with its data loaded speaks at this socket."""
    return ask(path, b"PING").startswith((b"+PONG", b"-BUSY", b"-MISCONF"))


def serves_slots(path: str) -> bool:
    """Whether a cluster of one node serves everything; it is given the slots that it lacks."""
    told = ask(path, b"CLUSTER INFO")
    if b"_slots_assigned:" in told and b"_slots_assigned:16384\r" not in told:
        _claim(path, 0, 16_383)
    return b"cluster_state:ok" in told


def _claim(path: str, first: int, last: int) -> None:
    """Refused as a whole where it has one of them, as it has those of keys that it found."""
    if b"busy" in ask(path, b"CLUSTER ADDSLOTSRANGE %d %d" % (first, last)) and first < last:
        middle = (first + last) // 2
        _claim(path, first, middle)
        _claim(path, middle + 1, last)


def process_at(path: str) -> int:
    """The process of the server at this socket; 0 when it does not tell."""
    found = re.search(rb"^process_id:(\d+)", ask(path, b"INFO server"), re.MULTILINE)
    return int(found.group(1)) if found else 0


def lost_file(folder: Path) -> str:
    """Return which file of the data is missing or empty; an empty text if the server may start.

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


def last_words(log: str) -> str:
    """Return the lines of a server's log that say why it ended, as one text."""
    lines = [line for line in log.splitlines() if line.strip() and " # WARNING " not in line]
    telling = [line for line in lines if " # " in line or "FATAL" in line or "rror" in line]
    return " ".join(line.rpartition(" # ")[2].strip() for line in (telling or lines)[-4:])


if __name__ == "__main__":
    sys.exit(main())
