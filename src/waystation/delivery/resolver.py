"""Names to vetted addresses: what it returns may be connected to, and nothing else is connected to.

An answer is kept for a few seconds, so that a burst to one host asks once. Every answer is judged;
a name with one forbidden address among its answers is refused whole. A name whose server does not
answer holds one thread, however many wait for it, and none of them for longer than the deadline. A
process that stops does not wait for that thread either.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable

from waystation.delivery.addresses import AddressGuard
from waystation.errors import ForbiddenAddressError, WaystationError
from waystation.runtime.clock import Clock

_KEEP_SECONDS = 5.0
_KEEP_MAX = 10_000
#: A name that has no answer by then has none for this attempt.
RESOLVE_SECONDS_MAX = 5.0
#: Names that can be asked for at once. Not the event loop's own few threads: others need those.
_THREADS_MAX = 64

#: Asks for the addresses of a host, in a thread.
Lookup = Callable[[str], list[str]]


class NameUnknownError(WaystationError):
    """The endpoint's host has no address, for now."""

    code = "endpoint.unknown-host"


def look_up(host: str) -> list[str]:
    """All addresses of a host, as the operating system finds them."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


class Resolver:
    """Resolves through the operating system, judges by the guard."""

    def __init__(self, guard: AddressGuard, *, lookup: Lookup = look_up) -> None:
        self._guard = guard
        self._lookup = lookup
        self._clock = Clock()
        self._kept: dict[str, tuple[float, list[str]]] = {}
        self._asking: dict[str, asyncio.Task[list[str]]] = {}
        self._threads = asyncio.Semaphore(_THREADS_MAX)

    def kept(self, host: str) -> list[str] | None:
        """The answer that is kept for a host, if there is one."""
        # By the clock: to ask for the running event loop is a system call in Python 3.11.
        kept = self._kept.get(host)
        if kept is not None and kept[0] > self._clock.uptime_s():
            return kept[1]
        return None

    async def resolve(self, host: str) -> list[str]:
        """Addresses of a host, all permitted; raises ForbiddenAddressError or NameUnknownError."""
        if kept := self.kept(host):
            return kept
        try:
            async with asyncio.timeout(RESOLVE_SECONDS_MAX):
                addresses = await asyncio.shield(self._ask(host))
        except (OSError, UnicodeError) as error:
            raise NameUnknownError("The endpoint's host cannot be resolved.") from error
        if not addresses or not all(self._guard.permits(each) for each in addresses):
            raise ForbiddenAddressError("The endpoint's address is not allowed.", field="url")
        if len(self._kept) >= _KEEP_MAX:
            self.forget()
        self._kept[host] = (self._clock.uptime_s() + _KEEP_SECONDS, addresses)
        return addresses

    def forget(self) -> None:
        """Asks again for every name."""
        self._kept.clear()

    def close(self) -> None:
        """Waits for nobody."""
        for asking in self._asking.values():
            asking.cancel()

    def _ask(self, host: str) -> asyncio.Task[list[str]]:
        """One question under way per host, shared by all who ask."""
        asking = self._asking.get(host)
        if asking is None:
            asking = asyncio.get_running_loop().create_task(self._ask_in_thread(host))
            self._asking[host] = asking
            asking.add_done_callback(lambda done: self._asked(host, done))
        return asking

    async def _ask_in_thread(self, host: str) -> list[str]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[str]] = loop.create_future()

        def look() -> None:
            found, problem = [], None
            try:
                found = self._lookup(host)
            except Exception as error:
                problem = error
            with contextlib.suppress(RuntimeError):  # The loop has ended: nobody wants to know.
                loop.call_soon_threadsafe(_answer, answer, found, problem)

        async with self._threads:
            # A daemon, unlike the threads of an executor: a name service that hangs must not keep
            # the process from ending.
            threading.Thread(target=look, daemon=True, name="resolver").start()
            return await answer

    def _asked(self, host: str, done: asyncio.Task[list[str]]) -> None:
        self._asking.pop(host, None)
        with contextlib.suppress(asyncio.CancelledError):
            done.exception()  # Whoever asked may have given up: that is no error of the program.


def _answer(answer: asyncio.Future[list[str]], found: list[str], problem: Exception | None) -> None:
    if answer.done():
        return
    if problem is not None:
        answer.set_exception(problem)
    else:
        answer.set_result(found)
