"""`/v1/channels`: looking at channels, publishing many messages at once, moving subscribers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from litestar import Controller, Request, get, post
from litestar.datastructures import State
from litestar.params import FromPath, FromQuery, JSONBody
from msgspec import Meta

from waystation.access import Access, Scope
from waystation.api.exact_body import ExactBody
from waystation.channels.queries import ChannelQueries
from waystation.channels.service import ChannelService, SeekTo
from waystation.errors import InvalidInputError
from waystation.runtime.ids import NAME_PATTERN, require_name
from waystation.runtime.json_text import check_depth, is_json, unshield
from waystation.types.channel import (
    ChannelPage,
    PublishedMessage,
    PublishedMessages,
    Sought,
    SubscriberPage,
)

Name = Annotated[str, Meta(pattern=NAME_PATTERN)]
_PAGE_MAX = 1000
_CLOCK_MAX = 2**53 - 1


class NewMessage(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One message of a batch; its content is kept byte for byte."""

    id: Name
    content: msgspec.Raw


class NewMessages(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A batch, published in its order."""

    messages: Annotated[list[NewMessage], Meta(min_length=1, max_length=1000)]


class Seek(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Where to go on reading: one of the three."""

    to: Literal["beginning", "end"] | None = None
    #: The clock of the last message that counts as read.
    clock: Annotated[int, Meta(ge=-_CLOCK_MAX, le=_CLOCK_MAX)] | None = None
    #: Messages published at or after this are unread.
    time_ms: Annotated[int, Meta(ge=0, le=_CLOCK_MAX)] | None = None


class ChannelController(Controller):
    """Channels of the caller's own project."""

    path = "/channels"
    tags = ("channels",)

    @get(opt={"scope": Scope.READ}, summary="List channels")
    async def list_channels(
        self,
        request: Request[Any, Any, Any],
        state: State,
        cursor: FromQuery[str] = "",
        limit: FromQuery[int] = 100,
    ) -> ChannelPage:
        """Lists channels page by page, until there is no cursor.

        A page ends soon after it has `limit` rows: it may hold some more, or none at all.
        """
        page = await _listing(state).channels(
            _project(request), limit=_page_size(limit), cursor=cursor
        )
        return ChannelPage(channels=page.items, cursor=page.cursor)

    @get("/{channel:str}/subscribers", opt={"scope": Scope.READ}, summary="List subscribers")
    async def list_subscribers(
        self,
        request: Request[Any, Any, Any],
        state: State,
        channel: FromPath[str],
        cursor: FromQuery[str] = "",
        limit: FromQuery[int] = 100,
    ) -> SubscriberPage:
        """Lists the subscribers of a channel with how far behind each one is, in such pages too."""
        page = await _listing(state).subscribers(
            _project(request),
            require_name(channel, field="channel"),
            limit=_page_size(limit),
            cursor=cursor,
        )
        return SubscriberPage(subscribers=page.items, cursor=page.cursor)

    @post(
        "/{channel:str}/messages",
        opt={"scope": Scope.WRITE},
        summary="Publish many messages",
        status_code=200,
        dto=ExactBody[NewMessages],
        return_dto=None,
    )
    async def publish(
        self,
        request: Request[Any, Any, Any],
        state: State,
        channel: FromPath[str],
        data: JSONBody[NewMessages],
    ) -> PublishedMessages:
        """Publishes a batch in its order: all of it in one step, or nothing.

        With a bounded backlog, the messages that found no room are told as `full`; 507 only when
        that is all of them.
        """
        messages: list[tuple[str, bytes]] = []
        for position, each in enumerate(data.messages):
            # The pattern of the document lets a closing newline through; this does not.
            require_name(each.id, field=f"messages[{position}].id")
            content = unshield(bytes(each.content))
            messages.append((each.id, content))
            if not is_json(content):
                check_depth(content, field=f"messages[{position}].content")
                raise InvalidInputError(
                    f"The content of message {each.id} is not JSON that can be kept.",
                    field=f"messages[{position}].content",
                )
        published = await _channels(state).publish_many(
            _project(request),
            require_name(channel, field="channel"),
            messages,
        )
        return PublishedMessages(
            messages=[
                PublishedMessage(
                    id=message.id,
                    outcome="full" if done.full else "duplicate" if done.duplicate else "accepted",
                    clock=None if done.full else done.clock,
                )
                for message, done in zip(data.messages, published, strict=True)
            ]
        )

    @post(
        "/{channel:str}/subscribers/{subscriber:str}/seek",
        opt={"scope": Scope.WRITE},
        summary="Move a subscriber",
        status_code=200,
        dto=ExactBody[Seek],
        return_dto=None,
    )
    async def seek(
        self,
        request: Request[Any, Any, Any],
        state: State,
        channel: FromPath[str],
        subscriber: FromPath[str],
        data: JSONBody[Seek],
    ) -> Sought:
        """Moves a subscriber forwards or backwards: to an end, a clock, or a time."""
        to, target = _target(data)
        return await _channels(state).seek(
            _project(request),
            require_name(channel, field="channel"),
            require_name(subscriber, field="subscriber"),
            to,
            target,
        )


def _target(seek: Seek) -> tuple[SeekTo, int]:
    """Return the kind of target of a seek, and the clock or the time."""
    if sum(each is not None for each in (seek.to, seek.clock, seek.time_ms)) != 1:
        raise InvalidInputError("Give one of to, clock and time_ms.")
    if seek.clock is not None:
        return "clock", seek.clock
    if seek.time_ms is not None:
        return "time", seek.time_ms
    assert seek.to is not None
    return seek.to, 0


def _page_size(limit: int) -> int:
    if not 1 <= limit <= _PAGE_MAX:
        raise InvalidInputError(f"limit must be between 1 and {_PAGE_MAX}.", field="limit")
    return limit


def _project(request: Request[Any, Any, Any]) -> str:
    access = request.scope["state"]["access"]
    assert isinstance(access, Access)
    return access.project


def _channels(state: State) -> ChannelService:
    channels: ChannelService = state["channels"]
    return channels


def _listing(state: State) -> ChannelQueries:
    listing: ChannelQueries = state["listing"]
    return listing
