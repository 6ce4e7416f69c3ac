"""`/v1/subscriptions`: defining subscriptions, pausing them, trying their endpoints.

Definitions are for a project's admin keys; to pause and to try is for who writes, and looking for
its readers. What is waited for goes through `subscription_routes.py`.
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
from waystation.api.shown_subscriptions import (
    CreatedSubscription,
    ShownSubscription,
    created,
    shown,
)
from waystation.errors import InvalidInputError
from waystation.runtime.ids import NAME_PATTERN
from waystation.subscriptions.definition import NewSubscription, SubscriptionOptions
from waystation.subscriptions.desk import Desk
from waystation.subscriptions.dispatch import Dispatch
from waystation.subscriptions.endpoints.sample import Sample

Name = Annotated[str, Meta(pattern=NAME_PATTERN)]
Version = Annotated[int, Meta(ge=1, le=2**53 - 1)]
PAGE_MAX = 1000


class NamedSubscription(NewSubscription, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What creating a subscription takes; name, topic and endpoint are enough."""

    name: Name


class NewOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Options in the place of those that a version has: all of them; and another endpoint."""

    version: Version
    options: SubscriptionOptions
    #: None: it stays.
    endpoint: str | None = None


class Pause(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """For how long, and why."""

    #: Milliseconds since 1970; 0: until somebody resumes it.
    until: Annotated[int, Meta(ge=0, le=2**53 - 1)] = 0
    reason: str = ""


class SubscriptionPage(msgspec.Struct, kw_only=True):
    """A page of subscriptions; `cursor` leads to the next and is empty on the last."""

    subscriptions: list[ShownSubscription]
    cursor: str


class RotatedSecret(msgspec.Struct, kw_only=True):
    """The secret that signs from now on."""

    secret: str


class SubscriptionController(Controller):
    """Subscriptions of the caller's own project."""

    path = "/subscriptions"
    tags = ("subscriptions",)

    @get(opt={"scope": Scope.READ}, summary="List subscriptions")
    async def list_subscriptions(
        self,
        request: Request[Any, Any, Any],
        state: State,
        cursor: FromQuery[str] = "",
        limit: FromQuery[int] = 100,
    ) -> SubscriptionPage:
        """Lists subscriptions by name, page by page."""
        check_limit(limit)
        found = await dispatch(state).subscriptions.list(
            project_of(request), after=cursor, limit=limit + 1
        )
        more, rows = len(found) > limit, [shown(each) for each in found[:limit]]
        return SubscriptionPage(subscriptions=rows, cursor=rows[-1].name if more else "")

    @post(
        opt={"scope": Scope.ADMIN},
        summary="Create a subscription",
        dto=ExactBody[NamedSubscription],
        return_dto=None,
    )
    async def create(
        self, request: Request[Any, Any, Any], state: State, data: JSONBody[NamedSubscription]
    ) -> CreatedSubscription:
        """Creates a subscription, which delivers from then on; 409 where there is one.

        Its requests are signed with the secret that is told here. `warning` says if its number
        of shards cannot follow when the topic grows.
        """
        subscriptions = dispatch(state).subscriptions
        made = await subscriptions.create(project_of(request), data.name, data)
        secrets = await subscriptions.secrets(made)
        warning = await subscriptions.growth_warning(made)
        return created(made, secrets[0].text if secrets else None, warning)

    @get("/{subscription:str}", opt={"scope": Scope.READ}, summary="Look at a subscription")
    async def show(
        self, request: Request[Any, Any, Any], state: State, subscription: FromPath[str]
    ) -> ShownSubscription:
        """Shows a subscription's definition."""
        return shown(await dispatch(state).subscriptions.get(project_of(request), subscription))

    @put(
        "/{subscription:str}",
        opt={"scope": Scope.ADMIN},
        summary="Change a subscription",
        dto=ExactBody[NewOptions],
        return_dto=None,
    )
    async def change(
        self,
        request: Request[Any, Any, Any],
        state: State,
        subscription: FromPath[str],
        data: JSONBody[NewOptions],
    ) -> ShownSubscription:
        """Replaces all options; 409 when it was changed since the version that is named."""
        changed = await dispatch(state).subscriptions.change(
            project_of(request),
            subscription,
            data.options,
            version=data.version,
            endpoint=data.endpoint,
        )
        return shown(changed)

    @delete("/{subscription:str}", opt={"scope": Scope.ADMIN}, summary="Delete a subscription")
    async def remove(
        self, request: Request[Any, Any, Any], state: State, subscription: FromPath[str]
    ) -> None:
        """Deletes a subscription with its retries and dead letters."""
        await dispatch(state).subscriptions.delete(project_of(request), subscription)

    @post(
        "/{subscription:str}/pause",
        opt={"scope": Scope.WRITE},
        summary="Pause a subscription",
        status_code=200,
        dto=ExactBody[Pause],
        return_dto=None,
    )
    async def pause(
        self,
        request: Request[Any, Any, Any],
        state: State,
        subscription: FromPath[str],
        data: JSONBody[Pause],
    ) -> ShownSubscription:
        """Reads and sends nothing more; what is under way ends."""
        paused = await dispatch(state).subscriptions.pause(
            project_of(request), subscription, until_ms=data.until, reason=data.reason
        )
        return shown(paused)

    @post(
        "/{subscription:str}/resume",
        opt={"scope": Scope.WRITE},
        summary="Resume a subscription",
        status_code=200,
    )
    async def resume(
        self, request: Request[Any, Any, Any], state: State, subscription: FromPath[str]
    ) -> ShownSubscription:
        """Deliver again, also to an endpoint that was disabled or held or has an open breaker."""
        resumed = await dispatch(state).subscriptions.resume(project_of(request), subscription)
        await desk(state).enable(resumed)
        return shown(resumed)

    @post(
        "/{subscription:str}/test",
        opt={"scope": Scope.WRITE},
        summary="Try an endpoint",
        status_code=200,
    )
    async def test(
        self, request: Request[Any, Any, Any], state: State, subscription: FromPath[str]
    ) -> Sample:
        """Send one made-up, signed message; return request and reply. Success closes breakers."""
        return await dispatch(state).send_sample(project_of(request), subscription)

    @post(
        "/{subscription:str}/secret/rotate",
        opt={"scope": Scope.ADMIN},
        summary="Rotate the signing secret",
        status_code=200,
    )
    async def rotate_secret(
        self, request: Request[Any, Any, Any], state: State, subscription: FromPath[str]
    ) -> RotatedSecret:
        """Puts a new secret in force; the one before signs for a day more."""
        subscriptions = dispatch(state).subscriptions
        secret = await subscriptions.rotate_secret(project_of(request), subscription)
        return RotatedSecret(secret=secret)


def check_limit(limit: int) -> int:
    """The size of a page, if there are such."""
    if not 1 <= limit <= PAGE_MAX:
        raise InvalidInputError(f"limit must be between 1 and {PAGE_MAX}.", field="limit")
    return limit


def project_of(request: Request[Any, Any, Any]) -> str:
    """The project of the caller."""
    access = request.scope["state"]["access"]
    assert isinstance(access, Access)
    return access.project


def dispatch(state: State) -> Dispatch:
    """What the process has of subscriptions."""
    found: Dispatch = state["subscriptions"]
    return found


def desk(state: State) -> Desk:
    """What is seen of them."""
    found: Desk = state["subscription_desk"]
    return found
