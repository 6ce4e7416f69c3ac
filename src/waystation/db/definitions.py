"""Versioned definitions of topics, subscriptions and pools, in three places.

The catalogue has the row of a definition, which is authoritative. The store has the cached
definition, which all nodes read and whose version never decreases. Each process remembers the
definitions that it read for two seconds.

A change is written to the row first, against the version that it was made from, then to the cache.
Versions under one name never decrease: a creation after a deletion, or in a new catalogue,
continues from the cached version. A catalogue that was restored from a backup lacks confirmed
changes; the next change then starts from the cached definition, which has them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import Generic, Protocol, TypeVar

import msgspec

from waystation.catalogue.protocol import Catalogue, DefinitionRecord
from waystation.errors import ConflictError, NotFoundError, WaystationError
from waystation.runtime.clock import Clock
from waystation.runtime.ids import require_name
from waystation.runtime.logging import logger
from waystation.store.client import Store
from waystation.store.scripts import script

_log = logger("catalogue")

_PUT = script("waystation.db", "put_definition")
#: Age at which a remembered definition is read again before use.
_FRESH_SECONDS = 2.0
_KNOWN_MAX = 10_000
#: Limit of repetitions of a change that conflicts with concurrent changes.
_ATTEMPTS_MAX = 20
_PAGE = 200


class Definition(Protocol):
    """Fields that definitions of all kinds have."""

    @property
    def project(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def state(self) -> str: ...


_D = TypeVar("_D", bound=Definition)


class Definitions(ABC, Generic[_D]):
    """Read and change the definitions of one kind.

    Mutable state: `_known`, the definitions that this process read, with the time of reading.
    """

    #: Kind of the rows, and the word for one of them in messages.
    kind: str
    #: States in which a definition can be used; in other states it is treated as missing.
    usable_states: tuple[str, ...]

    def __init__(self, catalogue: Catalogue, store: Store, *, clock: Clock) -> None:
        self._catalogue = catalogue
        self._store = store
        self._clock = clock
        self._known: dict[tuple[str, str], tuple[_D, float]] = {}

    # -- Differences between kinds -----------------------------------------------------------

    @abstractmethod
    def encode(self, definition: _D) -> bytes:
        """Return the stored form, which is JSON."""

    @abstractmethod
    def decode(self, body: bytes) -> _D:
        """Return the definition in a stored form; raise msgspec.DecodeError if it is invalid."""

    @abstractmethod
    def cache_key(self, project: str, name: str) -> str:
        """Return the store key of a cached definition."""

    @abstractmethod
    def not_found(self, name: str) -> NotFoundError:
        """Return the error for a definition that is missing, deleted or in another project."""

    # -- Reading -----------------------------------------------------------------------------

    def get_recent(self, project: str, name: str) -> _D | None:
        """Return the definition if this process read it in the last two seconds; else None."""
        found = self._known.get((project, name))
        if found is None or self._clock.uptime_s() - found[1] > _FRESH_SECONDS:
            return None
        return found[0]

    async def read_cached(self, project: str, name: str) -> _D | None:
        """Return the cached definition; None if the store has none, or an invalid one.

        An invalid one is logged. `publish` replaces it by the row.
        """
        read_at = self._clock.uptime_s()
        key = self.cache_key(project, name)
        body = await self._store.call("HGET", key, "body", repeatable=True)
        if body is None:
            return None
        try:
            definition = self.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            _log.error("cached definition invalid", key=key, reason=str(error))
            return None
        return self.remember(definition, read_at)

    async def read_row(self, project: str, name: str) -> _D | None:
        """Return the definition of the catalogue, in any state; None if there is no row."""
        record = await self._catalogue.definition(self.kind, project, name)
        return None if record is None else self.decode(record.body)

    async def cached_version(self, definition: _D) -> int:
        """Return the version of the cached definition; 0 if it is missing or invalid."""
        key = self.cache_key(definition.project, definition.name)
        version = await self._store.call("HGET", key, "version", repeatable=True) or b""
        return int(version) if version.isdigit() else 0

    async def read_newest(self, project: str, name: str) -> tuple[_D, int] | None:
        """Return the newest definition and the version of its row; None if there is no row.

        The cache is read before the row, and a change writes the row first. The cached version is
        therefore newer only if the catalogue was restored from a backup.
        """
        cached = await self.read_cached(project, name)
        row = await self.read_row(project, name)
        if row is None:
            return None
        is_restored = cached is not None and cached.version > row.version
        return (cached if cached is not None and is_restored else row), row.version

    async def page(
        self, project: str, states: Collection[str], *, after: str, limit: int
    ) -> list[_D]:
        """Return definitions of a project in the given states by name.

        The result has fewer than `limit` definitions only at the end of the list.
        """
        found: list[_D] = []
        while records := await self._catalogue.definitions(
            self.kind, project, after=after, limit=_PAGE
        ):
            read = (self.decode(record.body) for record in records)
            found += [each for each in read if each.state in states]
            if len(found) >= limit or len(records) < _PAGE:
                break
            after = records[-1].name
        return found[:limit]

    async def read_all(self) -> AsyncIterator[Sequence[_D]]:
        """Yield the rows of all projects in all states, page by page.

        An invalid row is logged and skipped, so that it does not hide the others.
        """
        for project in await self._catalogue.projects():
            after = ""
            while records := await self._catalogue.definitions(
                self.kind, project.name, after=after, limit=_PAGE
            ):
                yield [each for record in records if (each := self._decode_row(record)) is not None]
                after = records[-1].name

    # -- Changing ----------------------------------------------------------------------------

    async def create(self, definition: _D, *, over: int | None) -> None:
        """Write the row of a new definition.

        `over` is the version of the row of a deleted definition with the same name; None if there
        is no row. Raise ConflictError if the row is not as expected.
        """
        if over is None:
            await self._catalogue.add_definition(self._record(definition))
        else:
            await self._catalogue.change_definition(self._record(definition), over=over)

    async def change(
        self, project: str, name: str, change: Callable[[_D], _D], *, states: Collection[str] = ()
    ) -> _D:
        """Apply `change` to a definition in one of the states; default: the usable states.

        `change` is called again if another process changed the definition meanwhile.
        """
        require_name(name, field=self.kind)
        states = states or self.usable_states
        for _ in range(_ATTEMPTS_MAX):
            found = await self.read_newest(project, name)
            if found is None:
                raise self.not_found(name)
            definition, row_version = found
            try:
                if definition.state not in states:
                    raise self.not_found(name)
                changed = change(definition)
            except WaystationError:
                # Update the cache, because the caller relied on it. The process that made the last
                # change may have crashed before it wrote the cache.
                await self.publish(definition)
                raise
            if changed.version != row_version:
                try:
                    await self._catalogue.change_definition(self._record(changed), over=row_version)
                except ConflictError:
                    continue  # Start again from the change that another process wrote.
            await self.publish(changed)
            return self.remember(changed, self._clock.uptime_s())
        raise ConflictError(
            f"{self.kind.capitalize()} '{name}' was changed by other requests"
            f" {_ATTEMPTS_MAX} times during this change.",
            hint="Repeat the request.",
        )

    async def publish(self, definition: _D) -> None:
        """Write the definition to the cache, unless the cache has a newer version."""
        key = self.cache_key(definition.project, definition.name)
        await self._store.run(_PUT, [key], [definition.version, self.encode(definition)])

    def remember(self, definition: _D, read_at: float) -> _D:
        """Remember a definition and return the newest known one.

        While the version stays the same, the returned object is the same, so that callers can keep
        derived data by identity.
        """
        key = (definition.project, definition.name)
        known = self._known.get(key)
        if known is not None and known[0].version >= definition.version:
            definition = known[0]
        elif known is None and len(self._known) >= _KNOWN_MAX:
            # Forget the definition that was read first. Its callers lose its identity.
            del self._known[next(iter(self._known))]
        self._known[key] = (definition, read_at)
        return definition

    def _record(self, definition: _D) -> DefinitionRecord:
        return DefinitionRecord(
            kind=self.kind,
            project=definition.project,
            name=definition.name,
            version=definition.version,
            body=self.encode(definition),
            changed_ms=self._clock.now_ms(),
        )

    def _decode_row(self, record: DefinitionRecord) -> _D | None:
        try:
            return self.decode(record.body)
        except msgspec.DecodeError as error:
            _log.error(
                "definition row invalid",
                kind=self.kind,
                project=record.project,
                definition=record.name,
                reason=str(error),
            )
            return None


def require_version(definition: Definition, version: int | None, *, kind: str) -> None:
    """Raise ConflictError if a change was made from another version than the current one."""
    if version is not None and definition.version != version:
        raise ConflictError(
            f"{kind.capitalize()} {definition.name} has version {definition.version},"
            f" not {version}.",
            hint="Read it again and repeat the change.",
        )
