"""Messages of a channel, acknowledgement handles, and the keys and terms of a resolved channel."""

from __future__ import annotations

import binascii
import math
import re
import struct
from binascii import a2b_base64, b2a_base64, crc32

import msgspec

from waystation.channels import keys
from waystation.channels.rules import ChannelTerms
from waystation.errors import AckHandleMalformedError
from waystation.runtime.json_text import is_json_of_any_bytes

#: Largest clock: the largest integer that Lua represents exactly. The next clock is `CLOCK_MIN`.
CLOCK_MAX = 2**53 - 1
CLOCK_MIN = -CLOCK_MAX
#: Added to the expiry, so that a message still exists when a slow client acknowledges it.
EXPIRY_MARGIN_S = 15

_match_integer = re.compile(rb"-?[0-9]{1,16}").fullmatch


def clock_before(clock: int, steps: int) -> int:
    """Return the clock that is `steps` before `clock`; before `CLOCK_MIN` comes `CLOCK_MAX`."""
    earlier = clock - steps
    return earlier if earlier >= CLOCK_MIN else earlier + 2 * CLOCK_MAX + 1


def is_clock(value: bytes) -> bool:
    """Return True if a stored value is a clock: an integer from `CLOCK_MIN` to `CLOCK_MAX`."""
    return _match_integer(value) is not None and abs(int(value)) <= CLOCK_MAX


# -- Messages --------------------------------------------------------------------------------


class Message(msgspec.Struct, frozen=True):
    """A stored message."""

    id: str
    #: JSON, byte for byte as it was published.
    content: msgspec.Raw


class Published(msgspec.Struct, frozen=True):
    """The result of publishing one message."""

    #: Clock of the message. A duplicate has the clock of the first message with this id. 0: not
    #: stored, because the channel is full.
    clock: int
    #: True if the channel already had a message with this id. The stored content is unchanged.
    duplicate: bool
    #: True if the message was refused because the backlog of the channel is full.
    full: bool = False


class Fetched(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a fetch."""

    messages: list[Message]
    #: True if the channel has unread messages after the returned ones.
    more: bool
    #: Number of messages that expired unread, up to the last returned one.
    expired: int
    #: Clock of the last returned message, for its acknowledgement; None without messages.
    last: int | None


class StreamRead(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one read of a stream."""

    #: Messages with their clocks, in order.
    messages: list[tuple[int, Message]]
    #: Number of messages that expired unread before the first returned one.
    lost: int
    #: True if the channel has messages after the returned ones.
    more: bool


#: The form that `encode_message` and DSPS write.
_match_stored_form = re.compile(rb'\{"id":"([0-9a-z_-]+)","content":(.*)\}', re.DOTALL).fullmatch
_decode_message = msgspec.json.Decoder(Message).decode


def encode_message(message_id: str, content: bytes) -> bytes:
    """Return the stored form of a message. The caller has checked that `content` is JSON."""
    return b'{"id":"%b","content":%b}' % (message_id.encode(), content)


def decode_message(body: bytes) -> Message | None:
    """Return a stored message, or None if the body does not have the form of a message.

    Accept lone surrogates and invalid UTF-8 in the content, because DSPS stores them.
    """
    try:
        return _decode_message(body)
    except RecursionError:
        # The nesting that the decoder accepts depends on the depth of the stack. The content was
        # accepted when it was published, so that its form is enough here.
        found = _match_stored_form(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        found = _match_stored_form(body)
        if found is not None and not is_json_of_any_bytes(found.group(2)):
            return None
    return Message(found.group(1).decode(), msgspec.Raw(found.group(2))) if found else None


# -- Acknowledgement handles -----------------------------------------------------------------

#: DSPS can write to several storages. Waystation has one, under the default name of DSPS.
_STORAGE = "default"
_CHECKSUM_TAG = "dsps.storage.redis"


class _HandleContent(msgspec.Struct):
    clk: int
    xs: str


_pack_clock = struct.Struct(">q").pack
_decode_storages = msgspec.json.Decoder(dict[str, str]).decode
_decode_content = msgspec.json.Decoder(_HandleContent).decode


def encode_handle(channel: str, subscriber: str, clock: int) -> str:
    r"""Return the handle that acknowledges all messages up to `clock`, in the format of DSPS.

    A handle is the base64 of `{"default": "{\"clk\":…,\"xs\":…}"}`. It needs no escaping in a URL.
    """
    checksum = _checksum(channel, subscriber, clock)
    content = f'{{\\"clk\\":{clock},\\"xs\\":\\"{checksum}\\"}}'
    return b2a_base64(f'{{"{_STORAGE}":"{content}"}}'.encode(), newline=False).decode()


def decode_handle(channel: str, subscriber: str, handle: str) -> int | None:
    """Return the clock of a handle; None if the handle is for other storages only.

    Raise AckHandleMalformedError if the handle is invalid or belongs to another subscriber. The
    checksum only detects mistakes: the store decides whether the cursor may move to the clock.
    """
    try:
        storages = _decode_storages(a2b_base64(handle, strict_mode=True))
        if _STORAGE not in storages:
            return None
        content = _decode_content(storages[_STORAGE])
    except (binascii.Error, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise AckHandleMalformedError("The acknowledgement handle is not valid.") from error
    if abs(content.clk) > CLOCK_MAX or content.xs != _checksum(channel, subscriber, content.clk):
        raise AckHandleMalformedError(
            f"The acknowledgement handle does not belong to subscriber '{subscriber}' of channel"
            f" '{channel}'."
        )
    return content.clk


def _checksum(channel: str, subscriber: str, clock: int) -> str:
    text = f"{_CHECKSUM_TAG}\0{channel}\0{subscriber}\0".encode() + _pack_clock(clock)
    # Four bytes are six base64 characters and two of padding, which DSPS leaves out.
    return b2a_base64(crc32(text).to_bytes(4, "big"))[:6].decode()


# -- Resolved channels -----------------------------------------------------------------------


class ResolvedChannel:
    """The keys of a channel and the terms that its rules give it.

    Immutable except for `webhook_queues`. The service caches one per channel, because building the
    keys costs more than the rest of a publish.
    """

    __slots__ = (
        "clock_key",
        "cursor_prefix",
        "dedup_prefix",
        "item_prefix",
        "message_prefix",
        "name",
        "project",
        "pubsub_topic",
        "terms",
        "ttl_s",
        "webhook_queues",
    )

    def __init__(self, project: str, name: str, terms: ChannelTerms) -> None:
        self.project = project
        self.name = name
        self.terms = terms
        tag = keys.channel_tag(project, name)
        self.clock_key = keys.clock(tag)
        #: Followed by the name of a subscriber.
        self.cursor_prefix = keys.cursor(tag, "")
        #: Followed by a message id.
        self.dedup_prefix = keys.message_id(tag, "")
        #: Followed by a clock.
        self.message_prefix = keys.message_prefix(tag)
        #: Prefix of outbox item names, followed by a message id. It contains the project, because
        #: two projects can have channels and messages of the same name.
        self.item_prefix = f"{tag[1:-1]}."
        self.pubsub_topic = keys.pubsub_topic(tag)
        #: Expiry of the channel's keys after their last use.
        self.ttl_s = math.ceil(terms.expire_seconds + EXPIRY_MARGIN_S)
        #: Outbox queues of the webhooks; None until the first publish has checked their addresses.
        self.webhook_queues: list[str] | None = None
