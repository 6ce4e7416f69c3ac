"""Positions: where in its topic a message is, and where in a shard, as the scripts name it.

A member is what the sets of a shard hold: `m<storage number>.<partition>.<offset>` is a message of
the topic itself, `r<number>.<tries>` one in retry, `d<number>.<tries>` a dead letter. `f<number>`
says that the group whose next one in retry has that number is to follow into dead letters.
"""

from __future__ import annotations

from typing import Literal

import msgspec

MemberKind = Literal["m", "r", "d", "f"]


class Position(msgspec.Struct, frozen=True, order=True, gc=False):
    """A message of a topic, as one incarnation of a subscription reads it."""

    incarnation: int
    #: The number of the storage topic, not its index.
    storage: int
    partition: int
    offset: int

    @property
    def at(self) -> str:
        """Its partition, as the scripts name it."""
        return at_of(self.storage, self.partition)

    @property
    def member(self) -> str:
        """What the sets of a shard call it."""
        return f"m{self.storage}.{self.partition}.{self.offset}"


def at_of(storage: int, partition: int) -> str:
    """A partition of a storage topic, as the scripts name it."""
    return f"{storage}.{partition}"


def parse_at(at: str) -> tuple[int, int]:
    """Number of the storage topic and partition; ValueError for what is neither."""
    storage, _, partition = at.partition(".")
    return int(storage), int(partition)


def retry_member(number: int, tries: int) -> str:
    """What the sets of a shard call a message in retry."""
    return f"r{number}.{tries}"


def dead_member(number: int, tries: int) -> str:
    """What the sets of a shard call a dead letter that is due."""
    return f"d{number}.{tries}"


class Member(msgspec.Struct, frozen=True):
    """A member, read; of `m` the number is the offset, and `at` the partition."""

    kind: MemberKind
    number: int
    tries: int = 0
    at: str = ""


def parse_member(member: str) -> Member:
    """Reads a member; ValueError for what is none."""
    kind, words = member[:1], member[1:].split(".")
    if kind == "m" and len(words) == 3:
        return Member("m", int(words[2]), at=f"{int(words[0])}.{int(words[1])}")
    if kind == "f" and len(words) == 1:
        return Member("f", int(words[0]))
    if kind == "r" and len(words) == 2:
        return Member("r", int(words[0]), int(words[1]))
    if kind == "d" and len(words) == 2:
        return Member("d", int(words[0]), int(words[1]))
    raise ValueError(f"not a member of a shard's sets: {member[:80]!r}")
