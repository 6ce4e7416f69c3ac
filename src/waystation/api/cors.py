"""Cross-origin requests: which web pages may use this server from a browser.

No cookie is ever used, so a page can do only what the key in its hands allows. Where no key is
needed (`dev`), being on this machine is the permission, and pages of other sites must not borrow
it: there only loopback origins are let in by default.
"""

from __future__ import annotations

import re

from waystation.api.reply import Header

_LOOPBACK = re.compile(rb"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?")
_EXPOSED = (b"access-control-expose-headers", b"waystation-durability, x-request-id, retry-after")


class Cors:
    """Answers which headers an origin gets."""

    def __init__(self, origins: list[str], *, insecure: bool) -> None:
        self._loopback = "auto" in origins and insecure
        self._any = "*" in origins or ("auto" in origins and not insecure)
        self._named = {origin.encode() for origin in origins}

    def headers(self, origin: bytes) -> tuple[Header, ...]:
        """Headers for a reply to a request from `origin`; none when it is not allowed."""
        if self._any:
            return ((b"access-control-allow-origin", b"*"), _EXPOSED)
        if origin in self._named or (self._loopback and _LOOPBACK.fullmatch(origin)):
            return ((b"access-control-allow-origin", origin), (b"vary", b"origin"), _EXPOSED)
        return ((b"vary", b"origin"),)

    def preflight(self, origin: bytes, methods: list[str]) -> tuple[Header, ...]:
        """What the answer to an OPTIONS request of a browser has beyond `headers`."""
        if len(self.headers(origin)) == 1:
            return ()
        return (
            (b"access-control-allow-methods", ", ".join(methods).encode()),
            (b"access-control-allow-headers", b"authorization, content-type, x-request-id"),
            (b"access-control-max-age", b"600"),
        )
