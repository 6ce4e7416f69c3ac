"""The place of one channel in the store: the names of its keys, and the terms that hold for it.

Names are put together once and kept, since the same few channels are used over and over.
"""

from __future__ import annotations

import math

from waystation.channels import keys
from waystation.channels.rules import Terms

#: Kept beyond the expiry, so that what a slow client was just told of is still there.
TTL_MARGIN_SECONDS = 15


class Place:
    """Names and terms of one channel."""

    __slots__ = (
        "channel",
        "clock",
        "cursors",
        "ids",
        "items",
        "lanes",
        "messages",
        "tag",
        "terms",
        "topic",
        "ttl",
    )

    def __init__(self, project: str, channel: str, terms: Terms) -> None:
        self.channel = channel
        self.terms = terms
        self.tag = tag = keys.channel_tag(project, channel)
        self.clock = keys.clock(tag)
        #: Prefixes; a subscriber, a message id or a clock follows.
        self.cursors = keys.cursor(tag, "")
        self.ids = keys.message_id(tag, "")
        self.messages = keys.message_prefix(tag)
        #: What the ids of items begin with: two projects may use one name.
        self.items = f"{tag[1:-1]}."
        self.topic = keys.pubsub_topic(tag)
        #: Lanes of its webhooks, once they were found to lead to allowed addresses.
        self.lanes: list[str] | None = None
        #: Seconds that a key of the channel lives after its last use.
        self.ttl = math.ceil(terms.expire_seconds + TTL_MARGIN_SECONDS)
