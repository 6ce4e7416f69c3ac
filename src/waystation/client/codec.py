"""The codec hook: payloads that are encrypted or compressed before they leave the client.

    class Zipped:
        name = "gzip"
        encode = staticmethod(gzip.compress)
        decode = staticmethod(gzip.decompress)

The station stores what `encode` made and never looks into it. The header `content-encoding` tells
its name, as in HTTP: whoever reads the message without the codec sees that it needs one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

_HEADER = "content-encoding"


class Codec(Protocol):
    """Turns payloads into others and back."""

    @property
    def name(self) -> str:
        """What the header says, such as `gzip`."""
        ...

    def encode(self, data: bytes, /) -> bytes:
        """What is stored for a payload."""
        ...

    def decode(self, data: bytes, /) -> bytes:
        """The payload again."""
        ...


def codings_of(headers: Iterable[tuple[str, str]]) -> list[str]:
    """Names of the codings of a payload in the order in which they were applied."""
    told = [value for name, value in headers if name.lower() == _HEADER]
    return [each.strip() for value in told for each in value.split(",") if each.strip()]


def told(headers: list[tuple[str, str]], codec: Codec) -> list[tuple[str, str]]:
    """Headers that also tell of a codec."""
    return [*headers, (_HEADER, codec.name)]
