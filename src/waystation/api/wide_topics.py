"""`/v1/topics`: defining topics, growing them, looking at how they stand.

Definitions are for a project's admin keys; looking is for its readers. What is produced and browsed
goes through `topic_routes.py`.
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
from waystation.messages.envelope import check_key
from waystation.runtime.ids import NAME_PATTERN
from waystation.topics.model import PARTITIONS_DEFAULT, PARTITIONS_MAX
from waystation.topics.queries import TopicQueries
from waystation.topics.router import is_advised
from waystation.topics.service import TopicService
from waystation.types.topic import GroupLocation, Topic, TopicOptions, TopicPage, TopicPartitions

Name = Annotated[str, Meta(pattern=NAME_PATTERN)]
Partitions = Annotated[int, Meta(ge=1, le=PARTITIONS_MAX)]
Version = Annotated[int, Meta(ge=1, le=2**53 - 1)]
_PAGE_MAX = 1000
_SHARDS_MAX = 1_000_000


class NewTopic(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What creating a topic takes."""

    name: Name
    partitions: Partitions = PARTITIONS_DEFAULT
    options: TopicOptions = TopicOptions()


class NewOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Options in the place of those that a version of the topic has: all of them."""

    version: Version
    options: TopicOptions


class NewStorageTopic(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What adding a storage topic takes."""

    partitions: Partitions
    #: Which version it is to be added to: then a repetition after a lost reply adds no second one.
    version: Version | None = None
    #: Add it although subscriptions stop before it, because their shard count cannot follow.
    force: bool = False


class TopicController(Controller):
    """Topics of the caller's own project."""

    path = "/topics"
    tags = ("topics",)

    @get(opt={"scope": Scope.READ}, summary="List topics")
    async def list_topics(
        self,
        request: Request[Any, Any, Any],
        state: State,
        cursor: FromQuery[str] = "",
        limit: FromQuery[int] = 100,
        deleted: FromQuery[bool] = False,
    ) -> TopicPage:
        """Lists topics by name, page by page; deleted ones, which can be restored, if asked for."""
        if not 1 <= limit <= _PAGE_MAX:
            raise InvalidInputError(f"limit must be between 1 and {_PAGE_MAX}.", field="limit")
        found = await _topics(state).list(
            _project(request), after=cursor, limit=limit + 1, deleted=deleted
        )
        more = len(found) > limit
        topics = [each.public() for each in found[:limit]]
        return TopicPage(topics=topics, cursor=topics[-1].name if more else "")

    @post(
        opt={"scope": Scope.ADMIN},
        summary="Create a topic",
        dto=ExactBody[NewTopic],
        return_dto=None,
    )
    async def create_topic(
        self, request: Request[Any, Any, Any], state: State, data: JSONBody[NewTopic]
    ) -> Topic:
        """Creates a topic; 409 where there is one, also a deleted one that was not purged."""
        topic = await _topics(state).create(
            _project(request), data.name, partitions=data.partitions, options=data.options
        )
        return topic.public(warning=_warning(data.partitions))

    @get("/{topic:str}", opt={"scope": Scope.READ}, summary="Look at a topic")
    async def show_topic(
        self, request: Request[Any, Any, Any], state: State, topic: FromPath[str]
    ) -> Topic:
        """Shows a topic's definition."""
        return (await _topics(state).get(_project(request), topic)).public()

    @put(
        "/{topic:str}/options",
        opt={"scope": Scope.ADMIN},
        summary="Change a topic's options",
        dto=ExactBody[NewOptions],
        return_dto=None,
    )
    async def change_options(
        self,
        request: Request[Any, Any, Any],
        state: State,
        topic: FromPath[str],
        data: JSONBody[NewOptions],
    ) -> Topic:
        """Replaces all options; 409 when the topic was changed since the version that is named."""
        changed = await _topics(state).change_options(
            _project(request), topic, data.options, version=data.version
        )
        return changed.public()

    @delete("/{topic:str}", opt={"scope": Scope.ADMIN}, summary="Delete a topic")
    async def delete_topic(
        self, request: Request[Any, Any, Any], state: State, topic: FromPath[str]
    ) -> None:
        """Deletes a topic. Its messages stay until it is purged, and it can be restored."""
        await _topics(state).delete(_project(request), topic)

    @post("/{topic:str}/restore", opt={"scope": Scope.ADMIN}, summary="Restore", status_code=200)
    async def restore(
        self, request: Request[Any, Any, Any], state: State, topic: FromPath[str]
    ) -> Topic:
        """Brings a deleted topic back with all its messages."""
        return (await _topics(state).restore(_project(request), topic)).public()

    @post("/{topic:str}/purge", opt={"scope": Scope.ADMIN}, summary="Purge", status_code=204)
    async def purge(
        self, request: Request[Any, Any, Any], state: State, topic: FromPath[str]
    ) -> None:
        """Deletes the messages of a deleted topic for good; its name is free again."""
        await _topics(state).purge(_project(request), topic)

    @post("/{topic:str}/block", opt={"scope": Scope.ADMIN}, summary="Block", status_code=200)
    async def block(
        self, request: Request[Any, Any, Any], state: State, topic: FromPath[str]
    ) -> Topic:
        """Refuses what is produced, within two seconds everywhere; it stays readable."""
        return (await _topics(state).block(_project(request), topic)).public()

    @post("/{topic:str}/unblock", opt={"scope": Scope.ADMIN}, summary="Unblock", status_code=200)
    async def unblock(
        self, request: Request[Any, Any, Any], state: State, topic: FromPath[str]
    ) -> Topic:
        """Takes messages again."""
        return (await _topics(state).unblock(_project(request), topic)).public()

    @post(
        "/{topic:str}/storage-topics",
        opt={"scope": Scope.ADMIN},
        summary="Add a storage topic",
        dto=ExactBody[NewStorageTopic],
        return_dto=None,
    )
    async def add_storage_topic(
        self,
        request: Request[Any, Any, Any],
        state: State,
        topic: FromPath[str],
        data: JSONBody[NewStorageTopic],
    ) -> Topic:
        """Adds a storage topic at the end; messages go there after a switch.

        409 `topic.growth-stops-subscriptions` if subscriptions could not follow, unless `force`.
        """
        changed = await _topics(state).add_storage_topic(
            _project(request), topic, data.partitions, version=data.version, force=data.force
        )
        return changed.public(warning=_warning(data.partitions))

    @post("/{topic:str}/switch", opt={"scope": Scope.ADMIN}, summary="Switch", status_code=200)
    async def switch(
        self,
        request: Request[Any, Any, Any],
        state: State,
        topic: FromPath[str],
        version: FromQuery[int | None] = None,
        force: FromQuery[bool] = False,
    ) -> Topic:
        """Produces to the next storage topic from now on; at the last one nothing changes.

        With the version that is to be switched, a repetition after a lost reply answers 409 and
        skips no storage topic. 409 `topic.growth-stops-subscriptions` if subscriptions could not
        follow, unless `force`.
        """
        changed = await _topics(state).switch_produce(
            _project(request), topic, version=version, force=force
        )
        return changed.public()

    @get("/{topic:str}/where", opt={"scope": Scope.READ}, summary="Find a group")
    async def where(
        self,
        request: Request[Any, Any, Any],
        state: State,
        topic: FromPath[str],
        group: FromQuery[str],
        shards: FromQuery[int | None] = None,
    ) -> GroupLocation:
        """Tells the partition of a group in every storage topic, and its shard."""
        check_key(group, field="group")
        if shards is not None and not 1 <= shards <= _SHARDS_MAX:
            raise InvalidInputError(f"There are 1 to {_SHARDS_MAX} shards.", field="shards")
        queries: TopicQueries = state["topic_queries"]
        return await queries.locate_group(_project(request), topic, group, shards=shards)

    @get("/{topic:str}/state", opt={"scope": Scope.READ}, summary="See how a topic stands")
    async def standing(
        self, request: Request[Any, Any, Any], state: State, topic: FromPath[str]
    ) -> TopicPartitions:
        """Tells what each partition holds, what was dropped, and what is nearly full."""
        queries: TopicQueries = state["topic_queries"]
        return await queries.partitions(_project(request), topic)


def _warning(partitions: int) -> str | None:
    if is_advised(partitions):
        return None
    return (
        f"{partitions} partitions do not split evenly in many ways: 1, 2, 3 and multiples of 4 or "
        "6 are advised."
    )


def _project(request: Request[Any, Any, Any]) -> str:
    access = request.scope["state"]["access"]
    assert isinstance(access, Access)
    return access.project


def _topics(state: State) -> TopicService:
    topics: TopicService = state["topics"]
    return topics
