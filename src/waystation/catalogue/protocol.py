"""What a catalogue can do. Every implementation passes `tests/catalogue/conformance.py`."""

from __future__ import annotations

from typing import Protocol

import msgspec


class ProjectRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A project: the tenant that everything belongs to."""

    name: str
    created_ms: int


class KeyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An API key as it is kept: never its secret, only a hash of it."""

    id: str
    project: str
    scopes: tuple[str, ...]
    #: SHA-256 of the secret part.
    secret_hash: bytes
    label: str
    created_ms: int
    #: 0 = never.
    expires_ms: int = 0
    #: 0 = not revoked.
    revoked_ms: int = 0


class DefinitionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a project has defined: a topic, say. The body belongs to the part that wrote it."""

    kind: str
    project: str
    name: str
    #: 1 at first, and one more with every change.
    version: int
    body: bytes
    changed_ms: int


class Catalogue(Protocol):
    """A database of definitions. All methods may be called from any task; each is atomic."""

    async def open(self) -> None:
        """Connects and brings the schema up to date, one process at a time."""
        ...

    async def close(self) -> None:
        """Lets go of the database; all that is asked later ends with CatalogueError."""
        ...

    async def ping(self) -> None:
        """One round trip, or CatalogueError."""
        ...

    async def generation(self) -> int:
        """A number that grows with every change of projects or keys."""
        ...

    async def data_sets(self) -> tuple[str, ...]:
        """Return the ids of the store's data sets: the current one, then those that it replaced."""
        ...

    async def change_data_sets(self, before: tuple[str, ...], after: tuple[str, ...]) -> bool:
        """Put ids in the place of others; false if another process changed them meanwhile."""
        ...

    async def add_project(self, project: ProjectRecord, *, key: KeyRecord | None = None) -> None:
        """Adds a project, with its first key or without; ConflictError when a name is taken."""
        ...

    async def projects(self) -> list[ProjectRecord]:
        """All projects, by name."""
        ...

    async def add_key(self, key: KeyRecord) -> None:
        """Adds a key; NotFoundError without its project, ConflictError when the id is taken."""
        ...

    async def keys(self, project: str | None = None) -> list[KeyRecord]:
        """Keys of one project or of all, oldest first, revoked ones included."""
        ...

    async def revoke_key(self, project: str | None, key_id: str, *, now_ms: int) -> bool:
        """Revokes a key of that project (None: of any); false when there is no such key.

        Revoking twice keeps the first time.
        """
        ...

    async def add_definition(self, record: DefinitionRecord) -> None:
        """Adds a definition; NotFoundError without its project, ConflictError if there is one."""
        ...

    async def change_definition(self, record: DefinitionRecord, *, over: int | None = None) -> None:
        """Puts a definition in the place of the version before it; ConflictError if that is not it.

        Of two who change the same version, one gets through. Where versions were lost, as by a
        backup that came back, `over` says which one is there instead of the one before.
        """
        ...

    async def definition(self, kind: str, project: str, name: str) -> DefinitionRecord | None:
        """One definition."""
        ...

    async def definitions(
        self, kind: str, project: str, *, after: str = "", limit: int
    ) -> list[DefinitionRecord]:
        """Definitions of a project by name, from the first name after `after` on."""
        ...
