"""A message that an agent wants delivered, as the plugin writes it.

    {"service": {"url": …}, "payload": <url-safe base64>, "headers": {…}, "retries": n}

`headers` and `retries` may be missing. What we write back has two fields more, which the plugin
does not look at: `id`, which no other message has, and `since_ms`, when we first had it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from typing import Annotated
from urllib.parse import urldefrag, urlsplit

import msgspec
from msgspec import Meta

from waystation.errors import MessageInvalidError

SCHEMES = ("http", "https", "ws", "wss")
#: These frame a request or name its host; whoever sends sets them.
_FRAMING = frozenset(
    {
        *("connection", "content-length", "expect", "host", "keep-alive", "proxy-authorization"),
        *("proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
    }
)
_HEADER_NAME = re.compile(r"[0-9A-Za-z!#$%&'*+.^_`|~-]{1,100}")
_HEADER_VALUE = re.compile(r"[\x20-\x7e\t]{0,4096}")
_HEADERS_MAX = 50


class _Service(msgspec.Struct):
    url: str


class _Written(msgspec.Struct):
    service: _Service
    payload: str
    headers: dict[str, str] | None = None
    retries: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    id: str = ""
    since_ms: int = 0


class OutboundMessage(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be sent, and where to."""

    id: str
    url: str
    headers: tuple[tuple[str, str], ...]
    payload: bytes
    #: Attempts that were made before.
    retries: int
    since_ms: int
    raw: bytes

    @property
    def origin(self) -> str:
        """Scheme, host and port: what is well or ill as a whole."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.lower()}"

    def member(self, *, retries: int) -> bytes:
        """Itself in the retry set; whatever else its writer put into it is kept."""
        fields = _fields(self.raw)
        fields["retries"], fields["id"], fields["since_ms"] = retries, self.id, self.since_ms
        return msgspec.json.encode(fields)


_read = msgspec.json.Decoder(_Written).decode
_fields = msgspec.json.Decoder(dict[str, object]).decode


def read_message(raw: bytes, *, new_id: str = "", now_ms: int) -> OutboundMessage:
    """The message in what an agent wrote. `new_id`: it was just taken off the list of agents."""
    try:
        written = _read(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise MessageInvalidError(f"The message cannot be read: {error}.") from error
    url = urldefrag(written.service.url).url
    try:
        scheme, host = urlsplit(url).scheme, urlsplit(url).hostname
    except ValueError as error:
        raise MessageInvalidError("The URL is malformed.") from error
    if scheme not in SCHEMES or not host:
        raise MessageInvalidError(f"Messages to {url[:80]!r} are not delivered.")
    return OutboundMessage(
        id=new_id or written.id or id_of(raw),
        url=url,
        headers=_headers(written.headers or {}),
        payload=_payload(written.payload),
        retries=written.retries,
        since_ms=written.since_ms or now_ms,
        raw=raw,
    )


def id_of(raw: bytes) -> str:
    """An id for what has none: a member that a deliverer of the plugin wrote, or bytes."""
    return "r-" + hashlib.sha256(raw).hexdigest()[:32]


def _headers(written: dict[str, str]) -> tuple[tuple[str, str], ...]:
    headers = [each for each in written.items() if each[0].lower() not in _FRAMING]
    if len(headers) > _HEADERS_MAX:
        raise MessageInvalidError(f"It has more than {_HEADERS_MAX} headers.")
    for name, value in headers:
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise MessageInvalidError(f"The header {name[:40]!r} cannot be sent.")
    return tuple(headers)


def _payload(text: str) -> bytes:
    plain = text.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise MessageInvalidError("The payload is not base64.") from error
