"""The store client: concurrent callers share round trips.

All calls made in one turn of the event loop leave in one write, on a cluster in one for each node
(`cluster.py`). Its contract, tested in
`tests/store/test_client.py` and told in `docs/internals/store-client.md`:

- Order: calls reach the store in the order they were made, whoever made them. One that has to be
  sent again comes behind those that were sent meanwhile.
- Cancellation: a call cancelled before its turn ends is never sent; later, its reply is dropped
  and its outcome is unknown to the caller, who gave it up.
- Errors are per call: one caller's error never reaches another.
- NOSCRIPT: the script is sent whole, once; it had not run.
- LOADING and BUSY: the call had not run; it is sent again until its deadline. So it is with what a
  cluster sends elsewhere.
- A lost connection: calls not yet sent wait for the next one; a sent call without a reply is sent
  again, within its deadline, if it is repeatable, else it ends with OutcomeUnknownError.
- Data set: a new connection is used only if its server has the data set that this process knows;
  otherwise calls end with StoreDataLostError (they did not run). See `data_set.py`.
- Deadline: a call that could not be sent in time ends with StoreUnavailableError (it did not
  run). A store that owes replies and is silent for that long costs the connection.
- StoreUnavailableError and StoreFullError promise that the call was not applied; a call that may
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
from waystation.store.connection import Call, Reply
from waystation.store.data_set import DataSet, parse_stamp
from waystation.store.keys import FORMAT
from waystation.store.scripts import Script, variant
from waystation.store.slots import SLOTS, slot_of
from waystation.store.wire import pack
from waystation.store.writer import Writer

#: A server's cursor has 64 bits; that of a cluster 14 more, for the node.
_is_cursor = re.compile(r"[0-9]{1,24}", re.ASCII).fullmatch
_CURSOR_END = 2**64


class Store:
    """A connection to the store that all coroutines of one event loop share."""

    _writer_type: ClassVar[type[Writer]] = Writer

    def __init__(
        self,
        address: Address,
        *,
        call_seconds_max: float = 5.0,
        test_mode: bool = False,
        rng: random.Random | None = None,
    ) -> None:
        self.address = address
        self.test_mode = test_mode
        self.data_set = DataSet(address)
        self._call_seconds_max = call_seconds_max
        self._rng = rng or random.Random()
        self._variant = variant(test_mode=test_mode, cluster=address.cluster is not None)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._cluster: Cluster | None = None
        if address.cluster is not None:
            self._cluster = Cluster(address.cluster, self._make_writer, self._rng, self.data_set)
        self._sender: Writer | Cluster = self._cluster or self._make_writer(address)
        # Kept: it is looked up for each call.
        self._send = self._sender.submit

    def __repr__(self) -> str:
        state = "closed" if self._closed else "connected" if self.connected else "connecting"
        waiting, sent = self._sender.waiting, self._sender.sent
        return f"<Store {self.address} [{state}, {waiting} waiting, {sent} sent]>"

    @property
    def connected(self) -> bool:
        """Whether there is a connection right now."""
        return self._sender.connected

    @property
    def last_problem(self) -> str:
        """Why the last attempt to connect failed; empty when connected."""
        return self._sender.last_problem

    # -- Calling -----------------------------------------------------------------------------

    def call(
        self, *command: str | bytes | int | float, repeatable: bool = False
    ) -> asyncio.Future[Reply]:
        """Sends one command. Say `repeatable` only if running it twice does no harm."""
        return self._submit(pack(command), repeatable=repeatable)

    def run(
        self, script: Script, keys: Sequence[str | bytes], arguments: Sequence[str | bytes | int]
    ) -> asyncio.Future[Reply]:
        """Runs a script."""
        rest = (len(keys), *keys, *arguments)
        packed = pack((b"EVALSHA", script.shas[self._variant], *rest))
        return self._submit(packed, repeatable=script.repeatable, script=script, arguments=rest)

    async def pipeline(
        self, commands: Iterable[Sequence[str | bytes | int | float]], *, repeatable: bool = False
    ) -> list[Reply | StoreError]:
        """Sends commands in one write; an error stands in the place of its reply.

        Scripts in a pipeline are `run` calls gathered by the caller: a command list cannot heal
        NOSCRIPT, `run` does.
        """
        calls = [self.call(*command, repeatable=repeatable) for command in commands]
        replies = await asyncio.gather(*calls, return_exceptions=True)
        for reply in replies:
            if isinstance(reply, BaseException) and not isinstance(reply, StoreError):
                raise reply
        return replies

    async def ping(self) -> None:
        """Make one round trip, or raise an error. A cluster has to say that it serves its slots.

        StoreDataLostError if the data set of a single server is gone, as after FLUSHALL on a live
        connection.
        """
        if self._cluster is not None:
            if b"cluster_state:ok" not in await self.call("CLUSTER", "INFO", repeatable=True):
                raise StoreUnavailableError(
                    "The cluster says that it does not serve all its slots."
                )
            # Its data set is checked with each new connection, by markers of the node itself.
            return
        # A server whose disk is full refuses PING, while it still answers reads.
        _, words = await asyncio.gather(
            self.call("PING", repeatable=True),
            self.call("HMGET", FORMAT, "dataset", "replaces", repeatable=True),
        )
        try:
            self.data_set.judge(parse_stamp(words))
        except StoreDataLostError:
            self._sender.drop_connection()
            raise

    # -- The whole store ---------------------------------------------------------------------

    async def call_each(self, *command: str | int) -> dict[str, Reply]:
        """Sends a command, which may be repeated, to every server; replies by their addresses."""
        if self._cluster is None:
            return {str(self.address): await self.call(*command, repeatable=True)}
        writers = (await self._cluster.nodes()).values()
        replies = await asyncio.gather(*(self._ask(each, command) for each in writers))
        return {str(each.address): reply for each, reply in zip(writers, replies, strict=True)}

    async def scan(self, cursor: str, *, match: str, count: int) -> tuple[str, list[bytes]]:
        """A page of all keys, and the cursor of the next; "0" begins, and tells the last page.

        It promises what SCAN does; what a cluster moves meanwhile may be missed or come twice.
        """
        if not _is_cursor(cursor):
            raise _not_ours()
        position, slot = int(cursor), 0
        nodes: dict[int, Writer] = {}
        if self._cluster is not None:
            position, slot = divmod(position, SLOTS)
            nodes = await self._cluster.nodes()
        if position >= _CURSOR_END:
            raise _not_ours()
        command = ("SCAN", position, "MATCH", match, "COUNT", count)
        if self._cluster is None:
            after, keys = await self.call(*command, repeatable=True)
            return after.decode(), keys
        # Where slots have moved, from the node that comes next.
        here = next((first for first in nodes if first >= slot), None)
        if here is None:
            return "0", []
        after, keys = await self._ask(nodes[here], command)
        if after != b"0":
            return str(int(after) * SLOTS + here), keys
        return str(next((first for first in nodes if first > here), 0)), keys

    async def unlink(self, keys: Sequence[bytes]) -> None:
        """Deletes keys, wherever they lie."""
        if self._cluster is None:
            groups = [list(keys)] if keys else []
        else:
            by_slot: dict[int, list[bytes]] = {}
            for key in keys:
                by_slot.setdefault(slot_of(key), []).append(key)
            groups = list(by_slot.values())
        await asyncio.gather(*(self.call("UNLINK", *each, repeatable=True) for each in groups))

    # -- Life --------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Connects now, so that a wrong address is noticed at start."""
        await self.ping()

    async def close(self) -> None:
        """Ends every call that has no reply, and the connection."""
        self._closed = True
        await self._sender.close()

    # -- The machinery -----------------------------------------------------------------------

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
            # Kept: to ask for it costs a system call on every call.
            loop = self._loop = asyncio.get_running_loop()
        future: asyncio.Future[Reply] = loop.create_future()
        deadline = loop.time() + self._call_seconds_max
        self._send(
            Call(
                packed, future, deadline, repeatable=repeatable, script=script, arguments=arguments
            )
        )
        return future

    def _ask(self, writer: Writer, command: Sequence[str | int]) -> asyncio.Future[Reply]:
        """Sends a command of a server to this one of them."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Reply] = loop.create_future()
        deadline = loop.time() + self._call_seconds_max
        writer.submit(Call(pack(tuple(command)), future, deadline, repeatable=True))
        return future

    def _make_writer(self, address: Address, owner: Cluster | None = None) -> Writer:
        return self._writer_type(
            address,
            variant=self._variant,
            call_seconds_max=self._call_seconds_max,
            rng=self._rng,
            data_set=self.data_set,
            owner=owner,
        )


def _not_ours() -> InvalidInputError:
    return InvalidInputError("The cursor is not one of ours.", field="cursor")
