"""The topology of a cluster: which node has which slot, as far as this process knows.

It belongs to an address and is shared by all who use that: the client, the wake-ups and the lines
of threads. Whoever learns something new tells it here, and all follow. What it says may be old: a
node that is asked in error says where to go. Safe to use from any thread, since each change
replaces one value.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from waystation.store.slots import SLOTS

if TYPE_CHECKING:
    from waystation.store.address import Address

#: Asks for the map. Deprecated by Redis for a richer one, and the one that all versions have.
ASK_MAP = ("CLUSTER", "SLOTS")


class Topology:
    """The map of slots. `version` grows with each change."""

    def __init__(self, seeds: Sequence[Address]) -> None:
        self.seeds = tuple(seeds)
        self.version = 0
        self._slots: list[Address | None] = [None] * SLOTS
        self._replicas: list[Address] = []
        #: One object for each node, so that to compare them costs nothing.
        self._nodes: dict[tuple[str, int], Address] = {}

    @property
    def known(self) -> bool:
        """Whether a map was ever read."""
        return self.version > 0

    def nodes(self) -> list[Address | None]:
        """The primaries of all slots, in their order."""
        return self._slots

    def node_of(self, slot: int) -> Address | None:
        """The primary of a slot; None while nobody is known to have it."""
        return self._slots[slot]

    def primaries(self) -> dict[int, Address]:
        """All nodes that have slots, each under its lowest slot, in that order."""
        found: dict[Address, int] = {}
        last = None
        for slot, node in enumerate(self._slots):
            # Slots of one node lie together, mostly: to hash each would take long.
            if node is not last and node is not None:
                found.setdefault(node, slot)
            last = node
        return {slot: node for node, slot in found.items()}

    def has(self, node: Address) -> bool:
        """Whether a node was in the last map, as a primary or a replica."""
        return node in self.primaries().values() or node in self._replicas

    def candidates(self, rng: random.Random) -> list[Address]:
        """Whom to ask for the map, or to subscribe at: nodes in any order, then what was given."""
        nodes = list(self.primaries().values())
        rng.shuffle(nodes)
        return list(dict.fromkeys((*nodes, *self._replicas, *self.seeds)))

    def moved(self, slot: int, to: Address) -> None:
        """A node said that a slot is elsewhere."""
        if self._slots[slot] != to:
            self._slots[slot] = to
            self.version += 1

    def redirection(self, reply: str, asked: Address) -> tuple[int, Address]:
        """What `MOVED` or `ASK <slot> <host>:<port>` says; an empty host is the one asked."""
        _, slot, place = reply.split(" ")[:3]
        host, _, port = place.rpartition(":")
        return int(slot), self._node(host, int(port), asked) or asked

    def learn(self, reply: Any, asked: Address) -> None:
        """Takes over the answer to ASK_MAP; ConnectionError when it says nothing."""
        if not reply:
            # Not a node of a cluster yet, or not any more.
            raise ConnectionError("it knows of no slots")
        slots: list[Address | None] = [None] * SLOTS
        replicas = []
        for first, last, primary, *others in reply:
            node = self._node(_text(primary[0]), int(primary[1]), asked)
            slots[int(first) : int(last) + 1] = [node] * (int(last) - int(first) + 1)
            for each in others:
                if (replica := self._node(_text(each[0]), int(each[1]), asked)) is not None:
                    replicas.append(replica)
        self._replicas = replicas
        if slots != self._slots or not self.version:
            self._slots = slots
            self.version += 1

    def _node(self, host: str, port: int, asked: Address) -> Address | None:
        if host == "?":
            return None  # The node has no name by which others could call it.
        if not port:
            return asked  # It has a Unix socket alone, and that has just answered.
        host = host or asked.host
        node = replace(asked, host=host, port=port, path="", cluster=None)
        return self._nodes.setdefault((host, port), node)


def _text(word: bytes | None) -> str:
    return word.decode() if word else ""
