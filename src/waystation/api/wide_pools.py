"""`/v1/pools`: defining pools, and seeing which worker has which key.

Definitions are for a project's admin keys, and so is what an operator does to workers and dead
letters; to look is for its readers. What producers and workers do goes through `pool_routes.py`.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Controller, Request, delete, get, post, put
from litestar.datastructures import State
from litestar.params import FromPath, FromQuery, JSONBody
from msgspec import Meta

from waystation.access import Access, Scope
from waystation.api.exact_body import ExactBody
from waystation.errors import InvalidInputError
from waystation.pools import Pool, PoolOptions, Pools
from waystation.pools.held import KeyRow, PoolLook
from waystation.pools.why import Why
from waystation.pools.why import why as explain
from waystation.runtime.ids import NAME_PATTERN

Name = Annotated[str, Meta(pattern=NAME_PATTERN)]
Version = Annotated[int, Meta(ge=1, le=2**53 - 1)]
PAGE_MAX = 1000


class NamedPool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What creating a pool takes; a name is enough."""

    name: Name
    options: PoolOptions = PoolOptions()


class NewPoolOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options in the place of those that a version has: all of them."""

    version: Version
    options: PoolOptions


class ShownPool(msgspec.Struct, frozen=True, kw_only=True):
    """A pool as the API shows it."""

    name: str
    version: int
    options: PoolOptions
    created_ms: int


class PoolPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of pools; `cursor` leads to the next and is empty on the last."""

    pools: list[ShownPool]
    cursor: str


class KeyPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the map; only one without a cursor is the last."""

    keys: list[KeyRow]
    cursor: str


class WantedWorker(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which worker is to have a key; none: the pool decides, if it has none."""

    uid: str = ""


class AssignedKey(msgspec.Struct, frozen=True, kw_only=True):
    """Who has a key now; `-`: nobody is live."""

    key: str
    owner: str
    epoch: int


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """How many it was done to."""

    count: int


class PoolController(Controller):
    """Pools of the caller's own project."""

    path = "/pools"
    tags = ("pools",)

    @get(opt={"scope": Scope.READ}, summary="List pools")
    async def list_pools(
        self,
        request: Request[Any, Any, Any],
        state: State,
        cursor: FromQuery[str] = "",
        limit: FromQuery[int] = 100,
    ) -> PoolPage:
        """Lists pools by name, page by page."""
        check_limit(limit)
        found = await pools_of(state).list(project_of(request), after=cursor, limit=limit + 1)
        more, rows = len(found) > limit, [_shown(each) for each in found[:limit]]
        return PoolPage(pools=rows, cursor=rows[-1].name if more else "")

    @post(
        opt={"scope": Scope.ADMIN},
        summary="Create a pool",
        dto=ExactBody[NamedPool],
        return_dto=None,
    )
    async def create(
        self, request: Request[Any, Any, Any], state: State, data: JSONBody[NamedPool]
    ) -> ShownPool:
        """Creates a pool; 409 where there is one."""
        return _shown(await pools_of(state).create(project_of(request), data.name, data.options))

    @get("/{pool:str}", opt={"scope": Scope.READ}, summary="Look at a pool")
    async def show(
        self, request: Request[Any, Any, Any], state: State, pool: FromPath[str]
    ) -> ShownPool:
        """Shows a pool's definition."""
        return _shown(await pools_of(state).get(project_of(request), pool))

    @put(
        "/{pool:str}",
        opt={"scope": Scope.ADMIN},
        summary="Change a pool",
        dto=ExactBody[NewPoolOptions],
        return_dto=None,
    )
    async def change(
        self,
        request: Request[Any, Any, Any],
        state: State,
        pool: FromPath[str],
        data: JSONBody[NewPoolOptions],
    ) -> ShownPool:
        """Replaces all options; 409 when it was changed since the version that is named."""
        changed = await pools_of(state).change(
            project_of(request), pool, data.options, version=data.version
        )
        return _shown(changed)

    @delete("/{pool:str}", opt={"scope": Scope.ADMIN}, summary="Delete a pool")
    async def remove(
        self, request: Request[Any, Any, Any], state: State, pool: FromPath[str]
    ) -> None:
        """Deletes a pool with its workers, messages and dead letters."""
        await pools_of(state).delete(project_of(request), pool)

    @get("/{pool:str}/workers", opt={"scope": Scope.READ}, summary="See a pool and its workers")
    async def workers(
        self, request: Request[Any, Any, Any], state: State, pool: FromPath[str]
    ) -> PoolLook:
        """Shows what waits, and each worker with its state, load and last access."""
        found = await pools_of(state).get(project_of(request), pool)
        return await pools_of(state).assignments.look(found.place, pools_of(state).terms(found))

    @get("/{pool:str}/map", opt={"scope": Scope.READ}, summary="See which worker has which key")
    async def keys(
        self,
        request: Request[Any, Any, Any],
        state: State,
        pool: FromPath[str],
        worker: FromQuery[str] = "",
        cursor: FromQuery[str] = "",
        limit: FromQuery[int] = 100,
    ) -> KeyPage:
        """Lists keys of all workers, or of one, `-` for those that wait for one.

        A key that is there all the time is on one page at least, in no order; a page has about as
        many as are asked for.
        """
        pools, found = pools_of(state), await pools_of(state).get(project_of(request), pool)
        page = await pools.assignments.page(
            found.place, pools.terms(found), uid=worker, cursor=cursor, limit=check_limit(limit)
        )
        return KeyPage(keys=page.items, cursor=page.cursor)

    @get("/{pool:str}/why", opt={"scope": Scope.READ}, summary="Explain a recipient key")
    async def why(
        self,
        request: Request[Any, Any, Any],
        state: State,
        pool: FromPath[str],
        key: FromQuery[str],
    ) -> Why:
        """Tells who has a key, and why what waits for it waits: code and sentence."""
        return await explain(pools_of(state), project_of(request), pool, key)

    @put(
        "/{pool:str}/keys",
        opt={"scope": Scope.WRITE},
        summary="Assign a recipient key",
        dto=ExactBody[WantedWorker],
        return_dto=None,
    )
    async def assign(
        self,
        request: Request[Any, Any, Any],
        state: State,
        pool: FromPath[str],
        key: FromQuery[str],
        data: JSONBody[WantedWorker],
    ) -> AssignedKey:
        """Gives a key a worker before its first message; or another one, unless one is taken."""
        pools, found = pools_of(state), await pools_of(state).get(project_of(request), pool)
        owner, epoch = await pools.assignments.assign(
            found.place, pools.terms(found), key, uid=data.uid
        )
        return AssignedKey(key=key, owner=owner, epoch=epoch)

    @delete("/{pool:str}/keys", opt={"scope": Scope.WRITE}, summary="Forget a recipient key")
    async def forget(
        self,
        request: Request[Any, Any, Any],
        state: State,
        pool: FromPath[str],
        key: FromQuery[str],
    ) -> None:
        """Forgets a key without messages; 409 if it has some."""
        pools, found = pools_of(state), await pools_of(state).get(project_of(request), pool)
        await pools.assignments.forget(found.place, pools.terms(found), key)

    @post(
        "/{pool:str}/workers/{uid:str}/evict",
        opt={"scope": Scope.ADMIN},
        summary="Evict a worker",
        status_code=200,
    )
    async def evict(
        self, request: Request[Any, Any, Any], state: State, pool: FromPath[str], uid: FromPath[str]
    ) -> Done:
        """Gives all keys of a worker to others, whatever it is; what it has taken is crashed."""
        pools, found = pools_of(state), await pools_of(state).get(project_of(request), pool)
        moved = await pools.assignments.reassign(found.place, pools.terms(found), uid, asked=True)
        pools.tally.moved(found, moved)
        return Done(count=moved)


def _shown(pool: Pool) -> ShownPool:
    return ShownPool(
        name=pool.name, version=pool.version, options=pool.options, created_ms=pool.created_ms
    )


def pools_of(state: State) -> Pools:
    """The pools of the node."""
    pools = state["pools"]
    assert isinstance(pools, Pools)
    return pools


def project_of(request: Request[Any, Any, Any]) -> str:
    """The caller's project."""
    access = request.scope["state"]["access"]
    assert isinstance(access, Access)
    return access.project


def check_limit(limit: int) -> int:
    """The length of a page, if it can be that."""
    if not 1 <= limit <= PAGE_MAX:
        raise InvalidInputError(f"limit must be between 1 and {PAGE_MAX}.", field="limit")
    return limit
