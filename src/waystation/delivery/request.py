"""What goes out and what came of it."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Outgoing(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One HTTP request to be made."""

    url: str
    method: str = "POST"
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    connect_seconds_max: float = 5.0
    total_seconds_max: float = 30.0
    #: What is read of the reply's body; 0: nothing but the excerpt.
    reply_bytes_max: int = 0


class Failure(StrEnum):
    """Why there is no status."""

    FORBIDDEN = "forbidden"  # the guard refused the address
    NAME = "name"  # the host has no address
    CONNECTION = "connection"  # refused, reset, TLS, or not HTTP
    TIMEOUT = "timeout"  # a deadline passed
    BROKEN = "broken"  # no request could be made of the item
    CANCELLED = "cancelled"  # we stopped
    REFUSED = "refused"  # a receiver of our own will never take it
    BUSY = "busy"  # a receiver of our own has no room now


class Outcome(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What came of a request: a status, or the reason why there is none."""

    #: 0 when there was no reply.
    status: int = 0
    failure: Failure | None = None
    #: A sentence for people; never an address that a name resolved to.
    detail: str = ""
    seconds: float = 0.0
    #: The beginning of the reply's body.
    excerpt: bytes = b""
    #: All of it, for a request that wants it; empty if it was cut.
    body: bytes = b""
    #: Whether the reply was longer than what is read of it: the rest was not waited for.
    cut: bool = False
    #: Name that a receiver of our own gave the message; empty for HTTP.
    receipt: str = ""
    #: The reply's Retry-After, in seconds; None without one.
    retry_after: float | None = None

    @property
    def succeeded(self) -> bool:
        """2xx alone is success; a redirect is a failure."""
        return 200 <= self.status < 300
