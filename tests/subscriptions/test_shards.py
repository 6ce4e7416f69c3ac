"""The shards of a subscription: every partition has one, and a group never leaves its own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.errors import InvalidInputError
from waystation.subscriptions.shards import (
    SHARDS_MAX,
    assignments,
    check_shards,
    default_shards,
    inner_partition,
    partition_owner,
    readable,
    shards_of_key,
)
from waystation.topics.router import Router, hash_of, shard_of

HASHES = st.integers(0, 2**64 - 1)
COUNTS = st.integers(1, 64)


def chain(*counts: int) -> list[Router]:
    """Storage topics of these many partitions, one after the other."""
    spreads = [Router(counts[0])]
    for count in counts[1:]:
        spreads.append(spreads[-1].followed_by(count))
    return spreads


def divisors(number: int) -> st.SearchStrategy[int]:
    return st.sampled_from([each for each in range(1, number + 1) if number % each == 0])


@given(st.lists(COUNTS, min_size=1, max_size=5), COUNTS)
def test_every_partition_of_every_storage_topic_has_exactly_one_shard(
    counts: list[int], shards: int
) -> None:
    spreads = chain(*counts)
    for storage, count in enumerate(counts):
        read = [
            partition
            for shard in range(shards)
            for partition in assignments(shard, spreads, shards)[storage].partitions
        ]
        assert read == list(range(count))


@given(COUNTS, st.integers(1, 200))
def test_shards_differ_by_one_partition_at_most(partitions: int, shards: int) -> None:
    sizes = [
        len(assignments(shard, [Router(partitions)], shards)[0].partitions)
        for shard in range(shards)
    ]
    assert max(sizes) - min(sizes) <= 1


def test_ranges_are_multiplied_before_they_are_divided() -> None:
    ranges = [assignments(shard, [Router(10)], 4)[0].partitions for shard in range(4)]
    assert ranges == [range(2), range(2, 5), range(5, 7), range(7, 10)]


def test_more_shards_than_partitions_leave_some_idle() -> None:
    ranges = [assignments(shard, [Router(2)], 5)[0].partitions for shard in range(5)]
    assert [len(each) for each in ranges] == [0, 0, 1, 0, 1]


@given(COUNTS, st.integers(1, 200))
def test_the_owner_of_a_partition_is_the_shard_that_reads_it(partitions: int, shards: int) -> None:
    for partition in range(partitions):
        owner = partition_owner(partition, partitions, shards)
        assert partition in assignments(owner, [Router(partitions)], shards)[0].partitions


@given(st.data(), COUNTS, st.lists(st.integers(1, 8), max_size=3), HASHES)
def test_a_group_stays_in_its_shard_while_a_chain_grows(
    data: st.DataObject, base: int, factors: list[int], hashed: int
) -> None:
    shards = data.draw(divisors(base))
    spreads = chain(base, *(base * factor for factor in factors))
    expected = shard_of(hashed, base, shards)
    assert readable(spreads, 0, shards) == len(spreads)
    for spread in spreads:
        partition = spread.partition_of(hashed)
        assert partition_owner(partition, spread.partitions, shards) == expected


@given(st.data(), COUNTS, st.integers(1, 6), HASHES)
def test_a_failed_message_stays_with_the_shard_that_owns_it(
    data: st.DataObject, base: int, multiple: int, hashed: int
) -> None:
    shards = data.draw(divisors(base))
    owner, count = shard_of(hashed, base, shards), shards * multiple
    found = inner_partition(hashed, shard=owner, base=base, partitions=count, shards=shards)
    assert partition_owner(found, count, shards) == owner


def test_failed_messages_use_all_partitions_of_their_shard() -> None:
    used = {
        inner_partition(hashed, shard=shard_of(hashed, 4, 2), base=4, partitions=6, shards=2)
        for hashed in range(1000)
    }
    assert used == set(range(6))


def test_the_plain_router_would_lose_the_owner_of_a_failed_message() -> None:
    # Why there is an inner partition at all.
    wrong = [h for h in range(12_000) if partition_owner(h % 4, 4, 4) != shard_of(h, 12, 4)]
    assert len(wrong) > 6000


@pytest.mark.parametrize(
    ("counts", "shards", "ends"),
    [
        ((4, 12, 24), 4, [3, 3, 3]),
        ((4, 6, 12), 2, [1, 3, 3]),
        ((6, 9), 3, [1, 2]),
        ((6, 9), 1, [2, 2]),
        ((4, 8), 8, [1, 2]),
        ((4,), 3, [1]),
    ],
)
def test_reading_on_stops_where_a_group_could_change_its_shard(
    counts: tuple[int, ...], shards: int, ends: list[int]
) -> None:
    spreads = chain(*counts)
    assert [readable(spreads, first, shards) for first in range(len(counts))] == ends


@pytest.mark.parametrize(
    ("base", "shards"),
    [(1, 1), (2, 2), (3, 3), (4, 4), (5, 1), (6, 3), (7, 1), (8, 4), (9, 3), (10, 2), (12, 4)],
)
def test_a_subscription_has_up_to_four_shards_that_divide_the_base(base: int, shards: int) -> None:
    assert default_shards(base) == shards


@given(st.text(min_size=1), COUNTS, st.integers(1, 8), COUNTS)
def test_the_shards_of_a_key_are_those_that_have_its_partitions(
    key: str, base: int, factor: int, shards: int
) -> None:
    spreads = [Router(base), Router(base * factor, factor)]
    found = shards_of_key(key, spreads, shards)
    for spread in spreads:
        partition = spread.partition_of(hash_of(key))
        assert partition_owner(partition, spread.partitions, shards) in found
    assert len(found) == len(set(found)) <= 2
    if base % shards == 0:
        assert found == [shard_of(hash_of(key), base, shards)]


@given(COUNTS, st.integers(1, 64))
def test_default_shards_are_the_largest_divisor_that_is_allowed(base: int, most: int) -> None:
    shards = default_shards(base, most=most)
    assert base % shards == 0
    assert not [each for each in range(shards + 1, min(base, most) + 1) if base % each == 0]


@pytest.mark.parametrize("shards", [0, -1, SHARDS_MAX + 1])
def test_a_number_of_shards_that_cannot_be_is_refused_by_name(shards: int) -> None:
    with pytest.raises(InvalidInputError) as refused:
        check_shards(shards)
    assert refused.value.field == "shards"


def test_uneven_numbers_of_shards_are_allowed() -> None:
    assert check_shards(7) == 7


def test_what_is_no_shard_or_partition_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="no shard"):
        assignments(2, [Router(4)], 2)
    with pytest.raises(ValueError, match="no partition"):
        partition_owner(4, 4, 2)
    with pytest.raises(ValueError, match="no multiple"):
        inner_partition(7, shard=0, base=4, partitions=3, shards=2)
    with pytest.raises(ValueError, match="no shards"):
        default_shards(0)
