"""Where a request comes from: the other end of its connection, or what a trusted proxy says.

A header can be written by anybody, so it counts only on a connection from a trusted proxy, and of
several addresses in it the last one that is no trusted proxy is taken: what stands before that was
written by someone we do not know.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from waystation.api.request import Request
from waystation.errors import SettingsError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Networks:
    """Networks from the settings; `setting` names them in an error."""

    def __init__(self, texts: Iterable[str], *, setting: str) -> None:
        try:
            self._networks = [ipaddress.ip_network(text) for text in texts]
        except ValueError as error:
            raise SettingsError(
                f"Setting {setting}: {error}.", hint="A network is written 10.0.0.0/8."
            ) from error

    def __contains__(self, address: Address) -> bool:
        return any(address in network for network in self._networks)


class ClientAddresses:
    """Finds the address of a request's client."""

    def __init__(self, header: str, trusted: Networks) -> None:
        self._header = header.lower().encode()
        self._trusted = trusted

    def of(self, request: Request) -> Address | None:
        """The address; None when nobody can tell."""
        peer = request.scope.get("client")
        address = _parsed(peer[0]) if peer else None
        if not self._header or address is None or address not in self._trusted:
            return address
        told = b",".join(v for name, v in request.scope["headers"] if name == self._header)
        if not told:
            return address
        for each in reversed(told.decode("latin-1").split(",")):
            address = _parsed(each.strip())
            if address is None or address not in self._trusted:
                break
        return address


def _parsed(text: str) -> Address | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    # ::ffff:10.0.0.1 is how a socket for both families tells 10.0.0.1.
    return getattr(address, "ipv4_mapped", None) or address
