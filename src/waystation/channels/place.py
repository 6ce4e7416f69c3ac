"""The place of one channel in the store: the names of its keys, and the terms that hold for it.

Names are put together once and kept, since the same few channels are used over and over.
"""

from __future__ import annotations

import math

from waystation.channels.rules import Terms
from waystation.store import keys

#: Kept beyond the expiry, so that what a slow client was just told of is still there (seed 002).
TTL_MARGIN_SECONDS = 15


class Place:
    """Names and terms of one channel."""

    __slots__ = ("channel", "clock", "cursors", "ids", "messages", "tag", "terms", "topic", "ttl")

    def __init__(self, project: str, channel: str, terms: Terms) -> None:
        self.channel = channel
        self.terms = terms
        self.tag = tag = keys.channel_tag(project, channel)
        self.clock = keys.channel_clock(tag)
        #: Prefixes; a subscriber, a message id or a clock follows.
        self.cursors = keys.channel_cursor(tag, "")
        self.ids = keys.channel_message_id(tag, "")
        self.messages = keys.channel_message_prefix(tag)
        self.topic = keys.channel_topic(tag)
        #: Seconds that a key of the channel lives after its last use.
        self.ttl = math.ceil(terms.expire_seconds + TTL_MARGIN_SECONDS)
