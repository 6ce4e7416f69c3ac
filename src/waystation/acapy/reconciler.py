"""The reconciler: makes pool and mirror agree, every second, and at once when the map has changed.

One process does it at a time, under a lease; one that lost the lease and does not know it yet does
no harm, since the mirror refuses older versions and the pool's scripts decide for themselves. Each
step reads everything that it relies on, so it repairs whatever others did, or left half done:

1. Agents that have registered themselves become workers of the pool, and so does one that was taken
   for dead and got a message since. What others gave to agents is adopted.
2. Messages that a list of an agent lacks are pushed; what agents have popped leaves the pool.
3. Lists, owners and counts are written where they differ from the pool's.
4. Agents that were evicted are let go of, when nothing names them any more.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping

import msgspec

from waystation.acapy.agents import is_key, is_uid, read_keys
from waystation.acapy.mediator import adoptions, base_of
from waystation.acapy.mirror import NO_VERSION, Mirror
from waystation.acapy.mirror_writer import MirrorWriter
from waystation.acapy.pool_map import MapReader, PoolMap
from waystation.acapy.pusher import Pusher
from waystation.errors import PoolFullError, WorkersFullError
from waystation.pools import Pool, Pools
from waystation.pools.held import PoolLook, Session, WorkerLook
from waystation.pools.mirrored import DROPPED_MAX, KEYS_MAX, READY_MAX, Mirrored, Seen
from waystation.pools.names import NOBODY
from waystation.pools.states import WorkerKind, WorkerState
from waystation.pools.terms import Terms
from waystation.runtime.logging import logger
from waystation.runtime.tasks import for_each

_log = logger("mirror")

#: An agent that never got a message counts from then on: it may have died before its first.
GRACE_MS = 60_000
#: Owners, and lists without messages, that are looked at in one step; more take turns.
_OWNERS_MAX = 2000
_IDLE_MAX = 200
_SWEEPS_MAX = 50


class Reconciled(msgspec.Struct, frozen=True, kw_only=True):
    """What one step did."""

    registered: int = 0
    adopted: int = 0
    pushed: int = 0
    #: Agents whose lists were written, or taken away.
    written: int = 0
    #: False: another has written a later version, which is not undone.
    current: bool = True
    #: When the next step is due, if that is sooner than usual.
    again_seconds: float | None = None


class Reconciler:
    """The steps; `MirrorKeeper` runs them."""

    def __init__(
        self, pools: Pools, pool: Pool, mirrored: Mirrored, mirror: Mirror, pusher: Pusher
    ) -> None:
        self._pools = pools
        self._pool = pool
        self._place = pool.place
        self._mirrored = mirrored
        self._mirror = mirror
        self._pusher = pusher
        self._terms: Terms = pools.terms(pool)
        self.forget()

    def __repr__(self) -> str:
        return f"<Reconciler {self._place.pool}>"

    def forget(self) -> None:
        """Others may have written since: nothing that is remembered holds."""
        self._map = MapReader(self._mirrored, self._place)
        self._writer = MirrorWriter(self._mirror, asyncio.get_running_loop().time)
        self._cursor, self._idle_from = "0", ""

    async def step(self) -> Reconciled:
        """One pass."""
        self._pool = await self._pools.use(self._place.project, self._place.pool)
        self._terms = self._pools.terms(self._pool)
        version, raw = await self._mirror.lists()
        accesses = await self._mirror.accesses()
        if version == NO_VERSION:
            # Of the plugin's own time: who is not in the map has gone.
            await self._mirror.forget_accesses([uid for uid in accesses if uid not in raw])
            accesses = {uid: each for uid, each in accesses.items() if uid in raw}
        registered = await self._register(raw, accesses)
        await self._tell_accesses(accesses)
        await self._sweep()
        look = await self._look()
        agents = {each.uid: each for each in look.workers}
        live = {uid for uid, each in agents.items() if each.state is WorkerState.LIVE}
        owners = await self._read_owners()
        lists = {uid: read_keys(each) for uid, each in raw.items()}
        ours = await self._map.read(self._terms, live)
        adopted = await self._adopt(ours, owners, lists, live, version)
        if adopted:
            ours = await self._map.read(self._terms, live)
        pushed, pending = await self._settle(ours)
        written = await self._writer.write(
            ours, lists, owners, agents, pending, key_seconds=self._pool.options.agent_key_ms / 1000
        )
        if written is None:
            return Reconciled(registered=registered, adopted=adopted, pushed=pushed, current=False)
        await self._let_go(look, raw)
        # Of very many keys with messages a step sees the oldest: where those went, more come.
        went = len(ours.ready) >= READY_MAX and any(pending.get(key) == 0 for key in ours.ready)
        return Reconciled(
            registered=registered,
            adopted=adopted,
            pushed=pushed,
            written=written,
            again_seconds=0.0 if went else self._writer.wait_seconds(),
        )

    # -- Who is there ------------------------------------------------------------------------

    async def _look(self) -> PoolLook:
        return await self._pools.assignments.look(self._place, self._terms)

    async def _register(self, raw: Mapping[str, bytes], accesses: Mapping[str, str]) -> int:
        """Who has written a list for itself, or got a message, and is no worker: is one now."""
        known = {each.uid for each in (await self._look()).workers}
        new = sorted(uid for uid in {*raw, *accesses} if uid not in known and is_uid(uid))
        for uid in new:
            try:
                await self._pools.members.register(
                    self._place, self._terms, uid, nonce=uid, kind=WorkerKind.AGENT
                )
            except WorkersFullError as error:
                _log.warning("an agent cannot be registered", agent=uid, problem=str(error))
                return 0
        return len(new)

    async def _tell_accesses(self, accesses: Mapping[str, str]) -> None:
        """What agents wrote of themselves is not believed; that it has changed is."""
        told = {each.uid: accesses.get(each.uid, "") for each in (await self._look()).workers}
        await self._mirrored.observe(self._place, self._terms, told, [], grace_ms=GRACE_MS)

    async def _sweep(self) -> None:
        """As upkeep does, which may not run in this installation."""
        options = self._pool.options
        retention = options.key_retention_seconds
        for _ in range(_SWEEPS_MAX):
            swept = await self._pools.assignments.sweep(
                self._place,
                self._terms,
                forget_ms=round(options.worker_forget_seconds * 1000),
                retention_ms=None if retention is None else round(retention * 1000),
            )
            if swept.evicted:
                _log.warning("agents were stale, their keys go to others", agents=swept.evicted)
            if not swept.more:
                return

    async def _let_go(self, look: PoolLook, raw: Mapping[str, bytes]) -> None:
        """Who was evicted, and stands in no list, is forgotten: if it comes back, it is new."""
        for each in look.workers:
            if each.uid not in raw and _is_over(each, look.now_ms):
                await self._mirror.forget_accesses([each.uid])
                await self._pools.members.leave(self._place, self._terms, Session(each.uid))

    # -- What others did ---------------------------------------------------------------------

    async def _read_owners(self) -> dict[str, str]:
        """Owners of keys as they are written: all of them, or where they are many the next."""
        most = _OWNERS_MAX if self._writer.owners is not None else 2**31
        self._cursor, found = await self._mirror.owners(self._cursor, most=most)
        return {key: uid for key, uid in found.items() if is_key(key)}

    async def _adopt(
        self,
        ours: PoolMap,
        owners: Mapping[str, str],
        lists: Mapping[str, frozenset[str] | None],
        live: set[str],
        version: int,
    ) -> int:
        listed = {key: uid for uid, keys in lists.items() for key in keys or ()}
        theirs = {**listed, **owners}
        same = version == ours.version
        base = base_of(self._writer.owners, ours.owners, theirs, ours_was_written=same)
        given = adoptions(base, ours.owners, theirs, live)
        known, count = ours.version, 0
        for key in given.pop("", ()):
            try:
                await self._pools.assignments.assign(self._place, self._terms, key)
            except PoolFullError as error:
                _log.warning("keys cannot be adopted", problem=str(error))
                return count
            count += 1
        if count and given:
            return count  # The version is another now: those are for the next step.
        for uid, keys in given.items():
            for first in range(0, len(keys), KEYS_MAX):
                some = keys[first : first + KEYS_MAX]
                after = await self._mirrored.adopt(
                    self._place, self._terms, uid, some, version=known
                )
                if after is None:
                    return count
                known, count = after, count + len(some)
        return count

    # -- Messages ----------------------------------------------------------------------------

    async def _settle(self, ours: PoolMap) -> tuple[int, dict[str, int]]:
        """Pushes, and takes off the pool what was popped; pending of the keys looked at."""
        seen: list[Seen] = []
        pushed = 0
        waiting = set(ours.ready)

        async def tend(key: str) -> None:
            nonlocal pushed
            seen.append(found := await self._mirror.look(key))
            if key in waiting and ours.owners.get(key, NOBODY) != NOBODY:
                pushed += await self._pusher.push(key, after=found.pushed)

        keys = [key for key in (*ours.ready, *self._idle(ours)) if self._mirror.can_have(key)]
        await for_each(keys, tend)
        pending: dict[str, int] = {}
        for first in range(0, len(seen), KEYS_MAX):
            some = seen[first : first + KEYS_MAX]
            pending |= await self._observe(some)
        return pushed, pending

    async def _observe(self, seen: list[Seen]) -> dict[str, int]:
        """Takes over what was seen of lists, in as many calls as it takes."""
        pending: dict[str, int] = {}
        while seen:
            now = await self._mirrored.observe(
                self._place, self._terms, {}, seen, grace_ms=GRACE_MS
            )
            # Only those that become fewer: messages may come all the time.
            fewer = [each for each in seen if now[each.key] < pending.get(each.key, math.inf)]
            pending |= now
            seen = [each for each in fewer if now[each.key] >= each.length + DROPPED_MAX]
        return pending

    def _idle(self, ours: PoolMap) -> list[str]:
        """Some keys of which we know no message: a mediator may have pushed one."""
        waiting = set(ours.ready)
        rest = sorted(key for key in ours.owners if key not in waiting)
        first = [key for key in rest if key > self._idle_from][:_IDLE_MAX]
        some = first + rest[: _IDLE_MAX - len(first)] if len(rest) > _IDLE_MAX else rest
        self._idle_from = some[-1] if some else ""
        return some


def _is_over(worker: WorkerLook, now_ms: int) -> bool:
    """Whether an agent is let go of: it was evicted, or drained and reads no list any more."""
    if worker.state is WorkerState.EVICTED:
        return True
    last_ms = max(worker.last_access_ms or 0, worker.registered_ms)
    return worker.state is WorkerState.DRAINING and not worker.keys and now_ms - last_ms > GRACE_MS
