"""Messages on their way to a topic: what a caller gives, and what is sent of it.

Every message has an id before it is sent for the first time, so that a repetition is known as one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypedDict

import msgspec

from waystation.client.codec import Codec, told
from waystation.client.topics import Produced
from waystation.errors import InvalidInputError
from waystation.runtime.ids import IdSource
from waystation.runtime.json_values import encode_json

#: What one request holds at most; a single message may be larger.
BATCH_MESSAGES_MAX = 500
BATCH_BYTES_MAX = 1_048_576
_JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"

Headers = Mapping[str, str] | Iterable[tuple[str, str]]


class MessageOptions(TypedDict, total=False):
    """What a message may have beside its payload."""

    #: Repeated ones are known where the topic has deduplication; else made up.
    id: str
    #: Messages of one group keep their order.
    group: str | None
    #: What the payload is, if not what its Python type says.
    content_type: str | None
    headers: Headers
    not_before: datetime | None
    #: Id of what led to this message.
    cause: str | None
    traceparent: str | None


@dataclass(frozen=True)
class NewMessage:
    """A message to be produced.

    `data` is the payload: bytes as they are, text as `text/plain`, anything else as JSON
    (`msgspec.Raw` is JSON already).
    """

    data: Any
    id: str = ""
    group: str | None = None
    content_type: str | None = None
    headers: Headers = ()
    not_before: datetime | None = None
    cause: str | None = None
    traceparent: str | None = None


class Parcel:
    """A message as it is sent, and what became of it."""

    __slots__ = ("body", "id", "on_settled", "result")

    def __init__(self, message_id: str, body: bytes) -> None:
        self.id = message_id
        self.body = body
        self.result: Produced | None = None
        self.on_settled: Callable[[Produced], None] | None = None

    def settle(self, result: Produced) -> None:
        """Says what became of it."""
        self.result = result
        if self.on_settled is not None:
            self.on_settled(result)


def pack(message: NewMessage, *, codec: Codec | None, identity: IdSource) -> Parcel:
    """A parcel for a message; an error for one that cannot be sent at all."""
    message_id = message.id or identity.token(16)
    given = message.headers
    headers = list(given.items() if isinstance(given, Mapping) else given)
    form, payload, content_type = _payload(message.data)
    fields: dict[str, Any] = {"id": message_id}
    if codec is not None:
        form, payload = "base64", codec.encode(bytes(payload))
        headers = told(headers, codec)
    elif form == "text":
        form, payload = _shorter(payload)
    # The station knows the content types of text and JSON; of what is encoded it is told.
    named = any(name.lower() == "content-type" for name, _ in headers)
    if form == "base64" and content_type and not named:
        fields["content_type"] = content_type
    fields[form] = payload
    if message.content_type is not None:
        fields["content_type"] = message.content_type
    if headers:
        fields["headers"] = headers
    if message.not_before is not None:
        fields["not_before_ms"] = round(message.not_before.timestamp() * 1000)
    for name in ("group", "cause", "traceparent"):
        if (value := getattr(message, name)) is not None:
            fields[name] = value
    try:
        return Parcel(message_id, encode_json(fields))
    except (TypeError, UnicodeEncodeError, RecursionError) as error:
        raise InvalidInputError(f"The message cannot be sent: {error}.", field="data") from error


def batches(parcels: list[Parcel]) -> Iterator[list[Parcel]]:
    """Parcels in their order, as many together as one request holds."""
    batch: list[Parcel] = []
    size = 0
    for parcel in parcels:
        full = len(batch) == BATCH_MESSAGES_MAX or size + len(parcel.body) > BATCH_BYTES_MAX
        if batch and full:
            yield batch
            batch, size = [], 0
        batch.append(parcel)
        size += len(parcel.body)
    if batch:
        yield batch


def _payload(data: Any) -> tuple[str, Any, str]:
    """The field of a payload, what is put there, and its content type."""
    if isinstance(data, bytes | bytearray | memoryview):
        return "base64", bytes(data), ""
    if isinstance(data, str):
        return "text", _encoded(data), _TEXT
    if isinstance(data, msgspec.Raw):
        # Taken as it is, so it must be one value: more could pass for other messages.
        _require_json(bytes(data))
        return "data", data, _JSON
    try:
        return "data", msgspec.Raw(encode_json(data, field="data")), _JSON
    except (TypeError, UnicodeEncodeError, RecursionError) as error:
        raise InvalidInputError(f"The payload cannot be JSON: {error}.", field="data") from error


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"The payload is not Unicode: {error}.", field="data") from error


def _shorter(text: bytes) -> tuple[str, Any]:
    """Text as text, or as base64 where its quotes, line ends and the like would make it longer."""
    quoted = encode_json(text.decode())
    if len(quoted) > len(text) * 4 // 3 + 4:
        return "base64", text
    return "text", msgspec.Raw(quoted)


def _require_json(data: bytes) -> None:
    try:
        data.decode()
        msgspec.json.decode(data, type=msgspec.Raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInputError(f"The payload is not JSON: {error}.", field="data") from error
