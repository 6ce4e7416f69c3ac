"""Clusters of real servers on loopback whose nodes can be killed and whose slots can be moved."""

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

_SETTLE_SECONDS_MAX = 60.0
#: Silence after which the other nodes regard a node as failed.
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
        """Address of the server."""
        return Address(host="127.0.0.1", port=self.port)

    @property
    def id(self) -> str:
        """Id of the node in the cluster."""
        return str(self.ask("CLUSTER", "MYID"))

    def ask(self, *command: str | int) -> object:
        """Send one command on a new connection and return the reply. Raise error replies."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as wire:
            wire.sendall(pack(command))
            reader = hiredis.Reader(encoding="utf-8", errors="surrogateescape")
            while (reply := reader.gets()) is False:
                data = wire.recv(65_536)
                assert data, "the node closed the connection"
                reader.feed(data)
        if isinstance(reply, hiredis.ReplyError):
            raise reply
        return reply

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        self.server.kill()

    def start(self) -> None:
        """Start the server with its data. The cluster decides its role."""
        self.server.start()


class RealCluster:
    """Cluster of three primaries with a third of the slots each, and replicas of the first one.

    Each test starts and ends with all slots on their first nodes.
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
        """Primaries and replicas."""
        return [*self.primaries, *self.replicas]

    @property
    def address(self) -> Address:
        """Address with all primaries. Each client reads the slot map anew."""
        return self.primaries[0].address.clustered(*(each.address for each in self.primaries[1:]))

    @property
    def url(self) -> str:
        """Address as a value of the setting `store.url`."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{each.port}" for each in self.primaries)

    def home(self, key: str) -> Node:
        """Return the node that has the slot of a key at the start."""
        return self.primaries[slot_of(key) * 3 // SLOTS]

    def key_of(self, node: Node, kind: str = "key") -> str:
        """Return a key whose slot a node has at the start."""
        return next(key for n in range(1000) if self.home(key := f"{{{kind}{n}}}:x") is node)

    def wait(self, is_so: Callable[[], bool], what: str = "the cluster to settle") -> None:
        """Wait until a condition of the cluster is true."""
        until = time.monotonic() + _SETTLE_SECONDS_MAX
        while not is_so():
            assert time.monotonic() < until, f"no success after {_SETTLE_SECONDS_MAX:g} s: {what}"
            time.sleep(0.02)

    def kill(self) -> None:
        """Kill all nodes."""
        for node in self.nodes:
            node.kill()

    # -- Moving a slot key by key, in the steps of the tools of clusters -----------------------

    def begin_move(self, slot: int, source: Node, target: Node) -> None:
        """Start to move a slot. The source redirects calls for keys that it does not have."""
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id)

    def move_keys(self, slot: int, source: Node, target: Node, most: int = 1000) -> int:
        """Move up to `most` keys of a slot. Return their number."""
        keys = source.ask("CLUSTER", "GETKEYSINSLOT", slot, most)
        assert isinstance(keys, list)
        for key in keys:
            source.ask("MIGRATE", "127.0.0.1", target.port, key, 0, 5000)
        return len(keys)

    def end_move(self, slot: int, target: Node) -> None:
        """Assign the slot to the target on every primary."""
        order = [target, *(each for each in self.primaries if each is not target)]
        for node in order:
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", target.id)

    def move(self, slot: int, source: Node, target: Node) -> None:
        """Move a slot with all of its keys."""
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
        """Return True if all nodes have the same slot map and serve all slots."""
        maps = [
            sorted(str(row[:3]) for row in node.ask("CLUSTER", "SLOTS"))  # type: ignore[attr-defined]
            for node in self.nodes
        ]
        return all(each == maps[0] for each in maps) and all(
            "cluster_state:ok" in _info(node) for node in self.nodes
        )


@contextmanager
def real_cluster(*, replicas: int = 0) -> Iterator[RealCluster]:
    """Run a cluster for the length of the block."""
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
    """Return the number of error replies of nodes, of one kind."""
    told = "".join(str(node.ask("INFO", "errorstats")) for node in nodes)
    return sum(int(found) for found in re.findall(rf"errorstat_{kind}:count=(\d+)", told))
