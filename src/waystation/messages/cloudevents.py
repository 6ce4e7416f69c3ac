"""CloudEvents 1.0, in and out: the JSON format and the HTTP binding, payloads byte for byte.

An event's attributes become headers `ce-…`, written as the HTTP binding says, whichever mode it
came in; its `datacontenttype` is the message's content type. Its `id` is the message's id and its
`partitionkey` the group, unless the request says otherwise.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable
from datetime import UTC, datetime
from urllib.parse import quote, unquote

import msgspec

from waystation.errors import InvalidInputError
from waystation.messages.batches import decode_body, read_each
from waystation.messages.envelope import Envelope, Headers
from waystation.messages.media_types import content_type_of, is_json_type
from waystation.messages.message_rules import (
    MessageTarget,
    check_header_value,
    make_envelope,
    read_traceparent,
)
from waystation.messages.payloads import json_payload, text_payload
from waystation.runtime.ids import Identity
from waystation.runtime.json_text import unshield

_Event = dict[str, msgspec.Raw]

_VERSION = "1.0"
_REQUIRED = ("specversion", "id", "source", "type")
_DATA = "data"
_DATA_BASE64 = "data_base64"
_CONTENT_TYPE = "datacontenttype"
#: What a message that came as something else says of itself.
_OWN_TYPE = "waystation.message"
#: Printable ASCII that needs no percent sign: all but space, quote and percent.
_PLAIN = "!#$&'()*+,/:;<=>?@[\\]^`{|}"

_is_attribute = re.compile(r"[a-z0-9]{1,50}").fullmatch
_decode_event = msgspec.json.Decoder(_Event).decode
_decode_events = msgspec.json.Decoder(list[_Event]).decode
_decode_attribute = msgspec.json.Decoder(str | int | bool | None).decode
_decode_any = msgspec.json.Decoder().decode
_decode_base64 = msgspec.json.Decoder(bytes).decode
_encode = msgspec.json.Encoder().encode


def require_event(headers: Iterable[tuple[str, str]]) -> None:
    """Checks the `ce-…` headers of an event in binary mode."""
    attributes: dict[str, str] = {}
    for name, value in headers:
        if not name.startswith("ce-"):
            continue
        if name in attributes:
            raise InvalidInputError(f"{name} is there more than once.", field=name)
        attributes[name] = value
    _require({name.removeprefix("ce-"): value for name, value in attributes.items()}, "ce-")


def attribute_text(value: str, *, field: str) -> str:
    """What a `ce-…` header means: the binding percent-encodes what headers cannot carry."""
    if "%" not in value:
        return value
    try:
        # Strictly: two ids must not become one.
        return unquote(value, errors="strict")
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"{field} is not UTF-8, percent-encoded.", field=field) from error


def source_of_event(headers: Headers, message_id: str) -> str | None:
    """The source of a message that is an event under the event's own id; None for all others.

    Such an id is unique within its source only. Who names a message otherwise says what it is.
    """
    attributes = dict(headers)
    if attributes.get("ce-specversion") and unquote(attributes.get("ce-id", "")) == message_id:
        return unquote(attributes.get("ce-source", ""))
    return None


def read_event(
    target: MessageTarget,
    identity: Identity,
    body: bytes,
    *,
    id: str | None,  # noqa: A002
    group: str | None,
    headers: list[tuple[str, str]],
    not_before_ms: int,
    cause: str | None,
    traceparent: str | None,
) -> Envelope:
    """The message of an event in structured mode; what the request says goes first."""
    return _envelope(
        target,
        identity,
        decode_body(_decode_event, body),
        id=id,
        group=group,
        headers=headers,
        not_before_ms=not_before_ms,
        cause=cause,
        traceparent=traceparent,
    )


def read_events(
    target: MessageTarget,
    identity: Identity,
    body: bytes,
    *,
    traceparent: str | None,
    bytes_max: int,
) -> tuple[list[Envelope], int]:
    """The messages of a batch of events and their size together."""
    events = decode_body(_decode_events, body)

    def envelope(event: _Event) -> Envelope:
        return _envelope(target, identity, event, traceparent=traceparent)

    return read_each(events, envelope, bytes_max)


def _envelope(
    target: MessageTarget,
    identity: Identity,
    event: _Event,
    *,
    id: str | None = None,  # noqa: A002
    group: str | None = None,
    headers: Iterable[tuple[str, str]] = (),
    not_before_ms: int = 0,
    cause: str | None = None,
    traceparent: str | None = None,
) -> Envelope:
    attributes = _attributes(event)
    _require(attributes, "")
    content_type = attributes.pop(_CONTENT_TYPE, None)
    data = _payload(event, content_type)
    kept = [(f"ce-{name}", quote(value, safe=_PLAIN)) for name, value in attributes.items()]
    if content_type is None and _DATA in event:
        content_type = "application/json"
    if content_type is not None:
        kept.insert(0, ("content-type", content_type))
    return make_envelope(
        target,
        identity,
        data=data,
        id=attributes["id"] if id is None else id,
        group=attributes.get("partitionkey") if group is None else group,
        headers=(*kept, *headers),
        not_before_ms=not_before_ms,
        cause=cause,
        traceparent=read_traceparent(attributes.get("traceparent")) or traceparent,
    )


def _attributes(event: _Event) -> dict[str, str]:
    attributes = {}
    for name, raw in event.items():
        if name in (_DATA, _DATA_BASE64):
            continue
        if not _is_attribute(name):
            raise InvalidInputError(
                f"{name[:60]!r} is no name of an attribute.",
                field=name[:60],
                hint="These have lower-case letters and digits only.",
            )
        try:
            value = _decode_attribute(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidInputError(
                f"The attribute {name} is no text, whole number, true or false.", field=name
            ) from error
        if value is None:
            continue  # The same as not being there.
        text = value if isinstance(value, str) else _encode(value).decode()
        if "\t" in text:
            raise InvalidInputError(f"{name} has control characters.", field=name)
        attributes[name] = check_header_value(text, field=name)
    return attributes


def _require(attributes: dict[str, str], prefix: str) -> None:
    for name in _REQUIRED:
        if not attributes.get(name):
            raise InvalidInputError(f"An event needs {prefix}{name}.", field=f"{prefix}{name}")
    if attributes["specversion"] != _VERSION:
        raise InvalidInputError(
            f"CloudEvents {attributes['specversion'][:20]} is not understood, only {_VERSION}.",
            field=f"{prefix}specversion",
        )


def _payload(event: _Event, content_type: str | None) -> bytes:
    data, encoded = event.get(_DATA), event.get(_DATA_BASE64)
    if encoded is not None:
        if data is not None:
            raise InvalidInputError("Only one of data and data_base64 can be given.", field=_DATA)
        try:
            return _decode_base64(encoded)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidInputError("data_base64 is not base64.", field=_DATA_BASE64) from error
    if data is None:
        return b""
    raw = bytes(data)
    if content_type is None or is_json_type(content_type) or not raw.startswith(b'"'):
        return unshield(raw)
    # Something else than JSON, in a string of JSON.
    try:
        text: str = _decode_any(raw)
    except UnicodeDecodeError as error:
        raise InvalidInputError(
            f"data has a lone surrogate, which {content_type[:80]} cannot have.", field=_DATA
        ) from error
    return text.encode()


def as_event(envelope: Envelope, *, source: str, ms: int) -> bytes:
    """A message as an event in the JSON format; source and time for one that has none."""
    event: dict[str, object] = {
        name.removeprefix("ce-"): unquote(value)
        for name, value in envelope.headers
        if name.startswith("ce-") and _is_attribute(name[3:]) and name != "ce-data"
    }
    if not all(name in event for name in _REQUIRED):
        event |= {"specversion": _VERSION, "source": source, "type": _OWN_TYPE}
        event["time"] = (
            datetime.fromtimestamp(ms / 1000, UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z")
        )
    # What it is called here may have been decided by its producer's request.
    event["id"] = envelope.id
    if envelope.group is not None:
        event["partitionkey"] = envelope.group
    if envelope.traceparent is not None:
        event.setdefault("traceparent", envelope.traceparent)
    content_type = content_type_of(envelope.headers)
    if not envelope.data:
        if content_type:
            event[_CONTENT_TYPE] = content_type
        return _encode(event)
    event[_CONTENT_TYPE] = content_type or "application/octet-stream"
    if content_type and is_json_type(content_type):
        shown: object = json_payload(envelope.data)
    else:
        shown = text_payload(envelope.data) if content_type else None
    if shown is None:
        event[_DATA_BASE64] = b64encode(envelope.data).decode()
    else:
        event[_DATA] = shown
    return _encode(event)
