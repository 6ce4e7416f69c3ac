"""Items of the outbox: what is to be sent, what was claimed, and what became of a claim."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import msgspec


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to send. Where to is the endpoint's affair, unless it leaves that to the item."""

    url: str = ""
    method: str = "POST"
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""


class Claimed(msgspec.Struct, frozen=True, gc=False):
    """An item that is ours for a while."""

    id: str
    #: As it was added; its endpoint can read it.
    packed: bytes
    #: 1 for the first.
    attempt: int
    token: str


@dataclass(frozen=True)
class Claim:
    """What one look at a lane brought."""

    items: list[Claimed]
    #: Until something is due in the lane; -1: nothing waits.
    next_ms: int
    waiting: int
    failed: int
    #: Items that found no room, over the life of the lane.
    dropped: int
    #: Failures that somebody has to be told of, by us.
    untold: list[str]


encode_item = msgspec.msgpack.Encoder().encode
_decode_item = msgspec.msgpack.Decoder(Item).decode


def decode_item(packed: bytes) -> Item | None:
    """What `Outbox.add` was given; None when it cannot be read."""
    try:
        return _decode_item(packed)
    except msgspec.MsgspecError:
        return None


class Settled(IntEnum):
    """What a settlement has done."""

    NOT_OURS = 0  # nothing: the claim had passed to another, or the item was taken back
    SETTLED = 1
    NEWER = 2  # and something newer of the item is due now, so nothing was given up
