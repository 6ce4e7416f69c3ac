"""What this process's node group was told, as it is now.

A change is announced, and read again now and then: an announcement can be lost. Events of the
admin queue are taken in by claims; a process that makes none does it itself.
"""

from __future__ import annotations

from collections.abc import Callable

from waystation.errors import BusyError, StoreError
from waystation.runtime.backoff import log_failure
from waystation.runtime.service import Service, Wakeup
from waystation.store.pubsub import RECHECK_S, PubSub
from waystation.transactions import names
from waystation.transactions.nodes import GroupSettings, Nodes


class Following(Service):
    """The settings of a node group, as this process read them last."""

    #: A read may be cancelled anywhere, also between two events of the admin queue.
    grace_s = 0.0

    def __init__(
        self,
        nodes: Nodes,
        wakeups: PubSub,
        group: str,
        *,
        claims: bool,
    ) -> None:
        super().__init__("nodes", clock=nodes.clock)
        self._nodes = nodes
        self._wakeups = wakeups
        self._group = group
        self._claims = claims
        self._changed: list[Callable[[], None]] = []
        #: As they were read last.
        self.value = GroupSettings()
        self._wakeup = Wakeup(recheck_s=RECHECK_S)
        self._unlisten: list[Callable[[], None]] = []

    def on_change(self, call: Callable[[], None]) -> None:
        """Has somebody called whenever they are others than before."""
        self._changed.append(call)

    async def on_start(self) -> None:
        """Read the settings; if the store is unavailable, `run` repeats it."""
        self._listen(names.NODES.encode(), self._group.encode())
        if not self._claims:
            self._listen(names.work_topic(0, self._group), b"admin")
        try:
            await self._read()
        except (StoreError, BusyError, ValueError) as error:
            log_failure(self._log, "group settings", error)

    async def run(self) -> None:
        """Read the settings on each change until the service stops."""
        await self.repeat(self._read, every_s=RECHECK_S, wakeup=self._wakeup)

    async def on_stop(self) -> None:
        """End the subscriptions."""
        for unlisten in self._unlisten:
            unlisten()

    def _listen(self, topic: bytes, payload: bytes) -> None:
        """Not to all that is told there: most of it is about work."""

        def told(what: bytes | None) -> None:
            if what in (None, payload):
                self._wakeup.set()

        self._unlisten.append(self._wakeups.listen(topic, told))

    async def _read(self) -> None:
        while not self._claims and await self._nodes.heed(self._group):
            pass
        told = await self._nodes.settings(self._group)
        changed, self.value = told != self.value, told
        if changed:
            for call in self._changed:
                call()
