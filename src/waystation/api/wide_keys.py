"""`/v1/projects` and `/v1/keys`: the tenants, and who may come in."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Controller, Request, delete, get, post
from litestar.datastructures import State
from litestar.params import FromPath, JSONBody
from msgspec import Meta

from waystation.access import Access, Scope
from waystation.access.keys import new_key
from waystation.catalogue import Catalogue, KeyRecord, ProjectRecord
from waystation.errors import NotFoundError
from waystation.runtime.clock import Clock
from waystation.runtime.ids import NAME_PATTERN, IdSource, require_name

Name = Annotated[str, Meta(pattern=NAME_PATTERN)]
Label = Annotated[str, Meta(max_length=200)]
#: SQLite and JavaScript both count milliseconds safely up to here.
_MS_MAX = 2**53 - 1


class Project(msgspec.Struct, kw_only=True):
    """A project as the API shows it."""

    name: Name
    created_ms: int = 0


class NewProject(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What creating a project takes."""

    name: Name


class Key(msgspec.Struct, kw_only=True):
    """A key as the API shows it: never its secret."""

    id: str
    project: str
    scope: str
    label: str
    created_ms: int
    expires_ms: int | None
    revoked_ms: int | None


class NewKey(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What creating a key takes."""

    scope: Scope
    label: Label = ""
    expires_ms: Annotated[int, Meta(ge=0, le=_MS_MAX)] = 0


class CreatedKey(Key, kw_only=True):
    """A new key with its text, which is shown this once."""

    key: str


class ProjectController(Controller):
    """Projects: the tenants. Only keys of project `default` may manage them."""

    path = "/projects"
    tags = ("projects",)

    @get(opt={"scope": Scope.ADMIN}, summary="List projects")
    async def list_projects(self, request: Request[Any, Any, Any], state: State) -> list[Project]:
        """Lists all projects for the operator's keys, else the key's own project."""
        access = _access(request)
        projects = await _catalogue(state).projects()
        return [_project(each) for each in projects if access.project in ("default", each.name)]

    @post(opt={"scope": Scope.ADMIN}, summary="Create a project")
    async def create_project(
        self, request: Request[Any, Any, Any], state: State, data: JSONBody[NewProject]
    ) -> Project:
        """Creates a project."""
        if _access(request).project != "default":
            raise NotFoundError("Projects are managed with keys of project 'default'.")
        # The pattern of the document lets a closing newline through; this does not.
        name = require_name(data.name, field="name")
        record = ProjectRecord(name=name, created_ms=_clock(state).now_ms())
        await _catalogue(state).add_project(record)
        return _project(record)


class KeyController(Controller):
    """API keys of the caller's own project."""

    path = "/keys"
    tags = ("keys",)

    @get(opt={"scope": Scope.ADMIN}, summary="List keys")
    async def list_keys(self, request: Request[Any, Any, Any], state: State) -> list[Key]:
        """Lists the keys of the project, revoked ones included."""
        return [_key(each) for each in await _catalogue(state).keys(_access(request).project)]

    @post(opt={"scope": Scope.ADMIN}, summary="Create a key")
    async def create_key(
        self, request: Request[Any, Any, Any], state: State, data: JSONBody[NewKey]
    ) -> CreatedKey:
        """Creates a key in the project. Its text is shown this once."""
        text, record = new_key(
            _identity(state),
            project=_access(request).project,
            scope=data.scope,
            label=data.label,
            now_ms=_clock(state).now_ms(),
            expires_ms=data.expires_ms,
        )
        await _catalogue(state).add_key(record)
        return CreatedKey(**msgspec.structs.asdict(_key(record)), key=text)

    @delete("/{key_id:str}", opt={"scope": Scope.ADMIN}, summary="Revoke a key")
    async def revoke_key(
        self, request: Request[Any, Any, Any], state: State, key_id: FromPath[str]
    ) -> None:
        """Revokes a key; it stops working within five seconds."""
        project, now_ms = _access(request).project, _clock(state).now_ms()
        if not await _catalogue(state).revoke_key(project, key_id, now_ms=now_ms):
            raise NotFoundError(f"There is no key {key_id[:40]!r}.")


def _access(request: Request[Any, Any, Any]) -> Access:
    access = request.scope["state"]["access"]
    assert isinstance(access, Access)
    return access


def _catalogue(state: State) -> Catalogue:
    catalogue: Catalogue = state["catalogue"]
    return catalogue


def _clock(state: State) -> Clock:
    clock: Clock = state["clock"]
    return clock


def _identity(state: State) -> IdSource:
    identity: IdSource = state["identity"]
    return identity


def _project(record: ProjectRecord) -> Project:
    return Project(name=record.name, created_ms=record.created_ms)


def _key(record: KeyRecord) -> Key:
    return Key(
        id=record.id,
        project=record.project,
        scope=record.scopes[-1],
        label=record.label,
        created_ms=record.created_ms,
        expires_ms=record.expires_ms or None,
        revoked_ms=record.revoked_ms or None,
    )
