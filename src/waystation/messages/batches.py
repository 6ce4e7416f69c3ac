"""Several messages in one body of JSON: our own form of a batch.

    {"messages": [{"id": "a", "group": "g", "data": {"any": "JSON"}}, {"text": "…"}, …]}

`data` is kept byte for byte as it stands in the body; `text` is UTF-8; `base64` is for anything
else. What `waystation.messages.shown` makes of a message can be sent in again as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import msgspec

from waystation.errors import InvalidInputError, TooLargeError
from waystation.messages.envelope import Envelope, Headers
from waystation.messages.message_rules import (
    ID_BYTES,
    MESSAGES_MAX,
    MessageTarget,
    check_header_name,
    check_header_value,
    check_ms,
    check_size,
    is_plain_key,
    make_envelope,
    read_traceparent,
)
from waystation.runtime.ids import Identity
from waystation.runtime.json_text import shield, unshield

_TEXT = "text/plain; charset=utf-8"
_JSON = "application/json"
#: Headers of a message that names none, by its content type.
_HEADERS: dict[str, Headers] = {
    "": (),
    _JSON: (("content-type", _JSON),),
    _TEXT: (("content-type", _TEXT),),
}
#: At the end of what msgspec says: where in the body it was.
_place = re.compile(r" - at `\$\.?(.*)`$").search

_T = TypeVar("_T")


class _Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
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
    messages: list[_Message]


class _PlainMessage(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False
):
    data: msgspec.Raw
    id: str | None = None
    group: str | None = None


class _PlainBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    messages: list[_PlainMessage]


_decode_batch = msgspec.json.Decoder(_Batch).decode
_decode_plain_batch = msgspec.json.Decoder(_PlainBatch).decode


def read_batch(
    target: MessageTarget,
    identity: Identity,
    body: bytes,
    *,
    traceparent: str | None,
    bytes_max: int,
) -> tuple[list[Envelope], int]:
    """The messages of a batch and their size together."""
    plain = _read_plain_batch(target, identity, body, traceparent, bytes_max)
    if plain is not None:
        return plain
    batch = decode_body(_decode_batch, body)
    return read_each(batch.messages, partial(_envelope, target, identity, traceparent), bytes_max)


def _read_plain_batch(
    target: MessageTarget, identity: Identity, body: bytes, traceparent: str | None, bytes_max: int
) -> tuple[list[Envelope], int] | None:
    """The same for a batch of JSON without headers and times, in less than half the time.

    That is what most are. None wherever there is anything to say about a message: it is not said
    here.
    """
    try:
        body.decode()
        messages = _decode_plain_batch(body).messages
    except (ValueError, RecursionError):
        return None
    if not 0 < len(messages) <= MESSAGES_MAX:
        return None
    grouped, project, headers = target.grouped, target.project, _HEADERS[_JSON]
    token, header_bytes, size = identity.token, sum(map(len, headers[0])), 0
    envelopes = []
    for message in messages:
        data, message_id, group = bytes(message.data), message.id, message.group
        if message_id is None:
            message_id = token(ID_BYTES)
        elif not is_plain_key(message_id):
            return None
        length = len(data) + header_bytes + len(message_id)
        if group is not None:
            if not is_plain_key(group):
                return None
            length += len(group)
        elif grouped:
            return None
        if length > bytes_max:
            return None
        size += length
        envelopes.append(
            Envelope(
                id=message_id,
                project=project,
                data=data,
                group=group,
                headers=headers,
                traceparent=traceparent,
            )
        )
    return envelopes, size


def decode_body(decode: Callable[[bytes], _T], body: bytes) -> _T:
    """Return a body of JSON decoded. Raise InvalidInputError that names the field.

    Pass each `msgspec.Raw` of the result to `unshield` (see `waystation.runtime.json_text`).
    """
    try:
        # What is kept as it stands is not looked into otherwise.
        body.decode()
        return _decode_shielded(decode, body)
    except UnicodeDecodeError as error:
        raise InvalidInputError("The body is not UTF-8.", field="body") from error
    except RecursionError as error:
        raise InvalidInputError("The body is nested too deep.", field="body") from error
    except msgspec.ValidationError as error:
        place = _place(str(error))
        field = (place.group(1) if place else "") or "body"
        if field.startswith("["):
            field = f"messages{field}"
        raise InvalidInputError(f"{error}.", field=field) from error
    except msgspec.DecodeError as error:
        raise InvalidInputError(f"The body is not JSON: {error}.", field="body") from error


def _decode_shielded(decode: Callable[[bytes], _T], body: bytes) -> _T:
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


def read_each(
    messages: list[_T], read: Callable[[_T], Envelope], bytes_max: int
) -> tuple[list[Envelope], int]:
    """Envelopes and their size together; an error gets the position of its message."""
    if not messages:
        raise InvalidInputError("The batch is empty.", field="messages")
    if len(messages) > MESSAGES_MAX:
        raise TooLargeError(
            f"A batch has at most {MESSAGES_MAX} messages, and this one {len(messages)}.",
            field="messages",
        )
    envelopes, size = [], 0
    for position, message in enumerate(messages):
        try:
            envelope = read(message)
            size += check_size(envelope, bytes_max)
        except InvalidInputError as error:
            error.message = f"Message {position}: {error.message}"
            error.field = f"messages[{position}].{error.field}"
            raise
        envelopes.append(envelope)
    return envelopes, size


def _envelope(
    target: MessageTarget, identity: Identity, traceparent: str | None, message: _Message
) -> Envelope:
    data, content_type = _payload(message)
    moment, trace = message.not_before_ms, message.traceparent
    if message.headers or message.content_type is not None:
        headers = _headers(message, content_type)
    else:
        headers = _HEADERS[content_type]
    return make_envelope(
        target,
        identity,
        data=data,
        id=message.id,
        group=message.group,
        headers=headers,
        not_before_ms=moment and check_ms(moment, field="not_before_ms"),
        cause=message.cause,
        traceparent=(trace and read_traceparent(trace)) or traceparent,
    )


def _payload(message: _Message) -> tuple[bytes, str]:
    """The bytes, and the content type that they have unless another is given."""
    data = unshield(bytes(message.data))
    if message.text is None and message.base64 is None:
        return data, _JSON if data else ""
    if (data != b"") + (message.text is not None) + (message.base64 is not None) > 1:
        raise InvalidInputError("Only one of data, text and base64 can be given.", field="data")
    if message.text is not None:
        return message.text.encode(), _TEXT
    return message.base64 or b"", ""


def _headers(message: _Message, content_type: str) -> Headers:
    checked = tuple(
        (check_header_name(name), check_header_value(value, field="headers"))
        for name, value in message.headers
    )
    among = sum(name == "content-type" for name, _ in checked)
    if among > 1:
        raise InvalidInputError("content-type is there more than once.", field="headers")
    if message.content_type is not None:
        if among:
            raise InvalidInputError(
                "The content type is there twice, by itself and among the headers.",
                field="content_type",
            )
        content_type = check_header_value(message.content_type, field="content_type")
    return (("content-type", content_type), *checked) if content_type and not among else checked
