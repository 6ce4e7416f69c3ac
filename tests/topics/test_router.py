"""Router: partitions of hashes, even use, and when growth keeps each group on its shard."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.topics.router import (
    Router,
    hash_of,
    is_advised,
    is_consistent,
    partitions_of,
    shard_of,
    shard_of_partition,
)

ROOT = Path(__file__).resolve().parents[2]
HASHES = st.integers(0, 2**64 - 1)


def chain(*counts: int) -> list[Router]:
    """Return the routers of storage topics with these numbers of partitions."""
    spreads = [Router(counts[0])]
    for count in counts[1:]:
        spreads.append(spreads[-1].followed_by(count))
    return spreads


def by_the_formula(hashed: int, spread: Router) -> int:
    """Return the partition by the formula of the design, with exact integers."""
    count, factor = spread.partitions, spread.factor
    return factor * hashed % count + hashed // count % factor


def shard_in(spread: Router, hashed: int, shards: int) -> int:
    return shard_of_partition(spread.partition_of(hashed), spread.partitions, shards)


@pytest.mark.parametrize(
    ("counts", "factors"),
    [
        ((2, 10), [1, 5]),
        ((4, 12), [1, 3]),
        ((6, 9), [1, 1]),
        ((6, 24, 12), [1, 4, 2]),
        ((12, 6), [1, 1]),
        ((4, 8, 16), [1, 2, 4]),
        ((7, 10), [1, 1]),
    ],
)
def test_router_factor_is_relative_to_first_router_of_chain(
    counts: tuple[int, ...], factors: list[int]
) -> None:
    assert [spread.factor for spread in chain(*counts)] == factors


@pytest.mark.parametrize(
    ("counts", "hashed", "partitions"),
    [
        ((2, 10), 7, [1, 5]),
        ((2, 10), 10, [0, 1]),
        ((2, 10), 11, [1, 6]),
        ((2, 10), 37, [1, 8]),
        ((2, 10), 123456789, [1, 8]),
        ((4, 12), 12, [0, 1]),
        ((4, 12), 13, [1, 4]),
        ((4, 12), 25, [1, 5]),
        ((4, 12), 100, [0, 2]),
        ((4, 12), 101, [1, 5]),
        ((6, 9), 7, [1, 7]),
        ((6, 9), 10, [4, 1]),
        ((6, 9), 123456789, [3, 0]),
    ],
)
def test_router_of_known_hashes_returns_known_partitions(
    counts: tuple[int, ...], hashed: int, partitions: list[int]
) -> None:
    assert [spread.partition_of(hashed) for spread in chain(*counts)] == partitions


@given(base=st.integers(1, 64), factor=st.integers(1, 32), hashed=HASHES)
def test_router_partition_is_in_range_and_equals_formula(
    base: int, factor: int, hashed: int
) -> None:
    spread = Router(base * factor, factor)
    partition = spread.partition_of(hashed)
    assert 0 <= partition < spread.partitions
    assert partition == by_the_formula(hashed, spread)


@pytest.mark.parametrize("spread", [Router(1), Router(12, 3), Router(10, 5), Router(96, 24)])
def test_router_uses_partitions_equally_over_full_period_of_hashes(spread: Router) -> None:
    turn = spread.factor * spread.partitions
    hits = Counter(spread.partition_of(hashed) for hashed in range(7 * turn, 8 * turn))
    assert hits == dict.fromkeys(range(spread.partitions), spread.factor)


@pytest.mark.parametrize("spread", [Router(4), Router(12, 3), Router(96, 24)])
def test_router_of_many_groups_uses_partitions_evenly(spread: Router) -> None:
    groups = 20_000
    hits = Counter(spread.partition_of(hash_of(f"customer-{n}")) for n in range(groups))
    expected = groups / spread.partitions
    deviation = sum((hits[p] - expected) ** 2 / expected for p in range(spread.partitions))
    # An even distribution exceeds this value of chi squared once in a million runs.
    assert deviation < spread.partitions + 6 * (2 * spread.partitions) ** 0.5 + 10


@given(
    base=st.integers(1, 24),
    factors=st.lists(st.integers(1, 8), min_size=1, max_size=3),
    shards=st.integers(1, 30),
    hashes=st.lists(HASHES, min_size=1, max_size=20),
)
def test_shard_of_group_is_constant_if_shards_divide_first_partitions(
    base: int, factors: list[int], shards: int, hashes: list[int]
) -> None:
    spreads = [Router(base), *(Router(base * factor, factor) for factor in factors)]
    consistent = base % shards == 0 or shards == 1
    assert is_consistent(spreads, shards) is consistent
    for hashed in hashes:
        found = {shard_in(spread, hashed, shards) for spread in spreads}
        if consistent:
            assert found == {shard_of(hashed, base, shards)}


@pytest.mark.parametrize(
    ("counts", "shards"),
    [((4, 12), 6), ((4, 12), 12), ((4, 8, 16), 8), ((6, 9), 3), ((2, 10), 5), ((7, 10), 7)],
)
def test_shard_of_group_changes_if_shards_do_not_divide_base(
    counts: tuple[int, ...], shards: int
) -> None:
    spreads = chain(*counts)
    assert not is_consistent(spreads, shards)
    moved = sum(
        len({shard_in(spread, hash_of(f"g{n}"), shards) for spread in spreads}) > 1
        for n in range(1000)
    )
    assert moved > 100


@given(partitions=st.integers(1, 200), shards=st.integers(1, 250))
def test_shard_partitions_cover_each_partition_once(partitions: int, shards: int) -> None:
    ranges = [partitions_of(shard, partitions, shards) for shard in range(shards)]
    assert [partition for each in ranges for partition in each] == list(range(partitions))
    for shard, each in enumerate(ranges):
        assert all(shard_of_partition(p, partitions, shards) == shard for p in each)


def test_hash_of_equals_published_vectors() -> None:
    # Vectors of XXH64 with seed 42, which docs/reference/routing.md lists.
    assert {key: hash_of(key) for key in ("", "a", "customer-17", "ünï", "x" * 100)} == {
        "": 11002672306508523268,
        "a": 9864288744972464332,
        "customer-17": 5972413428757149882,
        "ünï": 14070457088475103841,
        "x" * 100: 365730103971579591,
    }


@pytest.mark.parametrize(("count", "advised"), [(1, 1), (3, 1), (5, 0), (10, 0), (18, 1), (20, 1)])
def test_is_advised_accepts_partition_counts_that_split_evenly(count: int, advised: int) -> None:
    assert is_advised(count) is bool(advised)


@pytest.mark.parametrize("wrong", [(0, 1), (4, 0), (4, 3), (-1, 1)])
def test_router_with_invalid_numbers_is_rejected(wrong: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="partitions"):
        Router(*wrong)


def test_router_of_example_in_concepts_page_returns_shown_partitions() -> None:
    # In docs/concepts/topics.md, 4 partitions become 12, and each group stays on one of 2 shards.
    before, after = chain(4, 12)
    shown = {"a": (0, 2), "f": (0, 0), "i": (1, 5), "j": (1, 3), "c": (2, 6), "k": (2, 7)}
    for group, places in {**shown, "b": (3, 11)}.items():
        hashed = hash_of(group)
        assert (before.partition_of(hashed), after.partition_of(hashed)) == places
        assert len({shard_of_partition(places[0], 4, 2), shard_of_partition(places[1], 12, 2)}) == 1


def test_routing_page_has_the_vectors_of_the_code() -> None:
    page = (ROOT / "docs" / "reference" / "routing.md").read_text(encoding="utf-8")
    keys = {"(empty)": "", "`x`, 100 times": "x" * 100}
    hashes = re.findall(r"^\| ([^|]+) \| (\d{10,}) \|$", page, re.MULTILINE)
    for shown, hashed in hashes:
        assert hash_of(keys.get(shown, shown.strip("`"))) == int(hashed)
    chains = re.findall(r"^\| (\d[\d, ]*) \| (\d[\d, ]*) \| (\d.*) \|$", page, re.MULTILINE)
    for counts, factors, vectors in chains:
        routers = chain(*numbers(counts))
        assert [each.factor for each in routers] == numbers(factors)
        for vector in vectors.split(" · "):
            hashed, partitions = vector.split(" → ")
            assert [each.partition_of(int(hashed)) for each in routers] == numbers(partitions)
    assert (len(hashes), len(chains)) == (5, 4)


def numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(", ")]
