"""Lists over all shards of a subscription: groups that are not clean, and dead letters, by pages.

A cursor is a shard and a place in it. A page may have fewer than were asked for, even none: only
one without a cursor is the last. What changes meanwhile makes no page leave out what stays.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from waystation.errors import InvalidInputError
from waystation.subscriptions.definition import Subscription
from waystation.subscriptions.letters import (
    FailedMessage,
    ShownLetter,
    failed_message,
    shown_letter,
)
from waystation.subscriptions.looking import Looking
from waystation.subscriptions.looks import DeadQuery, GroupLook, GroupPage
from waystation.subscriptions.selecting import Selecting
from waystation.subscriptions.states import GroupState
from waystation.subscriptions.subscriptions import Subscriptions

#: Looks of one page: so it ends, and says where to go on.
_LOOKS_MAX = 20
_CURSOR = re.compile(r"(\d{1,4})\.([a-z0-9.]*)", re.ASCII)


class ShownGroup(msgspec.Struct, kw_only=True):
    """A group in a list."""

    group: str
    shard: int
    state: GroupState
    #: How many it has in retry, and among dead letters.
    retry: int
    dead: int
    #: Attempts of its head so far.
    tries: int
    #: The operation that redrives it; empty: none.
    operation: str


class GroupStanding(ShownGroup, kw_only=True):
    """A group at one moment."""

    #: When its head is due, and when it failed; 0 where it is not.
    due_ms: int
    failed_ms: int
    #: Whether its head is under way.
    under_way: bool
    #: What all others of it wait for; None for a clean group.
    head: FailedMessage | None


class Groups(msgspec.Struct, kw_only=True):
    """A page of groups."""

    groups: list[ShownGroup]
    cursor: str


class DeadLetters(msgspec.Struct, kw_only=True):
    """A page of dead letters."""

    dead_letters: list[ShownLetter]
    cursor: str


class Listing:
    """Lists, and looks at single groups."""

    def __init__(
        self, subscriptions: Subscriptions, looking: Looking, selecting: Selecting
    ) -> None:
        self._subscriptions = subscriptions
        self._looking = looking
        self._selecting = selecting

    async def group(self, project: str, name: str, group: str) -> GroupStanding:
        """A group as it is; one that nothing waits of is clean."""
        subscription = await self._subscriptions.get(project, name)
        shard, look = await self._selecting.group(subscription, group)
        return _standing(group, shard, look, project)

    async def groups(
        self,
        project: str,
        name: str,
        *,
        state: GroupState | None = None,
        cursor: str = "",
        limit: int = 100,
    ) -> Groups:
        """Groups that are not clean; of one state if asked. A group may be told twice."""
        subscription = await self._subscriptions.get(project, name)
        shards = list(range(subscription.shards))
        shard, at = _place(cursor, shards)
        found: list[ShownGroup] = []
        for _ in range(_LOOKS_MAX):
            place = subscription.place(shard)
            page: GroupPage = await self._looking.groups(
                place, state=state, cursor=at, limit=limit - len(found)
            )
            found += (ShownGroup(shard=shard, **msgspec.structs.asdict(row)) for row in page.groups)
            shard, at = _next(shard, page.cursor, shards)
            if shard < 0 or len(found) >= limit:
                break
        return Groups(groups=found, cursor=_cursor(shard, at))

    async def dead_letters(
        self, project: str, name: str, query: DeadQuery, *, payload: bool = False
    ) -> DeadLetters:
        """Dead letters, shard after shard, the oldest failure first."""
        subscription = await self._subscriptions.get(project, name)
        shards = await self._shards_of(subscription, query.group)
        shard, at = _place(query.cursor, shards)
        found: list[ShownLetter] = []
        for _ in range(_LOOKS_MAX):
            asked = msgspec.structs.replace(query, cursor=at, limit=query.limit - len(found))
            page = await self._looking.dead_letters(subscription.place(shard), asked)
            found += (shown_letter(each, project, shard, payload=payload) for each in page.letters)
            shard, at = _next(shard, page.cursor, shards)
            # One page of a shard is as much as a reply should carry, where bodies are in it.
            if shard < 0 or len(found) >= query.limit or (payload and found):
                break
        return DeadLetters(dead_letters=found, cursor=_cursor(shard, at))

    async def _shards_of(self, subscription: Subscription, group: str) -> Sequence[int]:
        if not group:
            return range(subscription.shards)
        return sorted(await self._selecting.shards(subscription, group))


def _standing(group: str, shard: int, look: GroupLook, project: str) -> GroupStanding:
    return GroupStanding(
        group=group,
        shard=shard,
        state=look.state,
        retry=look.retry,
        dead=look.dead,
        tries=look.tries,
        operation=look.operation,
        due_ms=look.due_ms,
        failed_ms=look.failed_ms,
        under_way=look.taken,
        head=None if look.head is None else failed_message(look.head, project),
    )


def _place(cursor: str, shards: Sequence[int]) -> tuple[int, str]:
    if not cursor:
        return shards[0], ""
    found = _CURSOR.fullmatch(cursor)
    if found is None or int(found[1]) not in shards:
        raise InvalidInputError("The cursor is not one that we gave out.", field="cursor")
    return int(found[1]), found[2]


def _next(shard: int, at: str, shards: Sequence[int]) -> tuple[int, str]:
    """Where to go on; a shard below 0 is the end."""
    if at:
        return shard, at
    following = next((each for each in shards if each > shard), -1)
    return following, ""


def _cursor(shard: int, at: str) -> str:
    return "" if shard < 0 else f"{shard}.{at}"
