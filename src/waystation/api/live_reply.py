"""Replies that go on: a stream of events after a head, or a conversation over a WebSocket."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from waystation.api.reply import CLOSE, Header, Receive, Reply, Send


class LiveReply(Reply):
    """A head at once; `run` sends the body, piece by piece, and ends it."""

    __slots__ = ("run",)

    def __init__(self, headers: tuple[Header, ...], run: Callable[[Send], Awaitable[None]]) -> None:
        # Closing keeps it off the short way out, and a stream is the last thing on a connection.
        super().__init__(200, b"", (*headers, CLOSE))
        self.run = run


class SocketReply(Reply):
    """The upgrade is granted: `run` accepts the WebSocket, talks, and closes it."""

    __slots__ = ("run",)

    def __init__(self, run: Callable[[Receive, Send], Awaitable[None]]) -> None:
        super().__init__(101)
        self.run = run
