"""Store keys of channels. They equal the keys of DSPS, so that its data sets stay usable.

All keys of a channel contain its hash tag (`channel_tag`), so one script can change all of them.
"""

from __future__ import annotations

import hashlib

from waystation.delivery.keys import channel_of_lane, channel_tag, outbox_lane

__all__ = [
    "channel_of_lane",
    "channel_tag",
    "clock",
    "cursor",
    "message_id",
    "message_prefix",
    "outbox_lane",
    "pubsub_topic",
    "token_revocation",
]

#: Longer token ids are stored as their hash.
_TOKEN_ID_CHARS_MAX = 256


def clock(tag: str) -> str:
    """Return the key of a channel's clock."""
    return f"c.{tag}.clock"


def cursor(tag: str, subscriber: str) -> str:
    """Return the key of a subscriber's cursor."""
    return f"c.{tag}.r.{subscriber}"


def message_prefix(tag: str) -> str:
    """Return the prefix of message keys. Scripts append the clock."""
    return f"c.{tag}.m."


def message_id(tag: str, message_id: str) -> str:
    """Return the key of a message's deduplication entry."""
    return f"c.{tag}.mid.{message_id}"


def pubsub_topic(tag: str) -> str:
    """Return the pub/sub topic that wakes the long polls of a channel."""
    return f"dsps.c.{tag}"


def token_revocation(token_id: str) -> str:
    """Return the key that marks a token as revoked. A long token id is replaced by its hash."""
    if len(token_id) > _TOKEN_ID_CHARS_MAX:
        token_id = f"sha256:{hashlib.sha256(token_id.encode()).hexdigest()}"
    return f"jwt.{{{token_id}}}.revoke"
