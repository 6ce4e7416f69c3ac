"""The heartbeat: a thread that renews leases, whatever the event loop is busy with.

It has a blocking connection of its own. All leases are renewed in one pipeline, three times within
a lease's length; when the store is away, it tries again and again until it is back, and a lease
that another has taken meanwhile is marked as lost.
"""

from __future__ import annotations

import socket
import threading
from dataclasses import dataclass

import hiredis

from waystation.store.address import Address
from waystation.store.scripts import script
from waystation.store.wire import pack
from waystation.telemetry.logging import logger

_log = logger("heartbeat")

_RENEW = script("waystation.store", "lease_renew")
_IO_SECONDS_MAX = 2.0
_BEATS_PER_LEASE = 3
_RETRY_SECONDS = 0.2


@dataclass
class _Kept:
    epoch: int
    lease_ms: int
    lost: bool = False


class Heartbeat:
    """Renews leases from `keep` until `forget`. Safe to call from any thread."""

    def __init__(self, address: Address, *, test_mode: bool = False) -> None:
        self._address = address
        self._test_mode = test_mode
        self._kept: dict[str, _Kept] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._socket: socket.socket | None = None
        self._parser = hiredis.Reader()

    def keep(self, key: str, epoch: int, lease_ms: int) -> None:
        """Renews the lease from now on."""
        with self._lock:
            self._kept[key] = _Kept(epoch, lease_ms)
            if self._thread is None:
                self._thread = threading.Thread(target=self._beat, daemon=True, name="heartbeat")
                self._thread.start()
        self._wake.set()

    def forget(self, key: str) -> None:
        """Stops renewing it."""
        with self._lock:
            self._kept.pop(key, None)

    def has_lost(self, key: str, epoch: int) -> bool:
        """Whether this holder of the lease was told that it is another's now."""
        with self._lock:
            kept = self._kept.get(key)
            return kept is None or kept.epoch != epoch or kept.lost

    def close(self) -> None:
        """Ends the thread; leases run out by themselves."""
        self._closed = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    # -- In the thread -----------------------------------------------------------------------

    def _beat(self) -> None:
        while not self._closed:
            with self._lock:
                due = {key: kept for key, kept in self._kept.items() if not kept.lost}
            pause = min((kept.lease_ms for kept in due.values()), default=60_000)
            seconds = pause / 1000 / _BEATS_PER_LEASE
            if due:
                try:
                    self._renew(due)
                except (OSError, hiredis.HiredisError) as error:
                    self._disconnect()
                    _log.warning("leases could not be renewed", problem=str(error), count=len(due))
                    seconds = _RETRY_SECONDS
            self._wake.wait(seconds)
            self._wake.clear()
        self._disconnect()

    def _renew(self, due: dict[str, _Kept]) -> None:
        # EVAL with the source, not the digest: a restarted store must not cost a beat.
        source = _RENEW.sources[self._test_mode]
        commands = [pack(("EVAL", source, 1, key, k.epoch, k.lease_ms)) for key, k in due.items()]
        for (key, kept), reply in zip(due.items(), self._exchange(commands), strict=True):
            # One that was given back meanwhile is nobody's loss.
            if reply == 0 and self._kept.get(key) is kept:
                kept.lost = True
                _log.warning("a lease was taken over", lease=key, epoch=kept.epoch)

    def _exchange(self, commands: list[bytes]) -> list[object]:
        if self._socket is None:
            self._socket = self._address.connect_blocking(_IO_SECONDS_MAX)
            self._parser = hiredis.Reader()
            hello = [pack(command) for command in self._address.handshake()]
            self._talk(self._socket, hello)
        return self._talk(self._socket, commands)

    def _talk(self, connection: socket.socket, commands: list[bytes]) -> list[object]:
        connection.sendall(b"".join(commands))
        replies: list[object] = []
        while len(replies) < len(commands):
            reply = self._parser.gets()
            if reply is False:
                data = connection.recv(65_536)
                if not data:
                    raise ConnectionError("the store hung up")
                self._parser.feed(data)
            elif isinstance(reply, hiredis.ReplyError):
                raise ConnectionError(str(reply))
            else:
                replies.append(reply)
        return replies

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
