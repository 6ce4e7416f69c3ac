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
import ssl
from collections import deque
from functools import lru_cache

import pycurl

from waystation.delivery.addresses import AddressGuard, ForbiddenAddressError
from waystation.delivery.request import Failure, Outcome, Outgoing
from waystation.delivery.resolver import NameUnknownError, Resolver
from waystation.errors import InvalidInputError

#: What is kept of a reply, and what is read of it before the connection is dropped.
EXCERPT_BYTES = 1024
REPLY_BYTES_MAX = 65_536
#: Open connections to one host, and in all.
_PER_HOST_MAX = 128
_TOTAL_MAX = 2048
_IDLE_HANDLES_MAX = 512
_TARGETS_MAX = 10_000

_DETAILS = {
    pycurl.E_COULDNT_CONNECT: "the connection was refused or could not be made",
    pycurl.E_GOT_NOTHING: "the connection was closed without a reply",
    pycurl.E_PEER_FAILED_VERIFICATION: "the endpoint's certificate could not be verified",
    pycurl.E_SSL_CONNECT_ERROR: "TLS could not be agreed on",
}


class _Descriptor:
    """A socket on its way to libcurl, which takes a duplicate; the original ends with this."""

    __slots__ = ("_number",)

    def __init__(self, number: int) -> None:
        self._number = number

    def fileno(self) -> int:
        return self._number

    def __del__(self) -> None:
        os.close(self._number)


class _Transfer:
    """One request under way: its handle, who waits, and what has come so far."""

    __slots__ = ("excerpt", "forbidden", "future", "handle", "size")

    def __init__(self, handle: pycurl.Curl, future: asyncio.Future[Outcome]) -> None:
        self.handle = handle
        self.future = future
        self.excerpt = bytearray()
        self.size = 0
        self.forbidden = False

    def on_data(self, data: bytes) -> int:
        room = EXCERPT_BYTES - len(self.excerpt)
        if room > 0:
            self.excerpt += data[:room]
        self.size += len(data)
        # A short count makes libcurl end the transfer: the rest is not wanted.
        return len(data) if self.size <= REPLY_BYTES_MAX else 0


class Sender:
    """Sends requests. One per event loop; start it inside the loop, close it there."""

    def __init__(self, guard: AddressGuard, *, resolver: Resolver | None = None) -> None:
        self._guard = guard
        self._resolver = resolver or Resolver(guard)
        self._target = lru_cache(_TARGETS_MAX)(self._find_target)
        self._loop = asyncio.get_running_loop()
        self._transfers: dict[pycurl.Curl, _Transfer] = {}
        self._idle: deque[pycurl.Curl] = deque()
        self._watched: dict[int, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._on_socket)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, self._on_timer)
        self._multi.setopt(pycurl.M_MAX_HOST_CONNECTIONS, _PER_HOST_MAX)
        self._multi.setopt(pycurl.M_MAX_TOTAL_CONNECTIONS, _TOTAL_MAX)
        self._multi.setopt(pycurl.M_MAXCONNECTS, _TOTAL_MAX)

    def __repr__(self) -> str:
        return f"<Sender [{len(self._transfers)} under way]>"

    async def send(self, request: Outgoing) -> Outcome:
        """Makes one request; a failure is an outcome, never an exception."""
        try:
            host, port = self._target(request.url)
            addresses = await self._resolver.resolve(host)
        except (ForbiddenAddressError, InvalidInputError):
            return Outcome(failure=Failure.FORBIDDEN, detail="the endpoint's address is not allowed")
        except NameUnknownError:
            return Outcome(failure=Failure.NAME, detail="the endpoint's host cannot be resolved")
        transfer = self._begin(request, _fixed_answer(host, port, addresses))
        try:
            return await transfer.future
        except asyncio.CancelledError:
            self._abandon(transfer)
            raise

    async def close(self) -> None:
        """Ends what is under way, with outcome `cancelled`."""
        for transfer in list(self._transfers.values()):
            self._abandon(transfer)
            if not transfer.future.done():
                transfer.future.set_result(Outcome(failure=Failure.CANCELLED, detail="stopped"))
        if self._timer is not None:
            self._timer.cancel()
        for descriptor in list(self._watched):
            self._unwatch(descriptor)
        self._idle.clear()
        self._multi.close()

    # -- One transfer ------------------------------------------------------------------------

    def _find_target(self, url: str) -> tuple[str, int]:
        """Host and port of a URL that the guard accepts. Cached as `_target`: URLs recur."""
        parts = self._guard.check_url(url)
        return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)

    def _begin(self, request: Outgoing, fixed_answer: str) -> _Transfer:
        handle = self._idle.pop() if self._idle else _new_handle()
        transfer = _Transfer(handle, self._loop.create_future())
        handle.setopt(pycurl.URL, request.url)
        handle.setopt(pycurl.RESOLVE, [fixed_answer])
        handle.setopt(pycurl.CUSTOMREQUEST, request.method)
        handle.setopt(pycurl.POSTFIELDS, request.body)
        # An empty Expect stops libcurl from asking first, which costs a round trip.
        headers = [f"{name}: {value}" for name, value in request.headers]
        handle.setopt(pycurl.HTTPHEADER, [*headers, "Expect:"])
        handle.setopt(pycurl.CONNECTTIMEOUT_MS, round(request.connect_seconds_max * 1000))
        handle.setopt(pycurl.TIMEOUT_MS, round(request.total_seconds_max * 1000))
        handle.setopt(pycurl.WRITEFUNCTION, transfer.on_data)
        handle.setopt(pycurl.OPENSOCKETFUNCTION, self._opener(transfer))
        self._transfers[handle] = transfer
        self._multi.add_handle(handle)
        return transfer

    def _opener(self, transfer: _Transfer):  # type: ignore[no-untyped-def]
        def open_socket(purpose: int, address: tuple[int, int, int, tuple[object, ...]]) -> object:
            family, kind, protocol, target = address
            numeric = target[0]
            numeric = numeric.decode() if isinstance(numeric, bytes) else str(numeric)
            if not self._guard.permits(numeric):
                transfer.forbidden = True
                return pycurl.SOCKET_BAD
            return _Descriptor(socket.socket(family, kind, protocol).detach())

        return open_socket

    def _abandon(self, transfer: _Transfer) -> None:
        """Ends a transfer whose caller has gone; its connection is not used again."""
        if self._transfers.pop(transfer.handle, None) is not None:
            self._multi.remove_handle(transfer.handle)
            transfer.handle.close()

    def _finish(self, handle: pycurl.Curl, error: int) -> None:
        transfer = self._transfers.pop(handle)
        self._multi.remove_handle(handle)
        if not transfer.future.done():
            transfer.future.set_result(_outcome(transfer, error))
        if error == 0 and len(self._idle) < _IDLE_HANDLES_MAX:
            self._idle.append(handle)
        else:
            handle.close()

    # -- The event loop ----------------------------------------------------------------------

    def _on_socket(self, event: int, descriptor: int, multi: object, data: object) -> None:
        if event == pycurl.POLL_REMOVE:
            self._unwatch(descriptor)
            return
        before = self._watched.get(descriptor, 0)
        reads, read = event & pycurl.POLL_IN, before & pycurl.POLL_IN
        writes, wrote = event & pycurl.POLL_OUT, before & pycurl.POLL_OUT
        if reads and not read:
            self._loop.add_reader(descriptor, self._act, descriptor, pycurl.CSELECT_IN)
        elif read and not reads:
            self._loop.remove_reader(descriptor)
        if writes and not wrote:
            self._loop.add_writer(descriptor, self._act, descriptor, pycurl.CSELECT_OUT)
        elif wrote and not writes:
            self._loop.remove_writer(descriptor)
        self._watched[descriptor] = event

    def _unwatch(self, descriptor: int) -> None:
        before = self._watched.pop(descriptor, 0)
        if before & pycurl.POLL_IN:
            self._loop.remove_reader(descriptor)
        if before & pycurl.POLL_OUT:
            self._loop.remove_writer(descriptor)

    def _on_timer(self, milliseconds: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if milliseconds >= 0:
            # Never at once: libcurl must not be called from within its own callback.
            self._timer = self._loop.call_later(
                milliseconds / 1000, self._act, pycurl.SOCKET_TIMEOUT, 0
            )

    def _act(self, descriptor: int, what: int) -> None:
        self._multi.socket_action(descriptor, what)
        while True:
            left, succeeded, failed = self._multi.info_read()
            for handle in succeeded:
                self._finish(handle, 0)
            for handle, error, _ in failed:
                self._finish(handle, error)
            if not left:
                return


def _fixed_answer(host: str, port: int, addresses: list[str]) -> str:
    """An answer of the name service, as libcurl wants it told."""
    told = ",".join(f"[{each}]" if ":" in each else each for each in addresses)
    return f"+{host}:{port}:{told}"


def _new_handle() -> pycurl.Curl:
    handle = pycurl.Curl()
    handle.setopt(pycurl.NOSIGNAL, 1)
    handle.setopt(pycurl.FOLLOWLOCATION, 0)
    handle.setopt(pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS)
    handle.setopt(pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1)
    # Proxy variables of the environment are not trusted: they would lead around the guard.
    handle.setopt(pycurl.PROXY, "")
    handle.setopt(pycurl.NOPROXY, "*")
    handle.setopt(pycurl.TCP_NODELAY, 1)
    authorities = ssl.get_default_verify_paths().cafile
    if authorities:
        handle.setopt(pycurl.CAINFO, authorities)
    return handle


def _outcome(transfer: _Transfer, error: int) -> Outcome:
    handle = transfer.handle
    seconds = handle.getinfo(pycurl.TOTAL_TIME)
    excerpt = bytes(transfer.excerpt)
    if error in (0, pycurl.E_WRITE_ERROR) and transfer.size >= 0:
        wait = handle.getinfo(pycurl.RETRY_AFTER)
        return Outcome(
            status=handle.getinfo(pycurl.RESPONSE_CODE),
            seconds=seconds,
            excerpt=excerpt,
            retry_after=float(wait) if wait else None,
        )
    if transfer.forbidden:
        detail = "the endpoint's address is not allowed"
        return Outcome(failure=Failure.FORBIDDEN, detail=detail, seconds=seconds)
    if error == pycurl.E_OPERATION_TIMEDOUT:
        return Outcome(
            failure=Failure.TIMEOUT, detail="the endpoint took too long", seconds=seconds
        )
    detail = _DETAILS.get(error, "the connection broke or was no HTTP")
    return Outcome(failure=Failure.CONNECTION, detail=detail, seconds=seconds, excerpt=excerpt)
