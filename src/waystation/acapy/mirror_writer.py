"""Writes into the mirror what differs from the pool's map: lists, owners, counts, iterator."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from waystation.acapy.agents import write_keys
from waystation.acapy.handover import Handover
from waystation.acapy.mirror import LISTS, NO_VERSION, OWNERS, PENDING, Mirror
from waystation.acapy.pool_map import PoolMap
from waystation.pools.held import WorkerLook
from waystation.pools.names import NOBODY
from waystation.pools.states import WorkerState


class MirrorWriter:
    """Remembers what it wrote; whoever was away makes a new one."""

    def __init__(self, mirror: Mirror, seconds: Callable[[], float]) -> None:
        self._mirror = mirror
        self._handover = Handover(seconds)
        #: Owners of keys as we wrote them; None: nothing was written yet.
        self.owners: dict[str, str] | None = None
        self._version, self._iterator = NO_VERSION, ""

    def wait_seconds(self) -> float | None:
        """Until a key that goes from one agent to another can be given; None: none waits."""
        return self._handover.wait_seconds()

    async def write(
        self,
        ours: PoolMap,
        lists: Mapping[str, frozenset[str] | None],
        owners: Mapping[str, str],
        agents: Mapping[str, WorkerLook],
        pending: Mapping[str, int],
        *,
        key_seconds: float,
    ) -> int | None:
        """Writes what differs; how many agents' lists did. None: another is ahead of us."""
        readable = {uid: keys or frozenset() for uid, keys in lists.items()}
        wanted = {uid: keys for uid, keys in ours.lists.items() if uid != NOBODY}
        given = self._handover.given(
            wanted,
            readable,
            reading=frozenset(
                uid for uid, each in agents.items() if each.state is not WorkerState.EVICTED
            ),
            key_seconds=key_seconds,
        )
        changed = {uid: write_keys(keys) for uid, keys in given.items() if lists.get(uid) != keys}
        gone = [uid for uid in lists if uid in agents and uid not in wanted]
        done = (
            await self._put(LISTS, ours.version, changed, gone)
            and await self._write_owners(ours, owners)
            and await self._write_pending(ours, pending)
        )
        if not done:
            return None
        if ours.iterator != self._iterator and ours.iterator in wanted:
            # The plugin's iterator is a place in the names, and names the next one.
            names = list(dict.fromkeys((*lists, *wanted)))
            place = (names.index(ours.iterator) + 1) % len(names)
            await self._mirror.write_iterator(ours.version, place)
            self._iterator = ours.iterator
        self._version = ours.version
        return len(changed) + len(gone)

    async def _put(
        self, name: str, version: int, changed: Mapping[str, str | bytes], gone: list[str]
    ) -> bool:
        """Writes a map, also if nothing of it but its version is another."""
        if not changed and not gone and version == self._version:
            return True
        return await self._mirror.write(name, version, changed, gone)

    async def _write_owners(self, ours: PoolMap, owners: Mapping[str, str]) -> bool:
        wanted = {key: uid for key, uid in ours.owners.items() if uid != NOBODY}
        was = self.owners or {}
        there = {**was, **owners}
        changed = {key: uid for key, uid in wanted.items() if there.get(key) != uid}
        # Not what was given by others a moment ago: the next step adopts it.
        gone = [key for key in there if key not in wanted and (key in was or key in ours.owners)]
        left = [f"{uid}_{key}" for key, uid in was.items() if wanted.get(key) != uid]
        if not await self._put(OWNERS, ours.version, changed, gone):
            return False
        if left and not await self._mirror.write(PENDING, ours.version, {}, left):
            return False
        for key in gone:
            if key not in ours.owners:
                await self._mirror.forget(key)
        self.owners = wanted
        return True

    async def _write_pending(self, ours: PoolMap, pending: Mapping[str, int]) -> bool:
        wanted = {
            f"{uid}_{key}": str(count)
            for key, count in pending.items()
            if (uid := ours.owners.get(key, NOBODY)) != NOBODY
        }
        there = await self._mirror.pending(list(wanted))
        changed = {field: count for field, count in wanted.items() if there.get(field) != count}
        return not changed or await self._mirror.write(PENDING, ours.version, changed)
