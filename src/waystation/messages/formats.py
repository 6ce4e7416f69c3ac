"""HTTP formats of messages: reads requests of producers and writes messages as JSON.

The content type of a request selects the format of its body:

- `application/cloudevents+json`: one CloudEvent in structured mode;
- `application/cloudevents-batch+json`: a JSON array of CloudEvents;
- `application/vnd.waystation.batch+json`: a batch in our own format (below);
- any other: the body is the payload of one message, byte for byte. With `ce-…` headers the message
  is a CloudEvent in binary mode.

A batch:

    {"messages": [{"id": "a", "group": "g", "data": {"any": "JSON"}}, {"text": "…"}, …]}

`data` is JSON that is stored byte for byte, `text` is UTF-8, `base64` is for other bytes. The
output of `message_json` is a valid element of a batch.

A request is accepted or rejected atomically. The error names the first invalid field, and in a
batch also the position of its message.
"""

from __future__ import annotations

import re
import threading
from base64 import b64encode
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeVar

import msgspec

from waystation.errors import InvalidInputError, TooLargeError, UnsupportedMediaTypeError
from waystation.messages.cloudevents import (
    EventFields,
    JsonEvent,
    attribute_text,
    check_event_headers,
    read_json_event,
)
from waystation.messages.envelope import (
    HEADER_NAME_MAX,
    ID_BYTES,
    MESSAGES_MAX,
    Envelope,
    Headers,
    MessageTarget,
    are_plain_keys,
    check_header_name,
    check_header_value,
    check_key,
    check_message,
    check_time_ms,
    content_type_of,
    is_json_type,
    is_kept_header,
    media_type_of,
    parse_time_ms,
    valid_traceparent,
)
from waystation.runtime.ids import SequentialIds
from waystation.runtime.json_text import (
    JSON_DEPTH_MAX,
    check_depth,
    is_too_deep,
    shield,
    too_deep,
    unshield,
)
from waystation.types.message import JsonMessage

EVENT_TYPE = "application/cloudevents+json"
EVENT_BATCH_TYPE = "application/cloudevents-batch+json"
BATCH_TYPE = "application/vnd.waystation.batch+json"
_SEVERAL_TYPES = (EVENT_TYPE, EVENT_BATCH_TYPE, BATCH_TYPE)
#: Prefixes of media types that are rejected, because their bodies contain messages in a format that
#: this release does not support.
_RESERVED_PREFIXES = ("application/cloudevents", "application/vnd.waystation.")
_JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"

#: Request headers in the form of ASGI, with names in lower case.
RawHeaders = Sequence[tuple[bytes, bytes]]

_ID = "waystation-id"
_GROUP = "waystation-group"
_NOT_BEFORE = "waystation-not-before"
_CAUSE = "waystation-cause"
_TRACE = "traceparent"
_KEYS = frozenset({_ID, _GROUP, _CAUSE})
_CONTROL_HEADERS = _KEYS | {_NOT_BEFORE, _TRACE}
_CONTROL_PREFIX = "waystation-"

#: Headers of a batch message that has no headers and no content type of its own, by the default
#: content type of the batch.
_DEFAULT_HEADERS: dict[str, Headers] = {
    "": (),
    _JSON: (("content-type", _JSON),),
    _TEXT: (("content-type", _TEXT),),
}
_JSON_HEADERS = _DEFAULT_HEADERS[_JSON]
_JSON_HEADER_BYTES = sum(map(len, _JSON_HEADERS[0]))
#: `is_batch_larger_than` counts the messages of a body only if the body has more opening braces
#: than this number times the maximum number of messages.
_OBJECTS_PER_MESSAGE = 16
#: Finds the JSON path at the end of an error message of msgspec.
_location = re.compile(r" - at `\$\.?(.*)`$").search

_T = TypeVar("_T")


class ReceivedMessages(msgspec.Struct, frozen=True, kw_only=True):
    """The messages of one request."""

    envelopes: list[Envelope]
    #: True if the client sent a batch, even of one message. The reply is then a list of receipts.
    batch: bool
    #: Sum of the sizes of the messages, see `message_bytes`.
    size: int


class _BatchMessage(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False
):
    id: str | None = None
    group: str | None = None
    data: msgspec.Raw = msgspec.Raw()
    text: str | None = None
    base64: bytes | None = None
    content_type: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    not_before_ms: int = 0
    cause: str | None = None
    traceparent: str | None = None


class _Batch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    messages: list[_BatchMessage]


class _PlainMessage(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False
):
    """A message of a batch that has only these fields. Most messages are like this."""

    data: msgspec.Raw
    id: str | None = None
    group: str | None = None


class _PlainBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    messages: list[_PlainMessage]


_decode_batch = msgspec.json.Decoder(_Batch).decode
_decode_plain_batch = msgspec.json.Decoder(_PlainBatch).decode
_decode_event = msgspec.json.Decoder(JsonEvent).decode
_decode_events = msgspec.json.Decoder(list[JsonEvent]).decode
_decode_any = msgspec.json.Decoder().decode


# -- Requests --------------------------------------------------------------------------------


def read_request(
    target: MessageTarget, headers: RawHeaders, body: bytes, *, ids: SequentialIds, bytes_max: int
) -> ReceivedMessages:
    """Return the messages of a request. Raise InvalidInputError if one of them is invalid.

    `bytes_max` limits the size of each message. `ids` creates ids for messages without an id.
    """
    request = _RequestHeaders(headers)
    media_type = _multi_message_type(request.content_type)
    if media_type in ("", EVENT_TYPE):
        fields = None if media_type == "" else read_json_event(decode_body(_decode_event, body))
        envelope = _single(request, body, fields, target, ids)
        size = check_message(envelope, target, bytes_max=bytes_max)
        return ReceivedMessages(envelopes=[envelope], batch=False, size=size)
    for name in request.control:
        if name != _TRACE:
            raise InvalidInputError(
                f"The header {name} applies to a single message. Set the field in each message of"
                " the batch instead.",
                field=name,
            )
    traceparent = valid_traceparent(request.control.get(_TRACE))
    is_array = media_type == EVENT_BATCH_TYPE
    if is_batch_larger_than(MESSAGES_MAX, body, is_array=is_array):
        raise _too_many_messages()
    if media_type == BATCH_TYPE:
        envelopes, size = _read_batch(body, target, ids, traceparent, bytes_max)
    else:
        events = decode_body(_decode_events, body)
        envelopes, size = _read_events(events, target, traceparent, bytes_max)
    return ReceivedMessages(envelopes=envelopes, batch=True, size=size)


class _RequestHeaders:
    """Headers of a request: `control` sets fields of the message, `kept` becomes its headers."""

    __slots__ = ("content_type", "control", "kept")

    def __init__(self, headers: RawHeaders) -> None:
        self.control: dict[str, str] = {}
        self.kept: list[tuple[str, str]] = []
        self.content_type = ""
        for raw_name, raw_value in headers:
            # Do not cache the result for a long name, so that the cache uses little memory.
            name_of = _cached_name if len(raw_name) <= HEADER_NAME_MAX else _relevant_name
            name = name_of(raw_name)
            if name is None:
                continue
            try:
                value = raw_value.decode()
            except UnicodeDecodeError as error:
                raise InvalidInputError(f"{name} is not UTF-8.", field=name) from error
            if name in _CONTROL_HEADERS:
                if name in self.control:
                    raise _repeated(name)
                check = check_key if name in _KEYS else check_header_value
                self.control[name] = check(value, field=name)
                continue
            if name == "content-type":
                if self.content_type:
                    raise _repeated(name)
                self.content_type = value
            self.kept.append((name, check_header_value(value, field=name)))


def _relevant_name(raw: bytes) -> str | None:
    """Return the name of a request header if it sets a field or the message keeps it, else None."""
    name = raw.decode("latin-1")
    if name in _CONTROL_HEADERS:
        return name
    if name.startswith(_CONTROL_PREFIX):
        raise InvalidInputError(
            f"The header {name[:80]} is unknown.",
            field=name[:80],
            hint=f"Valid headers are {', '.join(sorted(_CONTROL_HEADERS - {_TRACE}))}.",
        )
    if not is_kept_header(name):
        return None
    if len(name) > HEADER_NAME_MAX:
        raise InvalidInputError(
            f"The header name {name[:40]}… has more than {HEADER_NAME_MAX} characters.",
            field=name[:40],
        )
    return name


_cached_name = lru_cache(maxsize=1024)(_relevant_name)


def _repeated(header: str) -> InvalidInputError:
    return InvalidInputError(f"The header {header} occurs more than once.", field=header)


@lru_cache(maxsize=256)
def _multi_message_type(content_type: str) -> str:
    """Return the media type if the body has an event or a batch. Return '' if it is a payload."""
    media_type = media_type_of(content_type)
    if media_type in _SEVERAL_TYPES:
        return media_type
    if media_type.startswith(_RESERVED_PREFIXES):
        raise UnsupportedMediaTypeError(
            f"The content type {media_type[:80]} is not supported.",
            hint=f"Use one of {', '.join(_SEVERAL_TYPES)}.",
        )
    return ""


def _single(
    request: _RequestHeaders,
    body: bytes,
    event: EventFields | None,
    target: MessageTarget,
    ids: SequentialIds,
) -> Envelope:
    """Return the message of a request with one message.

    `event` has the fields of an event in structured mode. None: `body` is the payload.
    """
    control = request.control
    message_id, group = control.get(_ID), control.get(_GROUP)
    traceparent = valid_traceparent(control.get(_TRACE))
    headers: Headers
    if event is not None:
        body = event.data
        message_id = event.id if message_id is None else message_id
        group = event.group if group is None else group
        traceparent = event.traceparent or traceparent
        # Keep only x- headers of the request, because the others describe its body and not the
        # payload of the event.
        headers = (*event.headers, *(each for each in request.kept if each[0].startswith("x-")))
    else:
        headers = tuple(request.kept)
        attributes = dict(headers)
        if "ce-specversion" in attributes:
            check_event_headers(headers)
            if message_id is None:
                message_id = attribute_text(attributes["ce-id"], field="ce-id")
            if group is None and "ce-partitionkey" in attributes:
                group = attribute_text(attributes["ce-partitionkey"], field="ce-partitionkey")
            traceparent = valid_traceparent(attributes.get("ce-traceparent")) or traceparent
    not_before = control.get(_NOT_BEFORE)
    return Envelope(
        id=ids.token(ID_BYTES) if message_id is None else message_id,
        project=target.project,
        data=body,
        group=group,
        headers=headers,
        not_before_ms=0 if not_before is None else parse_time_ms(not_before, field=_NOT_BEFORE),
        cause=control.get(_CAUSE),
        traceparent=traceparent,
    )


def decode_body(decode: Callable[[bytes], _T], body: bytes) -> _T:
    """Decode a JSON body. Raise InvalidInputError, which names the invalid field, if it is invalid.

    Raise JsonTooDeepError if the decoder cannot read the body because of its depth. Pass each
    payload to `check_depth`, because the decoder reads some values above JSON_DEPTH_MAX. Pass each
    `msgspec.Raw` of the result to `unshield` (see `waystation.runtime.json_text`).
    """
    try:
        # Check the UTF-8 here, because msgspec does not check it in undecoded values.
        body.decode()
        return _decode_shielded(decode, body)
    except UnicodeDecodeError as error:
        raise InvalidInputError("The body is not UTF-8.", field="body") from error
    except RecursionError as error:
        raise too_deep("body") from error
    except msgspec.ValidationError as error:
        location = _location(str(error))
        field = (location.group(1) if location else "") or "body"
        if field.startswith("["):
            field = f"messages{field}"
        raise InvalidInputError(f"{error}.", field=field) from error
    except msgspec.DecodeError as error:
        raise InvalidInputError(f"The body is not valid JSON: {error}.", field="body") from error


class _CountedMessage(msgspec.Struct):
    """A message that the decoder counts without decoding its fields.

    Raise _BatchTooLargeError at the first message above the maximum number.
    """

    def __post_init__(self) -> None:
        _counted.left -= 1
        if _counted.left < 0:
            raise _BatchTooLargeError


class _CountedBatch(msgspec.Struct):
    messages: list[_CountedMessage]


class _BatchTooLargeError(Exception):
    """The decoder has found one message too many."""


#: `left` is the number of further messages that the decoder accepts in the batch that it counts.
#: Each thread has its own value.
_counted = threading.local()
_count_batch = msgspec.json.Decoder(_CountedBatch).decode
_count_events = msgspec.json.Decoder(list[_CountedMessage]).decode


def is_batch_larger_than(messages_max: int, body: bytes, *, is_array: bool = False) -> bool:
    """Return whether a JSON body has far more than `messages_max` messages.

    Called before the messages are decoded, because a body of 8 MB can have 760,000, which take
    145 MiB. The count skips the content of messages and ends with the first one too many. A body
    with few objects is not counted; the caller checks the length of the decoded list. Raise the
    errors of `decode_body`.
    """
    if body.count(b"{") <= _OBJECTS_PER_MESSAGE * messages_max:
        return False
    _counted.left = messages_max
    try:
        decode_body(_count_events if is_array else _count_batch, body)
    except _BatchTooLargeError:
        return True
    return False


def _decode_shielded(decode: Callable[[bytes], _T], body: bytes) -> _T:
    """Decode a body. If the decoder rejects it, mask lone surrogates and decode it again.

    Raise InvalidInputError if a field other than a payload contains a lone surrogate.
    """
    try:
        return decode(body)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        shielded = shield(body)
        if shielded == body:
            raise
    try:
        return decode(shielded)
    except UnicodeDecodeError as error:
        raise InvalidInputError(
            "The body has a lone surrogate outside of the data of a message.", field="body"
        ) from error


# -- Batches ---------------------------------------------------------------------------------


def _read_batch(
    body: bytes,
    target: MessageTarget,
    ids: SequentialIds,
    traceparent: str | None,
    bytes_max: int,
) -> tuple[list[Envelope], int]:
    """Return the messages of a batch and their total size."""
    if plain := _read_plain_batch(body, target, ids, traceparent, bytes_max):
        return plain
    messages = decode_body(_decode_batch, body).messages
    _check_count(len(messages))
    envelopes: list[Envelope] = []
    total = 0
    for position, message in enumerate(messages):
        message_id = ids.token(ID_BYTES) if message.id is None else message.id
        try:
            envelope = _batch_envelope(message, message_id, target.project, traceparent)
            total += check_message(envelope, target, bytes_max=bytes_max)
        except InvalidInputError as error:
            raise _at_position(error, position) from None
        envelopes.append(envelope)
    return envelopes, total


def _read_plain_batch(
    body: bytes,
    target: MessageTarget,
    ids: SequentialIds,
    traceparent: str | None,
    bytes_max: int,
) -> tuple[list[Envelope], int] | None:
    """Read a batch whose messages have no fields except `data`, `id` and `group`.

    Return the messages and their total size in less than half the time of `_read_batch`. Return
    None for any other batch and for an invalid one. `_read_batch` then reads it and reports the
    error.
    """
    try:
        # Check the UTF-8 here, because msgspec does not check it in undecoded values.
        body.decode()
        messages = _decode_plain_batch(body).messages
    except (ValueError, RecursionError):
        return None
    count, project = len(messages), target.project
    groups = [message.group for message in messages if message.group is not None]
    if not 0 < count <= MESSAGES_MAX or (target.grouped and len(groups) < count):
        return None
    payloads = [bytes(message.data) for message in messages]
    if max(map(len, payloads)) > JSON_DEPTH_MAX and any(map(is_too_deep, payloads)):
        return None
    # Do not check new ids, because they are valid. Most messages get a new id.
    given = [message.id for message in messages if message.id is not None]
    if not are_plain_keys([*given, *groups]):
        return None
    keys = ids.tokens(ID_BYTES, count - len(given))
    if given:
        new_ids = iter(keys)
        keys = [message.id or next(new_ids) for message in messages]
    # Compare the size of the batch with the limit of one message. Within it, no message exceeds the
    # limit. Otherwise `_read_batch` checks each message.
    size = sum(map(len, [*payloads, *keys, *groups])) + count * _JSON_HEADER_BYTES
    if size > bytes_max:
        return None
    envelopes = [
        Envelope(
            id=key,
            project=project,
            data=payload,
            group=message.group,
            headers=_JSON_HEADERS,
            traceparent=traceparent,
        )
        for message, key, payload in zip(messages, keys, payloads, strict=True)
    ]
    return envelopes, size


def _read_events(
    events: list[JsonEvent], target: MessageTarget, traceparent: str | None, bytes_max: int
) -> tuple[list[Envelope], int]:
    """Return the messages of a batch of CloudEvents and their total size."""
    _check_count(len(events))
    envelopes: list[Envelope] = []
    total = 0
    for position, event in enumerate(events):
        try:
            fields = read_json_event(event)
            envelope = Envelope(
                id=fields.id,
                project=target.project,
                data=fields.data,
                group=fields.group,
                headers=tuple(fields.headers),
                traceparent=fields.traceparent or traceparent,
            )
            total += check_message(envelope, target, bytes_max=bytes_max)
        except InvalidInputError as error:
            raise _at_position(error, position) from None
        envelopes.append(envelope)
    return envelopes, total


def _check_count(messages: int) -> None:
    if not messages:
        raise InvalidInputError("The batch contains no messages.", field="messages")
    if messages > MESSAGES_MAX:
        raise _too_many_messages()


def _too_many_messages() -> TooLargeError:
    return TooLargeError(
        f"The batch has more than {MESSAGES_MAX:,} messages, which is the limit.", field="messages"
    )


def _at_position(error: InvalidInputError, position: int) -> InvalidInputError:
    error.message = f"Message {position}: {error.message}"
    error.field = f"messages[{position}].{error.field}"
    return error


def _batch_envelope(
    message: _BatchMessage, message_id: str, project: str, traceparent: str | None
) -> Envelope:
    data = unshield(bytes(message.data))
    check_depth(data, field="data")
    data, content_type = batch_payload(data, message.text, message.base64)
    if message.headers or message.content_type is not None:
        headers = _batch_headers(message, content_type)
    else:
        headers = _DEFAULT_HEADERS[content_type]
    return Envelope(
        id=message_id,
        project=project,
        data=data,
        group=message.group,
        headers=headers,
        not_before_ms=check_time_ms(message.not_before_ms, field="not_before_ms"),
        cause=message.cause,
        traceparent=valid_traceparent(message.traceparent) or traceparent,
    )


def batch_payload(data: bytes, text: str | None, base64: bytes | None) -> tuple[bytes, str]:
    """Return the payload of a message in a batch and its default content type.

    Raise InvalidInputError if more than one of `data`, `text` and `base64` is set.
    """
    if text is None and base64 is None:
        return data, _JSON if data else ""
    if (data != b"") + (text is not None) + (base64 is not None) > 1:
        raise InvalidInputError("Set only one of data, text and base64.", field="data")
    return (text.encode(), _TEXT) if text is not None else (base64 or b"", "")


def _batch_headers(message: _BatchMessage, content_type: str) -> Headers:
    headers = tuple(
        (check_header_name(name), check_header_value(value, field="headers"))
        for name, value in message.headers
    )
    count = sum(name == "content-type" for name, _ in headers)
    if count > 1:
        raise InvalidInputError("The header content-type occurs more than once.", field="headers")
    if message.content_type is not None:
        if count:
            raise InvalidInputError(
                "The content type is set both in content_type and in headers.",
                field="content_type",
            )
        content_type = check_header_value(message.content_type, field="content_type")
    return (("content-type", content_type), *headers) if content_type and not count else headers


# -- Output ----------------------------------------------------------------------------------


def message_json(envelope: Envelope) -> dict[str, object]:
    """Return the fields of a message for a JSON encoder. Omit empty fields.

    The payload is in `data` if both its content type and its content are JSON. Otherwise it is in
    `text` if it is UTF-8, else in `base64`.
    """
    content_type = content_type_of(envelope.headers)
    fields: dict[str, object] = {"id": envelope.id}
    if envelope.group is not None:
        fields["group"] = envelope.group
    # Do not return compressed content as JSON, because it must stay byte for byte.
    encoded = any(name == "content-encoding" for name, _ in envelope.headers)
    is_json = content_type and is_json_type(content_type) and not encoded
    data = _json_payload(envelope.data) if is_json else None
    if data is not None:
        fields["data"] = data
    else:
        try:
            fields["text"] = envelope.data.decode()
        except UnicodeDecodeError:
            fields["base64"] = b64encode(envelope.data).decode()
    if content_type or "text" in fields:
        # Write an empty content type too, because a batch sets the default one if it is missing.
        fields["content_type"] = content_type or ""
    headers = [each for each in envelope.headers if each[0] != "content-type"]
    if headers:
        fields["headers"] = headers
    if envelope.not_before_ms:
        fields["not_before_ms"] = envelope.not_before_ms
    if envelope.cause is not None:
        fields["cause"] = envelope.cause
    if envelope.traceparent is not None:
        fields["traceparent"] = envelope.traceparent
    return fields


def json_message(envelope: Envelope) -> JsonMessage:
    """Return a message as a struct with the fields of `message_json`."""
    return msgspec.convert(message_json(envelope), JsonMessage)


def _json_payload(data: bytes) -> msgspec.Raw | None:
    """Return a JSON payload without line breaks. Return None if a batch would not accept it.

    Numbers and strings stay byte for byte.
    """
    if is_too_deep(data):
        return None
    try:
        # Decode the payload, because invalid JSON in it would make the whole reply invalid.
        _decode_any(data)
        if b"\n" in data or b"\r" in data:
            data = msgspec.json.format(data, indent=-1)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return msgspec.Raw(data.strip())
