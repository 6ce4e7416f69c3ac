"""What passes through a channel, and the results of its verbs."""

from __future__ import annotations

import re

import msgspec

from waystation.runtime.json_text import is_json_of_any_bytes


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


#: What `encode_message` and DSPS make.
_own_form = re.compile(rb'\{"id":"([0-9a-z_-]+)","content":(.*)\}', re.DOTALL).fullmatch
_decode_message = msgspec.json.Decoder(Message).decode


def decode_message(body: bytes) -> Message | None:
    """Return a stored message, its content byte for byte.

    DSPS stores lone surrogates and invalid UTF-8; a message with them is a message. Return None if
    the body is not JSON of this form: another program wrote it.
    """
    try:
        return _decode_message(body)
    except RecursionError:
        # How deep JSON may be depends on the stack, which was not as full when this was accepted.
        own = _own_form(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        own = _own_form(body)
        if own is not None and not is_json_of_any_bytes(own.group(2)):
            return None
    return Message(own.group(1).decode(), msgspec.Raw(own.group(2))) if own else None


def encode_message(message_id: str, content: bytes) -> bytes:
    """The stored form. `content` must be JSON already; the id is a name and needs no escaping."""
    return b'{"id":"%b","content":%b}' % (message_id.encode(), content)
