"""Cluster slots: the slot of a key or command, and the map from slots to nodes."""

from __future__ import annotations

import random
from binascii import crc_hqx
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from waystation.store.address import Address

SLOTS = 16_384

#: Command that returns the slot map. Redis has deprecated it, but all versions have it.
READ_SLOT_MAP = ("CLUSTER", "SLOTS")

#: Index of the first key in commands where it is not the second word.
_KEY_INDEX = {
    b"EVAL": 3,
    b"EVALSHA": 3,
    b"MEMORY": 2,
    b"OBJECT": 2,
    b"XGROUP": 2,
    b"XINFO": 2,
}
#: Commands without a key, which every node can answer.
_KEYLESS = frozenset(
    b"BGREWRITEAOF CLIENT CLUSTER COMMAND CONFIG DBSIZE DEBUG ECHO FLUSHALL FLUSHDB FUNCTION INFO "
    b"KEYS LATENCY PING SCAN SCRIPT SLOWLOG TIME WAIT WAITAOF".split()
)


def slot_of(key: str | bytes) -> int:
    """Return the slot of a key: the CRC16 of its hash tag, or of the whole key without one."""
    name = key.encode() if isinstance(key, str) else key
    start = name.find(b"{") + 1
    if start:
        end = name.find(b"}", start)
        if end > start:
            name = name[start:end]
    return crc_hqx(name, 0) % SLOTS


def slot_of_command(packed: bytes) -> int | None:
    """Return the slot of a packed command; None without a key. The key of PUBLISH is its topic."""
    command = _word(packed, 0).upper()
    if command in _KEYLESS:
        return None
    index = _KEY_INDEX.get(command, 1)
    if index == 3 and _word(packed, 2) == b"0":
        return None
    return slot_of(_word(packed, index))


def _word(packed: bytes, index: int) -> bytes:
    """Return one word of a packed command: `*<words>`, then `$<bytes>` and the word, for each."""
    at = packed.index(b"\n") + 1
    while True:
        end = packed.index(b"\r", at)
        length = int(packed[at + 1 : end])
        if not index:
            return packed[end + 2 : end + 2 + length]
        index -= 1
        at = end + 2 + length + 2


class SlotMap:
    """The nodes that own the slots of a cluster, as far as this process knows.

    An address has one map, and the client, pub/sub and lease renewal share it. The map may be
    outdated; a node that is asked by mistake replies with the owner. Threads may use it, because
    each change replaces one value. `version` grows with each change.
    """

    def __init__(self, seeds: Sequence[Address]) -> None:
        self.seeds = tuple(seeds)
        self.version = 0
        self._slots: list[Address | None] = [None] * SLOTS
        self._replicas: list[Address] = []
        #: One object per node, so that nodes can be compared by identity.
        self._nodes: dict[tuple[str, int], Address] = {}

    @property
    def known(self) -> bool:
        """Whether the map was read at least once."""
        return self.version > 0

    def nodes(self) -> list[Address | None]:
        """Return the primaries of all slots, in slot order."""
        return self._slots

    def node_of(self, slot: int) -> Address | None:
        """Return the primary of a slot; None if no owner is known."""
        return self._slots[slot]

    def primaries(self) -> dict[int, Address]:
        """Return all nodes that own slots, by their lowest slot, in slot order."""
        found: dict[Address, int] = {}
        last = None
        for slot, node in enumerate(self._slots):
            # Slots of one node are mostly adjacent, and hashing each one would be slow.
            if node is not last and node is not None:
                found.setdefault(node, slot)
            last = node
        return {slot: node for node, slot in found.items()}

    def has(self, node: Address) -> bool:
        """Return True if the node was in the last map, as a primary or a replica."""
        return node in self.primaries().values() or node in self._replicas

    def candidates(self, rng: random.Random) -> list[Address]:
        """Return nodes to ask for the map: primaries in random order, replicas, then seeds."""
        nodes = list(self.primaries().values())
        rng.shuffle(nodes)
        return list(dict.fromkeys((*nodes, *self._replicas, *self.seeds)))

    def moved(self, slot: int, to: Address) -> None:
        """Set the owner of one slot, as a node reported it."""
        if self._slots[slot] != to:
            self._slots[slot] = to
            self.version += 1

    def redirection(self, reply: str, asked: Address) -> tuple[int, Address]:
        """Parse `MOVED|ASK <slot> <host>:<port>`. Without a host, it is the host of `asked`."""
        _, slot, place = reply.split(" ")[:3]
        host, _, port = place.rpartition(":")
        return int(slot), self._node(host, int(port), asked) or asked

    def learn(self, reply: Any, asked: Address) -> None:
        """Replace the map by a reply to READ_SLOT_MAP. Raise ConnectionError if it is empty."""
        if not reply:
            # The server has not joined a cluster yet, or has left it.
            raise ConnectionError("its slot map is empty")
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
            return None  # The node does not know its own name.
        if not port:
            return asked  # The node listens only on the Unix socket that has just answered.
        host = host or asked.host
        node = replace(asked, host=host, port=port, path="", cluster=None)
        return self._nodes.setdefault((host, port), node)


def _text(word: bytes | None) -> str:
    return word.decode() if word else ""
