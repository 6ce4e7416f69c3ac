"""Looking at channels: which there are, who subscribes, and how far behind each one is.

There is no index, since the keys are those of DSPS: a page is found by scanning the key space
in bounded steps, and no step holds the store up. So a page ends after the step in which it became
full: it may hold more than was asked for, or nothing; only one without a cursor is the last. What
is there all the time is listed, perhaps twice; what comes or goes meanwhile may be or not.
"""

from __future__ import annotations

import asyncio

import msgspec

from waystation.channels import keys
from waystation.store.client import Store

#: Keys that one step of a scan looks at, and the most steps of a page.
_STEP_KEYS = 1000
_PAGE_STEPS_MAX = 20
_CLOCK_RANGE = 2 * (2**53 - 1) + 1
#: A distance beyond this is no lag, but a clock that was lost and began again; as in `fetch.lua`.
_LAG_MAX = 2**42


class ChannelRow(msgspec.Struct, frozen=True, kw_only=True):
    """A channel in a list."""

    name: str
    #: Clock of its newest message.
    clock: int
    #: Seconds until it is forgotten, unless it is used.
    expires_s: float


class SubscriberRow(msgspec.Struct, frozen=True, kw_only=True):
    """A subscriber in a list."""

    name: str
    #: Clock of the last message that it has acknowledged.
    cursor: int
    #: Messages after that, those that have expired since included.
    lag: int
    #: Seconds until it is forgotten, unless it comes back.
    expires_s: float


class ChannelListing:
    """Lists channels and subscribers, page by page."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def channels(
        self, project: str, *, limit: int, cursor: str = ""
    ) -> tuple[list[ChannelRow], str]:
        """One page of channels, and the cursor of the next; empty after the last."""
        prefix, suffix = keys.clock(keys.channel_tag(project, "\0")).split("\0")
        names, following = await self._scan(f"{prefix}*{suffix}", limit, cursor)
        own = [name for name in names if "." not in name[len(prefix) : -len(suffix)]]
        rows = [
            ChannelRow(name=each[len(prefix) : -len(suffix)], clock=value, expires_s=left)
            for each, (value, left) in (await self._values(own)).items()
        ]
        return sorted(rows, key=lambda row: row.name), following

    async def subscribers(
        self, project: str, channel: str, *, limit: int, cursor: str = ""
    ) -> tuple[list[SubscriberRow], str]:
        """One page of a channel's subscribers, and the cursor of the next."""
        tag = keys.channel_tag(project, channel)
        prefix = keys.cursor(tag, "")
        # Braces have no meaning in patterns; names have no character that has one.
        names, following = await self._scan(f"{prefix}*", limit, cursor)
        clock_key = keys.clock(tag)
        values = await self._values([clock_key, *names])
        if clock_key not in values:
            # Without its clock a channel is not there, and cursors mean nothing.
            return [], following
        clock, _ = values.pop(clock_key)
        rows = [
            SubscriberRow(
                name=each[len(prefix) :], cursor=value, lag=_lag(value, clock), expires_s=left
            )
            for each, (value, left) in values.items()
        ]
        return sorted(rows, key=lambda row: row.name), following

    async def _scan(self, pattern: str, limit: int, cursor: str) -> tuple[list[str], str]:
        position = cursor or "0"
        found: dict[str, None] = {}
        for _ in range(_PAGE_STEPS_MAX):
            position, page = await self._store.scan(position, match=pattern, count=_STEP_KEYS)
            found.update(dict.fromkeys(name.decode() for name in page))
            if position == "0" or len(found) >= limit:
                break
        return list(found), "" if position == "0" else position

    async def _values(self, names: list[str]) -> dict[str, tuple[int, float]]:
        """Value and seconds left of each key, less those that have gone meanwhile."""
        # Begun together, so they share a round trip.
        values = [self._store.call("GET", name, repeatable=True) for name in names]
        times = [self._store.call("PTTL", name, repeatable=True) for name in names]
        replies = await asyncio.gather(*values, *times)
        found = zip(names, replies[: len(names)], replies[len(names) :], strict=True)
        return {
            name: (int(value), left / 1000) for name, value, left in found if value and left > 0
        }


def _lag(cursor: int, clock: int) -> int:
    """How many messages lie between a cursor and the clock, around the end of the range."""
    distance = (clock - cursor) % _CLOCK_RANGE
    if distance <= _LAG_MAX:
        return distance
    return clock if 0 <= clock <= _LAG_MAX else 0
