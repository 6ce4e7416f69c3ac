"""The verbs of pools: create, change, delete; and who enqueues in one by its name.

Each verb is a sequence of steps that can be repeated: catalogue, slot, working copy. Whoever finds
one half-way finishes what another began. A pool that was deleted is closed first, from when on
nothing comes in or goes out, then deleted by steps; what has its name next is another incarnation,
which no late step of the former one touches.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncIterator, Sequence

from waystation.catalogue import Catalogue
from waystation.config import PoolConfig
from waystation.db.definitions import require_version
from waystation.errors import (
    ConflictError,
    InvalidInputError,
    PoolNotFoundError,
    StoreError,
    WorkerUnknownError,
)
from waystation.logs.records import RecordLogs, log_key
from waystation.pools.answers import Answers
from waystation.pools.assignments import Assignments
from waystation.pools.dead_letters import DeadLetters
from waystation.pools.definition import Pool, PoolOptions, check_options
from waystation.pools.definitions import ALIVE, EVERY, THERE, PoolDefinitions
from waystation.pools.held import Enqueued, Letter
from waystation.pools.mail import BATCH_MAX, Mail
from waystation.pools.members import Members
from waystation.pools.mirror_claim import MirrorClaim
from waystation.pools.names import Place
from waystation.pools.recipient import check_id, check_key, check_mirrored_key
from waystation.pools.tally import Tally
from waystation.pools.terms import Terms
from waystation.runtime.batcher import RequestBatcher
from waystation.runtime.clock import Clock
from waystation.runtime.ids import require_name
from waystation.runtime.logging import logger
from waystation.store.client import Store
from waystation.store.pubsub import PubSub
from waystation.store.scripts import script

_log = logger("pools")

_CLOSE = script(__package__, "close")
_UNLINK = script(__package__, "unlink_some")
#: Messages that come one by one and are small share calls, so many at most: much of what a call
#: costs the store is the same for all of them.
_SINGLES_MAX = 32
_SMALL_BYTES_MAX = 16_384
#: Keys that one call deletes, with their messages.
_UNLINKED_MAX = 100


class Pools:
    """All pools of all projects."""

    def __init__(
        self,
        catalogue: Catalogue,
        store: Store,
        wakeups: PubSub,
        *,
        clock: Clock,
        settings: PoolConfig,
        records: RecordLogs | None = None,
    ) -> None:
        self._definitions = PoolDefinitions(catalogue, store, clock=clock)
        self._store = store
        self.wakeups = wakeups
        self._clock = clock
        self._settings = settings
        self._records = records
        self.members, self.mail = Members(store), Mail(store)
        self.assignments = Assignments(store)
        self.dead_letters = DeadLetters(store)
        self.answers = Answers(store, wakeups)
        self.tally = Tally()
        self._mirror = MirrorClaim(store)
        self._moving: set[asyncio.Task[None]] = set()
        self._singles = RequestBatcher(self._enqueue_singles, items_max=_SINGLES_MAX)

    # -- Looking -----------------------------------------------------------------------------

    def known(self, project: str, name: str) -> Pool | None:
        """The pool, if it was read a moment ago, in whichever state; never waits."""
        return self._definitions.get_recent(project, name)

    async def get(self, project: str, name: str) -> Pool:
        """The pool as it is; PoolNotFoundError also for one that is being deleted."""
        require_name(name, field="pool")
        pool = await self._definitions.read_cached(project, name)
        if pool is None:
            # A new store, or a creation that died half-way: the catalogue knows.
            row = await self._definitions.read_row(project, name)
            if row is None:
                raise self._definitions.not_found(name)
            await self.mend(row)
            pool = await self._definitions.read_cached(project, name) or row
        if pool.state not in ALIVE:
            raise self._definitions.not_found(name)
        return pool

    async def use(self, project: str, name: str) -> Pool:
        """The pool as it was a moment ago: for calls that its scripts check anyway."""
        pool = self._definitions.get_recent(project, name)
        if pool is None or pool.state not in ALIVE:
            pool = await self.get(project, name)
        return pool

    async def list(self, project: str, *, after: str = "", limit: int) -> list[Pool]:
        """Pools of a project by name."""
        return await self._definitions.page(project, ALIVE, after=after, limit=limit)

    def everything(self) -> AsyncIterator[Sequence[Pool]]:
        """All pools of all projects as the catalogue has them, in every state, by pages."""
        return self._definitions.read_all()

    def terms(self, pool: Pool) -> Terms:
        """What its scripts are told."""
        return pool.terms(self._settings, self._record_terms(pool))

    def _record_log(self, pool: Pool) -> str:
        """Return the record log of a pool; empty: pools are not recorded."""
        return self._records.log_of("pools", pool.place.tag) if self._records else ""

    def _record_terms(self, pool: Pool) -> str:
        """Return how scripts record the events of a pool, for their terms."""
        if self._records is None:
            return ""
        policy = self._records.policy(pool.options.record)
        return f"{policy} {log_key(self._record_log(pool))}"

    # -- Changing ----------------------------------------------------------------------------

    async def create(self, project: str, name: str, options: PoolOptions | None = None) -> Pool:
        """Creates a pool; ConflictError when there is one."""
        require_name(name, field="name")
        options = options or PoolOptions()
        check_options(options)
        former, written = await self._former(project, name)
        # One that only the catalogue has lost goes on with what waits in it.
        goes_on = former is not None and former.state in ALIVE
        pool = Pool(
            project=project,
            name=name,
            version=former.version + 1 if former else 1,
            options=options,
            created_ms=self._clock.now_ms(),
            incarnation=former.incarnation + (not goes_on) if former else 1,
        )
        if options.mirror:
            await self._mirror.take(Place(project, name))
        await self._definitions.create(pool, over=written)
        await self._hand_out(pool)
        return self._definitions.remember(pool, self._clock.uptime_s())

    async def change(self, project: str, name: str, options: PoolOptions, *, version: int) -> Pool:
        """Puts other options in place of those of a version; they hold from the next call on."""
        require_name(name, field="pool")
        check_options(options)

        def changed(pool: Pool) -> Pool:
            require_version(pool, version, kind="pool")
            if options.mirror != pool.options.mirror:
                raise InvalidInputError("A pool is mirrored from its creation on.", field="mirror")
            return pool.changed(options=options)

        return await self._definitions.change(project, name, changed)

    async def delete(self, project: str, name: str) -> None:
        """Deletes a pool with its workers, messages and dead letters."""

        def deleting(pool: Pool) -> Pool:
            return pool if pool.state == "deleting" else pool.changed(state="deleting")

        require_name(name, field="pool")
        await self._finish_deletion(
            await self._definitions.change(project, name, deleting, states=THERE)
        )

    # -- Enqueueing --------------------------------------------------------------------------

    async def enqueue(
        self, project: str, name: str, letters: Sequence[Letter]
    ) -> builtins.list[Enqueued]:
        """Enqueues messages in their order; the keys of a worker that is found stale move on.

        More than a hundred take several calls: who is refused by a later one, or hears nothing,
        sends all again, and their ids keep them from being there twice.
        """
        pool = await self.use(project, name)
        if pool.options.mirror:
            for each in letters:
                check_mirrored_key(each.key)
        if len(letters) == 1 and len(letters[0].packed) <= _SMALL_BYTES_MAX:
            # Here, and not only with its call: what is wrong with one is no trouble of the others.
            check_id(letters[0].id)
            check_key(letters[0].key)
            return [await self._singles.ask((project, name), letters[0])]
        items = builtins.list[Enqueued]()
        for first in range(0, len(letters), BATCH_MAX):
            items += await self._enqueue(pool, letters[first : first + BATCH_MAX])
        return items

    async def _enqueue_singles(
        self, name: tuple[str, str], letters: builtins.list[Letter]
    ) -> Sequence[Enqueued]:
        return await self._enqueue(await self.use(*name), letters)

    async def _enqueue(self, pool: Pool, letters: Sequence[Letter]) -> Sequence[Enqueued]:
        if self._records and self._records.needs_log(log := self._record_log(pool)):
            await self._records.create_log(log)
        remember_ms = round(pool.options.dedup_seconds * 1000)
        batch = await self.mail.enqueue(
            pool.place, self.terms(pool), letters, remember_ms=remember_ms
        )
        self.tally.enqueued(pool, batch)
        for uid in batch.unfinished:
            task = asyncio.get_running_loop().create_task(self._move_rest(pool, uid))
            self._moving.add(task)
            task.add_done_callback(self._moving.discard)
        return batch.items

    async def _move_rest(self, pool: Pool, uid: str) -> None:
        """If we die or fail here, the next enqueue of such a key, or the sweep, goes on."""
        try:
            moved = await self.assignments.reassign(pool.place, self.terms(pool), uid)
            self.tally.moved(pool, moved)
        except (StoreError, PoolNotFoundError, WorkerUnknownError) as error:
            _log.warning("keys of a stale worker are left to others", problem=str(error))

    async def close(self) -> None:
        """Send queued messages for up to a second, then end all waits and moves of keys."""
        await self._singles.close(grace_s=1.0)
        self.answers.end_waits()
        for task in self._moving:
            task.cancel()
        await asyncio.gather(*self._moving, return_exceptions=True)

    # -- Finishing what was begun ------------------------------------------------------------

    async def mend(self, pool: Pool) -> None:
        """Brings a pool to where its row says it is."""
        if pool.state == "deleting":
            await self._finish_deletion(pool)
            return
        copied = await self._definitions.cached_version(pool)
        if copied > pool.version:
            # It was changed a moment ago; or the catalogue came from a backup, and is brought up.
            await self._definitions.change(pool.project, pool.name, lambda now: now, states=EVERY)
        else:
            await self._hand_out(pool)

    async def _former(self, project: str, name: str) -> tuple[Pool | None, int | None]:
        """What had the name before, and the version of its row; ConflictError if it still has."""
        found = await self._definitions.read_newest(project, name)
        if found is not None and found[0].state == "deleting":
            await self._finish_deletion(found[0])
            found = await self._definitions.read_newest(project, name)
        if found is not None:
            if found[0].state != "deleted":
                await self.mend(found[0])
                raise ConflictError(f"There is a pool {name} already.")
            return found
        # The store may know one that this catalogue never knew.
        copy = await self._definitions.read_cached(project, name)
        if copy is not None and copy.state == "deleting":
            await self._remove(copy)
        return copy, None

    async def _hand_out(self, pool: Pool) -> None:
        """Puts a working copy; what it speaks of first, since who finds it relies on that."""
        if pool.state in ALIVE:
            await self.members.open(
                pool.place,
                self.terms(pool),
                incarnation=pool.incarnation,
                mirror=pool.options.mirror,
            )
        await self._definitions.publish(pool)

    async def _finish_deletion(self, pool: Pool) -> None:
        await self._remove(pool)
        if pool.options.mirror:
            await self._mirror.release(pool.place)

        def deleted(now: Pool) -> Pool:
            same = now.incarnation == pool.incarnation and now.state == "deleting"
            return now.changed(state="deleted") if same else now

        await self._definitions.change(pool.project, pool.name, deleted, states=EVERY)

    async def _remove(self, pool: Pool) -> None:
        """Closes the slot, and deletes what is in it by steps."""
        head, incarnation = [pool.place.head], pool.incarnation
        if await self._store.run(_CLOSE, head, [incarnation, self._record_terms(pool)]):
            while await self._store.run(_UNLINK, head, [incarnation, _UNLINKED_MAX]):
                pass
