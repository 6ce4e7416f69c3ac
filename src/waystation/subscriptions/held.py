"""What goes into the scripts of a shard's owner, and what comes back."""

from __future__ import annotations

from typing import Literal

import msgspec

from waystation.subscriptions.positions import parse_member
from waystation.subscriptions.states import GroupState, Verdict


class Settlement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One item of a commit: what came of a message."""

    #: `m…`, `r…` or `d…`; see `positions.py`.
    member: str
    #: Empty: it keeps no order.
    group: str
    verdict: Verdict
    #: With `again`: until the next attempt. With `late`: when it is due, by the store's clock.
    wait_ms: int = 0
    #: That of its take; `-`: it is the owner's own.
    token: str = "-"  # noqa: S105
    #: As it is to be kept (`record.py`); empty where nothing new is.
    record: bytes = b""
    #: For the record log (`log_entry.py`), msgpack.
    detail: bytes = b""


class Head(msgspec.Struct, frozen=True, gc=False):
    """A message that is to be attempted, or moved; it is the caller's from here on."""

    member: str
    group: str
    record: bytes

    @property
    def tries(self) -> int:
        """Attempts that were counted so far."""
        return parse_member(self.member).tries

    @property
    def follow(self) -> bool:
        """Whether its group is to follow into dead letters, without an attempt."""
        return self.member.startswith("f")


class Settled(msgspec.Struct, frozen=True, gc=False):
    """What came of one item of a commit."""

    #: `known`: it was settled before, by this very commit or by an operation.
    outcome: Literal["done", "known", "lease_lost"]
    #: Of its group; clean for what has none.
    state: GroupState
    #: The next of its group, taken for the caller.
    next: Head | None


class Committed(msgspec.Struct, frozen=True):
    """What came of a commit."""

    log_end: int
    retry_bytes: int
    dead_bytes: int
    items: list[Settled]


class Opened(msgspec.Struct, frozen=True):
    """A shard as its new owner finds it; by partitions (`positions.at_of`)."""

    now_ms: int
    log_end: int
    incarnation: int
    #: All below is acknowledged.
    low: dict[str, int]
    #: What is acknowledged above that.
    acks: dict[str, list[int]]
    retry_bytes: int
    dead_bytes: int


class Due(msgspec.Struct, frozen=True):
    """What is due."""

    now_ms: int
    log_end: int
    #: Until the next is due; -1: nothing waits.
    next_ms: int
    heads: list[Head]


class Offered(msgspec.Struct, frozen=True):
    """What other workers have to do, and what came of what they did."""

    #: How many wait to be taken.
    ready: int
    #: How many endings there were before those told here.
    seen: int
    #: Member, and the state that it left its group in.
    ended: list[tuple[str, GroupState]]
