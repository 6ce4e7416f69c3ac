"""The address guard: no outgoing request reaches an address that its sender must not reach.

An address is judged twice: when an endpoint is created, so that a mistake is told at once, and when
a connection is opened, on the very address that is connected to, since names can change their
meaning in between. Only addresses of the public internet pass; an operator can allow others.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from urllib.parse import SplitResult, urlsplit

from waystation.errors import ForbiddenAddressError, InvalidInputError

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network

#: All of IPv6 that the public internet uses. Beyond it lies what is private or nobody's, and many a
#: way to write or to reach an IPv4 address: mapped, translated, compatible, NAT64.
_PUBLIC_IPV6 = ipaddress.ip_network("2000::/3")
#: Within it, ranges that lead on to IPv4 addresses: Teredo and 6to4.
_REFUSED = [ipaddress.ip_network(text) for text in ("2001::/32", "2002::/16")]
_HOST = re.compile(r"[0-9a-z](?:[0-9a-z_.-]{0,251}[0-9a-z])?")
#: What C libraries take for an IPv4 address although no person writes it: 0x7f.1, 017700000001.
_ODD_NUMBER = re.compile(r"(0x[0-9a-f]*|[0-9]+)(\.(0x[0-9a-f]*|[0-9]+)){0,3}")


_LOOPBACK_NAMES = frozenset({"localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback"})


class AddressGuard:
    """Decides about URLs and addresses. `allowed` are networks that the operator opens."""

    def __init__(self, allowed: Iterable[str] = (), *, loopback: bool = False) -> None:
        self._allowed: list[_Network] = [ipaddress.ip_network(each) for each in allowed]
        if loopback:
            self._allowed += [ipaddress.ip_network(each) for each in ("127.0.0.0/8", "::1/128")]

    def permits(self, address: str) -> bool:
        """Whether a connection to this numeric address may be opened."""
        try:
            # A scope (fe80::1%eth0) is a property of a link, never of the public internet.
            parsed: _Address = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        if any(parsed.version == net.version and parsed in net for net in self._allowed):
            return True
        if parsed.version == 6 and (
            parsed not in _PUBLIC_IPV6 or any(parsed in net for net in _REFUSED)
        ):
            return False
        return parsed.is_global and not parsed.is_multicast

    def check_url(self, url: str) -> SplitResult:
        """The checks that need no name service; raises with the reason."""
        parts = _split(url)
        host = parts.hostname or ""
        numeric = _numeric(host)
        if numeric is None and _is_loopback_name(host):
            # Names of this machine at every name service, so they are judged as its address.
            numeric = "127.0.0.1" if self.permits("127.0.0.1") else "::1"
        if numeric is not None and not self.permits(numeric):
            raise ForbiddenAddressError("The endpoint's address is not allowed.", field="url")
        return parts


def _split(url: str) -> SplitResult:
    if (
        len(url) > 2048
        or not url.isascii()
        or any(ord(char) < 33 or ord(char) == 127 for char in url)
    ):
        raise InvalidInputError(
            "The URL must be plain ASCII without spaces, at most 2,048 characters.", field="url"
        )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidInputError("The URL is malformed.", field="url") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or "\\" in url:
        raise InvalidInputError("The URL must be http://… or https://….", field="url")
    if parts.username is not None or parts.password is not None:
        raise InvalidInputError("The URL must not contain a user or password.", field="url")
    if parts.fragment:
        raise InvalidInputError("The URL must not have a fragment.", field="url")
    if port == 0:
        raise InvalidInputError("Port 0 cannot be reached.", field="url")
    return parts


def _is_loopback_name(host: str) -> bool:
    """Return True if a name leads to this machine wherever it is looked up (RFC 6761)."""
    name = host.lower().removesuffix(".")
    return name in _LOOPBACK_NAMES or name.endswith(".localhost")


def _numeric(host: str) -> str | None:
    """The address that a host is, in its plain form; None when it is a name."""
    if ":" in host:
        try:
            return str(ipaddress.ip_address(host))
        except ValueError as error:
            raise InvalidInputError("The URL's host is malformed.", field="url") from error
    host = host.removesuffix(".").lower()
    if not _HOST.fullmatch(host) or ".." in host:
        raise InvalidInputError("The URL's host is malformed.", field="url")
    if _ODD_NUMBER.fullmatch(host):
        try:
            return socket.inet_ntoa(socket.inet_aton(host))
        except OSError as error:
            raise InvalidInputError("The URL's host is malformed.", field="url") from error
    if host.rpartition(".")[2].isdigit():
        # No top-level domain is a number; some libraries would read it as an address.
        raise InvalidInputError("The URL's host is malformed.", field="url")
    return None
