"""Membership: registers this process under a key and reports the processes that are alive.

Each member registers every two seconds and receives the list of members. A member that has not
registered for ten seconds is dropped from the list; a member that stops removes itself. While the
store is unavailable, the last list stays.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from waystation.errors import TransientError
from waystation.runtime.clock import Clock
from waystation.runtime.service import Service
from waystation.store.client import Store
from waystation.store.scripts import script

_MEMBER_BEAT = script("waystation.store", "member_beat")
BEAT_S = 2.0
_SILENT_MS_MAX = 10_000


class Membership(Service):
    """Registers this process under a key and counts the processes that are alive.

    Use it to share something evenly, such as a rate limit. For exclusion use a lease: for some
    seconds two processes can have different counts.
    """

    #: A beat may be cancelled at any point, because the next one repeats it.
    grace_s = 0.0

    def __init__(
        self, store: Store, key: str, member: str, *, on_change: Callable[[int], None], clock: Clock
    ) -> None:
        super().__init__("membership", clock=clock)
        self._store = store
        self._key = key
        self._member = member
        self._on_change = on_change

    async def on_start(self) -> None:
        # Registered before the node serves. If the store is unavailable, `run` repeats the beat.
        with contextlib.suppress(TransientError):
            await self._beat()

    async def run(self) -> None:
        await self.repeat(self._beat, every_s=BEAT_S)

    async def on_stop(self) -> None:
        await self._store.call("ZREM", self._key, self._member, repeatable=True)

    async def _beat(self) -> None:
        arguments = (self._member, _SILENT_MS_MAX)
        _, *members = await self._store.run(_MEMBER_BEAT, [self._key], arguments)
        self._on_change(len(members))
