"""What passes through a channel, and the results of its verbs."""

from __future__ import annotations

import re

import msgspec


class Message(msgspec.Struct, frozen=True):
    """A message as it lies in the store; the content is kept as raw JSON."""

    id: str
    content: msgspec.Raw


class Published(msgspec.Struct, frozen=True):
    """The result of a publish; a duplicate has the clock of the first."""

    clock: int
    duplicate: bool
    #: Refused: the channel keeps as many messages as it may.
    full: bool = False


class Fetched(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a fetch."""

    messages: list[Message]
    #: Unread messages lie beyond the ones returned.
    more: bool
    #: Messages that expired before this subscriber saw them, up to the last one returned.
    expired: int
    #: Clock of the last message returned; acknowledge up to it. None without messages.
    last: int | None


#: What `encode_message` makes.
_own_form = re.compile(rb'\{"id":"([0-9a-z_-]+)","content":(.*)\}', re.DOTALL).fullmatch
_decode_message = msgspec.json.Decoder(Message).decode
_decode_any = msgspec.json.Decoder().decode


def decode_message(body: bytes) -> Message | None:
    """Reads a stored message; None when it is not one (another program wrote it)."""
    try:
        return _decode_message(body)
    except RecursionError:
        # How deep JSON may be depends on the stack, which was not as full when this was accepted.
        own = _own_form(body)
        return Message(own.group(1).decode(), msgspec.Raw(own.group(2))) if own else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def encode_message(message_id: str, content: bytes) -> bytes:
    """The stored form. `content` must be JSON already; the id is a name and needs no escaping."""
    return b'{"id":"%b","content":%b}' % (message_id.encode(), content)


def is_json(content: bytes) -> bool:
    """Whether `content` is one JSON value, strictly: UTF-8, no NaN, no lone surrogates."""
    try:
        _decode_any(content)
    except msgspec.ValidationError:
        # "Number out of range": 1e999 is JSON all the same, and is passed on as it is.
        return _is_json_with_huge_numbers(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _is_json_with_huge_numbers(content: bytes) -> bool:
    try:
        content.decode()
        msgspec.json.decode(content, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True
