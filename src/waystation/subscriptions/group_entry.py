"""The entry of a group that is not clean, as the scripts of a shard keep it: a line of words."""

from __future__ import annotations

import msgspec

from waystation.subscriptions.states import GroupState


class GroupEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored for a group."""

    #: How many are in retry and among dead letters, and the number of the first.
    retry: int
    retry_head: int
    dead: int
    dead_head: int
    #: Attempts of the head.
    tries: int
    #: Dead letters up to this number are redriven; None: without end, 0: none.
    upto: int | None
    #: Empty: none.
    operation: str

    @property
    def state(self) -> GroupState:
        """Where the group is; the scripts decide it likewise."""
        if not self.retry and not self.dead:
            return GroupState.CLEAN
        if self.dead and self.upto != 0:
            return GroupState.REDRIVING
        return GroupState.RETRYING if self.retry else GroupState.PARKED

    @property
    def head_name(self) -> str:
        """Queue and number of its head."""
        return f"d{self.dead_head}" if self.dead else f"r{self.retry_head}"


def parse_entry(line: bytes) -> GroupEntry:
    """Reads an entry; ValueError for what is none."""
    words = line.decode().split(" ")
    if len(words) != 11:
        raise ValueError(f"not an entry of a group: {line[:80]!r}")
    return GroupEntry(
        retry_head=int(words[2]),
        retry=int(words[3]),
        dead_head=int(words[6]),
        dead=int(words[7]),
        tries=int(words[8]),
        upto=None if words[9] == "-" else int(words[9]),
        operation="" if words[10] == "0" else words[10],
    )
