"""Cross-origin requests: which web pages may use this server from a browser.

No cookie is ever used, so a page can do only what the key in its hands allows. Where no key is
needed (`dev`), being on this machine is the permission, and pages of other sites must not borrow
it: there only loopback origins are let in by default.
"""

from __future__ import annotations

import re

from waystation.api.reply import Header

_LOOPBACK_HOST = rb"(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?"
_is_loopback_host = re.compile(_LOOPBACK_HOST, re.IGNORECASE).fullmatch
_is_loopback_origin = re.compile(rb"https?://" + _LOOPBACK_HOST).fullmatch
_EXPOSED = (
    b"access-control-expose-headers",
    b"waystation-durability, x-request-id, retry-after, ratelimit, ratelimit-policy",
)
#: The star is for headers of messages; it may be there since no cookie is ever used.
_SENT = (
    b"authorization, content-type, x-request-id, waystation-id, waystation-group, "
    b"waystation-not-before, waystation-cause, traceparent, *"
)


class Cors:
    """Answers which headers an origin gets."""

    def __init__(self, origins: list[str], *, insecure: bool, loopback_only: bool = False) -> None:
        self._insecure = insecure
        self._loopback_only = loopback_only
        self._loopback = "auto" in origins and insecure
        self._any = "*" in origins or ("auto" in origins and not insecure)
        self._named = {origin.encode() for origin in origins}

    def headers(self, origin: bytes) -> tuple[Header, ...]:
        """Headers for a reply to a request from `origin`; none when it is not allowed."""
        if self._any:
            return ((b"access-control-allow-origin", b"*"), _EXPOSED)
        if self._allows(origin):
            return ((b"access-control-allow-origin", origin), (b"vary", b"origin"), _EXPOSED)
        return ((b"vary", b"origin"),)

    def is_foreign(self, host: bytes | None, origin: bytes | None) -> bool:
        """Whether a station without keys is being used by a page of another site.

        A browser sends some requests without asking first, and a name of another site can be made
        to lead here; only Origin and Host then tell. Programs send no Origin, and a Host of ours.
        """
        if not self._insecure:
            return False
        if origin is not None and not self._any and not self._allows(origin):
            return True
        return self._loopback_only and host is not None and not _is_loopback_host(host)

    def allows_socket(self, host: bytes | None, origin: bytes | None) -> bool:
        """Whether a page of this origin may open a WebSocket: no browser asks before it does.

        Programs send no Origin, and a page of our own host is no stranger.
        """
        if origin is None or self._any or self._allows(origin):
            return True
        return host is not None and origin.partition(b"://")[2] == host

    def preflight(self, origin: bytes, methods: list[str]) -> tuple[Header, ...]:
        """What the answer to an OPTIONS request of a browser has beyond `headers`."""
        if len(self.headers(origin)) == 1:
            return ()
        return (
            (b"access-control-allow-methods", ", ".join(methods).encode()),
            (b"access-control-allow-headers", _SENT),
            (b"access-control-max-age", b"600"),
        )

    def _allows(self, origin: bytes) -> bool:
        return origin in self._named or (self._loopback and bool(_is_loopback_origin(origin)))
