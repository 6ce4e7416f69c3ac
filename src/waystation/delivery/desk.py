"""The desk of the operator: what waits, what failed and why, and the ways to set it going again.

It reads the store, so it tells about all processes; only breakers are those of this one. A project
sees its own lanes. Endpoints belong to the whole station: to enable one is for its operator.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import msgspec

from waystation.delivery import keys
from waystation.delivery.endpoint import Endpoint
from waystation.delivery.notices import Notice, latest_notices
from waystation.delivery.outbox import Outbox, endpoint_of
from waystation.delivery.records import AttemptRecord
from waystation.delivery.standing import Standing
from waystation.delivery.states import EndpointStates, Survey
from waystation.errors import InvalidInputError
from waystation.store.keys import DEFAULT_PROJECT

#: Lanes whose counts are asked for in one round trip.
_LANES_AT_ONCE = 500
#: Items that one call of a script moves.
_ITEMS_AT_ONCE = 1000


class EndpointRow(msgspec.Struct, kw_only=True):
    """An endpoint in a list."""

    #: Its name; with a digest of the URL behind it where the URL is a template.
    endpoint: str
    #: enabled, disabled, held (it said when to come again), or unknown: not in the settings.
    state: str
    #: Why and since when it is disabled; for how long it is held.
    cause: str = ""
    since_ms: int = 0
    held_ms: int = 0
    #: Of this process: closed, open, half open; empty when nothing was sent lately.
    breaker: str = ""
    #: Deliveries, over all channels of the project.
    waiting: int = 0
    failed: int = 0
    dropped: int = 0
    channels: int = 0


class FailedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery that was given up."""

    endpoint: str
    channel: str
    id: str
    cause: str
    attempts: int
    failed_ms: int


class AttemptRow(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of a delivery."""

    id: str
    attempt: int
    at_ms: int
    #: What followed: done, retry, failed, disable.
    verdict: str
    #: 0 without a reply; then `failure` says why.
    status: int
    failure: str
    seconds: float
    #: The beginning of the reply, as far as it is text.
    reply: str


@dataclass
class Selection:
    """Which lanes of a project; empty means any."""

    project: str
    endpoint: str = ""
    channel: str = ""


@dataclass
class _Found:
    lane: str
    channel: str
    counts: tuple[int, int, int] = field(default=(0, 0, 0))


def owner_of(target: str) -> str:
    """The project whose own an endpoint is; empty: it is the station's.

    Receivers of replies, `w.<project>.…`, are a project's. What has a colon is no such name: it is
    an address, `<host>:<digest>`, or one of several of an endpoint.
    """
    return "" if ":" in target else target.partition(".")[2].partition(".")[0]


class Desk:
    """Looks at lanes and endpoints, and changes them."""

    def __init__(
        self,
        outbox: Outbox,
        book: dict[str, Endpoint],
        standing: Callable[[str], Standing | None] = lambda _: None,
    ) -> None:
        self._outbox = outbox
        self._states = EndpointStates(outbox.store)
        self._book = book
        self._standing = standing

    async def endpoints(self, project: str) -> list[EndpointRow]:
        """All endpoints, with what waits and failed in a project."""
        survey = await self._states.survey()
        names = {name for name, each in self._book.items() if not each.varies}
        names |= {each for each in survey.disabled if self._is_shown(each, project)}
        rows = {name: self._row(name, survey) for name in names}
        async for found in self._lanes(Selection(project)):
            target = self._target(found.lane)
            row = rows.get(target)
            if row is None:
                row = rows[target] = self._row(target, survey)
            row.channels += 1
            row.waiting += found.counts[0]
            row.failed += found.counts[1]
            row.dropped += found.counts[2]
        return sorted(rows.values(), key=lambda row: row.endpoint)

    async def failed(
        self, selection: Selection, *, limit: int, cursor: str = ""
    ) -> tuple[list[FailedRow], str]:
        """A page of failed deliveries, and the cursor of the next; empty after the last."""
        after, start = _place(cursor)
        rows: list[FailedRow] = []
        async for found in self._lanes(selection):
            if found.lane < after or not found.counts[1]:
                continue
            skip = start if found.lane == after else 0
            page = await self._outbox.failed(found.lane, start=skip, most=limit - len(rows))
            endpoint = self._target(found.lane)
            rows += [
                FailedRow(endpoint=endpoint, channel=found.channel, **msgspec.structs.asdict(each))
                for each in page
            ]
            if len(rows) >= limit:
                return rows, f"{skip + len(page)}~{found.lane}"
        return rows, ""

    async def attempts(self, selection: Selection, item_id: str = "") -> list[AttemptRow]:
        """The attempts that are kept of one delivery, or of all of a channel to an endpoint."""
        tag = keys.channel_tag(selection.project, selection.channel)
        lane = keys.outbox_lane(tag, selection.endpoint.partition(":")[0])
        return [attempt_row(each) for each in await self._outbox.records(lane, item_id=item_id)]

    async def redrive(self, selection: Selection, *, item_id: str = "") -> int:
        """Puts failed deliveries back, to be sent at once; returns how many."""
        redriven = 0
        async for found in self._lanes(selection):
            # As many as there were: what fails again meanwhile is not for this call.
            left = found.counts[1]
            while left > 0:
                most = min(left, _ITEMS_AT_ONCE)
                moved = await self._outbox.redrive(found.lane, item_id=item_id, most=most)
                redriven += moved
                left = left - moved if moved and not item_id else 0
        return redriven

    async def discard(
        self, selection: Selection, *, waiting: bool = False, item_id: str = ""
    ) -> int:
        """Forgets failed, or waiting, deliveries for good; returns how many."""
        discarded = 0
        async for found in self._lanes(selection):
            left = found.counts[0 if waiting else 1]
            while left > 0:
                gone = await self._outbox.discard(
                    found.lane, waiting=waiting, item_id=item_id, most=min(left, _ITEMS_AT_ONCE)
                )
                discarded += gone
                left = left - gone if gone and not item_id else 0
            # Nobody works on the lane of an endpoint that is not in the settings any more.
            registered = await self._outbox.registration(found.lane)
            await self._outbox.retire(found.lane, registered)
        return discarded

    async def enable(self, target: str) -> bool:
        """Sends to an endpoint again, now; false when it was neither disabled nor held back."""
        return await self._states.enable(target)

    async def notices(self, *, most: int) -> list[Notice]:
        """The newest notices, newest first."""
        return await latest_notices(self._outbox.store, most=most)

    # -- Lanes -------------------------------------------------------------------------------

    async def _lanes(self, selection: Selection) -> AsyncIterator[_Found]:
        """Lanes of a project in the order of their names, with their counts."""
        chosen = []
        for lane in sorted(await self._outbox.lanes()):
            place = keys.channel_of_lane(lane)
            if place is None or place[0] != selection.project:
                continue
            if selection.channel not in ("", place[1]):
                continue
            if selection.endpoint not in ("", endpoint_of(lane), self._target(lane)):
                continue
            chosen.append(_Found(lane, place[1]))
        for start in range(0, len(chosen), _LANES_AT_ONCE):
            part = chosen[start : start + _LANES_AT_ONCE]
            counts = await self._outbox.counts([each.lane for each in part])
            for found, numbers in zip(part, counts, strict=True):
                found.counts = numbers
                yield found

    def _is_shown(self, target: str, project: str) -> bool:
        """Whether a project gets to see that an endpoint is disabled."""
        if owner := owner_of(target):
            return owner == project
        # Addresses that subscriptions deliver to, of any project, are the operator's to see.
        return (
            ":" not in target
            or target.partition(":")[0] in self._book
            or project == DEFAULT_PROJECT
        )

    def _target(self, lane: str) -> str:
        name = endpoint_of(lane)
        endpoint = self._book.get(name)
        return (endpoint.target(lane) if endpoint else None) or name

    def _row(self, target: str, survey: Survey) -> EndpointRow:
        row = EndpointRow(endpoint=target, state="enabled")
        if target.partition(":")[0] not in self._book:
            row.state = "unknown"
        if held := survey.held_ms.get(target, 0):
            row.state, row.held_ms = "held", held
        if why := survey.disabled.get(target):
            row.state, row.cause, row.since_ms = "disabled", why.cause, why.at_ms
        standing = self._standing(target)
        row.breaker = standing.breaker.state.value if standing else ""
        return row


def _place(cursor: str) -> tuple[str, int]:
    """The lane that a page goes on in, and how many of it were shown."""
    if not cursor:
        return "", 0
    start, _, lane = cursor.partition("~")
    if not (start.isascii() and start.isdecimal() and len(start) < 10 and lane):
        raise InvalidInputError("The cursor is not one that we gave out.", field="cursor")
    return lane, int(start)


def attempt_row(record: AttemptRecord) -> AttemptRow:
    """An attempt as people are shown it."""
    return AttemptRow(
        id=record.id,
        attempt=record.attempt,
        at_ms=record.at_ms,
        verdict=record.verdict,
        status=record.status,
        failure=record.failure,
        seconds=round(record.seconds, 4),
        reply=record.excerpt.decode("utf-8", errors="replace"),
    )
