"""Which node should have which shard: a pure function that all nodes compute alike.

Every node gets its part of all shards and of the shards of each subscription, exact to one. Shards
prefer nodes by a hash of both (rendezvous), so that a node that comes or goes moves its own part
and little more. Nobody decides for others by this: who has a shard is said by its lease.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import xxhash

from waystation.subscriptions.names import Place

_WORD = 2**64 - 1


def spread(shards: Sequence[Place], nodes: Sequence[str]) -> dict[str, list[Place]]:
    """The shards of each node; without nodes nobody has any."""
    if not nodes:
        return {}
    dealing = _Dealing(shards, nodes)
    for shard in dealing.order():
        dealing.deal(shard)
    return dealing.hands


class _Dealing:
    """Shards dealt out so far."""

    def __init__(self, shards: Sequence[Place], nodes: Sequence[str]) -> None:
        self.hands: dict[str, list[Place]] = {node: [] for node in sorted(set(nodes))}
        self._nodes = {node: xxhash.xxh64_intdigest(node.encode()) for node in self.hands}
        every = {shard: xxhash.xxh64_intdigest(shard.tag.encode()) for shard in shards}
        self._shards = every
        #: What each node gets, and how many get one more than that.
        self._each, self._extras = divmod(len(every), len(self.hands))
        of_one = Counter(_subscription(shard) for shard in every)
        #: Shards of one subscription on one node.
        self._most = {name: -(-count // len(self.hands)) for name, count in of_one.items()}
        self._counts: Counter[tuple[str, tuple[str, str]]] = Counter()

    def order(self) -> list[Place]:
        """In which they are dealt: by hash, so that no subscription always comes last."""
        return sorted(self._shards, key=lambda shard: (self._shards[shard], shard.tag))

    def deal(self, shard: Place) -> None:
        """Gives a shard to the node that it prefers, of those that may have it."""
        free = [node for node in self.hands if self._has_room(node)]
        fit = [node for node in free if self._may_have(node, shard)]
        if fit:
            self._give(max(fit, key=lambda node: self._score(shard, node)), shard)
            return
        # Nodes with room have their part of this subscription already. One that has not is full, of
        # more shards than any of those: so there is one among them that can move.
        moves = (
            (node, moved, to)
            for node in self.hands
            if self._may_have(node, shard)
            for moved in self.hands[node]
            for to in free
            if self._may_have(to, moved)
        )
        node, moved, to = max(
            moves, key=lambda move: (self._score(shard, move[0]), self._score(*move[1:]))
        )
        self.hands[node].remove(moved)
        self._counts[node, _subscription(moved)] -= 1
        self._give(to, moved)
        self.hands[node].append(shard)
        self._counts[node, _subscription(shard)] += 1

    def _has_room(self, node: str) -> bool:
        held = len(self.hands[node])
        return held < self._each or (held == self._each and self._extras > 0)

    def _may_have(self, node: str, shard: Place) -> bool:
        name = _subscription(shard)
        return self._counts[node, name] < self._most[name]

    def _give(self, node: str, shard: Place) -> None:
        self._extras -= len(self.hands[node]) == self._each
        self.hands[node].append(shard)
        self._counts[node, _subscription(shard)] += 1

    def _score(self, shard: Place, node: str) -> int:
        """How much a shard prefers a node: two hashes, mixed so that every bit counts."""
        mixed = self._shards[shard] ^ self._nodes[node]
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _WORD
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _WORD
        return mixed ^ mixed >> 31


def _subscription(shard: Place) -> tuple[str, str]:
    return shard.project, shard.subscription
