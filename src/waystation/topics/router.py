"""Which partition a message goes to, and which shard reads it.

    partition = ((K * h) mod P) + ((h div P) mod K)

`h` is an unsigned 64-bit hash of the message's group, or of its id where it has none. `P` is the
number of partitions of a storage topic and `K` the factor by which it has grown since the chain of
storage topics began; P / K is the base of the chain, the same for all its storage topics. A shard
count is consistent over a chain exactly if it divides the base: then a group stays in its shard
however many partitions are added. Test vectors for other languages: docs/reference/routing.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import xxhash

#: Spark's `xxhash64(column)` has this seed, so history computes the same numbers natively.
HASH_SEED = 42


def hash_of(key: str) -> int:
    """The hash of a group or a message id: XXH64 of its UTF-8 bytes, unsigned."""
    return xxhash.xxh64_intdigest(key.encode(), HASH_SEED)


class Spread(msgspec.Struct, frozen=True):
    """How one storage topic spreads hashes over its partitions."""

    partitions: int
    #: How many times it has as many partitions as its chain began with.
    factor: int = 1

    def __post_init__(self) -> None:
        if self.partitions < 1 or self.factor < 1 or self.partitions % self.factor:
            raise ValueError(f"{self.partitions} partitions cannot have grown {self.factor} times")

    @property
    def base(self) -> int:
        """Partitions that the chain began with."""
        return self.partitions // self.factor

    def partition_of(self, hashed: int) -> int:
        """The partition of a hash."""
        if self.factor == 1:
            return hashed % self.partitions
        # (K * h) mod P, without numbers that other languages could not hold.
        return self.factor * (hashed % self.base) + hashed // self.partitions % self.factor

    def followed_by(self, partitions: int) -> Spread:
        """The next storage topic: in the same chain if its base divides them, else a new chain."""
        if partitions % self.base == 0:
            return Spread(partitions, partitions // self.base)
        return Spread(partitions)


def shard_of(hashed: int, base: int, shards: int) -> int:
    """The shard of a hash in every storage topic of a chain, where `shards` divides its base."""
    return hashed % base * shards // base


def shard_of_partition(partition: int, partitions: int, shards: int) -> int:
    """The shard that reads a partition; uneven splits are fine, and so are idle shards."""
    # The inverse of `partitions_of`: the last shard whose range begins at or before it.
    return ((partition + 1) * shards - 1) // partitions


def partitions_of(shard: int, partitions: int, shards: int) -> range:
    """The partitions of a shard; empty for some where there are more shards than partitions."""
    # Multiplied first: to divide first would leave partitions to nobody.
    return range(shard * partitions // shards, (shard + 1) * partitions // shards)


def is_consistent(spreads: Sequence[Spread], shards: int) -> bool:
    """Whether a group has the same shard in all these storage topics."""
    bases = {spread.base for spread in spreads}
    return shards == 1 or (len(bases) == 1 and next(iter(bases)) % shards == 0)


def is_advised(partitions: int) -> bool:
    """Return True for 1, 2, 3 and multiples of 4 or 6, which split evenly in many ways."""
    return partitions in (1, 2, 3) or partitions % 4 == 0 or partitions % 6 == 0
