"""The envelope of a message: its fields, its limits and its stored form.

Topics, pools, subscriptions, transactions and history all use `Envelope` for messages. No part
interprets the payload. Headers are a list of pairs, because a name can occur several times. Their
order and the commas in their values are preserved.

`check_message` checks each message before it is stored, so all stored messages are within the
limits of this module. An error names the invalid field. The reader of a batch adds the position.
"""

from __future__ import annotations

import re
from datetime import datetime
from functools import lru_cache
from typing import Annotated, Protocol

import msgspec

from waystation.errors import GroupRequiredError, InvalidInputError, TooLargeError

#: Limit of the characters of an id, a group or a cause.
KEY_CHARACTERS_MAX = 100
#: Default of `topics.message_bytes_max`: limit of the size of a message, see `message_bytes`.
MESSAGE_BYTES_MAX = 5 * 1_048_576
#: Limit of the messages of a batch.
MESSAGES_MAX = 1000
#: Limit of the number of headers of a message.
HEADERS_MAX = 100
HEADER_NAME_MAX = 100
HEADER_VALUE_MAX = 8192
#: Number of random bytes in an id that the server creates.
ID_BYTES = 16
#: Latest valid time: the end of the year 9999.
_MS_MAX = 253_402_300_799_999

#: Version of the stored form. A release rejects messages with another version.
_FORMAT = 1

#: Request headers that a message keeps: those of the content and of tracing.
_KEPT = frozenset({"baggage", "content-encoding", "content-language", "content-type", "tracestate"})
#: Prefixes of further headers that a message keeps: those of applications and of CloudEvents.
_KEPT_PREFIXES = ("x-", "ce-")
#: Headers that a message never keeps, because they carry secrets or describe the network path.
_DROPPED = frozenset(
    {
        "x-access-token",
        "x-amz-security-token",
        "x-api-key",
        "x-auth-token",
        "x-client-cert",
        "x-csrf-token",
        "x-real-ip",
        "x-user-token",
        "x-xsrf-token",
    }
)
_DROPPED_PREFIX = "x-forwarded-"

_is_token = re.compile(r"[0-9a-z!#$%&'*+.^_`|~-]+").fullmatch
_control = re.compile(r"[\x00-\x1f\x7f-\x9f]").search
_control_except_tab = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]").search
_is_traceparent = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}").fullmatch
_Timestamp = Annotated[datetime, msgspec.Meta(tz=True)]

Headers = tuple[tuple[str, str], ...]


class Envelope(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One message: payload, headers, and the ids that describe its origin."""

    id: str
    project: str
    data: bytes
    #: Group of the message. Messages of one group are delivered in order. None: in any order.
    group: str | None = None
    headers: Headers = ()
    #: Earliest delivery in milliseconds since 1970; 0: immediately.
    not_before_ms: int = 0
    #: Id of the message or transaction that caused this message.
    cause: str | None = None
    #: Header `traceparent` of W3C Trace Context.
    traceparent: str | None = None


class MessageTarget(Protocol):
    """A topic or pool, with the properties that decide which messages it accepts."""

    @property
    def project(self) -> str:
        """Project that owns the target."""
        ...

    @property
    def name(self) -> str:
        """Name of the target, for error messages."""
        ...

    @property
    def grouped(self) -> bool:
        """True if each message must have a group."""
        ...


# -- Stored form -----------------------------------------------------------------------------


class _Packed(msgspec.Struct, frozen=True, array_like=True):
    """Stored form of a message.

    It is encoded as an array, because field names would be a third of a small message.
    """

    format: int
    id: str
    data: bytes
    group: str | None
    headers: Headers
    not_before_ms: int
    cause: str | None
    traceparent: str | None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Packed).decode


def pack(envelope: Envelope) -> bytes:
    """Return the stored form of a message. It omits the project, because a log has one project."""
    # A tuple in the order of `_Packed` encodes to the same bytes in half the time.
    return _encode(
        (
            _FORMAT,
            envelope.id,
            envelope.data,
            envelope.group,
            envelope.headers,
            envelope.not_before_ms,
            envelope.cause,
            envelope.traceparent,
        )
    )


def unpack(packed: bytes, *, project: str) -> Envelope:
    """Return the message from its stored form. Raise ValueError if this release cannot read it."""
    try:
        fields = _decode(packed)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"not an envelope: {error}") from error
    if fields.format != _FORMAT:
        raise ValueError(f"an envelope of format {fields.format}, which this release cannot read")
    return Envelope(
        id=fields.id,
        project=project,
        data=fields.data,
        group=fields.group,
        headers=fields.headers,
        not_before_ms=fields.not_before_ms,
        cause=fields.cause,
        traceparent=fields.traceparent,
    )


# -- Limits ----------------------------------------------------------------------------------


def check_message(envelope: Envelope, target: MessageTarget, *, bytes_max: int) -> int:
    """Return the size of a message. Raise InvalidInputError if it exceeds a limit.

    The caller has checked each header with `check_header_name` and `check_header_value`.
    """
    if envelope.group is not None:
        check_key(envelope.group, field="group")
    elif target.grouped:
        raise GroupRequiredError(
            f"Topic '{target.name}' is grouped, and the message has no group.",
            field="group",
        )
    if len(envelope.headers) > HEADERS_MAX:
        raise TooLargeError(
            f"The message has {len(envelope.headers)} headers; the limit is {HEADERS_MAX}.",
            field="headers",
        )
    check_key(envelope.id, field="id")
    if envelope.cause is not None:
        check_key(envelope.cause, field="cause")
    size = message_bytes(envelope)
    if size > bytes_max:
        raise TooLargeError(
            f"The message has {size:,} bytes; the limit is {bytes_max:,}.", field="data"
        )
    return size


def message_bytes(envelope: Envelope) -> int:
    """Return the size of a message in bytes: payload, id, group and headers in UTF-8."""
    text = envelope.id + envelope.group if envelope.group is not None else envelope.id
    for name, value in envelope.headers:
        text += name + value
    return len(envelope.data) + (len(text) if text.isascii() else len(text.encode()))


def check_key(value: str, *, field: str) -> str:
    """Return an id, group or cause.

    Raise InvalidInputError if it is empty, too long, or contains control characters.
    """
    if not 0 < len(value) <= KEY_CHARACTERS_MAX:
        raise InvalidInputError(
            f"{field} must have 1 to {KEY_CHARACTERS_MAX} characters; it has {len(value)}.",
            field=field,
        )
    if not value.isprintable() and _control(value):
        raise InvalidInputError(f"{field} contains control characters.", field=field)
    return value


def are_plain_keys(values: list[str]) -> bool:
    """Return True if all texts are valid keys and ASCII.

    The length of an ASCII text is also its size in bytes.
    """
    text = "".join(values)
    return (
        text.isascii()
        and text.isprintable()
        and max(map(len, values), default=0) <= KEY_CHARACTERS_MAX
        and all(values)
    )


def is_kept_header(name: str) -> bool:
    """Return True if a message keeps the request header with this lower-case name."""
    if name in _DROPPED or name.startswith(_DROPPED_PREFIX):
        return False
    return name in _KEPT or name.startswith(_KEPT_PREFIXES)


def check_header_name(name: str) -> str:
    """Return a header name in lower case.

    Raise InvalidInputError if the name is invalid or if messages do not keep the header.
    """
    lowered = name.lower()
    if len(lowered) > HEADER_NAME_MAX or not _is_token(lowered):
        raise InvalidInputError(f"{name[:40]!r} is not a valid header name.", field="headers")
    if not is_kept_header(lowered):
        raise InvalidInputError(
            f"Messages do not keep the header {lowered}.",
            field="headers",
            hint="Use a name that starts with x-.",
        )
    return lowered


def check_header_value(value: str, *, field: str) -> str:
    """Return a header value.

    Raise InvalidInputError if it is too long or has control characters.
    """
    if len(value) > HEADER_VALUE_MAX:
        raise TooLargeError(
            f"{field} has {len(value):,} characters; the limit is {HEADER_VALUE_MAX:,}.",
            field=field,
        )
    if not value.isprintable() and _control_except_tab(value):
        raise InvalidInputError(f"{field} contains control characters.", field=field)
    return value


def check_time_ms(value: int, *, field: str) -> int:
    """Return a time in milliseconds since 1970. Raise InvalidInputError above the year 9999."""
    if not 0 <= value <= _MS_MAX:
        raise InvalidInputError(
            f"{field} must be milliseconds since 1970, up to the year 9999.", field=field
        )
    return value


def parse_time_ms(text: str, *, field: str) -> int:
    """Parse milliseconds since 1970 or an RFC 3339 time. Return milliseconds since 1970."""
    if text.isascii() and text.isdigit() and len(text) <= 15:
        return check_time_ms(int(text), field=field)
    try:
        timestamp = msgspec.convert(text, _Timestamp)
    except msgspec.ValidationError as error:
        raise InvalidInputError(
            f"{field} is neither milliseconds since 1970 nor a time such as 2030-01-31T12:00:00Z.",
            field=field,
        ) from error
    return check_time_ms(round(timestamp.timestamp() * 1000), field=field)


def valid_traceparent(text: str | None) -> str | None:
    """Return the trace context. Return None if it is invalid, so that the message is accepted."""
    return text if text is not None and _is_traceparent(text) else None


# -- Content types ---------------------------------------------------------------------------


def content_type_of(headers: Headers) -> str | None:
    """Return the value of the header `content-type` of a message. Return None if it is missing."""
    for name, value in headers:
        if name == "content-type":
            return value
    return None


def media_type_of(content_type: str) -> str:
    """Return the media type of a content type, in lower case and without parameters."""
    return content_type.partition(";")[0].strip().lower()


@lru_cache(maxsize=256)
def is_json_type(content_type: str) -> bool:
    """Return True if the content type is a JSON type."""
    media_type = media_type_of(content_type)
    return media_type in ("application/json", "text/json") or media_type.endswith("+json")
