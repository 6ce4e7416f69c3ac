"""Names to vetted addresses: what it returns may be connected to, and nothing else is connected to.

An answer is kept for a few seconds, so that a burst to one host asks once. Every answer is judged;
a name with one forbidden address among its answers is refused whole.
"""

from __future__ import annotations

import asyncio
import socket

from waystation.delivery.addresses import AddressGuard, ForbiddenAddressError
from waystation.errors import WaystationError

_KEEP_SECONDS = 5.0
_KEEP_MAX = 10_000


class NameUnknownError(WaystationError):
    """The endpoint's host has no address, for now."""

    code = "endpoint.unknown-host"


class Resolver:
    """Resolves through the operating system, judges by the guard."""

    def __init__(self, guard: AddressGuard) -> None:
        self._guard = guard
        self._kept: dict[str, tuple[float, list[str]]] = {}

    async def resolve(self, host: str) -> list[str]:
        """Addresses of a host, all permitted; raises ForbiddenAddressError or NameUnknownError."""
        loop = asyncio.get_running_loop()
        kept = self._kept.get(host)
        if kept is not None and kept[0] > loop.time():
            return kept[1]
        try:
            found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise NameUnknownError("The endpoint's host cannot be resolved.") from error
        addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
        if not addresses or not all(self._guard.permits(each) for each in addresses):
            raise ForbiddenAddressError("The endpoint's address is not allowed.", field="url")
        if len(self._kept) >= _KEEP_MAX:
            self._kept.clear()
        self._kept[host] = (loop.time() + _KEEP_SECONDS, addresses)
        return addresses
