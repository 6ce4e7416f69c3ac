"""The counter of a Parallel, as scripts keep it in the hash of the parent."""

from __future__ import annotations

import msgspec


class Kids(msgspec.Struct, frozen=True, kw_only=True):
    """How far the children of a Parallel are."""

    round: int
    total: int
    #: In order: children 1 to this are there, or were cancelled before they were.
    created: int
    done: int
    policy: str
    #: Number of the child that failed first; 0: none has.
    failed: int = 0


def read_kids(text: bytes) -> Kids | None:
    """Reads the field `kids`; None without one."""
    words = text.decode().split(" ")
    if len(words) < 5:
        return None
    round_, total, created, done = map(int, words[:4])
    failed = int(words[6]) if len(words) > 6 and words[6] != "-" else 0
    return Kids(
        round=round_, total=total, created=created, done=done, policy=words[4], failed=failed
    )
