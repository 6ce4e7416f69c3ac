"""Who should have which shard: evenly, subscriptions apart, and little moves with a node."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from waystation.subscriptions.names import Place
from waystation.subscriptions.spread import spread

#: Shards of each subscription; and nodes.
COUNTS = st.lists(st.integers(0, 12), max_size=12)
NODES = st.lists(st.text("abcdef0123456789", min_size=1, max_size=4), max_size=8, unique=True)


def shards_of(counts: Sequence[int], name: str = "s") -> list[Place]:
    return [
        Place("default", f"{name}{number}", 0, shard)
        for number, count in enumerate(counts)
        for shard in range(count)
    ]


def owners(hands: dict[str, list[Place]]) -> dict[Place, str]:
    return {shard: node for node, hand in hands.items() for shard in hand}


@given(COUNTS, NODES)
def test_every_shard_has_one_node_and_no_node_has_two_more_than_another(
    counts: list[int], nodes: list[str]
) -> None:
    shards = shards_of(counts)
    hands = spread(shards, nodes)

    assert set(hands) == set(nodes), "each is told, with nothing, too"
    if nodes:
        assert Counter(each for hand in hands.values() for each in hand) == Counter(shards)
        sizes = [len(hand) for hand in hands.values()]
        assert max(sizes) - min(sizes) <= 1


@given(COUNTS, NODES.filter(bool))
def test_shards_of_one_subscription_are_as_far_apart_as_they_can_be(
    counts: list[int], nodes: list[str]
) -> None:
    hands = spread(shards_of(counts), nodes)

    for hand in hands.values():
        for name, count in Counter(shard.subscription for shard in hand).items():
            all_of_it = counts[int(name.removeprefix("s"))]
            assert count <= -(-all_of_it // len(nodes))


@given(COUNTS, NODES, st.randoms(use_true_random=False))
def test_all_nodes_compute_the_same_in_whatever_order_they_hear_of_it(
    counts: list[int], nodes: list[str], rng: random.Random
) -> None:
    shards = shards_of(counts)
    expected = spread(shards, nodes)
    rng.shuffle(shards)
    rng.shuffle(nodes)

    assert owners(spread(shards, nodes)) == owners(expected)


def test_a_node_that_comes_or_goes_moves_its_own_part_and_little_more() -> None:
    rng = random.Random(7)
    moved, parts = 0, 0.0
    for round_ in range(30):
        count = rng.randint(2, 10)
        nodes = [f"{rng.getrandbits(64):x}" for _ in range(count)]
        shards = shards_of([rng.choice([1, 2, 4, 4, 4, 8]) for _ in range(40)], f"r{round_}-")
        with_it, without = owners(spread(shards, nodes)), owners(spread(shards, nodes[1:]))
        changed = sum(with_it[shard] != without[shard] for shard in shards)
        part = len(shards) / count
        assert changed <= 3.5 * part, f"{changed} of {len(shards)} with {count} nodes"
        moved, parts = moved + changed, parts + part
    # Exactly even hands cost something: without that it would be one.
    assert moved / parts < 2.0


def test_a_new_subscription_moves_few_shards_of_the_others() -> None:
    nodes = [f"node-{number}" for number in range(5)]
    shards = shards_of([4] * 50)
    before = owners(spread(shards, nodes))
    after = owners(spread([*shards, *shards_of([4], "new")], nodes))

    assert sum(before[shard] != after[shard] for shard in shards) <= len(shards) // 10


def test_a_thousand_shards_on_ten_nodes_take_no_longer_than_a_blink() -> None:
    shards = shards_of([4] * 250)
    nodes = [f"node-{number}" for number in range(10)]
    before = time.process_time()
    spread(shards, nodes)

    assert time.process_time() - before < 0.3
