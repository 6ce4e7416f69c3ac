"""Channel model: messages, acknowledgement handles and resolved channels.

The *clock* of a channel counts its messages. Each message has the clock at which it was published.
"""

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
from waystation.logs.records import RecordLogs, log_key
from waystation.runtime.json_text import is_json_of_any_bytes

#: Largest clock: the largest integer that Lua represents exactly. The next clock is `CLOCK_MIN`.
CLOCK_MAX = 2**53 - 1
CLOCK_MIN = -CLOCK_MAX
#: Seconds added to the expiry of a channel, so that slow clients can still acknowledge a message.
EXPIRY_MARGIN_S = 15

_match_integer = re.compile(rb"-?[0-9]{1,16}").fullmatch


def clock_before(clock: int, steps: int) -> int:
    """Return the clock that is `steps` before `clock`.

    `CLOCK_MAX` is the one before `CLOCK_MIN`.
    """
    earlier = clock - steps
    return earlier if earlier >= CLOCK_MIN else earlier + 2 * CLOCK_MAX + 1


def is_clock(value: bytes) -> bool:
    """Return True if a stored value is a clock: an integer from `CLOCK_MIN` to `CLOCK_MAX`."""
    return _match_integer(value) is not None and abs(int(value)) <= CLOCK_MAX


# -- Messages --------------------------------------------------------------------------------


class Message(msgspec.Struct, frozen=True):
    """A message of a channel, as it is stored."""

    id: str
    #: JSON, byte for byte as it was published.
    content: msgspec.Raw


class Published(msgspec.Struct, frozen=True):
    """Result of publishing one message."""

    #: Clock of the message. A duplicate has the clock of the first message with this id. 0: not
    #: stored, because the channel is full.
    clock: int
    #: True if the channel has a message with this id already. Its content stays unchanged.
    duplicate: bool
    #: True if the message was rejected because the backlog of the channel is full.
    full: bool = False


class Fetched(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a fetch."""

    messages: list[Message]
    #: True if the channel has unread messages after the returned ones.
    more: bool
    #: Number of unread messages that expired, up to the last returned one.
    expired: int
    #: Clock of the last returned message, for its acknowledgement; None without messages.
    last: int | None


class StreamRead(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one read of a stream."""

    #: (clock, message) in the order of the clocks.
    messages: list[tuple[int, Message]]
    #: Number of messages that the subscriber missed: expired before the first returned one, or
    #: unreadable.
    lost: int
    #: True if the channel has messages after the returned ones.
    more: bool


#: Matches the form of a message that `encode_message` and DSPS write.
_match_stored_form = re.compile(rb'\{"id":"([0-9a-z_-]+)","content":(.*)\}', re.DOTALL).fullmatch
_decode_message = msgspec.json.Decoder(Message).decode


def encode_message(message_id: str, content: bytes) -> bytes:
    """Return the stored form of a message. The caller has checked that `content` is JSON."""
    return b'{"id":"%b","content":%b}' % (message_id.encode(), content)


def decode_message(body: bytes) -> Message | None:
    """Decode a stored message. Return None if the body is not a message.

    Accept lone surrogates and invalid UTF-8 in the content, because DSPS stores them.
    """
    try:
        return _decode_message(body)
    except RecursionError:
        # The content is deeply nested, and the decoder has less stack here than at the publish.
        # Check only the outer form, because the publish has checked the content.
        found = _match_stored_form(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        found = _match_stored_form(body)
        if found is not None and not is_json_of_any_bytes(found.group(2)):
            return None
    return Message(found.group(1).decode(), msgspec.Raw(found.group(2))) if found else None


# -- Acknowledgement handles -----------------------------------------------------------------

#: DSPS can write to several storages. Waystation has one, with the name that DSPS uses by default.
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
    """Return the clock of a handle.

    Return None if the handle has clocks only for storages other than `default`. A DSPS server with
    several storages writes such handles.

    Raise AckHandleMalformedError if the handle is invalid or belongs to another subscriber. The
    checksum detects mistakes but is not a signature. The store checks the clock.
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
    # Drop the two characters of padding, because DSPS omits them.
    return b2a_base64(crc32(text).to_bytes(4, "big"))[:6].decode()


# -- Resolved channels -----------------------------------------------------------------------


class ResolvedChannel:
    """A channel with its keys, and with the terms from the channel rules.

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
        "record_argument",
        "record_key",
        "record_log",
        "subscriber_record_key",
        "terms",
        "ttl_s",
        "webhook_queues",
    )

    def __init__(
        self, project: str, name: str, terms: ChannelTerms, records: RecordLogs | None = None
    ) -> None:
        self.project = project
        self.name = name
        self.terms = terms
        tag = keys.channel_tag(project, name)
        self.clock_key = keys.clock(tag)
        #: Prefix of cursor keys. The name of a subscriber follows.
        self.cursor_prefix = keys.cursor(tag, "")
        #: Prefix of deduplication keys. A message id follows.
        self.dedup_prefix = keys.message_id(tag, "")
        #: Prefix of message keys. A clock follows.
        self.message_prefix = keys.message_prefix(tag)
        #: Prefix of the names of outbox items. A message id follows. The prefix has the project,
        #: because two projects can have channels and messages with the same names.
        self.item_prefix = f"{tag[1:-1]}."
        self.pubsub_topic = keys.pubsub_topic(tag)
        #: Seconds without use after which the keys of the channel expire.
        self.ttl_s = math.ceil(terms.expire_seconds + EXPIRY_MARGIN_S)
        #: Record log of the channel; empty: its events are not recorded.
        self.record_log = records.log_of("channels", tag) if records else ""
        #: Key of the record log's stream; empty: no record log.
        self.record_key = log_key(self.record_log) if records else ""
        #: Key of the record log for events of subscribers; empty if none are recorded.
        self.subscriber_record_key = "" if terms.record == "none" else self.record_key
        #: Argument of the scripts that append to the record log: the recording policy and the names
        #: of project and channel. Empty if the service has no record logs.
        self.record_argument = records.argument(terms.record, project, name) if records else b""
        #: Outbox queues of the webhooks; None until the first publish has checked their addresses.
        self.webhook_queues: list[str] | None = None
