"""The sender: many HTTP requests at once, on libcurl, driven by the event loop.

It keeps connections open per host, follows no redirect, trusts no proxy variable, keeps deadlines
for connecting and for the whole, and reads only the beginning of a reply. Every connection goes to
an address that the guard has judged: names are resolved by us, handed to libcurl as fixed answers,
and judged again on the socket that is opened.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable
from functools import lru_cache, partial

import pycurl

from waystation.delivery.addresses import AddressGuard
from waystation.delivery.request import Failure, Outcome, Outgoing
from waystation.delivery.resolver import RESOLVE_SECONDS_MAX, NameUnknownError, Resolver
from waystation.delivery.sockets import Sockets
from waystation.delivery.transfer import (
    EXCERPT_BYTES,
    REPLY_BYTES_MAX,
    SocketAddress,
    Target,
    Transfer,
    outcome_of,
)
from waystation.errors import ForbiddenAddressError, InvalidInputError

__all__ = ["EXCERPT_BYTES", "REPLY_BYTES_MAX", "RESOLVE_SECONDS_MAX", "Sender"]

#: Open connections to one host, and in all.
_PER_HOST_MAX = 128
_TOTAL_MAX = 2048
#: Handles that are kept for the next requests. Each keeps its last body: not if that is large.
_IDLE_HANDLES_MAX = 512
_IDLE_BODY_BYTES_MAX = 16_384
_TARGETS_MAX = 10_000


class _Descriptor:
    """A socket on its way to libcurl, which takes a duplicate; the original ends with this."""

    __slots__ = ("_number",)

    def __init__(self, number: int) -> None:
        self._number = number

    def fileno(self) -> int:
        return self._number

    def __del__(self) -> None:
        os.close(self._number)


class Sender:
    """Sends requests. One per event loop; start it inside the loop, close it there."""

    def __init__(self, guard: AddressGuard, *, resolver: Resolver | None = None) -> None:
        self._guard = guard
        self._resolver = resolver or Resolver(guard)
        self._target = lru_cache(_TARGETS_MAX)(self._find_target)
        self._loop = asyncio.get_running_loop()
        self._transfers: dict[pycurl.Curl, Transfer] = {}
        self._idle: deque[Transfer] = deque()
        #: Addresses that libcurl was told last; the very list that the resolver returned.
        self._told: dict[Target, list[str]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._starting: asyncio.Handle | None = None
        self._multi = pycurl.CurlMulti()
        self._sockets = Sockets(self._loop, self._multi.socket_action, self._collect)
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._sockets.on_socket)
        self._multi.setopt(pycurl.M_MAX_HOST_CONNECTIONS, _PER_HOST_MAX)
        self._multi.setopt(pycurl.M_MAX_TOTAL_CONNECTIONS, _TOTAL_MAX)
        self._multi.setopt(pycurl.M_MAXCONNECTS, _TOTAL_MAX)

    def __repr__(self) -> str:
        return f"<Sender [{len(self._transfers)} under way]>"

    async def send(self, request: Outgoing) -> Outcome:
        """Makes one request; a failure is an outcome, never an exception."""
        try:
            target = self._target(request.url)
            addresses = self._resolver.kept(target[0]) or await self._resolver.resolve(target[0])
        except (ForbiddenAddressError, InvalidInputError):
            return Outcome(
                failure=Failure.FORBIDDEN, detail="the endpoint's address is not allowed"
            )
        except NameUnknownError:
            return Outcome(failure=Failure.NAME, detail="the endpoint's host cannot be resolved")
        future: asyncio.Future[Outcome] = self._loop.create_future()
        transfer = self._begin(request, target, addresses, partial(_tell, future))
        if transfer is None:
            return Outcome(failure=Failure.FORBIDDEN, detail="a header cannot be sent")
        try:
            return await future
        except asyncio.CancelledError:
            self._abandon(transfer)
            raise

    def begin(
        self, request: Outgoing, done: Callable[[Outcome], None]
    ) -> Callable[[], None] | None:
        """Begins a request without a task or a future; the returned function gives it up.

        `done` hears its outcome, after this has returned, unless it was given up. None: it cannot
        begin at once, or must not be made at all, which `send` tells.
        """
        try:
            target = self._target(request.url)
            addresses = self._resolver.kept(target[0])
        except (ForbiddenAddressError, InvalidInputError):
            return None
        transfer = self._begin(request, target, addresses, done) if addresses else None
        return None if transfer is None else partial(self._abandon, transfer)

    async def close(self) -> None:
        """Ends what is under way, with outcome `cancelled`."""
        for transfer in list(self._transfers.values()):
            self._abandon(transfer)
            transfer.done(Outcome(failure=Failure.CANCELLED, detail="stopped"))
        for handle in (self._timer, self._starting):
            if handle is not None:
                handle.cancel()
        self._sockets.close()
        for transfer in self._idle:
            transfer.handle.close()
        self._idle.clear()
        self._multi.close()
        self._resolver.close()

    # -- One transfer ------------------------------------------------------------------------

    def _find_target(self, url: str) -> Target:
        """Host and port of a URL that the guard accepts. Cached as `_target`: URLs recur."""
        parts = self._guard.check_url(url)
        return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)

    def _begin(
        self,
        request: Outgoing,
        target: Target,
        addresses: list[str],
        done: Callable[[Outcome], None],
    ) -> Transfer | None:
        """None: it must not be sent."""
        # The resolver keeps an answer for seconds, libcurl for longer: each is told once. And it
        # needs none for a number; that of IPv6 it would not even understand.
        known = self._told.get(target) is addresses or ":" in target[0]
        transfer = self._idle.pop() if self._idle else Transfer(self._open_socket)
        if not transfer.prepare(request, None if known else (target, addresses), done):
            self._idle.append(transfer)
            return None
        self._multi.add_handle(transfer.handle)
        self._transfers[transfer.handle] = transfer
        # All that this turn of the loop adds begins at once.
        self._starting = self._starting or self._loop.call_soon(self._run)
        return transfer

    def _open_socket(self, transfer: Transfer, address: SocketAddress) -> object:
        family, kind, protocol, target = address
        numeric = target[0]
        numeric = numeric.decode() if isinstance(numeric, bytes) else str(numeric)
        if not self._guard.permits(numeric):
            transfer.forbidden = True
            return pycurl.SOCKET_BAD
        self._sockets.opening()
        try:
            return _Descriptor(socket.socket(family, kind, protocol).detach())
        except OSError:
            # No descriptor is left: the attempt fails, and is made again later.
            return pycurl.SOCKET_BAD

    def _abandon(self, transfer: Transfer) -> None:
        """Ends a transfer whose caller has gone; its connection is not used again."""
        if self._transfers.pop(transfer.handle, None) is not None:
            self._multi.remove_handle(transfer.handle)
            transfer.handle.close()

    def _finish(self, handle: pycurl.Curl, error: int) -> None:
        transfer = self._transfers.pop(handle, None)
        if transfer is None:
            return  # Given up by one that was told before it.
        self._multi.remove_handle(handle)
        outcome, done = outcome_of(transfer, error), transfer.done
        if error == 0 and transfer.tells is not None:
            self._note_told(*transfer.tells)
        small = len(transfer.request.body) <= _IDLE_BODY_BYTES_MAX
        if error == 0 and small and len(self._idle) < _IDLE_HANDLES_MAX:
            self._idle.append(transfer)
        else:
            handle.close()
        # Last: whoever hears it may begin the next, with this very handle.
        done(outcome)

    def _note_told(self, target: Target, addresses: list[str]) -> None:
        """Only after the transfer: one that was given up on before it began has told nothing."""
        if len(self._told) >= _TARGETS_MAX:
            self._told.clear()
        self._told[target] = addresses

    # -- The event loop ----------------------------------------------------------------------

    def _run(self) -> None:
        """Lets libcurl do what does not wait for a socket: begin what was added, keep deadlines."""
        self._starting = None
        self._multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)
        self._collect()

    def _on_time(self) -> None:
        self._timer = None
        self._run()

    def _collect(self) -> None:
        """Finishes the transfers that libcurl has done with."""
        while True:
            left, succeeded, failed = self._multi.info_read()
            for handle in succeeded:
                self._finish(handle, 0)
            for handle, error, _ in failed:
                self._finish(handle, error)
            if not left:
                break
        self._set_timer()

    def _set_timer(self) -> None:
        """Asks libcurl when to call it: it would tell with every request, we ask once per turn."""
        milliseconds = self._multi.timeout()
        if milliseconds < 0 or self._starting is not None:
            return
        at = self._loop.time() + milliseconds / 1000
        # One that is too early does no harm, and saves setting one for each request.
        if self._timer is None or at < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            # When it is due is kept by us: what uvloop calls at once has no time.
            self._timer, self._timer_at = self._loop.call_at(at, self._on_time), at


def _tell(future: asyncio.Future[Outcome], outcome: Outcome) -> None:
    if not future.done():
        future.set_result(outcome)
