"""What goes out and what came of it."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Outgoing(msgspec.Struct, frozen=True, kw_only=True):
    """One HTTP request to be made."""

    url: str
    method: str = "POST"
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    connect_seconds_max: float = 5.0
    total_seconds_max: float = 30.0


class Failure(StrEnum):
    """Why there is no status."""

    FORBIDDEN = "forbidden"  # the guard refused the address
    NAME = "name"  # the host has no address
    CONNECTION = "connection"  # refused, reset, TLS, or not HTTP
    TIMEOUT = "timeout"  # a deadline passed
    BROKEN = "broken"  # no request could be made of the item
    CANCELLED = "cancelled"  # we stopped


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a request: a status, or the reason why there is none."""

    #: 0 when there was no reply.
    status: int = 0
    failure: Failure | None = None
    #: A sentence for people; never an address that a name resolved to.
    detail: str = ""
    seconds: float = 0.0
    #: The beginning of the reply's body.
    excerpt: bytes = b""
    #: The reply's Retry-After, in seconds; None without one.
    retry_after: float | None = None

    @property
    def succeeded(self) -> bool:
        """2xx alone is success; a redirect is a failure."""
        return 200 <= self.status < 300
