"""A book of definitions: what each is now, in the catalogue, in the store, in this process.

The catalogue has the truth. The store has a working copy, which only goes forward; processes read
that, and believe what they read for two seconds. A change is written to the catalogue first,
against the version that it was made from, then to the working copy. Versions under one name never
run backwards, not even over a deletion or with a new catalogue: a creation goes on from there. A
catalogue that came from a backup lacks changes that were confirmed: what is done next goes on from
the working copy, which has them.
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
#: A definition that was read longer ago is read again before it is used.
_FRESH_SECONDS = 2.0
_KNOWN_MAX = 10_000
#: How often a change is made anew because others changed the definition meanwhile.
_ATTEMPTS_MAX = 20
_PAGE = 200


class Definition(Protocol):
    """What every definition has, whatever it defines."""

    @property
    def project(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def state(self) -> str: ...


_D = TypeVar("_D", bound=Definition)


class Book(ABC, Generic[_D]):
    """Reads and changes definitions of one kind; what a change means is its callers' business."""

    #: The kind of its rows; also what people call one of them.
    kind: str
    #: States of one that can be used; in others it is as good as absent.
    alive: tuple[str, ...]

    def __init__(self, catalogue: Catalogue, store: Store, *, clock: Clock) -> None:
        self._catalogue = catalogue
        self._store = store
        self._clock = clock
        self._known: dict[tuple[str, str], tuple[_D, float]] = {}

    # -- What kinds differ in ----------------------------------------------------------------

    @abstractmethod
    def encode(self, definition: _D) -> bytes:
        """The stored form, JSON."""

    @abstractmethod
    def decode(self, body: bytes) -> _D:
        """What a stored form says; msgspec.DecodeError for what cannot be read."""

    @abstractmethod
    def working_copy(self, project: str, name: str) -> str:
        """The key of a working copy."""

    @abstractmethod
    def not_found(self, name: str) -> NotFoundError:
        """What is said of one that is absent, deleted or another project's."""

    # -- Looking -----------------------------------------------------------------------------

    def known(self, project: str, name: str) -> _D | None:
        """The definition, if it was read a moment ago; never waits."""
        found = self._known.get((project, name))
        if found is None or self._clock.uptime_s() - found[1] > _FRESH_SECONDS:
            return None
        return found[0]

    async def copy(self, project: str, name: str) -> _D | None:
        """The working copy; None where the store has none."""
        read_at = self._clock.uptime_s()
        key = self.working_copy(project, name)
        body = await self._store.call("HGET", key, "body", repeatable=True)
        return None if body is None else self.remember(self.decode(body), read_at)

    async def truth(self, project: str, name: str) -> _D | None:
        """What the catalogue has, in whichever state."""
        record = await self._catalogue.definition(self.kind, project, name)
        return None if record is None else self.decode(record.body)

    async def copied_version(self, definition: _D) -> int:
        """The version of a working copy; 0 where the store has none."""
        key = self.working_copy(definition.project, definition.name)
        return int(await self._store.call("HGET", key, "version", repeatable=True) or 0)

    async def newest(self, project: str, name: str) -> tuple[_D, int] | None:
        """What was written last of a definition that the catalogue has, and its row's version.

        A working copy never has what no row had before, so the one that is read first can be newer
        only if the catalogue went back.
        """
        copy = await self.copy(project, name)
        row = await self.truth(project, name)
        if row is None:
            return None
        went_back = copy is not None and copy.version > row.version
        return (copy if copy is not None and went_back else row), row.version

    async def page(
        self, project: str, states: Collection[str], *, after: str, limit: int
    ) -> list[_D]:
        """Definitions of a project in these states, by name; fewer than `limit` only at the end."""
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

    async def everything(self) -> AsyncIterator[Sequence[_D]]:
        """All definitions of all projects as the catalogue has them, in every state, by pages.

        A row that nobody can read is told and passed over: it is no reason to forget the others.
        """
        for project in await self._catalogue.projects():
            after = ""
            while records := await self._catalogue.definitions(
                self.kind, project.name, after=after, limit=_PAGE
            ):
                yield [each for record in records if (each := self._readable(record)) is not None]
                after = records[-1].name

    # -- Changing ----------------------------------------------------------------------------

    async def enter(self, definition: _D, *, over: int | None) -> None:
        """Writes a new one to the catalogue, over a version of a former one if there is one."""
        if over is None:
            await self._catalogue.add_definition(self._record(definition))
        else:
            await self._catalogue.change_definition(self._record(definition), over=over)

    async def change(
        self, project: str, name: str, change: Callable[[_D], _D], *, among: Collection[str] = ()
    ) -> _D:
        """Changes one that is in one of these states, else in one in which it can be used."""
        require_name(name, field=self.kind)
        among = among or self.alive
        for _ in range(_ATTEMPTS_MAX):
            found = await self.newest(project, name)
            if found is None:
                raise self.not_found(name)
            definition, written = found
            try:
                if definition.state not in among:
                    raise self.not_found(name)
                changed = change(definition)
            except WaystationError:
                # The caller knows it by its working copy, and whoever changed it last may have died
                # before that was brought up to date.
                await self.put(definition)
                raise
            if changed.version != written:
                try:
                    await self._catalogue.change_definition(self._record(changed), over=written)
                except ConflictError:
                    continue  # Another was quicker: what it did is the new beginning.
            await self.put(changed)
            return self.remember(changed, self._clock.uptime_s())
        raise ConflictError(f"{self.kind.capitalize()} {name} is changed by too many at once.")

    async def put(self, definition: _D) -> None:
        """Brings the working copy up to this version; a newer one stays."""
        key = self.working_copy(definition.project, definition.name)
        await self._store.run(_PUT, [key], [definition.version, self.encode(definition)])

    def remember(self, definition: _D, read_at: float) -> _D:
        """Keeps the newest that was seen, and returns it: the same object while it is the same."""
        key = (definition.project, definition.name)
        known = self._known.get(key)
        if known is not None and known[0].version >= definition.version:
            definition = known[0]
        elif len(self._known) >= _KNOWN_MAX:
            self._known.clear()
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

    def _readable(self, record: DefinitionRecord) -> _D | None:
        try:
            return self.decode(record.body)
        except msgspec.DecodeError as error:
            _log.error(
                f"a {self.kind} of the catalogue cannot be read",
                project=record.project,
                definition=record.name,
                problem=str(error),
            )
            return None


def require_version(definition: Definition, version: int | None, *, kind: str) -> None:
    """ConflictError, if a change was made from another version than the present one."""
    if version is not None and definition.version != version:
        raise ConflictError(
            f"{kind.capitalize()} {definition.name} has version {definition.version},"
            f" not {version}.",
            hint="Read it again, and change what it is now.",
        )
