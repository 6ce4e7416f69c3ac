"""CloudEvents 1.0: the JSON event format and the HTTP binding, with unchanged payloads.

The attributes of an event become headers `ce-…` of the message, encoded as in the HTTP binding.
This applies to events in binary and in structured mode. `datacontenttype` becomes the content type
of the message. `id` and `partitionkey` become its id and group, unless the request sets others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import quote, unquote

import msgspec

from waystation.errors import InvalidInputError
from waystation.messages.envelope import (
    Headers,
    check_header_value,
    is_json_type,
    valid_traceparent,
)
from waystation.runtime.json_text import check_depth, unshield

#: An event in the JSON format. The values are undecoded JSON.
JsonEvent = dict[str, msgspec.Raw]

_VERSION = "1.0"
_REQUIRED = ("specversion", "id", "source", "type")
_DATA = "data"
_DATA_BASE64 = "data_base64"
_CONTENT_TYPE = "datacontenttype"
#: Printable ASCII that the HTTP binding leaves unescaped: all except space, quote and percent.
_UNESCAPED = "!#$&'()*+,/:;<=>?@[\\]^`{|}"

_is_attribute = re.compile(r"[a-z0-9]{1,50}").fullmatch
_decode_attribute = msgspec.json.Decoder(str | int | bool | None).decode
_decode_any = msgspec.json.Decoder().decode
_decode_base64 = msgspec.json.Decoder(bytes).decode
_encode = msgspec.json.Encoder().encode


class EventFields(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of a message that come from an event."""

    id: str
    group: str | None
    headers: list[tuple[str, str]]
    data: bytes
    #: Trace context of the event; None: missing or invalid.
    traceparent: str | None


def read_json_event(event: JsonEvent) -> EventFields:
    """Return the message fields of an event in structured mode.

    Raise InvalidInputError if an attribute is missing or invalid.
    """
    attributes = _attributes(event)
    _require_attributes(attributes, "")
    content_type = attributes.pop(_CONTENT_TYPE, None)
    data = _payload(event, content_type)
    headers = [(f"ce-{name}", quote(value, safe=_UNESCAPED)) for name, value in attributes.items()]
    if content_type is None and _DATA in event:
        content_type = "application/json"
    if content_type is not None:
        headers.insert(0, ("content-type", content_type))
    return EventFields(
        id=attributes["id"],
        group=attributes.get("partitionkey"),
        headers=headers,
        data=data,
        traceparent=valid_traceparent(attributes.get("traceparent")),
    )


def check_event_headers(headers: Iterable[tuple[str, str]]) -> None:
    """Raise InvalidInputError if the `ce-…` headers of an event in binary mode are invalid."""
    attributes: dict[str, str] = {}
    for header, value in headers:
        if not header.startswith("ce-"):
            continue
        name = header.removeprefix("ce-")
        if name in attributes:
            raise InvalidInputError(f"The header {header} occurs more than once.", field=header)
        attributes[name] = value
    _require_attributes(attributes, "ce-")


def attribute_text(value: str, *, field: str) -> str:
    """Decode the value of a `ce-…` header, which the HTTP binding percent-encodes."""
    if "%" not in value:
        return value
    try:
        # Reject invalid UTF-8, because replacement characters could make two different ids equal.
        return unquote(value, errors="strict")
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"{field} is not percent-encoded UTF-8.", field=field) from error


def event_source(headers: Headers, message_id: str) -> str | None:
    """Return the source of a CloudEvent whose id is the message id.

    The id of an event is unique only within its source, so the source is part of the message id for
    deduplication. Return None for other messages, and if the producer set a message id of its own.
    """
    attributes = dict(headers)
    if attributes.get("ce-specversion") and unquote(attributes.get("ce-id", "")) == message_id:
        return unquote(attributes.get("ce-source", ""))
    return None


def _attributes(event: JsonEvent) -> dict[str, str]:
    attributes = {}
    for name, raw in event.items():
        if name in (_DATA, _DATA_BASE64):
            continue
        if not _is_attribute(name):
            raise InvalidInputError(
                f"{name[:60]!r} is not a valid attribute name.",
                field=name[:60],
                hint="Use 1 to 50 lower-case letters and digits.",
            )
        try:
            value = _decode_attribute(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidInputError(
                f"The attribute {name} is not a string, an integer or a boolean.", field=name
            ) from error
        if value is None:
            continue  # The specification defines null as a missing attribute.
        text = value if isinstance(value, str) else _encode(value).decode()
        if "\t" in text:
            raise InvalidInputError(f"{name} contains control characters.", field=name)
        attributes[name] = check_header_value(text, field=name)
    return attributes


def _require_attributes(attributes: dict[str, str], prefix: str) -> None:
    for name in _REQUIRED:
        if not attributes.get(name):
            raise InvalidInputError(
                f"The event has no {prefix}{name}, which is required.", field=f"{prefix}{name}"
            )
    if attributes["specversion"] != _VERSION:
        raise InvalidInputError(
            f"CloudEvents version {attributes['specversion'][:20]} is not supported.",
            field=f"{prefix}specversion",
            hint=f"Send version {_VERSION}.",
        )


def _payload(event: JsonEvent, content_type: str | None) -> bytes:
    data, encoded = event.get(_DATA), event.get(_DATA_BASE64)
    if encoded is not None:
        if data is not None:
            raise InvalidInputError("The event has both data and data_base64.", field=_DATA)
        try:
            return _decode_base64(encoded)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidInputError(
                "data_base64 is not valid base64.", field=_DATA_BASE64
            ) from error
    if data is None:
        return b""
    raw = bytes(data)
    check_depth(raw, field=_DATA)
    if content_type is None or is_json_type(content_type) or not raw.startswith(b'"'):
        return unshield(raw)
    # The content type is not JSON, so the payload is the text of the JSON string.
    try:
        text: str = _decode_any(raw)
    except UnicodeDecodeError as error:
        raise InvalidInputError(
            f"data has a lone surrogate, which {content_type[:80]} cannot represent.", field=_DATA
        ) from error
    return text.encode()
