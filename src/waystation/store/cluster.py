"""A cluster of servers: sends each call to the node that has its slot, by one writer per node.

- The map of slots is read before the first call, again after `MOVED`, and every quarter of a second
  while a node that is needed is away. What waited for a node then goes to the one that took over.
- `MOVED`: the call had not run; it goes where the node says.
- `ASK` (a slot moves): a command is sent to the new node this once. A script waits until the slot
  has moved, within its deadline, and so does one that finds its slot on the move: it would see a
  part of its keys on either side.
- `CLUSTERDOWN`, a slot that nobody has: waits as well.

Order is that of the calls to one node; a call that is sent on comes behind those sent meanwhile.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from waystation.errors import OutcomeUnknownError, StoreError, StoreUnavailableError
from waystation.runtime.logging import logger
from waystation.store.address import Address
from waystation.store.connection import Call, Connection, Reply, end, end_unapplied
from waystation.store.data_set import DataSet
from waystation.store.replies import Meaning, meaning
from waystation.store.slots import SLOTS, slot_of, slot_of_command
from waystation.store.topology import ASK_MAP, Topology
from waystation.store.wire import pack
from waystation.store.writer import (
    BUSY_PAUSE_SECONDS,
    CALLS_MAX,
    Writer,
    closed,
    refused,
    too_busy,
)

_log = logger("cluster")

#: Pause between two looks at the map while something is missing in it, or a node is away.
_LEARN_SECONDS = 0.25
_ASK_SECONDS_MAX = 1.0
_ASKING = pack(("ASKING",))
#: What a script is told whose slot is on the move; see `scripts.py`.
_ON_THE_MOVE = "non local key"


class Cluster:
    """Writers for the nodes of a cluster; has the surface of a writer."""

    def __init__(
        self,
        topology: Topology,
        make_writer: Callable[[Address, Cluster], Writer],
        rng: random.Random,
        data_set: DataSet,
    ) -> None:
        self._topology = topology
        self._data_set = data_set
        self._make_writer = make_writer
        self._rng = rng
        # The mutable state: a writer for each node, and by slot as of a version of the map; calls
        # whose slot nobody has, and those that have to wait.
        self._writers: dict[Address, Writer] = {}
        self._by_slot: list[Writer | None] = [None] * SLOTS
        self._version = 0
        self._homeless: list[Call] = []
        self._paused: list[tuple[Call, str]] = []
        self._moved_at: dict[int, float] = {}
        self._learner: asyncio.Task[None] | None = None
        self._learn_due = False
        self._closed = False
        self._problem = ""

    @property
    def connected(self) -> bool:
        """Whether there is a connection to any node right now."""
        return any(writer.connected for writer in self._writers.values())

    @property
    def last_problem(self) -> str:
        """Why a node, or the map, could not be reached; empty when all is well."""
        told = [writer.last_problem for writer in self._writers.values() if writer.last_problem]
        return told[0] if told else self._problem

    @property
    def waiting(self) -> int:
        """Calls that were not sent yet."""
        mine = len(self._homeless) + len(self._paused)
        return mine + sum(writer.waiting for writer in self._writers.values())

    @property
    def sent(self) -> int:
        """Calls that have no reply yet."""
        return sum(writer.sent for writer in self._writers.values())

    # -- Calling -----------------------------------------------------------------------------

    def submit(self, call: Call) -> None:
        """Sends a call with the others of this turn that go to the same node."""
        if self._closed:
            raise closed()
        if (lost := self._data_set.lost) is not None:
            # One node without its part makes the whole data set unusable.
            end_unapplied(call, lost)
            return
        if (writer := self._writer_for(call)) is not None:
            writer.submit(call)
            return
        if len(self._homeless) >= CALLS_MAX:
            raise too_busy()
        self._homeless.append(call)
        self._learn_soon()

    async def nodes(self) -> dict[int, Writer]:
        """The writers of all nodes that have slots, each under its lowest slot."""
        if not self._topology.known:
            await self._learn_once()
        if not self._topology.known:
            raise StoreUnavailableError(f"The cluster is away: {self._problem}.")
        return {slot: self._writer(node) for slot, node in self._topology.primaries().items()}

    def drop_connection(self) -> None:
        """Drop all connections; the next ones are checked before a call is sent."""
        for writer in self._writers.values():
            writer.drop_connection()

    async def close(self) -> None:
        """Ends every call that has no reply, and all connections."""
        self._closed = True
        if self._learner is not None:
            self._learner.cancel()
            await asyncio.gather(self._learner, return_exceptions=True)
        for call in (*self._homeless, *(call for call, _ in self._paused)):
            end_unapplied(call, closed())
        self._homeless.clear()
        self._paused.clear()
        await asyncio.gather(*(writer.close() for writer in self._writers.values()))

    # -- What a writer tells its owner -------------------------------------------------------

    def elsewhere(self, writer: Writer, call: Call, reply: str) -> bool:
        """Takes over a call that its node did not run; see `Owner`."""
        kind = meaning(reply)
        if kind is Meaning.MOVED:
            slot, node = self._topology.redirection(reply, writer.address)
            self._move(slot, node)
            now = asyncio.get_running_loop().time()
            if now - self._moved_at.get(slot, 0.0) < BUSY_PAUSE_SECONDS:
                # Two nodes that disagree would have it go to and fro until they agree.
                self._pause(call, reply)
            else:
                self._moved_at[slot] = now
                self._again(call)
        elif kind is Meaning.ASK and call.script is None:
            _, node = self._topology.redirection(reply, writer.address)
            permission = Call(_ASKING, asyncio.get_running_loop().create_future(), call.deadline)
            self._writer(node).again(permission, call)
        elif kind is Meaning.ASK or (_ON_THE_MOVE in reply and call.script is not None):
            self._pause(call, reply)
        elif reply.startswith("CLUSTERDOWN"):
            self._learn_soon()
            self._pause(call, reply)
        else:
            return False
        return True

    def troubled(self) -> None:
        """A node is away: another may have taken over its slots."""
        self._learn_soon()

    # -- Sending -----------------------------------------------------------------------------

    def _writer_for(self, call: Call) -> Writer | None:
        if self._version != self._topology.version:
            self._use_map()
        if call.script is not None:
            slot: int | None = slot_of(call.arguments[1])
        else:
            slot = slot_of_command(call.packed)
        if slot is not None:
            return self._by_slot[slot]
        # Any will do, so rather one that is there.
        there = (writer for writer in self._writers.values() if writer.connected)
        return next(there, None) or next(iter(self._writers.values()), None)

    def _writer(self, node: Address) -> Writer:
        if (writer := self._writers.get(node)) is None:
            writer = self._writers[node] = self._make_writer(node, self)
        return writer

    def _again(self, call: Call) -> None:
        """Sends a call that was accepted before, or keeps it until a node is known for it."""
        if call.future.done():
            return
        if self._closed:
            end_unapplied(call, closed())
        elif asyncio.get_running_loop().time() > call.deadline:
            end_unapplied(call, StoreUnavailableError("The cluster did not settle in time."))
        elif (writer := self._writer_for(call)) is not None:
            writer.again(call)
        else:
            self._homeless.append(call)
            self._learn_soon()

    def _pause(self, call: Call, reply: str) -> None:
        if not self._paused:
            asyncio.get_running_loop().call_later(BUSY_PAUSE_SECONDS, self._send_paused)
        self._paused.append((call, reply))

    def _send_paused(self) -> None:
        paused, self._paused = self._paused, []
        now = asyncio.get_running_loop().time()
        for call, reply in paused:
            if now > call.deadline:
                end_unapplied(call, refused(reply))
            else:
                self._again(call)

    # -- The map -----------------------------------------------------------------------------

    def _use_map(self) -> None:
        self._version = self._topology.version
        nodes = self._topology.nodes()
        # Equal nodes are one object, and to compare those is quick.
        writers = {id(node): self._writer(node) for node in self._topology.primaries().values()}
        self._by_slot = [writers.get(id(node)) for node in nodes]

    def _move(self, slot: int, node: Address) -> None:
        """One slot at a time, since a whole cluster may be on the move; the rest is asked for."""
        follows = self._version == self._topology.version
        self._topology.moved(slot, node)
        if follows:
            self._version = self._topology.version
            self._by_slot[slot] = self._writer(node)
        self._learn_soon()

    def _learn_soon(self) -> None:
        self._learn_due = True
        if not self._closed and (self._learner is None or self._learner.done()):
            self._learner = asyncio.get_running_loop().create_task(self._learn())

    async def _learn(self) -> None:
        while self._learn_due:
            self._learn_due = False
            await self._learn_once()
            await self._settle()
            if self._homeless or any(_is_away(writer) for writer in self._writers.values()):
                self._learn_due = True
            await asyncio.sleep(_LEARN_SECONDS * (0.5 + self._rng.random()))

    async def _learn_once(self) -> None:
        problem = ""
        for node in self._topology.candidates(self._rng):
            try:
                async with asyncio.timeout(_ASK_SECONDS_MAX):
                    self._topology.learn(await _ask_map(node), node)
            except (OSError, UnicodeError, StoreError) as error:
                problem = f"{node}: {str(error) or type(error).__name__}"
            else:
                self._problem = ""
                return
        self._problem = problem
        _log.warning("no node of the cluster told its map", problem=problem)

    async def _settle(self) -> None:
        """Sends on what waits for a node that is away, and lets go of nodes without slots."""
        self._use_map()
        now = asyncio.get_running_loop().time()
        homeless, self._homeless = self._homeless, []
        for call in homeless:
            if now > call.deadline:
                reason = self._problem or "no node has the slot"
                end_unapplied(call, StoreUnavailableError(f"The cluster is away: {reason}."))
            else:
                self._again(call)
        used = set(self._topology.primaries().values())
        for node, writer in list(self._writers.items()):
            if _is_away(writer):
                for call in writer.give_up():
                    self._again(call)
            if node not in used and not (writer.sent or writer.waiting):
                await writer.close()
                del self._writers[node]


async def _ask_map(node: Address) -> Reply:
    """Asks by a connection of its own: those in use may be what is wrong."""
    connection = Connection(on_lost=_end_all)
    try:
        await connection.open(node)
        (reply,) = await connection.run([ASK_MAP])
        return reply
    finally:
        connection.abort()


def _end_all(_: Connection, lost: list[Call]) -> None:
    for call in lost:
        end(call, OutcomeUnknownError("The connection was lost."))


def _is_away(writer: Writer) -> bool:
    return not writer.connected and bool(writer.waiting and writer.last_problem)
