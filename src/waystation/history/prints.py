"""The print of an entry: what tells it apart from another that has got the same offset."""

from __future__ import annotations

import xxhash

#: A mark has no more than this.
_BITS = 63


def print_of(ms: int, payload: bytes) -> int:
    """The print of an entry; never 0, which stands for none."""
    return (xxhash.xxh64_intdigest(b"%d:%b" % (ms, payload)) >> (64 - _BITS)) or 1
