"""What a worker of a pool gets, and what it says of it."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from waystation.client.codec import Codec, codings_of
from waystation.runtime.ids import IdSource
from waystation.runtime.json_text import load_json
from waystation.types.message import JsonMessage


class GiveUpError(Exception):
    """Raised by a handler: the message becomes a dead letter at once, with this as its cause."""


class TryAgainError(Exception):
    """Raised by a handler: the message comes again, after a wait of its own."""

    def __init__(self, cause: str = "", *, after_seconds: float | None = None) -> None:
        super().__init__(cause)
        self.after_seconds = after_seconds


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    """The session of a worker."""

    uid: str
    session: int
    lease_seconds: float
    stale_seconds: float


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """A message as a station gives it to a worker."""

    key: str
    epoch: int
    number: int
    token: str
    tries: int
    crashes: int
    enqueued_ms: int
    message: JsonMessage
    answer_to: str = ""

    @property
    def receipt(self) -> dict[str, Any]:
        """What it is known by when it is settled."""
        names = ("key", "epoch", "number", "token", "tries")
        return {name: getattr(self, name) for name in names}


class Takings(msgspec.Struct, frozen=True, kw_only=True):
    """What a take brought."""

    state: str
    items: list[Taken]


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """What came of an ack or a nack."""

    #: `known`: it was settled before. `lost`: another worker has it.
    outcome: Literal["done", "dead", "known", "lost"]
    next: Taken | None = None


class Settlements(msgspec.Struct, frozen=True, kw_only=True):
    """What came of several."""

    results: list[Settled]


class Renewed(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of which the message is another's by now."""

    lost: list[str]


@dataclass(kw_only=True)
class PoolMessage:
    """A message as a handler gets it."""

    key: str
    id: str
    #: How often it was tried before, and how often its worker ended meanwhile.
    tries: int
    crashes: int
    enqueued_ms: int
    content_type: str
    headers: list[tuple[str, str]]
    #: Whether somebody waits for what the handler returns.
    wants_answer: bool
    stored: bytes = field(repr=False)
    #: Set while the handler runs: another worker has it by now, and does it again.
    lost: bool = False
    codec: Codec | None = field(default=None, repr=False, compare=False)

    @property
    def payload(self) -> bytes:
        """The payload, through the codec if it was encoded by that one."""
        if self.codec is not None and codings_of(self.headers)[-1:] == [self.codec.name]:
            return self.codec.decode(self.stored)
        return self.stored

    @property
    def content(self) -> Any:
        """The payload as what it says it is: JSON decoded, text, else bytes."""
        kind = self.content_type.partition(";")[0].strip().lower()
        if kind == "application/json" or kind.endswith("+json"):
            return load_json(self.payload)
        return self.payload.decode() if kind == "text/plain" else self.payload


def message_of(taken: Taken, codec: Codec | None) -> PoolMessage:
    """What a handler gets of a message."""
    shown = taken.message
    return PoolMessage(
        key=taken.key,
        id=shown.id,
        tries=taken.tries,
        crashes=taken.crashes,
        enqueued_ms=taken.enqueued_ms,
        content_type=shown.content_type or "",
        headers=shown.headers,
        wants_answer=bool(taken.answer_to),
        stored=shown.payload,
        codec=codec,
    )


def answer_of(value: Any) -> dict[str, Any]:
    """What a handler returned, as it is sent."""
    if isinstance(value, bytes | bytearray | memoryview):
        return {"base64": bytes(value)}
    return {"text": value} if isinstance(value, str) else {"data": value}


def worker_name(identity: IdSource) -> str:
    """A name for a worker that no other has, by which people find its machine."""
    host = re.sub(r"[^0-9a-z]+", "-", socket.gethostname().lower()).strip("-")[:40]
    return f"{host or 'worker'}-{identity.token(4)}"
