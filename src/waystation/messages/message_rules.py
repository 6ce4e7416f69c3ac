"""What a message may be: bounds of its id, group, headers and size, and which headers it keeps.

Every way in goes through here, so a message that is in a log has kept these rules. An error names
the field; whoever reads a batch adds the position.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Protocol

import msgspec

from waystation.errors import GroupRequiredError, InvalidInputError, TooLargeError
from waystation.messages.envelope import Envelope, Headers
from waystation.runtime.ids import Identity

#: Ids, groups, causes.
KEY_CHARACTERS_MAX = 100
#: Payload, id, group and headers together, unless the settings say another.
MESSAGE_BYTES_MAX = 5 * 1_048_576
MESSAGES_MAX = 1000
HEADERS_MAX = 100
HEADER_NAME_MAX = 100
HEADER_VALUE_MAX = 8192
#: The end of the year 9999.
_MS_MAX = 253_402_300_799_999
ID_BYTES = 16

#: A message keeps these of its request's headers: what it is, where it belongs in a trace …
_KEPT = frozenset({"baggage", "content-encoding", "content-language", "content-type", "tracestate"})
#: … and what applications and CloudEvents add.
_KEPT_PREFIXES = ("x-", "ce-")
#: But never what opens doors, or tells of the way that the request took.
_NOT_KEPT = frozenset(
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
_NOT_KEPT_PREFIX = "x-forwarded-"

_is_token = re.compile(r"[0-9a-z!#$%&'*+.^_`|~-]+").fullmatch
_control = re.compile(r"[\x00-\x1f\x7f-\x9f]").search
_control_but_tab = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]").search
_is_traceparent = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}").fullmatch
_Moment = Annotated[datetime, msgspec.Meta(tz=True)]


class MessageTarget(Protocol):
    """The topic or pool that messages are sent to, as far as a message depends on it."""

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
        """Whether each message must have a group."""
        ...


def is_kept(name: str) -> bool:
    """Whether a message keeps a header of this name, which is in lower case."""
    if name in _NOT_KEPT or name.startswith(_NOT_KEPT_PREFIX):
        return False
    return name in _KEPT or name.startswith(_KEPT_PREFIXES)


def check_header_name(name: str) -> str:
    """The name in lower case; an error for one that is not kept."""
    lowered = name.lower()
    if len(lowered) > HEADER_NAME_MAX or not _is_token(lowered):
        raise InvalidInputError(f"{name[:40]!r} is no header name.", field="headers")
    if not is_kept(lowered):
        raise InvalidInputError(
            f"Messages do not keep a header {lowered}.",
            field="headers",
            hint="Call it x-… to have it kept.",
        )
    return lowered


def check_header_value(value: str, *, field: str) -> str:
    """The value, if it has no control characters but tabs and is not too long."""
    if len(value) > HEADER_VALUE_MAX:
        raise TooLargeError(f"{field} has more than {HEADER_VALUE_MAX} characters.", field=field)
    if not value.isprintable() and _control_but_tab(value):
        raise InvalidInputError(f"{field} has control characters.", field=field)
    return value


def check_key(value: str, *, field: str) -> str:
    """An id, group or cause, if it can be one."""
    if not 0 < len(value) <= KEY_CHARACTERS_MAX:
        raise InvalidInputError(
            f"{field} must have 1 to {KEY_CHARACTERS_MAX} characters, and has {len(value)}.",
            field=field,
        )
    if not value.isprintable() and _control(value):
        raise InvalidInputError(f"{field} has control characters.", field=field)
    return value


def is_plain_key(value: str) -> bool:
    """Whether it is an id or group without doubt, and has as many bytes as characters."""
    return 0 < len(value) <= KEY_CHARACTERS_MAX and value.isascii() and value.isprintable()


def check_ms(value: int, *, field: str) -> int:
    """A time in milliseconds since 1970; one that has passed is fine, and means at once."""
    if not 0 <= value <= _MS_MAX:
        raise InvalidInputError(
            f"{field} must be milliseconds since 1970, up to the year 9999.", field=field
        )
    return value


def read_moment(text: str, *, field: str) -> int:
    """Milliseconds since 1970, from such a number or from a time as in RFC 3339."""
    if text.isascii() and text.isdigit() and len(text) <= 15:
        return check_ms(int(text), field=field)
    try:
        moment = msgspec.convert(text, _Moment)
    except msgspec.ValidationError as error:
        raise InvalidInputError(
            f"{field} is neither milliseconds since 1970 nor a time such as 2030-01-31T12:00:00Z.",
            field=field,
        ) from error
    return check_ms(round(moment.timestamp() * 1000), field=field)


def read_traceparent(text: str | None) -> str | None:
    """A trace context, or None for what is none: tracing must not stop a message."""
    return text if text is not None and _is_traceparent(text) else None


def make_envelope(
    target: MessageTarget,
    identity: Identity,
    *,
    data: bytes,
    id: str | None = None,  # noqa: A002
    group: str | None = None,
    headers: Headers = (),
    not_before_ms: int = 0,
    cause: str | None = None,
    traceparent: str | None = None,
) -> Envelope:
    """A message for a topic. Headers were checked one by one."""
    envelope = Envelope(
        id=identity.token(ID_BYTES) if id is None else id,
        project=target.project,
        data=data,
        group=group,
        headers=headers,
        not_before_ms=not_before_ms,
        cause=cause,
        traceparent=traceparent,
    )
    check_message(target, envelope)
    return envelope


def check_message(target: MessageTarget, envelope: Envelope) -> None:
    """Raises what is wrong with a message for a target, but for its headers and its size."""
    if envelope.group is not None:
        check_key(envelope.group, field="group")
    elif target.grouped:
        raise GroupRequiredError(
            f"Topic {target.name} is grouped: every message needs a group.",
            field="group",
            hint="Send waystation-group, in a batch `group`, in a CloudEvent `partitionkey`.",
        )
    if len(envelope.headers) > HEADERS_MAX:
        raise TooLargeError(f"A message has at most {HEADERS_MAX} headers.", field="headers")
    check_key(envelope.id, field="id")
    if envelope.cause is not None:
        check_key(envelope.cause, field="cause")


def size_of(envelope: Envelope) -> int:
    """What a message counts for: UTF-8 bytes of its id, group and headers, and its payload."""
    text = envelope.id + envelope.group if envelope.group is not None else envelope.id
    for name, value in envelope.headers:
        text += name + value
    return len(envelope.data) + (len(text) if text.isascii() else len(text.encode()))


def check_size(envelope: Envelope, most: int) -> int:
    """Its size, if that is allowed."""
    size = size_of(envelope)
    if size > most:
        raise TooLargeError(
            f"A message has at most {most} bytes, and this one {size}.", field="data"
        )
    return size
