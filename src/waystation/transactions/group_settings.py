"""What this process's node group was told, as it is now.

A change is announced, and read again now and then: an announcement can be lost. Events of the
admin queue are taken in by claims; a process that makes none does it itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from waystation.errors import BusyError, StoreError
from waystation.runtime.logging import logger
from waystation.runtime.service import Wakeup
from waystation.store.pubsub import RECHECK_S, PubSub
from waystation.transactions import names
from waystation.transactions.nodes import GroupSettings, Nodes

_log = logger("nodes")


class Following:
    """Follows the settings of a node group."""

    def __init__(
        self,
        nodes: Nodes,
        wakeups: PubSub,
        group: str,
        *,
        claims: bool,
    ) -> None:
        self._nodes = nodes
        self._wakeups = wakeups
        self._group = group
        self._claims = claims
        self._changed: list[Callable[[], None]] = []
        #: As they were read last.
        self.value = GroupSettings()
        self._waiter = Wakeup(recheck_s=RECHECK_S)
        self._unlisten: list[Callable[[], None]] = []
        self._task: asyncio.Task[None] | None = None

    def on_change(self, call: Callable[[], None]) -> None:
        """Has somebody called whenever they are others than before."""
        self._changed.append(call)

    async def start(self) -> None:
        """Reads them, and goes on to do so."""
        self._listen(names.NODES.encode(), self._group.encode())
        if not self._claims:
            self._listen(names.work_topic(0, self._group), b"admin")
        await self._read()
        self._task = asyncio.get_running_loop().create_task(self._keep())

    async def stop(self) -> None:
        """Ends."""
        for unlisten in self._unlisten:
            unlisten()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _listen(self, topic: bytes, payload: bytes) -> None:
        """Not to all that is told there: most of it is about work."""

        def told(what: bytes | None) -> None:
            if what in (None, payload):
                self._waiter.set()

        self._unlisten.append(self._wakeups.listen(topic, told))

    async def _keep(self) -> None:
        while True:
            await self._waiter.wait(RECHECK_S)
            # Cleared before it is read: what comes meanwhile is read again.
            self._waiter.clear()
            await self._read()

    async def _read(self) -> None:
        try:
            while not self._claims and await self._nodes.heed(self._group):
                pass
            told = await self._nodes.settings(self._group)
        except (StoreError, BusyError, ValueError) as error:
            _log.warning("settings of the node group cannot be read", problem=str(error))
            return
        changed, self.value = told != self.value, told
        if changed:
            for call in self._changed:
                call()
