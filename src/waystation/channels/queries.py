"""Lists of channels and subscribers.

The store has no index of channels, because its keys equal those of DSPS. Therefore a query scans
the key space in bounded steps. A page has all items that its steps found: possibly more than
`limit`, or none. Only a page without a cursor is the last one. An item that exists during the whole
scan is listed, possibly twice. An item that is created or deleted during the scan can be missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from waystation.channels import keys
from waystation.channels.model import CLOCK_MAX, is_clock
from waystation.errors import StoreDamagedError, StoreReplyError
from waystation.store.client import Store
from waystation.store.scripts import script
from waystation.types.channel import Channel, Subscriber
from waystation.types.common import Page

#: Number of keys that one scan step reads.
_STEP_KEYS = 1000
_PAGE_STEPS_MAX = 20
_CLOCK_COUNT = 2 * CLOCK_MAX + 1
#: Largest distance between cursor and clock, equal to `UNREAD_MAX` in fetch.lua. A larger distance
#: means that the channel lost its clock and started again.
_LAG_MAX = 2**42


_FIND = script(__package__, "find")


class FoundMessages(msgspec.Struct, frozen=True):
    """Result of a search for messages of a channel."""

    #: Time of the store at the search, in ms since 1970.
    now_ms: int
    #: Clock of the channel; None if the channel does not exist.
    clock: int | None
    #: For each clock, whether the channel has its message.
    stored: list[bool]


async def find_messages(
    store: Store, project: str, channel: str, clocks: Sequence[int]
) -> FoundMessages:
    """Find out which messages a channel has, by their clocks."""
    tag = keys.channel_tag(project, channel)
    arguments = [keys.message_prefix(tag), *map(str, clocks)]
    now_ms, clock, *stored = await store.run(_FIND, [keys.clock(tag)], arguments)
    is_number = is_clock(clock)
    return FoundMessages(int(now_ms), int(clock) if is_number else None, list(map(bool, stored)))


class ChannelQueries:
    """Read-only queries over the channels of a project."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def channels(self, project: str, *, limit: int, cursor: str = "") -> Page[Channel]:
        """Return a page of channels."""
        prefix, suffix = keys.clock(keys.channel_tag(project, "\0")).split("\0")
        found, next_cursor = await self._scan(f"{prefix}*{suffix}", limit, cursor)
        # Filter the keys, because the pattern of the default project also matches
        # `<project>.<channel>` of other projects.
        own = [key for key in found if "." not in key[len(prefix) : -len(suffix)]]
        channels = [
            Channel(name=key[len(prefix) : -len(suffix)], clock=clock, expires_s=expires_s)
            for key, (clock, expires_s) in (await self._read_numbers(own)).items()
        ]
        return Page(sorted(channels, key=lambda channel: channel.name), next_cursor)

    async def subscribers(
        self, project: str, channel: str, *, limit: int, cursor: str = ""
    ) -> Page[Subscriber]:
        """Return a page of a channel's subscribers."""
        tag = keys.channel_tag(project, channel)
        prefix = keys.cursor(tag, "")
        # Do not escape the prefix, because names and braces have no special meaning for MATCH.
        found, next_cursor = await self._scan(f"{prefix}*", limit, cursor)
        clock_key = keys.clock(tag)
        numbers = await self._read_numbers([clock_key, *found])
        if clock_key not in numbers:
            # Return no subscribers: the channel has expired, and its cursors expire about now.
            return Page([], next_cursor)
        clock, _ = numbers.pop(clock_key)
        subscribers = [
            Subscriber(
                name=key[len(prefix) :], cursor=value, lag=_lag(value, clock), expires_s=expires_s
            )
            for key, (value, expires_s) in numbers.items()
        ]
        return Page(sorted(subscribers, key=lambda subscriber: subscriber.name), next_cursor)

    async def _scan(self, pattern: str, limit: int, cursor: str) -> tuple[list[str], str]:
        position = cursor or "0"
        found: dict[str, None] = {}
        for _ in range(_PAGE_STEPS_MAX):
            position, page = await self._store.scan(position, match=pattern, count=_STEP_KEYS)
            found.update(dict.fromkeys(key.decode() for key in page))
            if position == "0" or len(found) >= limit:
                break
        return list(found), "" if position == "0" else position

    async def _read_numbers(self, names: list[str]) -> dict[str, tuple[int, float]]:
        """Return the value and the remaining seconds of each key. Omit keys that have expired."""
        # Start all calls before awaiting one, so that they share a round trip.
        values = [self._store.call("GET", name, repeatable=True) for name in names]
        expiries_ms = [self._store.call("PTTL", name, repeatable=True) for name in names]
        replies = await asyncio.gather(*values, *expiries_ms, return_exceptions=True)
        numbers = {}
        for name, value, ms in zip(
            names, replies[: len(names)], replies[len(names) :], strict=True
        ):
            if isinstance(value, StoreReplyError):
                # GET failed, because the key is not a string.
                raise StoreDamagedError(key=name)
            if isinstance(value, BaseException):
                raise value
            if isinstance(ms, BaseException):
                raise ms
            if value is not None and not is_clock(value):
                raise StoreDamagedError(key=name)
            if value is not None and ms > 0:
                numbers[name] = (int(value), ms / 1000)
        return numbers


def _lag(cursor: int, clock: int) -> int:
    """Return the number of messages after a cursor, even if the clock has wrapped since."""
    distance = (clock - cursor) % _CLOCK_COUNT
    if distance <= _LAG_MAX:
        return distance
    return clock if 0 <= clock <= _LAG_MAX else 0
