"""Looking at channels: which there are, who subscribes, and how far behind each one is.

There is no index, since the keys are those of seed 002: a page is found by scanning the key space
in bounded steps. Pages are as large as they come out; an empty page with a cursor is not the end.
"""

from __future__ import annotations

import asyncio

import msgspec

from waystation.errors import InvalidInputError
from waystation.store import Store, keys

#: Keys that one step of a scan looks at, and the most steps of a page.
_STEP_KEYS = 1000
_PAGE_STEPS_MAX = 20
_CLOCK_RANGE = 2 * (2**53 - 1) + 1


class ChannelRow(msgspec.Struct, frozen=True, kw_only=True):
    """A channel in a list."""

    name: str
    clock: int
    #: Seconds until it is forgotten, unless it is used.
    expires_s: float


class SubscriberRow(msgspec.Struct, frozen=True, kw_only=True):
    """A subscriber in a list."""

    name: str
    cursor: int
    #: Messages that it has not acknowledged.
    lag: int
    expires_s: float


class ChannelListing:
    """Lists channels and subscribers, page by page."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def channels(
        self, project: str, *, limit: int, cursor: str = ""
    ) -> tuple[list[ChannelRow], str]:
        """One page of channels, and the cursor of the next; empty after the last."""
        prefix, suffix = keys.channel_clock(keys.channel_tag(project, "\0")).split("\0")
        names, following = await self._scan(f"{prefix}*{suffix}", limit, cursor)
        own = [name for name in names if "." not in name[len(prefix) : -len(suffix)]]
        values = await self._values(own)
        rows = [
            ChannelRow(name=each[len(prefix) : -len(suffix)], clock=value, expires_s=left)
            for each, (value, left) in zip(own, values, strict=True)
            if left > 0
        ]
        return sorted(rows, key=lambda row: row.name), following

    async def subscribers(
        self, project: str, channel: str, *, limit: int, cursor: str = ""
    ) -> tuple[list[SubscriberRow], str]:
        """One page of a channel's subscribers, and the cursor of the next."""
        tag = keys.channel_tag(project, channel)
        prefix = keys.channel_cursor(tag, "")
        # Braces have no meaning in patterns; names have no character that has one.
        names, following = await self._scan(f"{prefix}*", limit, cursor)
        clock, *values = await self._values([keys.channel_clock(tag), *names])
        rows = [
            SubscriberRow(
                name=each[len(prefix) :],
                cursor=value,
                lag=(clock[0] - value) % _CLOCK_RANGE,
                expires_s=left,
            )
            for each, (value, left) in zip(names, values, strict=True)
            if left > 0
        ]
        return sorted(rows, key=lambda row: row.name), following

    async def _scan(self, pattern: str, limit: int, cursor: str) -> tuple[list[str], str]:
        position = cursor or "0"
        if not position.isdigit() or len(position) > 20:
            raise InvalidInputError("The cursor is not one of ours.", field="cursor")
        found: dict[str, None] = {}
        for _ in range(_PAGE_STEPS_MAX):
            reply = await self._store.call(
                "SCAN", position, "MATCH", pattern, "COUNT", _STEP_KEYS, repeatable=True
            )
            position = reply[0].decode()
            found.update(dict.fromkeys(name.decode() for name in reply[1]))
            if position == "0" or len(found) >= limit:
                break
        return list(found), "" if position == "0" else position

    async def _values(self, names: list[str]) -> list[tuple[int, float]]:
        """Value and seconds left of each key; (0, -1) for one that has gone meanwhile."""
        # Begun together, so they share a round trip.
        values = [self._store.call("GET", name, repeatable=True) for name in names]
        times = [self._store.call("PTTL", name, repeatable=True) for name in names]
        replies = await asyncio.gather(*values, *times)
        return [
            (int(value), left / 1000) if value is not None else (0, -1.0)
            for value, left in zip(replies[: len(names)], replies[len(names) :], strict=True)
        ]
