"""What a server of ours listens with: its socket, its places, and uvicorn without signals."""

from __future__ import annotations

import contextlib
import errno
import resource
import socket
from collections.abc import Iterator

import uvicorn

from waystation.errors import SettingsError
from waystation.runtime.logging import logger

_log = logger("http")

#: File descriptors for the store, the catalogue, logs and a margin.
_RESERVED_DESCRIPTORS = 64
_BACKLOG = 2048


class QuietServer(uvicorn.Server):
    """uvicorn's server without its signal handlers: the CLI has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there, or an error that says why not."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise SettingsError(
            f"Cannot listen on {host}:{port}: {error.strerror}.",
            hint=(
                "Choose another with --port (0 takes any free one)."
                if error.errno in (errno.EADDRINUSE, errno.EACCES)
                else "Choose an address of this machine with --host."
            ),
        ) from error
    listener.setblocking(False)
    return listener


def connections_max(wanted: int) -> int:
    """As many as are wanted, if there are file descriptors for them; 0 wants all there are."""
    spare = _descriptors_max() - _RESERVED_DESCRIPTORS
    # Those without a place need descriptors too, or nobody could tell them so: see `Bounds`.
    possible = max(16, min(spare - 16, spare * 10 // 11))
    if wanted > possible:
        _log.warning("fewer connections than set: file descriptors", set=wanted, max=possible)
    return min(wanted or possible, possible)


def _descriptors_max() -> int:
    """The limit of file descriptors, after the soft one was raised as far as allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 1_048_576
    if soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return soft
