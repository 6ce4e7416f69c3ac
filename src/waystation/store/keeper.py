"""The keeper: a small process that runs the embedded server for as long as anyone uses it.

It is started by `embedded.py` as a plain script (standard library alone, so that it starts in a
few milliseconds) and outlives whoever started it. The rules rest on file locks, which the kernel
frees however a process dies:

- `users.lock`: every user holds it shared. The keeper stops the server only while it holds it
  exclusively, so a user who comes during a stop waits for its end, and then starts afresh.
- `keeper.lock`: the keeper holds it exclusively. Users wait for it in a thread; whoever gets it
  knows that the keeper is dead and starts another, which adopts the running server.

`server.json` says where the server is; `clean` exists only after an orderly stop.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_TICK_SECONDS = 0.1
_TAKE_SECONDS_MAX = 1.0
_READY_SECONDS_MAX = 60.0
_STOP_SECONDS_MAX = 20.0
#: A server that dies this often in a row within seconds of its start will not come up by itself.
_QUICK_DEATHS_MAX = 3
_QUICK_SECONDS = 5.0

#: What the server's log says when it cut a torn tail off its append-only file.
_TORN = "truncat"


def main() -> int:
    """Runs until the last user is gone. Exit 0: stopped; 1: the server will not start."""
    plan = json.loads(sys.argv[1])
    folder = Path(plan["folder"])
    keeper_lock = os.open(folder / "keeper.lock", os.O_RDWR | os.O_CREAT, 0o600)
    if not _take(keeper_lock):
        return 0  # Another keeper is at work.
    for stop_signal in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        # The keeper's end is decided by its users alone.
        signal.signal(stop_signal, signal.SIG_IGN)
    return _Keeper(folder, plan).run()


def _take(keeper_lock: int) -> bool:
    """Tries for a moment: a user who looks whether a keeper lives holds the lock that long."""
    until = time.monotonic() + _TAKE_SECONDS_MAX
    while time.monotonic() < until:
        try:
            fcntl.flock(keeper_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.005)
        else:
            return True
    return False


class _Keeper:
    def __init__(self, folder: Path, plan: dict[str, Any]) -> None:
        self.folder = folder
        self.plan = plan
        self.users_lock = os.open(folder / "users.lock", os.O_RDWR | os.O_CREAT, 0o600)
        self.child: subprocess.Popen[bytes] | None = None
        self.server_id = 0
        self.started_at = 0.0
        self.quick_deaths = 0

    def run(self) -> int:
        if not self._adopt() and not self._start():
            return 1
        while not self._nobody_is_left():
            time.sleep(_TICK_SECONDS)
            if not self._server_lives():
                quick = time.monotonic() - self.started_at < _QUICK_SECONDS
                self.quick_deaths = self.quick_deaths + 1 if quick else 0
                if self.quick_deaths >= _QUICK_DEATHS_MAX or not self._start():
                    return 1
        self._stop()
        return 0

    def _nobody_is_left(self) -> bool:
        try:
            fcntl.flock(self.users_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _adopt(self) -> bool:
        """Takes over a server whose keeper died."""
        try:
            known = json.loads((self.folder / "server.json").read_text())
        except (OSError, ValueError):
            return False
        if not answers(known["socket"]):
            return False
        self.server_id = int(known["process"])
        self.started_at = time.monotonic()
        return True

    def _start(self) -> bool:
        unclean = not self._forget("clean") and any(self.folder.glob("appendonlydir/*"))
        self._forget("server.json")
        self._forget("refused")
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
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        self.server_id = self.child.pid
        self.started_at = time.monotonic()
        ready = self._wait_until_ready()
        said = log.read_bytes()[log_start:].decode(errors="replace") if log.exists() else ""
        if not ready:
            said += (self.folder / "server.out").read_text(errors="replace")
            self._write("refused", last_words(said))
            return False
        notes = []
        if unclean:
            notes.append("unclean")
        if any(_TORN in line.lower() for line in said.splitlines()):
            notes.append("torn")
        known = {"process": self.server_id, "socket": self.plan["socket"], "notes": notes}
        self._write("server.json", json.dumps(known))
        return True

    def _wait_until_ready(self) -> bool:
        until = time.monotonic() + _READY_SECONDS_MAX
        while time.monotonic() < until:
            if answers(self.plan["socket"]):
                return True
            if not self._server_lives():
                return False
            time.sleep(0.005)
        return False

    def _server_lives(self) -> bool:
        if self.child is not None:
            return self.child.poll() is None
        try:
            os.kill(self.server_id, 0)
        except ProcessLookupError:
            return False
        return True

    def _stop(self) -> None:
        """Orderly: the server syncs its append-only file on SIGTERM before it ends."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.server_id, signal.SIGTERM)
        until = time.monotonic() + _STOP_SECONDS_MAX
        while self._server_lives() and time.monotonic() < until:
            time.sleep(0.005)
        if self._server_lives():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.server_id, signal.SIGKILL)
        else:
            self._write("clean", "")
        self._forget("always")
        self._forget("server.json")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.plan["socket"])

    def _write(self, name: str, text: str) -> None:
        scratch = self.folder / f"{name}.new"
        scratch.write_text(text)
        scratch.replace(self.folder / name)

    def _forget(self, name: str) -> bool:
        try:
            (self.folder / name).unlink()
        except FileNotFoundError:
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
    """Whether a server speaks at this socket; one that still loads its data counts."""
    return ask(path, b"PING").startswith((b"+PONG", b"-LOADING", b"-BUSY", b"-MISCONF"))


def last_words(log: str) -> str:
    """The lines of a server's log that tell why it gave up, in one sentence."""
    lines = [line for line in log.splitlines() if line.strip()]
    telling = [line for line in lines if " # " in line or "FATAL" in line or "rror" in line]
    return " ".join(line.rpartition(" # ")[2].strip() for line in (telling or lines)[-4:])


if __name__ == "__main__":
    sys.exit(main())
