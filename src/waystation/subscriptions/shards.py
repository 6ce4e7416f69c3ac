"""The shards of a subscription: how many there are, and which partitions each has.

A shard reads a range of partitions of each storage topic of the main topic, and has a range of its
own of the retry topic and of the dead-letter topic. Ranges are those of `topics.routing`: they
cover every partition once, may be uneven, and are empty for some where there are more shards than
partitions. A group stays in its shard over all storage topics of a chain exactly if the number of
shards divides the chain's base; nothing here assumes that it does.

A failed message must not leave its shard, or its group would be in two. The plain router would send
it elsewhere in half of all cases and more, so partitions of retry and dead letters are chosen
within the shard that owns the message.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec

from waystation.errors import InvalidInputError
from waystation.topics.router import (
    Router,
    hash_of,
    is_consistent,
    partitions_of,
    shard_of_partition,
)

#: What a subscription has unless it is told otherwise.
SHARDS_DEFAULT_MAX = 4
#: Each shard has a lease, a record log and a task of its own.
SHARDS_MAX = 1024


class ShardAssignment(msgspec.Struct, frozen=True):
    """What a shard reads of one storage topic."""

    #: Place of the storage topic in the topic's sequence.
    storage: int
    partitions: range


def default_shards(base: int, *, most: int = SHARDS_DEFAULT_MAX) -> int:
    """The largest number of shards up to `most` that divides a chain's base."""
    if base < 1 or most < 1:
        raise ValueError(f"no shards for a base of {base}, and at most {most}")
    return next(count for count in range(min(base, most), 0, -1) if base % count == 0)


def check_shards(shards: int) -> int:
    """The number of shards, if there can be so many; also more than there are partitions."""
    if not 1 <= shards <= SHARDS_MAX:
        raise InvalidInputError(f"A subscription has 1 to {SHARDS_MAX} shards.", field="shards")
    return shards


def assignments(shard: int, spreads: Sequence[Router], shards: int) -> tuple[ShardAssignment, ...]:
    """What a shard reads, storage topic after storage topic; some may have nothing for it."""
    _check_place(shard, shards)
    return tuple(
        ShardAssignment(storage, partitions_of(shard, spread.partitions, shards))
        for storage, spread in enumerate(spreads)
    )


def readable(spreads: Sequence[Router], first: int, shards: int) -> int:
    """Storage topics that may be read one after the other from `first` on: the end of that range.

    Beyond it a group could have another shard: before that all shards must have come so far.
    """
    end = first + 1
    while end < len(spreads) and is_consistent(spreads[first : end + 1], shards):
        end += 1
    return end


def growth_warning(spreads: Sequence[Router], shards: int) -> str | None:
    """Return why a subscription with so many shards will stop; None if it can follow its topic.

    `spreads` are those of the storage topics that it reads, the first one first.
    """
    if shards == 1 or is_consistent(spreads, shards):
        return None
    last, bases = spreads[-1], {each.base for each in spreads}
    steps = itertools.pairwise(spreads)
    stops = any(not is_consistent(step, shards) for step in steps)
    where = "before a storage topic that its topic already has" if stops else "when its topic grows"
    idle = shards - last.partitions
    fitting = [each for each in range(1, min(last.base, SHARDS_MAX) + 1) if not last.base % each]
    advice = (
        "Use 1 shard."
        if len(bases) > 1
        else f"Use a number of shards that divides {last.base}: {', '.join(map(str, fitting))}."
    )
    return (
        f"With {shards} shards on {last.partitions} partitions the subscription stops {where},"
        " because a group could have another shard there. "
        + (f"{idle} of the shards have no partition. " if idle > 0 else "")
        + advice
    )


def inner_partition(hashed: int, *, shard: int, base: int, partitions: int, shards: int) -> int:
    """The partition of the retry topic, or of the dead-letter topic, of a hash within its shard."""
    _check_place(shard, shards)
    if partitions < shards or partitions % shards:
        raise ValueError(f"{partitions} partitions are no multiple of {shards} shards")
    each = partitions // shards
    return shard * each + hashed // base % each


def partition_owner(partition: int, partitions: int, shards: int) -> int:
    """The shard that has a partition."""
    if not 0 <= partition < partitions:
        raise ValueError(f"there is no partition {partition} of {partitions}")
    return shard_of_partition(partition, partitions, shards)


def shards_of_key(key: str, spreads: Sequence[Router], shards: int) -> list[int]:
    """The shards that a group, or an id without one, has in these storage topics; the newest first.

    More than one only where the number of shards is not consistent over them.
    """
    hashed = hash_of(key)
    owners = (
        partition_owner(spread.partition_of(hashed), spread.partitions, shards)
        for spread in reversed(spreads)
    )
    return list(dict.fromkeys(owners))


def _check_place(shard: int, shards: int) -> None:
    if not 0 <= shard < shards:
        raise ValueError(f"there is no shard {shard} of {shards}")
