"""Routing: the partition of a message and the shard that reads it.

    partition = ((K * h) mod P) + ((h div P) mod K)

`h` is an unsigned 64-bit hash of the message's group, or of its id if it has no group. `P` is the
number of partitions of the storage topic. A *chain* is a series of storage topics whose numbers of
partitions are multiples of the first one, the *base*. `K` is P divided by the base. If the number
of shards divides the base, a group stays in its shard over the whole chain.
docs/reference/routing.md has test vectors for other languages.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import xxhash

#: Seed of Spark's `xxhash64(column)`, so that history computes the same hashes natively.
HASH_SEED = 42


def hash_of(key: str) -> int:
    """Return the unsigned XXH64 hash of a group or message id in UTF-8."""
    return xxhash.xxh64_intdigest(key.encode(), HASH_SEED)


class Router(msgspec.Struct, frozen=True):
    """Maps the hashes of messages to the partitions of one storage topic."""

    partitions: int
    #: Partitions divided by the partitions of the first storage topic of the chain.
    factor: int = 1

    def __post_init__(self) -> None:
        if self.partitions < 1 or self.factor < 1 or self.partitions % self.factor:
            raise ValueError(f"{self.partitions} partitions are not a multiple of {self.factor}")

    @property
    def base(self) -> int:
        """Number of partitions of the first storage topic of the chain."""
        return self.partitions // self.factor

    def partition_of(self, hashed: int) -> int:
        """Return the partition of a hash."""
        if self.factor == 1:
            return hashed % self.partitions
        # K * (h mod base) equals (K * h) mod P, and fits into 64 bits in other languages.
        return self.factor * (hashed % self.base) + hashed // self.partitions % self.factor

    def followed_by(self, partitions: int) -> Router:
        """Return the router of a next storage topic with this number of partitions.

        It belongs to the same chain, in which groups keep their shards, if `partitions` is a
        multiple of `base`. Otherwise it starts a new chain.
        """
        if partitions % self.base == 0:
            return Router(partitions, partitions // self.base)
        return Router(partitions)


def shard_of(hashed: int, base: int, shards: int) -> int:
    """Return the shard of a hash, equal in all storage topics of a chain.

    `shards` must divide the base.
    """
    return hashed % base * shards // base


def shard_of_partition(partition: int, partitions: int, shards: int) -> int:
    """Return the shard that reads a partition. Shards may have different numbers of partitions."""
    # Return the last shard whose range in `partitions_of` starts at or before the partition.
    return ((partition + 1) * shards - 1) // partitions


def partitions_of(shard: int, partitions: int, shards: int) -> range:
    """Return the partitions that a shard reads.

    The range is empty for some shards if a topic has more shards than partitions.
    """
    # Multiply before dividing. Otherwise the last partitions would belong to no shard.
    return range(shard * partitions // shards, (shard + 1) * partitions // shards)


def is_consistent(routers: Sequence[Router], shards: int) -> bool:
    """Return True if every group has one and the same shard in the storage topics of `routers`."""
    bases = {router.base for router in routers}
    return shards == 1 or (len(bases) == 1 and next(iter(bases)) % shards == 0)


def is_advised(partitions: int) -> bool:
    """Return True if a number of partitions is 1, 2, 3 or a multiple of 4 or 6.

    Such numbers have many divisors. Therefore a subscription can choose among many numbers of
    shards.
    """
    return partitions in (1, 2, 3) or partitions % 4 == 0 or partitions % 6 == 0
