"""Real clusters on loopback: nodes that can be killed, slots that can be moved step by step."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import hiredis

from tests.helpers.store_faults import PlainServer
from waystation.store.address import Address
from waystation.store.connection import pack
from waystation.store.slots import SLOTS, slot_of

_SETTLE_SECONDS_MAX = 30.0
#: Silence after which the others take a node for dead.
NODE_TIMEOUT_MS = 1000


class Node:
    """One server of a cluster."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.port, bus = _free_ports(2)
        self.server = PlainServer(
            folder,
            *("--port", str(self.port), "--bind", "127.0.0.1", "--appendonly", "yes"),
            *("--cluster-enabled", "yes", "--cluster-port", str(bus)),
            *("--cluster-node-timeout", str(NODE_TIMEOUT_MS)),
        )
        self.bus = bus
        self.server.start()

    @property
    def address(self) -> Address:
        """Where it listens."""
        return Address(host="127.0.0.1", port=self.port)

    @property
    def id(self) -> str:
        """Its name among nodes."""
        return str(self.ask("CLUSTER", "MYID"))

    def ask(self, *command: str | int) -> object:
        """One command at this node, by a connection of its own; errors are raised."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as wire:
            wire.sendall(pack(command))
            reader = hiredis.Reader(encoding="utf-8", errors="surrogateescape")
            while (reply := reader.gets()) is False:
                data = wire.recv(65_536)
                assert data, "the node hung up"
                reader.feed(data)
        if isinstance(reply, hiredis.ReplyError):
            raise reply
        return reply

    def kill(self) -> None:
        """kill -9."""
        self.server.kill()

    def start(self) -> None:
        """Comes back with its data, as whatever the others make of it."""
        self.server.start()


class RealCluster:
    """Three primaries with a third of the slots each, and as many replicas of the first as asked.

    Each test begins and ends with all slots where they were.
    """

    def __init__(self, folder: Path, *, replicas: int = 0) -> None:
        self.primaries: list[Node] = []
        self.replicas: list[Node] = []
        try:
            self.primaries += [Node(folder / f"p{n}") for n in range(3)]
            self.replicas += [Node(folder / f"r{n}") for n in range(replicas)]
            self._join()
        except BaseException:
            self.kill()
            raise

    @property
    def nodes(self) -> list[Node]:
        """All of them."""
        return [*self.primaries, *self.replicas]

    @property
    def address(self) -> Address:
        """The way in, by any primary. The map is read anew by whoever uses it."""
        return self.primaries[0].address.clustered(*(each.address for each in self.primaries[1:]))

    @property
    def url(self) -> str:
        """The same as a setting."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{each.port}" for each in self.primaries)

    def home(self, key: str) -> Node:
        """The node that has the slot of a key at the beginning."""
        return self.primaries[slot_of(key) * 3 // SLOTS]

    def key_of(self, node: Node, kind: str = "key") -> str:
        """A key that lies on a node."""
        return next(key for n in range(1000) if self.home(key := f"{{{kind}{n}}}:x") is node)

    def wait(self, is_so: Callable[[], bool], what: str = "the cluster to settle") -> None:
        """Waits until something is so."""
        until = time.monotonic() + _SETTLE_SECONDS_MAX
        while not is_so():
            assert time.monotonic() < until, f"waited in vain for {what}"
            time.sleep(0.02)

    def kill(self) -> None:
        """The end of all."""
        for node in self.nodes:
            node.kill()

    # -- Moving a slot key by key, in the steps that tools for clusters take -------------------

    def begin_move(self, slot: int, source: Node, target: Node) -> None:
        """From now on the source sends away those who ask for what it does not have."""
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id)

    def move_keys(self, slot: int, source: Node, target: Node, most: int = 1000) -> int:
        """Moves some keys; how many."""
        keys = source.ask("CLUSTER", "GETKEYSINSLOT", slot, most)
        assert isinstance(keys, list)
        for key in keys:
            source.ask("MIGRATE", "127.0.0.1", target.port, key, 0, 5000)
        return len(keys)

    def end_move(self, slot: int, target: Node) -> None:
        """The slot is the target's, and every primary knows."""
        order = [target, *(each for each in self.primaries if each is not target)]
        for node in order:
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", target.id)

    def move(self, slot: int, source: Node, target: Node) -> None:
        """All of it."""
        self.begin_move(slot, source, target)
        while self.move_keys(slot, source, target):
            pass
        self.end_move(slot, target)

    # -- Setting up ----------------------------------------------------------------------------

    def _join(self) -> None:
        first = self.primaries[0]
        for number, node in enumerate(self.primaries):
            begin, end = (-(-SLOTS * n // 3) for n in (number, number + 1))
            node.ask("CLUSTER", "ADDSLOTSRANGE", begin, end - 1)
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node in self.nodes[1:]:
            node.ask("CLUSTER", "MEET", "127.0.0.1", first.port, first.bus)
        self.wait(
            lambda: all(
                f"cluster_known_nodes:{len(self.nodes)}" in _info(node) for node in self.nodes
            )
        )
        for node in self.replicas:
            node.ask("CLUSTER", "REPLICATE", first.id)
        self.wait(self.settled)
        if self.replicas:
            self.wait(
                lambda: (
                    f"connected_slaves:{len(self.replicas)}"
                    in str(first.ask("INFO", "replication"))
                )
            )

    def settled(self) -> bool:
        """Whether all nodes agree that all slots are served."""
        maps = [
            sorted(str(row[:3]) for row in node.ask("CLUSTER", "SLOTS"))  # type: ignore[attr-defined]
            for node in self.nodes
        ]
        return all(each == maps[0] for each in maps) and all(
            "cluster_state:ok" in _info(node) for node in self.nodes
        )


@contextmanager
def real_cluster(*, replicas: int = 0) -> Iterator[RealCluster]:
    """A cluster for the length of the block."""
    folder = Path(tempfile.mkdtemp(prefix="ws-"))
    try:
        cluster = RealCluster(folder, replicas=replicas)
        try:
            yield cluster
        finally:
            cluster.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _info(node: Node) -> str:
    return str(node.ask("CLUSTER", "INFO"))


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as probes:
        found = [probes.enter_context(socket.socket()) for _ in range(count)]
        for probe in found:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in found]


def refusals(*nodes: Node, kind: str = "[A-Z]+") -> int:
    """How many calls nodes have refused, of this kind."""
    told = "".join(str(node.ask("INFO", "errorstats")) for node in nodes)
    return sum(int(found) for found in re.findall(rf"errorstat_{kind}:count=(\d+)", told))
