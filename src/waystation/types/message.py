"""Messages as the API returns them, receipts, and the durability that receipts state."""

from __future__ import annotations

from base64 import b64decode
from typing import Literal, final

import msgspec

from waystation.types.common import Problem

#: `memory`: the store confirmed the message, which a crash of the store's machine can lose.
#: `disk`: the store wrote it to disk before it confirmed.
Durability = Literal["memory", "disk"]


@final
class Receipt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Confirmation that a message is stored, with its location."""

    id: str
    #: Index of the storage topic.
    storage: int
    partition: int
    offset: int
    #: Time of the append in milliseconds since 1970, by the store's clock.
    time_ms: int
    #: Whether the id was produced before within the deduplication window. Nothing was written;
    #: the location is that of the first message.
    duplicate: bool = False
    durability: Durability = "memory"


class RefusedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a batch that was not produced."""

    id: str
    error: Problem


class JsonMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message in JSON, without empty fields. A batch accepts it as one of its messages.

    The payload is in one field: `data` if it is JSON, `text` if it is UTF-8, else `base64`.
    """

    id: str
    group: str | None = None
    data: msgspec.Raw = msgspec.Raw()
    text: str | None = None
    base64: str | None = None
    #: None: the default of the payload's field. Empty: the message has no content type.
    content_type: str | None = None
    #: All other headers, in their order.
    headers: list[tuple[str, str]] = []
    #: Time before which the message is not delivered; 0: none.
    not_before_ms: int = 0
    #: Id of the message or transaction that led to this message.
    cause: str | None = None
    traceparent: str | None = None

    @property
    def is_json(self) -> bool:
        """Whether the payload is JSON, by its content type and its content."""
        return bytes(self.data) != b""

    @property
    def payload(self) -> bytes:
        """The payload in bytes. JSON is on one line."""
        if self.text is not None:
            return self.text.encode()
        return bytes(self.data) if self.base64 is None else b64decode(self.base64)
