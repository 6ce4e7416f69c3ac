"""A reply on its way out: status, headers, body, ready to be sent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Header = tuple[bytes, bytes]

JSON = (b"content-type", b"application/json")
PROBLEM = (b"content-type", b"application/problem+json")
TEXT = (b"content-type", b"text/plain; charset=utf-8")
CLOSE = (b"connection", b"close")

encode = msgspec.json.Encoder().encode


class Reply:
    """What a handler returns."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, body: bytes = b"", headers: tuple[Header, ...] = ()) -> None:
        self.status = status
        self.body = body
        self.headers = headers


def json_reply(value: object, status: int = 200, headers: tuple[Header, ...] = ()) -> Reply:
    """A JSON reply, ended by a newline as curl users like it."""
    return Reply(status, encode(value) + b"\n", (JSON, *headers))
