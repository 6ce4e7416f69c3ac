"""Store client: concurrent callers of one event loop share round trips.

All calls of one turn of the event loop share one write, on a cluster one write per node. The
contract, which `tests/store/test_client.py` tests and `docs/internals/store-client.md` explains:

- Order: calls reach the server in the order in which they were made, across all callers. A call
  that is sent again follows those that were sent meanwhile.
- Cancellation: a call that is cancelled before its turn ends is not sent. If it is cancelled
  later, the client drops its reply.
- Errors belong to one call and never reach another caller.
- NOSCRIPT: the script did not run. The client sends its source once.
- LOADING and BUSY: the call did not run. The client sends it again until its deadline, and does
  the same with calls that a cluster redirects.
- Lost connection: unsent calls wait for the next connection. A sent call without a reply is sent
  again before its deadline if it is repeatable; otherwise it ends with OutcomeUnknownError.
- Data set: a new connection is used only if its server has the data set that this process knows.
  Otherwise calls end with StoreDataLostError and do not run. See `dataset.py`.
- Deadline: a call that could not be sent in time ends with StoreUnavailableError and did not run.
  If a server owes replies and is silent for that long, the client drops the connection.
- A call that ends with StoreUnavailableError or StoreFullError was not applied. A call that may
  have run before its reply was lost never ends with them.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from waystation.errors import (
    InvalidInputError,
    StoreDataLostError,
    StoreError,
    StoreUnavailableError,
)
from waystation.store.address import Address
from waystation.store.cluster import Cluster
from waystation.store.connection import Call, Reply, ServerConnection, pack
from waystation.store.dataset import DataSet
from waystation.store.scripts import Script, variant
from waystation.store.slots import SLOTS, slot_of

#: The cursor of a server has 64 bits; that of a cluster has 14 more, for the slot of the node.
_is_cursor = re.compile(r"[0-9]{1,24}", re.ASCII).fullmatch
_CURSOR_END = 2**64


class Store:
    """Client of the store, which all coroutines of one event loop share."""

    _connection_type: ClassVar[type[ServerConnection]] = ServerConnection

    def __init__(
        self,
        address: Address,
        *,
        call_seconds_max: float = 5.0,
        test_mode: bool = False,
        preload_scripts: bool = True,
        rng: random.Random | None = None,
    ) -> None:
        self.address = address
        self.test_mode = test_mode
        self.data_set = DataSet(address)
        self._call_seconds_max = call_seconds_max
        self._preload_scripts = preload_scripts
        self._rng = rng or random.Random()
        self._variant = variant(test_mode=test_mode, cluster=address.cluster is not None)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._cluster: Cluster | None = None
        if address.cluster is not None:
            self._cluster = Cluster(
                address.cluster, self._make_connection, self._rng, self.data_set
            )
        self._sender: ServerConnection | Cluster = self._cluster or self._make_connection(address)
        # Bound once, because every call uses it.
        self._send = self._sender.submit

    def __repr__(self) -> str:
        state = "closed" if self._closed else "connected" if self.connected else "connecting"
        waiting, sent = self._sender.waiting, self._sender.sent
        return f"<Store {self.address} [{state}, {waiting} waiting, {sent} sent]>"

    @property
    def connected(self) -> bool:
        """Whether a server is connected now."""
        return self._sender.connected

    @property
    def last_problem(self) -> str:
        """Error of the last attempt to connect; empty if connected."""
        return self._sender.last_problem

    # -- Calling -----------------------------------------------------------------------------

    def call(
        self, *command: str | bytes | int | float, repeatable: bool = False
    ) -> asyncio.Future[Reply]:
        """Send one command. Pass `repeatable` only if a second run changes nothing."""
        return self._submit(pack(command), repeatable=repeatable)

    def run(
        self, script: Script, keys: Sequence[str | bytes], arguments: Sequence[str | bytes | int]
    ) -> asyncio.Future[Reply]:
        """Run a script."""
        rest = (len(keys), *keys, *arguments)
        packed = pack((b"EVALSHA", script.shas[self._variant], *rest))
        return self._submit(packed, repeatable=script.repeatable, script=script, arguments=rest)

    async def pipeline(
        self, commands: Iterable[Sequence[str | bytes | int | float]], *, repeatable: bool = False
    ) -> list[Reply | StoreError]:
        """Send commands in one write and return their replies, with errors in their places.

        For scripts, gather `run` calls instead, because only `run` handles NOSCRIPT.
        """
        calls = [self.call(*command, repeatable=repeatable) for command in commands]
        replies = await asyncio.gather(*calls, return_exceptions=True)
        for reply in replies:
            if isinstance(reply, BaseException) and not isinstance(reply, StoreError):
                raise reply
        return replies

    async def ping(self) -> None:
        """Make one round trip. Raise StoreUnavailableError if a cluster does not serve all slots.

        Raise StoreDataLostError if a server lost its data set, for example by FLUSHALL.
        """
        if self._cluster is not None:
            if b"cluster_state:ok" not in await self.call("CLUSTER", "INFO", repeatable=True):
                raise StoreUnavailableError(
                    "The cluster does not serve all slots. See `CLUSTER INFO` of its nodes."
                )
            await self.check_data_set()
            return
        # A server whose disk is full refuses PING, although it answers reads.
        await asyncio.gather(self.call("PING", repeatable=True), self.check_data_set())

    async def check_data_set(self) -> None:
        """Raise StoreDataLostError if a server has lost the data set.

        Each new connection checks the data set too, but a FLUSHALL does not close connections.
        Before the error is raised, the connection to the server is dropped. All later calls to it
        fail with the same error until the data is restored.
        """
        for connection in await self._connections():
            questions = self.data_set.questions(connection.address)
            answers = await asyncio.gather(
                *(self._ask(connection, each) for each in questions), return_exceptions=True
            )
            try:
                self.data_set.check(connection.address, answers)
            except StoreDataLostError:
                connection.drop_connection()
                raise

    # -- All servers -------------------------------------------------------------------------

    async def call_each(self, *command: str | int) -> dict[str, Reply]:
        """Send a repeatable command to every server and return the replies by server address."""
        connections = await self._connections()
        replies = await asyncio.gather(*(self._ask(each, command) for each in connections))
        return {str(each.address): reply for each, reply in zip(connections, replies, strict=True)}

    async def scan(self, cursor: str, *, match: str, count: int) -> tuple[str, list[bytes]]:
        """Return the cursor of the next page and one page of keys. "0" starts and ends the scan.

        The guarantees are those of SCAN. Keys that a cluster moves meanwhile may be missed or
        returned twice. Raise InvalidInputError if the cursor is invalid.
        """
        if not _is_cursor(cursor):
            raise _invalid_cursor()
        position, slot = int(cursor), 0
        nodes: dict[int, ServerConnection] = {}
        if self._cluster is not None:
            position, slot = divmod(position, SLOTS)
            nodes = await self._cluster.nodes()
        if position >= _CURSOR_END:
            raise _invalid_cursor()
        command = ("SCAN", position, "MATCH", match, "COUNT", count)
        if self._cluster is None:
            after, keys = await self.call(*command, repeatable=True)
            return after.decode(), keys
        # If slots have moved, continue with the next node.
        here = next((first for first in nodes if first >= slot), None)
        if here is None:
            return "0", []
        after, keys = await self._ask(nodes[here], command)
        if after != b"0":
            return str(int(after) * SLOTS + here), keys
        return str(next((first for first in nodes if first > here), 0)), keys

    async def unlink(self, keys: Sequence[bytes]) -> None:
        """Delete keys of any slots."""
        if self._cluster is None:
            groups = [list(keys)] if keys else []
        else:
            by_slot: dict[int, list[bytes]] = {}
            for key in keys:
                by_slot.setdefault(slot_of(key), []).append(key)
            groups = list(by_slot.values())
        await asyncio.gather(*(self.call("UNLINK", *each, repeatable=True) for each in groups))

    # -- Opening and closing -----------------------------------------------------------------

    async def connect(self) -> None:
        """Connect now, so that a wrong address fails at start."""
        await self.ping()

    async def close(self) -> None:
        """End all calls without a reply, and close all connections."""
        self._closed = True
        await self._sender.close()

    async def _connections(self) -> list[ServerConnection]:
        if isinstance(self._sender, ServerConnection):
            return [self._sender]
        return list((await self._sender.nodes()).values())

    # -- Submitting --------------------------------------------------------------------------

    def _submit(
        self,
        packed: bytes,
        *,
        repeatable: bool,
        script: Script | None = None,
        arguments: tuple[Any, ...] = (),
    ) -> asyncio.Future[Reply]:
        loop = self._loop
        if loop is None:
            # Stored, because get_running_loop costs a system call.
            loop = self._loop = asyncio.get_running_loop()
        future: asyncio.Future[Reply] = loop.create_future()
        deadline = loop.time() + self._call_seconds_max
        self._send(
            Call(
                packed, future, deadline, repeatable=repeatable, script=script, arguments=arguments
            )
        )
        return future

    def _ask(
        self, connection: ServerConnection, command: Sequence[str | int]
    ) -> asyncio.Future[Reply]:
        """Send a command to one server."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Reply] = loop.create_future()
        deadline = loop.time() + self._call_seconds_max
        connection.submit(Call(pack(tuple(command)), future, deadline, repeatable=True))
        return future

    def _make_connection(self, address: Address, router: Cluster | None = None) -> ServerConnection:
        return self._connection_type(
            address,
            variant=self._variant,
            call_seconds_max=self._call_seconds_max,
            rng=self._rng,
            data_set=self.data_set,
            preload_scripts=self._preload_scripts,
            router=router,
        )


def _invalid_cursor() -> InvalidInputError:
    return InvalidInputError(
        "The cursor is invalid. Pass the cursor of the previous page.", field="cursor"
    )


def parse_info(reply: bytes) -> dict[str, str]:
    """Return the fields of a reply to INFO."""
    lines = reply.decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))
