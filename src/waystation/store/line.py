"""A line: a blocking connection to the store for a thread that must not wait for the event loop.

It connects at the first exchange, and again after one that failed. One thread at a time.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

import hiredis

from waystation.store.address import Address
from waystation.store.scripts import Script
from waystation.store.wire import pack

_IO_SECONDS_MAX = 2.0


class Line:
    """Sends commands and waits for their replies; OSError when the store is away or says no."""

    def __init__(self, address: Address, *, test_mode: bool = False) -> None:
        self._address = address
        self._test_mode = test_mode
        self._socket: socket.socket | None = None
        self._parser = hiredis.Reader()

    def run_all(
        self, script: Script, calls: Sequence[tuple[Sequence[str], Sequence[str | bytes | int]]]
    ) -> list[object]:
        """Runs a script once for each pair of keys and arguments, in one write."""
        # EVAL with the source, not the digest: a restarted store must not cost a beat.
        source = script.sources[self._test_mode]
        return self.exchange(
            [("EVAL", source, len(keys), *keys, *arguments) for keys, arguments in calls]
        )

    def exchange(self, commands: Sequence[tuple[str | bytes | int, ...]]) -> list[object]:
        """Sends commands in one write; returns their replies. An error ends the connection."""
        try:
            if self._socket is None:
                self._socket = self._address.connect_blocking(_IO_SECONDS_MAX)
                self._parser = hiredis.Reader()
                self._talk(self._socket, self._address.handshake())
            return self._talk(self._socket, commands)
        except (OSError, hiredis.HiredisError) as error:
            self.close()
            raise error if isinstance(error, OSError) else ConnectionError(str(error)) from error

    def close(self) -> None:
        """Hangs up; the next exchange connects again."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _talk(
        self, connection: socket.socket, commands: Sequence[tuple[str | bytes | int, ...]]
    ) -> list[object]:
        connection.sendall(b"".join(pack(command) for command in commands))
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
