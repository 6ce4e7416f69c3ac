"""Cluster of servers: sends each call to the node that owns its slot, over one connection per node.

- The slot map is read before the first call, after `MOVED`, and every quarter of a second while a
  node with unsent calls is unavailable. Those calls then go to the node that took over.
- `MOVED`: the call did not run; it goes to the node that the reply names.
- `ASK` (the slot is moving): a command goes to the new node once. A script waits until the slot
  has moved, within its deadline, because each of the two nodes has only a part of its keys.
- `CLUSTERDOWN`, or a slot without an owner: the call waits, within its deadline.

Calls to one node keep their order. A redirected call follows those that were sent meanwhile.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from waystation.errors import OutcomeUnknownError, StoreError, StoreUnavailableError
from waystation.runtime.logging import logger
from waystation.store.address import Address
from waystation.store.connection import (
    BUSY_PAUSE_SECONDS,
    CALLS_MAX,
    Call,
    ErrorKind,
    Reply,
    RespProtocol,
    ServerConnection,
    busy_error,
    closed_error,
    end,
    end_unapplied,
    error_kind,
    pack,
    refused_error,
)
from waystation.store.dataset import DataSet
from waystation.store.slots import READ_SLOT_MAP, SLOTS, SlotMap, slot_of, slot_of_command

_log = logger("cluster")

#: Pause between two reads of the slot map while a slot has no owner or a node is unavailable.
_READ_MAP_SECONDS = 0.25
_READ_MAP_SECONDS_MAX = 1.0
_ASKING = pack(("ASKING",))
#: Part of the error reply to a script whose slot is moving; see `scripts.py`.
_SLOT_MOVING = "non local key"


class Cluster:
    """Sends each call to the node that owns its slot; has the methods of `ServerConnection`.

    The state: connections by node, the connection of each slot as of a map version, calls without
    a node, and calls that wait for a moving slot.
    """

    def __init__(
        self,
        slot_map: SlotMap,
        make_connection: Callable[[Address, Cluster], ServerConnection],
        rng: random.Random,
        data_set: DataSet,
    ) -> None:
        self._slot_map = slot_map
        self._data_set = data_set
        self._make_connection = make_connection
        self._rng = rng
        self._connections: dict[Address, ServerConnection] = {}
        self._by_slot: list[ServerConnection | None] = [None] * SLOTS
        self._version = 0
        self._unrouted: list[Call] = []
        self._paused: list[tuple[Call, str]] = []
        self._moved_at: dict[int, float] = {}
        self._map_reader: asyncio.Task[None] | None = None
        self._read_map_due = False
        self._closed = False
        self._problem = ""

    @property
    def connected(self) -> bool:
        """Whether any node is connected now."""
        return any(each.connected for each in self._connections.values())

    @property
    def last_problem(self) -> str:
        """Error of the last request to a node or for the slot map; empty after a success."""
        problems = [each.last_problem for each in self._connections.values() if each.last_problem]
        return problems[0] if problems else self._problem

    @property
    def waiting(self) -> int:
        """Number of calls that were not sent."""
        mine = len(self._unrouted) + len(self._paused)
        return mine + sum(each.waiting for each in self._connections.values())

    @property
    def sent(self) -> int:
        """Number of calls that were sent and have no reply."""
        return sum(each.sent for each in self._connections.values())

    # -- Calling -----------------------------------------------------------------------------

    def submit(self, call: Call) -> None:
        """Send a call with the others of this turn. Raise BusyError above `CALLS_MAX`."""
        if self._closed:
            raise closed_error()
        if (lost := self._data_set.lost) is not None:
            # Without the data of one node the whole data set is unusable.
            end_unapplied(call, lost)
            return
        if (connection := self._connection_for(call)) is not None:
            connection.submit(call)
            return
        if len(self._unrouted) >= CALLS_MAX:
            raise busy_error()
        self._unrouted.append(call)
        self._read_map_soon()

    async def nodes(self) -> dict[int, ServerConnection]:
        """Return the connections of all nodes that own slots, by their lowest slot.

        Raise StoreUnavailableError if no node replies with the slot map.
        """
        if not self._slot_map.known:
            await self._read_map_once()
        if not self._slot_map.known:
            raise StoreUnavailableError(f"The cluster is unavailable: {self._problem}.")
        return {slot: self._connection(node) for slot, node in self._slot_map.primaries().items()}

    def drop_connection(self) -> None:
        """Drop the connections to all nodes. Each new connection checks the data set first."""
        for each in self._connections.values():
            each.drop_connection()

    async def close(self) -> None:
        """Fail all calls that wait for a reply, and close all connections."""
        self._closed = True
        if self._map_reader is not None:
            self._map_reader.cancel()
            await asyncio.gather(self._map_reader, return_exceptions=True)
        for call in (*self._unrouted, *(call for call, _ in self._paused)):
            end_unapplied(call, closed_error())
        self._unrouted.clear()
        self._paused.clear()
        await asyncio.gather(*(each.close() for each in self._connections.values()))

    # -- Router of the connections ---------------------------------------------------------------

    def redirect(self, connection: ServerConnection, call: Call, reply: str) -> bool:
        """Send a call that its node did not run to the owner of the slot; see `CallRouter`."""
        kind = error_kind(reply)
        if kind is ErrorKind.MOVED:
            slot, node = self._slot_map.redirection(reply, connection.address)
            self._move(slot, node)
            now = asyncio.get_running_loop().time()
            if now - self._moved_at.get(slot, 0.0) < BUSY_PAUSE_SECONDS:
                # Pause, because two nodes that disagree would send the call back and forth.
                self._pause(call, reply)
            else:
                self._moved_at[slot] = now
                self._resubmit(call)
        elif kind is ErrorKind.ASK and call.script is None:
            _, node = self._slot_map.redirection(reply, connection.address)
            asking = Call(_ASKING, asyncio.get_running_loop().create_future(), call.deadline)
            self._connection(node).resubmit(asking, call)
        elif kind is ErrorKind.ASK or (_SLOT_MOVING in reply and call.script is not None):
            self._pause(call, reply)
        elif reply.startswith("CLUSTERDOWN"):
            self._read_map_soon()
            self._pause(call, reply)
        else:
            return False
        return True

    def on_disconnect(self) -> None:
        """Read the slot map soon, because another node may have taken over the slots."""
        self._read_map_soon()

    # -- Sending -----------------------------------------------------------------------------

    def _connection_for(self, call: Call) -> ServerConnection | None:
        if self._version != self._slot_map.version:
            self._use_map()
        if call.script is not None:
            slot: int | None = slot_of(call.arguments[1])
        else:
            slot = slot_of_command(call.packed)
        if slot is not None:
            return self._by_slot[slot]
        # Every node can answer; prefer one that is connected.
        connected = (each for each in self._connections.values() if each.connected)
        return next(connected, None) or next(iter(self._connections.values()), None)

    def _connection(self, node: Address) -> ServerConnection:
        if (connection := self._connections.get(node)) is None:
            connection = self._connections[node] = self._make_connection(node, self)
        return connection

    def _resubmit(self, call: Call) -> None:
        """Send a call that was accepted before, or queue it until its slot has an owner."""
        if call.future.done():
            return
        if self._closed:
            end_unapplied(call, closed_error())
        elif asyncio.get_running_loop().time() > call.deadline:
            end_unapplied(
                call,
                StoreUnavailableError(
                    "The slot of the call was still moving at its deadline. Retry later."
                ),
            )
        elif (connection := self._connection_for(call)) is not None:
            connection.resubmit(call)
        else:
            self._unrouted.append(call)
            self._read_map_soon()

    def _pause(self, call: Call, reply: str) -> None:
        if not self._paused:
            asyncio.get_running_loop().call_later(BUSY_PAUSE_SECONDS, self._send_paused)
        self._paused.append((call, reply))

    def _send_paused(self) -> None:
        paused, self._paused = self._paused, []
        now = asyncio.get_running_loop().time()
        for call, reply in paused:
            if now > call.deadline:
                end_unapplied(call, refused_error(reply))
            else:
                self._resubmit(call)

    # -- Slot map ----------------------------------------------------------------------------

    def _use_map(self) -> None:
        self._version = self._slot_map.version
        nodes = self._slot_map.nodes()
        # A node is one object, so its identity is a fast key for 16,384 lookups.
        connections = {
            id(node): self._connection(node) for node in self._slot_map.primaries().values()
        }
        self._by_slot = [connections.get(id(node)) for node in nodes]

    def _move(self, slot: int, node: Address) -> None:
        """Change the owner of one slot now, and read the whole map soon."""
        follows = self._version == self._slot_map.version
        self._slot_map.moved(slot, node)
        if follows:
            self._version = self._slot_map.version
            self._by_slot[slot] = self._connection(node)
        self._read_map_soon()

    def _read_map_soon(self) -> None:
        self._read_map_due = True
        if not self._closed and (self._map_reader is None or self._map_reader.done()):
            self._map_reader = asyncio.get_running_loop().create_task(self._read_map())

    async def _read_map(self) -> None:
        while self._read_map_due:
            self._read_map_due = False
            await self._read_map_once()
            await self._settle()
            if self._unrouted or any(_is_unavailable(each) for each in self._connections.values()):
                self._read_map_due = True
            await asyncio.sleep(_READ_MAP_SECONDS * (0.5 + self._rng.random()))

    async def _read_map_once(self) -> None:
        problem = ""
        for node in self._slot_map.candidates(self._rng):
            try:
                async with asyncio.timeout(_READ_MAP_SECONDS_MAX):
                    self._slot_map.learn(await _ask_map(node), node)
            except (OSError, UnicodeError, StoreError) as error:
                problem = f"{node}: {str(error) or type(error).__name__}"
            else:
                self._problem = ""
                return
        self._problem = problem
        _log.warning("slot map unavailable", error=problem)

    async def _settle(self) -> None:
        """Reroute the calls of unavailable nodes, and disconnect nodes without slots."""
        self._use_map()
        now = asyncio.get_running_loop().time()
        unrouted, self._unrouted = self._unrouted, []
        for call in unrouted:
            if now > call.deadline:
                reason = self._problem or "no node has the slot"
                end_unapplied(call, StoreUnavailableError(f"The cluster is unavailable: {reason}."))
            else:
                self._resubmit(call)
        used = set(self._slot_map.primaries().values())
        for node, connection in list(self._connections.items()):
            if _is_unavailable(connection):
                for call in connection.take_unsent():
                    self._resubmit(call)
            if node not in used and not (connection.sent or connection.waiting):
                await connection.close()
                del self._connections[node]


async def _ask_map(node: Address) -> Reply:
    """Read the slot map over a new connection, because those in use may be the problem."""
    protocol = RespProtocol(on_lost=_end_all)
    try:
        await protocol.open(node)
        (reply,) = await protocol.run([READ_SLOT_MAP])
        return reply
    finally:
        protocol.abort()


def _end_all(_: RespProtocol, lost: list[Call]) -> None:
    for call in lost:
        end(call, OutcomeUnknownError("The connection to the store was lost before the reply."))


def _is_unavailable(connection: ServerConnection) -> bool:
    return not connection.connected and bool(connection.waiting and connection.last_problem)
