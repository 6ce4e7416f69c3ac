"""A line: blocking connections to the store for a thread that must not wait for the event loop.

It connects at the first exchange, and again after one that failed; on a cluster it has a connection
for each node that it needs. One thread at a time.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence

import hiredis

from waystation.store.address import Address
from waystation.store.connection import ErrorKind, error_kind, pack
from waystation.store.scripts import Script, variant
from waystation.store.slots import READ_SLOT_MAP, SlotMap, slot_of

_IO_SECONDS_MAX = 2.0
#: How often a call follows what nodes say of a slot that moves, in one exchange.
_HOPS_MAX = 3

Command = tuple[str | bytes | int, ...]


class Line:
    """Sends commands and waits for their replies; OSError when the store is away or says no."""

    def __init__(self, address: Address, *, test_mode: bool = False) -> None:
        self._address = address
        self._topology = address.cluster
        self._variant = variant(test_mode=test_mode, cluster=address.cluster is not None)
        self._wires: dict[Address, _Wire] = {}

    def run_all(
        self, script: Script, calls: Sequence[tuple[Sequence[str], Sequence[str | bytes | int]]]
    ) -> list[object]:
        """Runs a script once for each pair of keys and arguments, in one write to each server.

        An error is raised when all were sent: one node that is away keeps nobody from the others.
        """
        # EVAL with the source, not the digest: a restarted store must not cost a beat.
        source = script.sources[self._variant]
        commands: list[Command] = [
            ("EVAL", source, len(keys), *keys, *arguments) for keys, arguments in calls
        ]
        if self._topology is None:
            return self.exchange(commands)
        slots = [slot_of(keys[0]) for keys, _ in calls]
        return self._spread(self._topology, commands, slots)

    def exchange(self, commands: Sequence[Command]) -> list[object]:
        """Sends commands in one write; returns their replies. An error ends the connection."""
        replies = self._wire(self._address).exchange(commands)
        try:
            return [_answer(reply) for reply in replies]
        except ConnectionError:
            self.close()
            raise

    def close(self) -> None:
        """Hangs up; the next exchange connects again."""
        for wire in self._wires.values():
            wire.close()
        self._wires.clear()

    # -- On a cluster ------------------------------------------------------------------------

    def _spread(
        self, topology: SlotMap, commands: Sequence[Command], slots: Sequence[int]
    ) -> list[object]:
        replies: dict[int, object] = {}
        for _ in range(_HOPS_MAX):
            left = [at for at in range(len(commands)) if at not in replies]
            problem = self._spread_once(topology, commands, slots, left, replies)
            if len(replies) == len(commands):
                return [replies[at] for at in range(len(commands))]
            if problem:
                break
        # By the next time we may know who has taken over.
        self._learn(topology)
        raise ConnectionError(problem or "the cluster does not settle")

    def _spread_once(
        self,
        topology: SlotMap,
        commands: Sequence[Command],
        slots: Sequence[int],
        left: Sequence[int],
        replies: dict[int, object],
    ) -> str:
        """Sends what is left to the nodes that have it; returns what went wrong.

        A call whose slot has moved is left once more; the map tells by then where to.
        """
        problem = ""
        nodes: dict[Address, list[int]] = {}
        if not topology.known:
            self._learn(topology)
        for at in left:
            if (node := topology.node_of(slots[at])) is None:
                problem = "no node has the slot"
            else:
                nodes.setdefault(node, []).append(at)
        for node, places in nodes.items():
            try:
                found = self._wire(node).exchange([commands[at] for at in places])
            except OSError as error:
                problem = f"{node}: {error}"
                continue
            for at, reply in zip(places, found, strict=True):
                if not isinstance(reply, hiredis.ReplyError):
                    replies[at] = reply
                elif error_kind(str(reply)) is ErrorKind.MOVED:
                    topology.moved(*topology.redirection(str(reply), node))
                else:
                    problem = str(reply)
        return problem

    def _learn(self, topology: SlotMap) -> None:
        problem: OSError | None = None
        for node in topology.candidates(random.Random()):
            wire = _Wire(node)
            try:
                topology.learn(_answer(wire.exchange([READ_SLOT_MAP])[0]), node)
            except OSError as error:
                problem = error
            else:
                return
            finally:
                wire.close()
        if problem is not None and not topology.known:
            raise problem

    def _wire(self, address: Address) -> _Wire:
        if (wire := self._wires.get(address)) is None:
            wire = self._wires[address] = _Wire(address)
        return wire


class _Wire:
    """One blocking connection. Errors of the store are replies; OSError ends the connection."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._socket: socket.socket | None = None
        self._parser = hiredis.Reader()

    def exchange(self, commands: Sequence[Command]) -> list[object]:
        """Sends commands in one write; returns their replies."""
        try:
            if self._socket is None:
                self._socket = self._address.connect_blocking(_IO_SECONDS_MAX)
                self._parser = hiredis.Reader()
                for reply in self._talk(self._socket, self._address.handshake()):
                    _answer(reply)
            return self._talk(self._socket, commands)
        except (OSError, hiredis.HiredisError) as error:
            self.close()
            raise error if isinstance(error, OSError) else ConnectionError(str(error)) from error

    def close(self) -> None:
        """Hangs up; the next exchange connects again."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _talk(self, connection: socket.socket, commands: Sequence[Command]) -> list[object]:
        connection.sendall(b"".join(pack(command) for command in commands))
        replies: list[object] = []
        while len(replies) < len(commands):
            reply = self._parser.gets()
            if reply is False:
                data = connection.recv(65_536)
                if not data:
                    raise ConnectionError("the store hung up")
                self._parser.feed(data)
            else:
                replies.append(reply)
        return replies


def _answer(reply: object) -> object:
    if isinstance(reply, hiredis.ReplyError):
        raise ConnectionError(str(reply))
    return reply
