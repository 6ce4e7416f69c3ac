"""Tells libcurl which of its sockets are ready, at the least cost per request.

libcurl says which sockets it waits for, and takes that back at the end of each request, although
the connection is kept and waits again within moments. Told to the event loop, that would be two
system calls and a few objects per request. So the sockets have a set of their own, of which the
loop sees one descriptor, and a kept connection stays in it. Without epoll the loop is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
from collections.abc import Callable

import pycurl

#: Sockets that are served before the event loop gets its turn: about a millisecond's work.
_READY_MAX = 64

#: Tells libcurl what a socket is ready for.
Act = Callable[[int, int], object]
#: Called when libcurl was told about all that are ready.
After = Callable[[], None]


class EpollSockets:
    """The set of sockets, by epoll."""

    def __init__(self, loop: asyncio.AbstractEventLoop, act: Act, after: After) -> None:
        self._loop = loop
        self._act = act
        self._after = after
        self._set: select.epoll | None = None
        #: What libcurl waits for now.
        self._wanted: set[int] = set()
        #: What the set is known to watch, and for what.
        self._watched: dict[int, int] = {}

    def on_socket(self, event: int, descriptor: int, multi: object, data: object) -> None:
        """Called by libcurl."""
        if event == pycurl.POLL_REMOVE:
            self._wanted.discard(descriptor)
            return
        self._wanted.add(descriptor)
        if self._watched.get(descriptor) != event:
            self._watch(descriptor, event)

    def opening(self) -> None:
        """A socket is about to be opened: from now on a known number may mean a new socket.

        The kernel has taken the old one out of the set when it was closed, which nobody told us.
        """
        self._watched.clear()

    def close(self) -> None:
        """Watches nothing any more."""
        if self._set is not None:
            self._loop.remove_reader(self._set.fileno())
            self._set.close()

    def _watch(self, descriptor: int, event: int) -> None:
        if self._set is None:
            self._set = select.epoll()
            self._loop.add_reader(self._set.fileno(), self._look, self._set)
        mask = select.EPOLLIN if event & pycurl.POLL_IN else 0
        mask |= select.EPOLLOUT if event & pycurl.POLL_OUT else 0
        try:
            self._set.modify(descriptor, mask)
        except FileNotFoundError:
            self._set.register(descriptor, mask)
        self._watched[descriptor] = event

    def _look(self, sockets: select.epoll) -> None:
        for descriptor, mask in sockets.poll(0, _READY_MAX):
            if descriptor in self._wanted:
                self._act(descriptor, _TOLD.get(mask, pycurl.CSELECT_IN))
            else:
                # A kept connection that the other side has closed: libcurl finds out by itself.
                self._watched.pop(descriptor, None)
                with contextlib.suppress(OSError):
                    sockets.unregister(descriptor)
        self._after()


class LoopSockets:
    """The same by the event loop alone, wherever Python runs."""

    def __init__(self, loop: asyncio.AbstractEventLoop, act: Act, after: After) -> None:
        self._loop = loop
        self._act = act
        self._after = after
        self._watched: dict[int, int] = {}

    def on_socket(self, event: int, descriptor: int, multi: object, data: object) -> None:
        """Called by libcurl."""
        before = self._watched.pop(descriptor, 0)
        event = 0 if event == pycurl.POLL_REMOVE else event
        begun, ended = event & ~before, before & ~event
        if begun & pycurl.POLL_IN:
            self._loop.add_reader(descriptor, self._look, descriptor, pycurl.CSELECT_IN)
        if begun & pycurl.POLL_OUT:
            self._loop.add_writer(descriptor, self._look, descriptor, pycurl.CSELECT_OUT)
        if ended & pycurl.POLL_IN:
            self._loop.remove_reader(descriptor)
        if ended & pycurl.POLL_OUT:
            self._loop.remove_writer(descriptor)
        if event:
            self._watched[descriptor] = event

    def opening(self) -> None:
        """Nothing is remembered of a socket that libcurl does not wait for."""

    def close(self) -> None:
        """Watches nothing any more."""
        for descriptor in list(self._watched):
            self.on_socket(pycurl.POLL_REMOVE, descriptor, None, None)

    def _look(self, descriptor: int, what: int) -> None:
        self._act(descriptor, what)
        self._after()


if hasattr(select, "epoll"):
    Sockets: type[EpollSockets | LoopSockets] = EpollSockets
    #: What libcurl is told, by what epoll says; an error or an end is found by reading.
    _TOLD = {
        select.EPOLLIN: pycurl.CSELECT_IN,
        select.EPOLLOUT: pycurl.CSELECT_OUT,
        select.EPOLLIN | select.EPOLLOUT: pycurl.CSELECT_IN | pycurl.CSELECT_OUT,
    }
else:
    Sockets = LoopSockets
