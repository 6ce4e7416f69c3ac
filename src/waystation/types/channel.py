"""Channels and subscribers as the API returns them."""

from __future__ import annotations

from typing import Literal

import msgspec


class Channel(msgspec.Struct, frozen=True, kw_only=True):
    """A channel."""

    name: str
    #: Clock (sequence number) of the newest message; 0 before the first one.
    clock: int
    #: Seconds until the channel expires unless it is used.
    expires_s: float


class Subscriber(msgspec.Struct, frozen=True, kw_only=True):
    """A subscriber of a channel."""

    name: str
    #: Clock (sequence number) of the last message that the subscriber acknowledged.
    cursor: int
    #: Number of messages that the subscriber has not acknowledged, including expired ones.
    lag: int
    #: Seconds until the subscriber expires unless it fetches or acknowledges.
    expires_s: float


class Sought(msgspec.Struct, frozen=True, kw_only=True):
    """The position of a subscriber after a seek."""

    cursor: int
    #: Number of messages from the cursor to the clock of the channel.
    unread: int


class ChannelPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of channels."""

    channels: list[Channel]
    #: Cursor of the next page; empty on the last page.
    cursor: str


class SubscriberPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of subscribers."""

    subscribers: list[Subscriber]
    #: Cursor of the next page; empty on the last page.
    cursor: str


class PublishedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one message of a batch."""

    id: str
    #: `duplicate`: the channel already had a message with this id, whose content it keeps. `full`:
    #: the message was refused because the backlog of the channel is full.
    outcome: Literal["accepted", "duplicate", "full"]
    #: Clock of the message; None if it was refused.
    clock: int | None


class PublishedMessages(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a batch, in the order of its messages."""

    messages: list[PublishedMessage]
